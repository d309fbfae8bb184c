"""The command line as people use it: real processes, their output and exit codes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cuttlefish.cli import main
from cuttlefish.inference.registry import providers
from guests import SPIN, scripted

DONE = {"cmd": "done", "result": {"größe": 3}}
EMIT = {"cmd": "emit", "progress": {"stage": "reading", "done": 1, "of": 4}}
INFER = {"cmd": "infer", "prompt": "p", "max_tokens": 9}
COMMAND = [sys.executable, "-m", "cuttlefish"]


@pytest.fixture
def block(tmp_path: Path) -> Path:
    path = tmp_path / "block.wasm"
    path.write_bytes(scripted(EMIT, INFER, DONE, signature="{path: text} -> json").wasm)
    return path


def cuttlefish(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *map(str, arguments)], input=stdin, capture_output=True, timeout=120)


def test_run_writes_the_envelope_and_nothing_else(block: Path) -> None:
    done = cuttlefish("run", block, "--input", '{"path": "x"}', "--model", "stub:so it is")
    assert (done.returncode, done.stderr) == (0, b"")
    envelope = json.loads(done.stdout)
    assert list(envelope) == ["status", "result", "usage"]
    assert envelope["status"] == "completed"
    assert envelope["result"] == {"größe": 3}
    assert envelope["usage"]["tokens_out"] == 3
    assert "größe".encode() in done.stdout


@pytest.mark.parametrize(
    ("words", "stdin"),
    [(['{"path":"x"}'], b""), (["path=x"], b""), (['path:="x"'], b""), (["-"], b'{"path":"x"}'), (["path=a=b", "n:=3"], b"")],
    ids=["json", "a field", "a json field", "standard input", "two fields"],
)
def test_input_comes_in_three_forms(block: Path, words: list[str], stdin: bytes) -> None:
    assert cuttlefish("run", block, "--model", "stub:x", "--input", *words, stdin=stdin).returncode == 0


def test_a_failed_job_has_exit_code_one_and_its_envelope(block: Path) -> None:
    done = cuttlefish("run", block, "--input", "page=3")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == {
        "code": "schema_validation_failed",
        "message": 'the input does not fit what "block.wasm" takes, {path: text}: '
        "input.path is missing; it must be text (known: page)",
    }


WRONG_USE = {
    "unknown command": (
        ["rnu"],
        'cuttlefish: argument COMMAND: there is no "rnu"; did you mean "run"? (see cuttlefish --help)',
    ),
    "unknown choice": (
        ["block", "new", "x", "--lang", "cobol"],
        'cuttlefish: argument --lang: there is no "cobol"; known: python, zig, c, rust, assemblyscript '
        "(see cuttlefish block new --help)",
    ),
    "nothing before the options": (
        ["run", "--read", ".", "word-count", "--input", "a=b"],
        "cuttlefish: the following arguments are required: WHAT; WHAT stands before the options, of which some take all words "
        "up to the next one (see cuttlefish run --help)",
    ),
    "an input that is none": (
        ["run", "BLOCK", "--input", "notes.txt"],
        'cuttlefish: --input takes JSON, -, or NAME=TEXT and NAME:=JSON; found "notes.txt"',
    ),
    "an input that is no text": (
        ["run", "BLOCK", "--input", "path=caf\udce9"],
        'cuttlefish: --input "path" is no UTF-8 text: "caf\\udce9"; a file of such a name must be renamed',
    ),
    "unknown option": (
        ["run", "BLOCK", "--input", "a=b", "--modle", "x"],
        "cuttlefish: unknown argument --modle; did you mean --model? (see cuttlefish run --help)",
    ),
    "absent block": (["run", "absent.wasm", "--input", "a=b"], 'cuttlefish: there is no block "absent.wasm"'),
    "no json": (
        ["run", "BLOCK", "--input", "{path"],
        "cuttlefish: --input is not valid JSON at line 1 column 2: a key in double quotes belongs here",
    ),
    "no json in a field": (
        ["run", "BLOCK", "--input", "n:=x"],
        'cuttlefish: --input "n" is not valid JSON at line 1 column 1: a value belongs here',
    ),
    "field twice": (["run", "BLOCK", "--input", "a=1", "a=2"], 'cuttlefish: --input gives "a" twice'),
    "unknown limit": (
        ["run", "BLOCK", "--input", "a=b", "--limit", "guest.memroy=1"],
        'cuttlefish: --limit: there is no limit named "guest.memroy". Did you mean "guest.memory"?',
    ),
    "limit without a value": (
        ["run", "BLOCK", "--input", "a=b", "--limit", "guest.memory"],
        'cuttlefish: --limit takes NAME=VALUE, found "guest.memory"',
    ),
    "absent pipeline": (["run", "absent.toml", "--input", "a=b"], 'cuttlefish: there is no pipeline "absent.toml"'),
    "a name near a built-in": (
        ["run", "sumarize", "--input", "a=b"],
        'cuttlefish: there is no block "sumarize"; did you mean "summarize"? A file is written with its folder, .wasm or .py',
    ),
    "drawing a block's job": (
        ["run", "summarize", "--input", "a=b", "--graph"],
        'cuttlefish: --graph draws pipelines, and "summarize" is none',
    ),
    "two forms at once": (
        ["graph", "p.toml", "--svg", "--dot"],
        "cuttlefish: argument --dot: not allowed with argument --svg (see cuttlefish graph --help)",
    ),
    "checking nothing": (["check"], "cuttlefish: the following arguments are required: FILE (see cuttlefish check --help)"),
    "inspecting nothing": (
        ["block", "inspect", "absent.wasm"],
        'cuttlefish: there is no "absent.wasm"; give a block\'s folder, its source or its .wasm file',
    ),
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_USE.values(), ids=WRONG_USE.keys())
def test_wrong_use_is_one_line_and_exit_code_two(
    block: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([str(block) if word == "BLOCK" else word for word in arguments]) == 2
    assert capsys.readouterr() == ("", sentence + "\n")


def test_a_limit_of_the_environment_that_cannot_be_meant_is_wrong_use(
    block: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUTTLEFISH_LIMIT_GUEST_MEMORY", "much")
    assert main(["run", str(block), "--input", "path=x"]) == 2
    assert capsys.readouterr() == (
        "",
        'cuttlefish: the environment variable CUTTLEFISH_LIMIT_GUEST_MEMORY: guest.memory needs a number of bytes, found "much"\n',
    )


def test_without_a_command_the_help_is_shown_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("usage: cuttlefish [-h] [--version] COMMAND ...\n")


@pytest.mark.parametrize(
    ("closed", "code", "told"),
    [
        ("<&-", 2, b"cuttlefish: standard input is not valid JSON at line 1 column 1: a value belongs here\n"),
        (">&-", 2, b"cuttlefish: standard output is closed; send it to /dev/null if it is not wanted\n"),
        ("2>&-", 0, b""),
    ],
    ids=["input", "output", "error"],
)
def test_a_standard_stream_that_is_closed_is_no_bug(block: Path, closed: str, code: int, told: bytes) -> None:
    given = "-" if closed == "<&-" else "path=x"
    line = f'exec "$0" -m cuttlefish run "$1" --model stub:x --input {given} {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable, block], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (code, told)
    assert (done.stdout != b"") == (code == 0)


def test_a_path_of_any_letters_arrives_where_the_locale_is_none(tmp_path: Path) -> None:
    (tmp_path / "grüße.txt").write_text("two words")
    done = subprocess.run(
        [*COMMAND, "run", "word-count", "--read", tmp_path, "--input", f"path={tmp_path}/grüße.txt"],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=120,
    )
    assert json.loads(done.stdout)["result"]["words"] == 2


def test_what_the_command_line_says_of_limits_wins_over_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "b.wasm").write_bytes(scripted(EMIT, DONE).wasm)
    (tmp_path / "p.toml").write_text('name = "p"\nblock = "./b.wasm"\n[limits]\n"guest.commands" = 100\n')
    done = cuttlefish("run", tmp_path / "p.toml", "--input", "null", "--limit", "guest.commands=1")
    assert "guest.commands is 1;" in json.loads(done.stdout)["error"]["message"]


def test_progress_and_the_models_words_are_shown_on_a_terminal(block: Path) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "run", str(block), "--input", "path=x", "--model", "stub:so \x1b[2J it is"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=120,
    )
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert shown.splitlines() == ["· reading 1/4", "so \\x1b[2J it is"]
    assert json.loads(done.stdout)["status"] == "completed"


def test_the_first_ctrl_c_cancels_the_job_and_still_writes_the_envelope(tmp_path: Path) -> None:
    path = tmp_path / "block.wasm"
    path.write_bytes(scripted(EMIT, DONE, step=SPIN).wasm)
    process = subprocess.Popen(
        [*COMMAND, "run", str(path), "--input", "null", "--progress", "always"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "· reading 1/4\n".encode()  # from here on it spins
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    envelope = json.loads(out)
    assert (envelope["status"], envelope["error"]["code"]) == ("cancelled", "cancelled")
    assert envelope["usage"]["duration_ms"] > 0


def test_a_bug_of_ours_is_exit_code_seventy_and_leads_to_the_log(
    block: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setenv("CUTTLEFISH_LOG_DIR", str(tmp_path / "log"))
    monkeypatch.setattr("cuttlefish.jobs.execution._grant", broken)
    assert main(["run", str(block), "--input", "path=x"]) == 70
    out, err = capfdbinary.readouterr()
    assert json.loads(out)["error"]["code"] == "internal"
    assert err.decode() == f"cuttlefish: the log is {tmp_path / 'log' / 'cuttlefish.log'}\n"
    assert "ZeroDivisionError" in (tmp_path / "log" / "cuttlefish.log").read_text()


def test_a_reader_that_is_gone_is_no_traceback(block: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "run", str(block), "--input", "path=x", "--model", "stub:x"], stdout=writing, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_inspect_tells_what_an_accepted_block_is(block: Path) -> None:
    done = cuttlefish("block", "inspect", block, "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    assert facts["accepted"] is True
    assert facts["signature"] == "{path: text} -> json"
    assert facts["size_bytes"] == block.stat().st_size
    assert facts["exports"]["cf_step"] == "(i32, i32) -> i32"
    text = cuttlefish("block", "inspect", block).stdout.decode()
    assert "signature:     {path: text} -> json\n" in text
    assert "  cf_step        (i32, i32) -> i32\n" in text


def test_inspect_takes_the_name_of_a_block_that_comes_with_cuttlefish() -> None:
    shown = json.loads(cuttlefish("block", "inspect", "join", "--json").stdout)
    assert Path(shown["file"]).name == "join.wasm"
    assert shown["accepted"] is True


def test_inspect_tells_why_a_block_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.wasm"
    path.write_bytes(b"(module)")
    done = cuttlefish("block", "inspect", path)
    assert done.returncode == 1
    assert "accepted:      no\n" in done.stdout.decode()
    assert (
        'reason:        "x.wasm" is WebAssembly text; a block is its binary form: translate it with wat2wasm\n'
        in done.stdout.decode()
    )


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline in a folder below the current one, of real blocks; the names of its nodes are sorted against their order."""
    (tmp_path / "flows" / "notes").mkdir(parents=True)
    (tmp_path / "flows" / "b.wasm").write_bytes(scripted(INFER, DONE, signature="{path: text} -> {größe: number}").wasm)
    path = tmp_path / "flows" / "two.toml"
    path.write_text("""\
name = "two"
description = "Counts words, and asks."
model = "stub:so it is"
read = ["notes"]

[nodes.words]
block = "word-count"

[nodes.ask]
block = "b.wasm"
model = "stub:own words of it"
input = { path = "words.out.path" }
""")
    (tmp_path / "a.txt").write_text("one two\nthree\n")
    monkeypatch.chdir(tmp_path)
    return path


