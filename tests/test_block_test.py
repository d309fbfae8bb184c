"""`cuttlefish block test` and `cuttlefish run --record` as people use them: real processes, their output and exit codes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guests import scripted

COMMAND = [sys.executable, "-m", "cuttlefish"]
OPEN = {"cmd": "open", "path": "a.txt"}
OPENED = {"event": "opened", "handle": 0, "len": 4, "kind": {"kind": "text"}}
DONE = {"cmd": "done", "result": 3}
CASE = [{"input": {}}, {"command": OPEN}, {"event": OPENED}, {"command": DONE}]


def cuttlefish(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=120)


def write_case(path: Path, *lines: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the block `own`, which has one case."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.wasm").write_bytes(scripted(OPEN, DONE).wasm)
    write_case(tmp_path / "own" / "cases" / "one.jsonl", *CASE)
    return tmp_path


def test_each_case_has_a_line_and_the_first_difference_its_place(folder: Path) -> None:
    write_case(folder / "own" / "cases" / "two.jsonl", *CASE[:3], {"command": DONE | {"result": 4}})
    (folder / "own" / "cases" / "three.jsonl").write_text('{"input": }\n')
    done = cuttlefish(folder, "block", "test", "own")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "passed     one\n"
        "malformed  three\n"
        "           own/cases/three.jsonl:1: not valid JSON at column 11: a value belongs here\n"
        "differs    two\n"
        "           own/cases/two.jsonl:4: command.result: expected 4, got 3\n"
        "3 cases: 1 passed, 1 malformed, 1 differs\n"
    )


@pytest.mark.parametrize("path", ["own", "own/", "own/own.wasm", "./own"])
def test_a_block_is_named_by_its_folder_or_its_file(folder: Path, path: str) -> None:
    done = cuttlefish(folder, "block", "test", path)
    assert (done.returncode, done.stdout) == (0, "passed     one\n1 case: 1 passed\n")


def test_the_report_is_json_for_programs(folder: Path) -> None:
    write_case(folder / "own" / "cases" / "two.jsonl", *CASE[:3], {"command": DONE | {"result": 4}})
    done = cuttlefish(folder, "block", "test", "own", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, list(report)) == (1, ["block", "ok", "sha256", "cases"])
    assert (report["block"], report["ok"]) == ("own", False)
    assert report["cases"][1] == {
        "file": "own/cases/two.jsonl",
        "outcome": "differs",
        "message": "command.result: expected 4, got 3",
        "line": 4,
        "difference": {"path": "command.result", "expected": "4", "found": "3", "diff": []},
    }


def test_an_update_makes_the_cases_pass(folder: Path) -> None:
    (folder / "own" / "own.wasm").write_bytes(scripted(OPEN, DONE | {"result": "more"}).wasm)
    assert cuttlefish(folder, "block", "test", "own").returncode == 1
    done = cuttlefish(folder, "block", "test", "own", "--update")
    assert (done.returncode, done.stdout) == (0, "updated    one\n1 case: 1 updated\n")
    assert cuttlefish(folder, "block", "test", "own").returncode == 0


def test_a_block_that_is_refused_is_one_line(folder: Path) -> None:
    (folder / "own" / "own.wasm").write_bytes(b"no block")
    done = cuttlefish(folder, "block", "test", "own")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == 'cuttlefish: "own.wasm" is not a block: it is no WebAssembly module\n'
    report = json.loads(cuttlefish(folder, "block", "test", "own", "--json").stdout)
    assert report["error"] == {"code": "unsupported", "message": '"own.wasm" is not a block: it is no WebAssembly module'}


WRONG_USE = {
    "nothing there": (["absent"], 'there is no "absent"; give a block\'s folder, its source or its .wasm file'),
    "no block in it": (["own/cases"], 'there is no block in the folder "own/cases": neither a source nor a .wasm file'),
    "no cases": (
        ["bare"],
        '"bare" has no cases: there is no bare/cases/NAME.jsonl. Write one (docs/writing-blocks.md shows how), '
        "or record one: cuttlefish run bare/bare.wasm --input … --record bare/cases/NAME.jsonl",
    ),
    "two at once": (
        ["own", "--watch", "--json"],
        "argument --json: not allowed with argument --watch (see cuttlefish block test --help)",
    ),
}


@pytest.mark.parametrize(("words", "message"), WRONG_USE.values(), ids=WRONG_USE)
def test_wrong_use_is_one_line_that_says_what_would_be_right(folder: Path, words: list[str], message: str) -> None:
    (folder / "bare").mkdir()
    (folder / "bare" / "bare.wasm").write_bytes(scripted(DONE).wasm)
    done = cuttlefish(folder, "block", "test", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"cuttlefish: {message}\n")


# Watching


@contextmanager
def watching(folder: Path, path: str) -> Iterator[subprocess.Popen[str]]:
    command = [*COMMAND, "block", "test", path, "--watch"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(100, process.kill)  # a reader below would wait for ever
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


def read_round(process: subprocess.Popen[str]) -> str:
    """What is written up to the next wait."""
    assert process.stdout is not None
    lines = ""
    while not lines.endswith("Ctrl-C ends\n"):
        line = process.stdout.readline()
        assert line, f"the watcher ended after {lines!r}"
        lines += line
    return lines


def test_watching_tests_again_when_a_file_changes_and_ends_with_ctrl_c(folder: Path) -> None:
    with watching(folder, "own") as process:
        assert read_round(process) == "passed     one\n1 case: 1 passed\nwaiting for changes; Ctrl-C ends\n"
        write_case(folder / "new.jsonl", *CASE[:3], {"command": DONE | {"result": 400}})
        (folder / "new.jsonl").replace(folder / "own" / "cases" / "one.jsonl")
        assert read_round(process) == (
            "\nown/cases/one.jsonl changed\n"
            "differs    one\n"
            "           own/cases/one.jsonl:4: command.result: expected 400, got 3\n"
            "1 case: 1 differs\n"
            "waiting for changes; Ctrl-C ends\n"
        )
        (folder / "new.wasm").write_bytes(scripted(OPEN, DONE | {"result": 400}).wasm)
        (folder / "new.wasm").replace(folder / "own" / "own.wasm")
        assert "passed     one\n" in read_round(process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        assert (process.returncode, output, errors) == (130, "", "")


def test_watching_outlives_a_block_that_is_gone_for_a_while(folder: Path) -> None:
    with watching(folder, "own") as process:
        read_round(process)
        (folder / "own" / "own.wasm").rename(folder / "aside")
        assert "own/own.wasm changed\n" in read_round(process)
        (folder / "aside").rename(folder / "own" / "own.wasm")
        assert "1 case: 1 passed\n" in read_round(process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        assert (process.returncode, output, errors) == (
            130,
            "",
            'cuttlefish: there is no block in the folder "own": neither a source nor a .wasm file\n',
        )


# Recording


def test_a_recorded_run_is_a_case_that_passes(folder: Path) -> None:
    (folder / "a.txt").write_text("abc\n")
    recorded = cuttlefish(folder, "run", "own/own.wasm", "--input", "{}", "--read", ".", "--record", "own/cases/new.jsonl")
    assert recorded.returncode == 0
    assert recorded.stderr == "cuttlefish: 4 lines are written to own/cases/new.jsonl; they hold what the block read\n"
    (folder / "a.txt").unlink()
    assert cuttlefish(folder, "block", "test", "own").stdout == "passed     new\npassed     one\n2 cases: 2 passed\n"


def test_the_folder_of_a_first_recording_is_made(folder: Path) -> None:
    (folder / "bare.wasm").write_bytes(scripted(DONE).wasm)
    assert cuttlefish(folder, "run", "bare.wasm", "--input", "{}", "--record", "cases/first.jsonl").returncode == 0
    assert cuttlefish(folder, "block", "test", "bare.wasm").stdout == "passed     first\n1 case: 1 passed\n"


def test_a_recording_never_holds_the_password_of_documents(folder: Path) -> None:
    (folder / "a.txt").write_text("abc\n")
    words = ["run", "own/own.wasm", "--input", "{}", "--read", ".", "--record", "r.jsonl", "--password-env", "OWN_SECRET"]
    environment = os.environ | {"OWN_SECRET": "xyzzy-open"}
    done = subprocess.run([*COMMAND, *words], cwd=folder, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0
    assert b"xyzzy-open" not in (folder / "r.jsonl").read_bytes()


def test_a_recording_of_a_failed_job_says_so(folder: Path) -> None:
    done = cuttlefish(folder, "run", "own/own.wasm", "--input", "{}", "--read", ".", "--record", "r.jsonl")
    assert done.returncode == 1
    assert done.stderr == ("cuttlefish: 2 lines are written to r.jsonl, up to where the job ended; they hold what the block read\n")
    (folder / "own" / "own.wasm").write_bytes(scripted(DONE, signature="{path: text} -> json").wasm)
    done = cuttlefish(folder, "run", "own/own.wasm", "--input", "3", "--record", "other.jsonl")
    assert done.stderr == 'cuttlefish: "other.jsonl" is not written: the job failed before the block said anything\n'
    assert not (folder / "other.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["flow.toml", "--record", "r.jsonl"],
            '--record writes down the run of one block; "flow.toml" is a pipeline: run one of its blocks by itself',
        ),
        (
            ["own/own.wasm", "--record", "no/such/r.jsonl"],
            '--record: "no/such/r.jsonl" cannot be written: no such file or directory',
        ),
        (["own/own.wasm", "--record", "own"], '--record: "own" is a folder; give a file in it, such as own/NAME.jsonl'),
    ],
    ids=["a pipeline", "no such folder", "a folder"],
)
def test_what_cannot_be_recorded_is_told_before_anything_runs(folder: Path, words: list[str], message: str) -> None:
    (folder / "flow.toml").write_text("")
    done = cuttlefish(folder, "run", *words, "--input", "{}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"cuttlefish: {message}\n")
