"""`cuttlefish run … --each`: one job for each file, as people use it: real processes, their lines and exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pipelines import Folder

from cuttlefish.cli import main
from guests import SPIN, scripted

COMMAND = [sys.executable, "-m", "cuttlefish", "run"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The current folder, with three texts and a file that is none."""
    monkeypatch.chdir(tmp_path)
    folder = Folder(tmp_path)
    for name in ("a", "b", "c"):
        folder.file(f"in/{name}.txt", f"{name} and more")
    folder.file("in/d.txt", b"\0\xff no text")
    folder.block("same", "json -> json")
    return folder


def run(*words: str) -> tuple[int, list[dict[str, object]], str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def test_each_file_has_a_line_and_a_failed_one_says_why_and_stops_no_other(folder: Folder) -> None:
    files = [f"in/{name}.txt" for name in "abcd"]
    code, lines, errors = run("word-count", "--each", *files, "--read", "in", "--progress", "always")
    assert code == 1
    assert sorted(str(line["path"]) for line in lines) == files
    for line in lines:
        if line["path"] == "in/d.txt":
            assert (line["status"], line["error"]["code"]) == ("failed", "unsupported_kind")  # type: ignore[index]  # JSON
        else:
            assert (line["status"], line["result"]["words"]) == ("completed", 3)  # type: ignore[index]  # JSON
    *_, last = told = errors.splitlines()
    assert last == "· 4 of 4 done, 1 failed" or last.startswith("· 4 of 4 done, 1 failed; in/d.txt failed, unsupported_kind: ")
    assert len(told) == 4


def test_each_job_is_given_the_rest_of_the_input_and_the_exit_code_is_zero_when_all_are_well(folder: Folder) -> None:
    folder.file("p.toml", 'name = "p"\nblock = "same.wasm"\n')
    for what in ("same.wasm", "p.toml"):
        code, lines, errors = run(what, "--each", "in/a.txt", "in/b.txt", "--input", "n:=3", "--jobs", "1")
        assert (code, errors) == (0, "")
        assert [line["result"] for line in lines] == [{"n": 3, "path": "in/a.txt"}, {"n": 3, "path": "in/b.txt"}]


def test_a_file_whose_name_is_no_text_is_told_like_any_that_fails(folder: Folder) -> None:
    code, (line,), _ = run("same.wasm", "--each", os.fsdecode(b"in/caf\xe9.txt"))
    assert code == 1
    assert line["path"] == "in/caf\udce9.txt"
    assert line["error"]["code"] == "schema_validation_failed"  # type: ignore[index]  # JSON


def test_ctrl_c_keeps_what_is_done_and_starts_nothing_more(folder: Folder) -> None:
    """The second file's block spins; the first is done by then, and the third never begins."""
    lines = ("print('at work')", "yield emit(1)", "while input['path'] == 'in/b.txt':", "    pass", "return input['path']")
    folder.file("a.py", "def run(input):\n" + "".join(f"    {line}\n" for line in lines))
    words = [*COMMAND, "a.py", "--each", "in/a.txt", "in/b.txt", "in/c.txt", "--jobs", "1", "--limit", "guest.step_time=100"]
    process = subprocess.Popen([*words, "--progress", "always"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    first = json.loads(process.stdout.readline())
    told = [process.stderr.readline().decode() for _ in range(3)]
    process.send_signal(signal.SIGINT)  # the second is at work now
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert first["result"] == "in/a.txt"
    assert told == ["in/a.txt: a.py: at work\n", "· 1 of 3 done\n", "in/b.txt: a.py: at work\n"]
    assert errors == b"cuttlefish: cancelled; 1 of 3 are done\n"


def test_a_reader_that_is_gone_ends_it_without_a_word(folder: Folder) -> None:
    folder.block("spin", scripted({"cmd": "done"}, init=SPIN))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "same.wasm", "--each", "in/a.txt", "in/b.txt"], stdout=writer, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_pipeline_that_is_wrong_is_told_once_and_nothing_runs(folder: Folder) -> None:
    folder.file("p.toml", 'name = "p"\nblock = "absent.wasm"\n')
    assert run("p.toml", "--each", "in/a.txt", "in/b.txt") == (2, [], 'p.toml:2: there is no block "absent.wasm" (not_found)\n')


WRONG_USE = {
    "no files": (["--each"], "argument --each: expected at least one argument (see cuttlefish run --help)"),
    "neither": ([], "the following arguments are required: --input or --each (see cuttlefish run --help)"),
    "no record": (["--each", "a", "--input", "[1]"], '--each gives each job its file as "path", so --input must be a record'),
    "a path twice": (["--each", "a", "--input", "path=b"], '--input gives "path", and so does --each'),
    "a recording": (["--each", "a", "--record", "x"], "--record is for one job, and --each runs one for each file"),
    "no jobs": (
        ["--each", "a", "--jobs", "0"],
        'argument --jobs: needs a whole number from 1 to 10000, found "0" (see cuttlefish run --help)',
    ),
}


@pytest.mark.parametrize(("words", "sentence"), WRONG_USE.values(), ids=WRONG_USE.keys())
def test_wrong_use_is_a_line(folder: Folder, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["run", "same.wasm", *words]) == 2
    assert capsys.readouterr() == ("", f"cuttlefish: {sentence}\n")