CHECKED = """\
flows/two.toml: well
  name       two
  takes      {path: text}
  gives      {größe: number}
  model      stub:so it is
  may read   notes
    1 words  word-count: {path: text} -> {chars: number, lines: number, path: text, words: number}
    2 ask    b.wasm: {path: text} -> {größe: number}; model stub:own words of it
"""


def test_check_shows_what_a_pipeline_takes_and_gives_and_runs_nothing(pipeline: Path) -> None:
    done = cuttlefish("check", "flows/two.toml")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, CHECKED, b"")


WRONG = """\
name = "wrong"
read = ["absent"]

[nodes.a]
block = "word-cuont"

[nodes.b]
block = "word-count"
input = "a.out"
on_error = "kep"
"""


def test_check_tells_every_problem_of_every_file_by_its_line(pipeline: Path) -> None:
    (pipeline.parent / "wrong.toml").write_text(WRONG.replace('on_error = "kep"\n', ""))
    done = cuttlefish("check", "flows/wrong.toml", "flows/two.toml", "absent.toml", "flows/b.wasm")
    assert done.returncode == 2
    wrong, well, *others = done.stdout.decode().split("\n\n")
    assert wrong.splitlines() == [
        'flows/wrong.toml:2: read grants "absent", which does not exist',
        'flows/wrong.toml:5: node "a": there is no block "word-cuont"; did you mean "word-count"? '
        "A file is written with its folder, .wasm or .py (not_found)",
    ]
    assert well + "\n" == CHECKED
    assert others == [
        "absent.toml: cannot be read: no such file or directory",
        "flows/b.wasm: is no pipeline: a pipeline's file is called NAME.toml\n",
    ]


