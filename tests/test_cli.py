"""The command line as people use it: real processes, their output and exit codes."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cuttlefish.cli import main
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
    "no command": ([], "cuttlefish: the following arguments are required: COMMAND (see cuttlefish --help)"),
    "unknown command": (
        ["rnu"],
        "cuttlefish: argument COMMAND: invalid choice: 'rnu' (choose from 'run', 'block', 'models') (see cuttlefish --help)",
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
    "inspecting nothing": (["block", "inspect", "absent.wasm"], 'cuttlefish: there is no block "absent.wasm"'),
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG_USE.values(), ids=WRONG_USE.keys())
def test_wrong_use_is_one_line_and_exit_code_two(
    block: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([str(block) if word == "BLOCK" else word for word in arguments]) == 2
    assert capsys.readouterr() == ("", sentence + "\n")


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
    monkeypatch.setattr("cuttlefish.host._grant", broken)
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


def test_help_is_there_for_every_command_and_imports_next_to_nothing() -> None:
    for arguments in ([], ["run"], ["block"], ["block", "inspect"], ["models"], ["models", "pull"], ["models", "list"]):
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


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert cuttlefish("--version").stdout.decode() == f"cuttlefish {version('cuttlefish')}\n"
