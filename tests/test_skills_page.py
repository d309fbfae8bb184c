"""What docs/skills.md shows is run: its files are written out, its commands typed, its programs started."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cuttlefish.mcp.describe import describe_availability
from cuttlefish.mcp.probes import Needs, probe_needs
from cuttlefish.pipeline.forms import FamilyForm, InputField
from cuttlefish.pipeline.rules import RULE_WORDS

PAGE = (Path(__file__).parent.parent / "docs" / "skills.md").read_text()
FILES = dict(re.findall(r"^```(?:toml|python)\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^```console\n\$ ([^\n]+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, and the letter that they read."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(f"# {name}\n{text}")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("Dear all,\n\nthe dog is well.\n")
    return tmp_path


def start(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    return re.sub(r'"duration_ms": \d+', '"duration_ms": 1', done.stdout) + done.stderr


def test_each_command_gives_what_the_page_shows(folder: Path) -> None:
    assert len(COMMANDS) == 2
    for line, output in COMMANDS:
        assert start(folder, "-m", "cuttlefish", *shlex.split(line)[1:]) == output


def test_the_rules_of_the_second_pipeline_do_what_is_said(folder: Path) -> None:
    run = ("-m", "cuttlefish", "run", "gather.toml", "--input")
    assert '"message": "give at least one item, or a title"' in start(folder, *run, '{"items": []}')
    assert '"message": "this may not be: items[*] is one of \\"\\""' in start(folder, *run, '{"items": [""]}')
    assert '"status": "completed"' in start(folder, *run, '{"items": [], "title": "T"}')


def test_the_program_of_the_page_runs_its_python_skill(folder: Path) -> None:
    told = start(folder, "use.py")
    assert told == "['there is no argument acount; did you mean \"account\"?', 'account is missing']\ncompleted 132.55\n"


def test_the_custom_rule_of_the_page_runs() -> None:
    (code,) = re.findall(r"^```python\n(def iban.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["iban"]({"account": "x"}) == "account must be an IBAN of 22 characters, found 1"  # type: ignore[operator]


async def test_the_line_about_a_missing_model_is_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTTLEFISH_MODELS", str(tmp_path))
    assert f"    {describe_availability(await probe_needs(Needs(models=('llama-cpp:smollm2',))))}\n" in PAGE


def test_the_page_has_every_rule_and_every_key() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    for word, form in RULE_WORDS.items():
        assert f"`{word}`" in rows
        for key in form.model_fields.keys() - {"rule", "message", "check"}:
            assert f"`{key}`" in rows, key
    for key in InputField.model_fields:
        assert f"| `{key}` |" in rows, key
    for key in FamilyForm.model_fields.keys() - {"description"}:
        assert f"`{key}`" in PAGE.partition("## Families")[2].partition("## ")[0], key
