"""What docs/writing-blocks.md shows is run: its block, its tests and its case."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cuttlefish.authoring.conversations import read_conversation

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "writing-blocks.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def cuttlefish(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "cuttlefish", *words], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, and a case for its block."""
    (tmp_path / "word-count" / "cases").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "a.txt").write_text("one two\nthree")
    words = ["--input", "path=a.txt", "--read", ".", "--record", "word-count/cases/one.jsonl"]
    assert cuttlefish(tmp_path, "run", "word-count/word_count.py", *words).returncode == 0
    return tmp_path


def test_the_tests_of_the_page_pass_under_ordinary_python(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "word-count"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_the_block_of_the_page_passes_its_case_in_the_sandbox_and_is_well(folder: Path) -> None:
    assert cuttlefish(folder, "block", "test", "word-count").stdout == "passed     one\n1 case: 1 passed\n"
    report = json.loads(cuttlefish(folder, "block", "check", "word-count", "--json").stdout)
    assert {finding["verdict"] for finding in report["findings"]} == {"well"}


def test_the_case_of_the_page_is_one_that_the_block_of_that_name_passes(tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "page.jsonl").write_text(shown)
    assert read_conversation(tmp_path / "cases" / "page.jsonl").is_over
    (tmp_path / "word-count.wasm").write_bytes((ROOT / "blocks" / "word-count" / "word-count.wasm").read_bytes())
    assert cuttlefish(tmp_path, "block", "test", ".").returncode == 0