def test_check_as_json_is_one_document(pipeline: Path) -> None:
    (pipeline.parent / "wrong.toml").write_text(WRONG)
    done = cuttlefish("check", "--json", "flows/two.toml", "flows/wrong.toml")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["ok"] is False
    well, wrong = report["files"]
    assert wrong == {
        "file": "flows/wrong.toml",
        "ok": False,
        "problems": wrong["problems"],
    }
    assert {"file", "line", "code", "message", "warning"} == set(wrong["problems"][0])
    assert (wrong["problems"][0]["line"], wrong["problems"][0]["warning"]) == (10, False)
    nodes = well.pop("nodes")
    assert well == {
        "file": "flows/two.toml",
        "ok": True,
        "problems": [],
        "name": "two",
        "description": "Counts words, and asks.",
        "input": "{path: text}",
        "optional": {},
        "rules": [],
        "result": "{größe: number}",
        "model": "stub:so it is",
        "data_policy": "local_only",
        "read": ["notes"],
    }
    assert [(node["name"], node["model"], node["after"]) for node in nodes] == [
        ("words", "stub:so it is", []),
        ("ask", "stub:own words of it", ["words"]),
    ]
    assert nodes[1]["output"] == "{größe: number}"


def test_warnings_alone_are_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("j.wasm").write_bytes(scripted(DONE).wasm)
    Path("w.toml").write_text('name = "w"\n[nodes.a]\nblock = "j.wasm"\n[nodes.b]\nblock = "j.wasm"\ninput = "a.out"\n')
    done = cuttlefish("check", "w.toml")
    assert done.returncode == 0
    warning, well, *_ = done.stdout.decode().splitlines()
    assert warning.startswith("w.toml:6: warning: ")
    assert well == "w.toml: well"
    drawn = cuttlefish("graph", "w.toml")
    assert (drawn.returncode, drawn.stderr.decode()) == (0, warning + "\n")


