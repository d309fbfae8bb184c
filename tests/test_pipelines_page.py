"""What docs/pipelines.md shows is run: its files are written out, its commands typed, its program started."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from flow_guests import passing

from cuttlefish.pipeline.spec import Node, Pipeline

PAGE = (Path(__file__).parent.parent / "docs" / "pipelines.md").read_text()
FILES = dict(re.findall(r"^```toml\n# (\S+\.toml)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
CONSOLES = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TYPED = [one for console in CONSOLES for one in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]]
COMMANDS = [(typed.partition("\n")[0], typed.partition("\n")[2]) for typed in TYPED]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, and what they need."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(f"# {name}\n{text}")
    (tmp_path / "letters").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "letters" / name).write_text("Dear all,\n\nthe dog is well.\n")
    (tmp_path / "letters" / "c.txt").write_bytes(b"\0\xff no text at all")
    (tmp_path / "polish.wasm").write_bytes(passing("{done: bool, text: text} -> {done: bool, text: text}").wasm)
    return tmp_path


def cuttlefish(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUTTLEFISH_BLOCKS": str(folder / "catalogue")}
    command = [sys.executable, "-m", "cuttlefish", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_commands_that_show_an_output_give_it(folder: Path) -> None:
    shown = [(line, output) for line, output in COMMANDS if output]
    assert len(shown) == 6
    for line, output in shown:
        done = cuttlefish(folder, *shlex.split(line)[1:])
        assert (done.stdout, done.stderr) == (output, "")
        assert done.returncode == (2 if "mistaken" in line else 0)


def run(folder: Path, line: str, *more: str) -> dict[str, object]:
    """Run a pipeline without its real model, which the page names."""
    done = cuttlefish(folder, *shlex.split(line)[1:], *more)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, object] = json.loads(done.stdout)["result"]
    return result


def test_the_commands_that_run_a_pipeline_do(folder: Path) -> None:
    digest, over, _ = (line for line, output in COMMANDS if not output)
    result = run(folder, digest, "--model", "stub:All is well.")
    assert list(result) == ["count", "both"]
    assert result["both"] == {
        "text": "A digest\n\nAll is well.\n\nletters/a.txt",
        "items": [{"path": "letters/a.txt", "summary": "All is well."}, "letters/a.txt"],
        "count": 2,
    }
    many = run(folder, over)
    assert list(many) == ["results", "failures", "succeeded", "failed"]
    assert (many["succeeded"], many["failed"]) == (2, 1)
    assert [item["item"] for item in many["results"]] == [0, 1]  # type: ignore[attr-defined]  # JSON
    assert list(many["failures"][0]) == ["item", "code", "message"]  # type: ignore[index]


def test_the_command_that_runs_a_job_for_each_file_writes_a_line_for_each(folder: Path) -> None:
    (line,) = (line for line, _ in COMMANDS if "--each" in line)
    command = line.replace("cuttlefish", f"{shlex.quote(sys.executable)} -m cuttlefish", 1)
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)
    ended = {told["path"]: told["status"] for told in map(json.loads, done.stdout.splitlines())}
    assert ended == {"letters/a.txt": "completed", "letters/b.txt": "completed", "letters/c.txt": "failed"}
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("label", "joined"),
    [
        ("invoice", ["letters/a.txt", "text"]),
        ("letter", ["text"]),
        ("advertisement", ["letters/a.txt"]),
    ],
)
def test_the_branches_of_the_page_go_where_it_says(folder: Path, label: str, joined: list[str]) -> None:
    result = run(folder, "cuttlefish run triage.toml --input path=letters/a.txt", "--model", f"stub:{label}")
    assert result["items"] == [{"path": "letters/a.txt", "summary": label}, *joined]


def test_the_loop_of_the_page_ends_with_an_error_after_its_rounds(folder: Path) -> None:
    """Its block gives back what it is given, so it is never done."""
    done = cuttlefish(folder, "run", "polish.toml", "--input", "text=rough")
    assert json.loads(done.stdout)["error"]["code"] == "limit_exceeded"


def test_the_program_of_the_page_runs(folder: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_the_page_has_every_key() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    for key in (*Pipeline.model_fields, *Node.model_fields):
        assert re.search(rf"[`\[. ]{key}[`\].]", rows) or key == "nodes", key
    assert "`[nodes.NAME]`" in rows
