"""What the README shows is run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCK, *PROGRAMS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=["without an event loop", "with trio"])
def test_the_readmes_programs_run_as_printed(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.returncode == 0
    if "word-count" in program:
        words = len((ROOT / "examples" / "night-sky.txt").read_text().split())
        assert f"'words': {words}" in done.stdout
    else:
        assert "a short summary" in done.stdout
        assert done.stdout.endswith("completed\n")


def test_the_readmes_block_runs_as_printed(tmp_path: Path) -> None:
    (tmp_path / "first_line.py").write_text(BLOCK, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("one\ntwo\n", encoding="utf-8")
    (words,) = re.findall(r"`cuttlefish (run first_line.py .*?)`", TEXT)
    done = subprocess.run([sys.executable, "-m", "cuttlefish", *words.split()], cwd=tmp_path, capture_output=True, timeout=120)
    assert json.loads(done.stdout)["result"] == {"first_line": "one", "bytes": 8}


def test_the_readmes_error_is_the_one_that_people_get() -> None:
    shown = json.loads(re.findall(r'^```json\n({\n  "code".*?)^```', TEXT, re.DOTALL | re.MULTILINE)[0])
    block = ROOT / "blocks" / "word-count" / "word-count.wasm"
    done = subprocess.run(
        [sys.executable, "-m", "cuttlefish", "run", block, "--input", "path=/etc/hosts", "--read", "examples"],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
    )
    assert json.loads(done.stdout)["error"] == shown


def test_every_file_that_the_readme_and_the_docs_link_to_is_there() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("abi/**/*.md"), *ROOT.glob("blocks/*/*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"


def test_every_command_of_the_readme_is_one_that_exists() -> None:
    """The words after `cuttlefish` are asked for their help; what they would do is tested elsewhere."""
    commands = re.findall(r"^cuttlefish ((?:[a-z]+ )+)", TEXT, re.MULTILINE)
    assert len(commands) >= 3
    for words in commands:
        verbs = [word for word in words.split() if word in ("run", "block", "inspect", "models", "pull", "list")]
        done = subprocess.run([sys.executable, "-m", "cuttlefish", *verbs, "--help"], capture_output=True, timeout=60)
        assert done.returncode == 0


def test_the_scripts_that_the_readme_names_can_be_run() -> None:
    for script in re.findall(r"^(scripts/\w+)", TEXT, re.MULTILINE):
        assert os.access(ROOT / script, os.X_OK)
