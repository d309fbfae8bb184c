"""`cuttlefish block new`, `build` and `inspect` of sources, as people use them."""

import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from cuttlefish.authoring.sources import LANGUAGE_NAMES, find_source
from cuttlefish.authoring.toolchains import guests_folder
from cuttlefish.errors import NotFound
from guests import scripted

COMMAND = [sys.executable, "-m", "cuttlefish"]
BLOCK = 'SIGNATURE = "{n: number} -> number"\n\ndef run(input):\n    yield emit("adding")\n    return input["n"] + 1\n'


def cuttlefish(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=300)


# Building


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the Python block `add-one`."""
    (tmp_path / "add-one").mkdir()
    (tmp_path / "add-one" / "add_one.py").write_text(BLOCK)
    return tmp_path


def test_a_source_becomes_a_module_that_runs_by_itself(folder: Path) -> None:
    built = cuttlefish(folder, "block", "build", "add-one")
    assert (built.returncode, built.stderr) == (0, "")
    module = folder / "add-one" / "add-one.wasm"
    assert built.stdout == f"add-one/add-one.wasm: {module.stat().st_size:,} bytes, {{n: number}} -> number\n"
    (folder / "add-one" / "add_one.py").unlink()
    done = cuttlefish(folder, "run", "add-one/add-one.wasm", "--input", "n:=3")
    assert json.loads(done.stdout)["result"] == 4


def test_the_output_may_be_a_file_or_a_folder(folder: Path) -> None:
    assert cuttlefish(folder, "block", "build", "add-one/add_one.py", "-o", "own.wasm").returncode == 0
    (folder / "out").mkdir()
    report = json.loads(cuttlefish(folder, "block", "build", "add-one", "-o", "out", "--json").stdout)
    assert (folder / "out" / "add-one.wasm").read_bytes() == (folder / "own.wasm").read_bytes()
    assert list(report) == ["source", "ok", "file", "size_bytes", "sha256", "signature"]
    assert (report["source"], report["file"]) == ("add-one/add_one.py", "out/add-one.wasm")
    assert [path.name for path in (folder / "add-one").iterdir()] == ["add_one.py"]


def test_a_source_that_does_not_build_is_told_with_its_line_and_leaves_the_older_module(folder: Path) -> None:
    (folder / "add-one" / "add-one.wasm").write_bytes(b"older")
    (folder / "add-one" / "add_one.py").write_text("def run(input):\n    return 1 +\n")
    done = cuttlefish(folder, "block", "build", "add-one")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'File "add_one.py", line 2' in done.stderr
    assert "SyntaxError" in done.stderr
    assert (folder / "add-one" / "add-one.wasm").read_bytes() == b"older"
    report = json.loads(cuttlefish(folder, "block", "build", "add-one", "--json").stdout)
    assert (report["ok"], report["error"]["code"]) == (False, "guest_error")
    tested = cuttlefish(folder, "block", "check", "add-one")
    assert (tested.returncode, tested.stdout.startswith("wrong    load         guest_error: Traceback")) == (1, True)


def test_what_a_compiler_says_is_shown(folder: Path) -> None:
    (folder / "own.c").write_text('#include "cuttlefish.h"\n\nint broken = ;\n')
    done = cuttlefish(folder, "block", "build", "own.c")
    first, *more = done.stderr.splitlines()
    assert done.returncode == 1
    assert first.startswith('cuttlefish: "own.c" does not compile (zig cc, exit code 1): own.c:3:')
    assert any("int broken = ;" in line for line in more)
    assert not list(folder.glob("*.wasm"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], 'there is no "nothing"; give a block\'s folder, its source or its .wasm file'),
        (["ad-one"], 'there is no "ad-one"; did you mean "add-one"?'),
        (["own.wasm"], '"own.wasm" is a module already; `cuttlefish block inspect own.wasm` shows what it is'),
        (["note.txt"], '"note.txt" is no block: one ends in .wasm, or in .c, .py, .rs, .ts, .zig'),
        (["two"], 'the folder "two" holds several that could be the block: a.py, b.c; name one of them'),
        (["bare"], 'there is no block in the folder "bare": neither a source nor a .wasm file'),
        (["add-one", "-o", "x.txt"], '--output "x.txt" must end in .wasm, or be a folder'),
    ],
    ids=["nothing there", "a near name", "a module", "a text", "several", "none", "a strange output"],
)
def test_what_cannot_be_built_is_one_line(folder: Path, words: list[str], message: str) -> None:
    (folder / "own.wasm").write_bytes(scripted({"cmd": "done", "result": 1}).wasm)
    (folder / "note.txt").write_text("")
    for name in ("two/a.py", "two/b.c", "bare/readme.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    done = cuttlefish(folder, "block", "build", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"cuttlefish: {message}\n")


def test_inspect_shows_what_a_source_becomes(folder: Path) -> None:
    facts = json.loads(cuttlefish(folder, "block", "inspect", "add-one", "--json").stdout)
    assert (facts["file"], facts["accepted"], facts["signature"]) == ("add-one/add_one.py", True, "{n: number} -> number")
    (folder / "add-one" / "add_one.py").write_text("import datetime\n")
    refused = cuttlefish(folder, "block", "inspect", "add-one", "--json")
    facts = json.loads(refused.stdout)
    assert (refused.returncode, facts["accepted"], facts["code"]) == (1, False, "guest_error")


def test_in_a_folder_the_source_named_like_it_counts_before_tests_others_and_modules(tmp_path: Path) -> None:
    folder = tmp_path / "my-own"
    folder.mkdir()
    for name in ("my_own.py", "helper.py", "test_my_own.py", "conftest.py", "my-own.wasm"):
        (folder / name).write_text("")
    assert find_source(folder).file.name == "my_own.py"
    (folder / "my_own.py").unlink()
    assert find_source(folder).file.name == "helper.py"
    (folder / "helper.py").unlink()
    found = find_source(folder)
    assert (found.file.name, found.name, found.is_module) == ("my-own.wasm", "my-own", True)
    (folder / "my-own.wasm").unlink()
    with pytest.raises(NotFound, match="there is no block in the folder"):
        find_source(folder)


def test_a_crate_is_found_by_its_folder_and_by_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "my-own"
    (folder / "src").mkdir(parents=True)
    for name in ("Cargo.toml", "src/lib.rs"):
        (folder / name).write_text("")
    by_folder, by_file = find_source(folder), find_source(folder / "src" / "lib.rs")
    assert by_folder == by_file
    assert (by_folder.name, by_folder.folder) == ("my-own", folder)


# New blocks


@pytest.mark.parametrize("language", [name for name in LANGUAGE_NAMES if (guests_folder() / name / "template").is_dir()])
def test_a_new_block_builds_and_passes_its_test_at_once(tmp_path: Path, language: str) -> None:
    made = cuttlefish(tmp_path, "block", "new", "own-words", "--lang", language)
    assert (made.returncode, made.stderr) == (0, "")
    *files, empty, following, test, build = made.stdout.splitlines()
    assert all((tmp_path / file).is_file() for file in files)
    assert (empty, following) == ("", "Next:")
    for path in (tmp_path / "own-words").rglob("*"):
        assert path.is_dir() or "my_block" not in f"{path} {path.read_text()}".replace("my-block", "my_block"), path
    assert test == "  cuttlefish block test own-words"
    built = cuttlefish(tmp_path, *build.split()[1:])
    assert (built.returncode, built.stderr) == (0, "")
    module = "own-words/own-words.wasm"  # built once: some compilers take a while
    tested = cuttlefish(tmp_path, "block", "test", module)
    assert (tested.returncode, tested.stderr) == (0, ""), tested.stdout
    checked = cuttlefish(tmp_path, "block", "check", module, "--json")
    assert {finding["verdict"] for finding in json.loads(checked.stdout)["findings"]} == {"well"}, checked.stdout


def test_a_new_block_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    assert cuttlefish(tmp_path, "block", "new", "own").returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "own").rglob("*") if path.is_file()}
    done = cuttlefish(tmp_path, "block", "new", "own")
    message = 'cuttlefish: "own" is there already; take another name, or another place with --dir\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert {path: path.read_bytes() for path in (tmp_path / "own").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("MyBlock", "my-block"),
        ("word_count", "word-count"),
        ("../x", "x"),
        ("3 words", "count-words"),
        ("", "count-words"),
        ("-a", "a"),
        ("a" * 70, "a" * 60),
    ],
)
def test_a_name_that_cannot_be_one_gets_a_better_one(tmp_path: Path, name: str, better: str) -> None:
    done = cuttlefish(tmp_path, "block", "new", *(["--", name] if name.startswith("-") else [name]))
    message = (
        f'cuttlefish: "{name}" cannot be a block\'s name: it is words of a to z and digits with "-" between, such as {better}\n'
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cuttlefish(tmp_path, "block", "new", "own", "--dir", "file")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "cuttlefish: file/own: not a directory\n")


def test_a_full_disk_leaves_no_half_block_and_no_half_module(folder: Path) -> None:
    def cuttlefish_with_no_room(*words: str) -> subprocess.CompletedProcess[str]:
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4096, 4096))  # no file can become larger
        return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=300, preexec_fn=limit)

    made = cuttlefish_with_no_room("block", "new", "own", "--lang", "c")
    assert (made.returncode, made.stderr) == (1, "cuttlefish: own: file too large\n")
    built = cuttlefish_with_no_room("block", "build", "add-one")
    assert built.returncode == 1
    assert built.stderr.endswith("add-one/add-one.wasm: file too large\n")
    assert sorted(path.name for path in folder.rglob("*")) == ["add-one", "add_one.py"]