def test_a_pipeline_runs_with_paths_of_the_input_from_the_current_folder(pipeline: Path) -> None:
    """Its grants start at its file, so that the input's folder must be granted on the command line."""
    denied = cuttlefish("run", "flows/two.toml", "--input", "path=a.txt")
    assert denied.returncode == 1
    assert json.loads(denied.stdout)["error"]["code"] == "capability_denied"
    done = cuttlefish("run", "flows/two.toml", "--input", "path=a.txt", "--read", ".")
    assert (done.returncode, done.stderr) == (0, b"")
    envelope = json.loads(done.stdout)
    assert envelope["result"] == {"größe": 3}
    assert envelope["usage"]["tokens_out"] == 4, "the node's own model is asked"


def test_run_draws_the_pipeline_with_times_and_tokens_at_the_end(pipeline: Path) -> None:
    done = cuttlefish("run", "flows/two.toml", "--input", "path=a.txt", "--read", ".", "--graph")
    assert done.returncode == 0
    lines = re.sub(r"in [\d.]+ m?s", "in SOME TIME", done.stderr.decode())
    assert lines == (
        "two: {path: text} → {größe: number}\n"
        "input\n"
        "└─ {path: text} → words  [word-count, finished in SOME TIME]\n"
        "   └─ path: text → ask  [b.wasm, finished in SOME TIME, 1 → 4 tokens]\n"
        "      └─ {größe: number} → result\n"
    )
    failed = cuttlefish("run", "flows/two.toml", "--input", "path=a.txt", "--graph")
    assert failed.returncode == 1
    assert re.search(r"→ words  \[word-count, failed after .*\n.*→ ask  \[b.wasm, not run\]", failed.stderr.decode())
    (pipeline.parent / "wrong.toml").write_text(WRONG)
    wrong = cuttlefish("run", "flows/wrong.toml", "--input", "path=a.txt", "--graph")
    assert (wrong.returncode, wrong.stderr) == (1, b""), "the Envelope says what is wrong; there is nothing to draw"
    assert "flows/wrong.toml:10: " in json.loads(wrong.stdout)["error"]["message"]


def test_a_block_that_comes_with_cuttlefish_runs_by_its_name(pipeline: Path) -> None:
    done = cuttlefish("run", "word-count", "--input", "path=a.txt", "--read", ".")
    assert json.loads(done.stdout)["result"] == {"path": "a.txt", "lines": 2, "words": 3, "chars": 14}


def test_graph_writes_each_form_and_refuses_what_is_wrong(pipeline: Path) -> None:
    starts = {"": "two: {path: text} → ", "--text": "two: ", "--mermaid": "flowchart TD\n", "--dot": "digraph ", "--svg": "<svg "}
    for form, start in starts.items():
        done = cuttlefish("graph", "flows/two.toml", *form.split())
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode().startswith(start)
    (pipeline.parent / "wrong.toml").write_text(WRONG)
    done = cuttlefish("graph", "flows/wrong.toml", "--svg")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("flows/wrong.toml:10: ")


def test_what_is_drawn_is_utf8_in_any_locale_and_for_a_reader_that_is_gone(pipeline: Path) -> None:
    told = subprocess.run(
        [*COMMAND, "graph", "flows/two.toml"], capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, timeout=120
    )
    assert (told.returncode, told.stderr) == (0, b"")
    assert "└─ {größe: number} → result".encode() in told.stdout
    reading, writing = os.pipe()
    os.close(reading)
    for words in (["graph", "flows/two.toml"], ["check", "flows/two.toml"], ["block", "list"]):
        done = subprocess.run([*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, timeout=120)
        assert (done.returncode, done.stderr) == (1, b"")
    os.close(writing)


def test_help_is_there_for_every_command_and_imports_next_to_nothing() -> None:
    commands = ["", "run", "check", "graph", "block", "models", "models pull", "models list"]
    commands += [f"block {action}" for action in ("new", "build", "test", "check", "inspect", "add", "list", "show", "rm")]
    for arguments in map(str.split, commands):
        assert cuttlefish(*arguments, "--help").stdout.startswith(b"usage: cuttlefish")
    script = """
import sys
from cuttlefish.cli import main
try:
    main(["--help"])
except SystemExit:
    print(sorted({"trio", "pydantic", "wasmtime", "pypdfium2", "PIL", "platformdirs"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert done.stdout.endswith(b"[]\n")


def test_the_help_of_run_shows_the_form_and_the_extra_of_every_provider() -> None:
    shown = cuttlefish("run", "--help").stdout.decode()
    entries = re.split(r"\n  (?=\S)", shown.partition("\nmodels:")[2].partition("\n\n")[0])[1:]
    assert [entry.split("   ")[0] for entry in entries] == [provider.form for provider in providers()]
    for entry, provider in zip(entries, providers(), strict=True):
        assert (f"cuttlefish[{provider.extra}]" in entry) is (provider.extra is not None)
        assert ("[local]" in entry or "[http]" in entry) is (provider.extra is not None)


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert cuttlefish("--version").stdout.decode() == f"cuttlefish {version('cuttlefish')}\n"


@pytest.mark.usefixtures("models_folder")
def test_a_model_is_shown_with_its_licence_and_where_it_comes_from() -> None:
    shown = json.loads(cuttlefish("models", "show", "smollm2", "--json").stdout)
    assert shown["installed"] is True
    assert shown["licence"] == "Apache-2.0"
    assert Path(shown["licence_file"]).is_file()
    assert (shown["context_tokens"], len(shown["sha256"])) == (8192, 64)
    rows = json.loads(cuttlefish("models", "list", "--json").stdout)
    assert {row["name"] for row in rows} >= {"smollm2"}
    assert b"licence:        Apache-2.0\n" in cuttlefish("models", "show", "smollm2").stdout


def test_a_model_that_is_not_there_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTTLEFISH_MODELS", str(tmp_path))
    removed = cuttlefish("models", "rm", "smollm2")
    assert removed.returncode == 1
    assert removed.stderr.decode() == 'cuttlefish: model "smollm2" is not in the models folder, so there is nothing to remove\n'
    for action in ("show", "rm"):
        mistyped = cuttlefish("models", action, "smolm")
        assert mistyped.returncode == 2
        assert mistyped.stderr.decode() == 'cuttlefish: there is no model named "smolm". Did you mean "smollm2"?\n'
    pulled = cuttlefish("models", "pull", "smolm")
    assert pulled.stderr.decode() == 'cuttlefish: there is no model "smolm" to pull; there is: smollm2\n'
