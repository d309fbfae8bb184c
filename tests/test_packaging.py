"""The built wheel, installed by itself into a clean environment, far from this checkout."""

import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from cuttlefish.authoring.toolchains import LANGUAGES

ROOT = Path(__file__).parent.parent
CLEAN = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], check=True, capture_output=True, timeout=600
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, check=True, env=CLEAN, cwd=folder, timeout=600)
    return folder


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"cuttlefish", "cuttlefish_abi"}
    for needed in ("cuttlefish/py.typed", "cuttlefish_abi/py.typed", "cuttlefish/media/document_worker.py"):
        assert needed in names


def test_every_block_that_ships_is_in_the_wheel_as_it_is_here(wheel: Path) -> None:
    blocks = {f"cuttlefish/builtin/{path.name}": path.read_bytes() for path in ROOT.glob("blocks/*/*.wasm")}
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name: archive.read(name) for name in archive.namelist() if name.endswith(".wasm")}
        interpreter = shipped.pop("cuttlefish/interpreters/python.wasm")
        licence = archive.read("cuttlefish/interpreters/LICENSE.micropython.txt")
    assert shipped == blocks
    assert hashlib.sha256(interpreter).hexdigest() in (ROOT / "abi/guests/python/python.wasm.sha256").read_text()
    assert b"The MIT License" in licence


def test_a_wheel_without_the_interpreter_of_python_blocks_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interface:  # of hatchling, which is only in the environments that `build` makes
        def __class_getitem__(cls, _: object) -> type:
            return cls

        def __init__(self, root: str) -> None:
            self.root = root

    interface = ModuleType("interface")
    interface.BuildHookInterface = Interface  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["ShipBlocks"](str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        hook.initialize("standard", {"force_include": {}})
    assert str(caught.value) == (
        "build/python-guest/python.wasm is missing, the interpreter of Python blocks, which a wheel carries. "
        "Run once, in this folder: scripts/prepare dev && scripts/build-python-guest"
    )
    hook.initialize("editable", {})


def test_a_python_block_runs_from_the_installed_wheel(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text("def run(input):\n    print('at it')\n    return input * 2\n")
    done = subprocess.run(
        [environment / "bin" / "cuttlefish", "run", "twice.py", "--input", "21"],
        capture_output=True,
        cwd=tmp_path,
        env=CLEAN,
        timeout=300,
    )
    assert done.stderr == b"twice.py: at it\n"
    assert json.loads(done.stdout)["result"] == 42


def test_sdks_and_templates_are_in_the_wheel_as_they_are_here(wheel: Path) -> None:
    wanted = {}
    for language in LANGUAGES.values():
        files = [*language.sdk.values(), *(file for file in language.template.rglob("*") if file.is_file())]
        wanted |= {f"cuttlefish/guests/{language.name}/{file.relative_to(language.folder)}": file.read_bytes() for file in files}
    with zipfile.ZipFile(wheel) as archive:
        assert {name: archive.read(name) for name in archive.namelist() if name in wanted} == wanted


def test_a_built_in_block_runs_by_its_name_from_the_installed_wheel(environment: Path, tmp_path: Path) -> None:
    """By itself, and as a node of a pipeline. No checkout is near."""
    (tmp_path / "a.txt").write_text("one two\nthree\n")
    (tmp_path / "count.toml").write_text('name = "count"\nblock = "word-count"\nread = ["."]\n')
    for words in (["word-count", "--read", "."], ["count.toml"]):
        done = subprocess.run(
            [environment / "bin" / "cuttlefish", "run", *words, "--input", "path=a.txt"],
            capture_output=True,
            cwd=tmp_path,
            env=CLEAN,
            timeout=300,
        )
        assert done.stderr == b""
        assert json.loads(done.stdout)["result"] == {"path": "a.txt", "lines": 2, "words": 3, "chars": 14}


def test_a_job_runs_from_the_installed_wheel(environment: Path, tmp_path: Path) -> None:
    """Text through a compiled block, and a PDF through a worker process: all that must be found at run time."""
    (tmp_path / "a.txt").write_text("one two\nthree\n")
    pdf = ROOT / "examples" / "night-sky-survey.pdf"
    (tmp_path / "a.pdf").write_bytes(pdf.read_bytes())
    program = environment / "bin" / "cuttlefish"
    blocks = {name: ROOT / "blocks" / name / f"{name}.wasm" for name in ("word-count", "summarize")}

    def run(block: str, file: str) -> dict[str, object]:
        done = subprocess.run(
            [program, "run", blocks[block], "--input", f"path={file}", "--read", ".", "--model", "stub:fine"],
            capture_output=True,
            cwd=tmp_path,
            env=CLEAN,
            timeout=300,
        )  # fmt: skip
        assert done.stderr == b""
        envelope: dict[str, object] = json.loads(done.stdout)
        assert envelope["status"] == "completed", envelope
        return envelope

    assert run("word-count", "a.txt")["result"] == {"path": "a.txt", "lines": 2, "words": 3, "chars": 14}
    assert run("summarize", "a.pdf")["result"] == {"path": "a.pdf", "summary": "fine"}


def test_without_the_engine_the_error_names_the_extra(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    block = ROOT / "blocks" / "summarize" / "summarize.wasm"
    done = subprocess.run(
        [environment / "bin" / "cuttlefish", "run", block, "--input", "path=a.txt", "--read", ".", "--model", "llama-cpp:m.gguf"],
        capture_output=True,
        cwd=tmp_path,
        env=CLEAN,
        timeout=300,
    )  # fmt: skip
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "model_load_failed"
    assert "pip install 'cuttlefish[local]'" in error["message"]


def test_the_tutorial_leads_from_the_wheel_to_a_passing_block_within_two_minutes(environment: Path, tmp_path: Path) -> None:
    """Its commands are typed one after the other, as a newcomer would, with nothing compiled before; installing has been done."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shell = CLEAN | {
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "CUTTLEFISH_CACHE": str(tmp_path / "cache"),
        "CUTTLEFISH_LOG_DIR": str(tmp_path / "log"),
    }
    folder = tmp_path / "home"
    folder.mkdir()
    began = time.monotonic()
    for number, console in enumerate(re.findall(r"^```console\n(.*?)^```", page, re.DOTALL | re.MULTILINE)):
        if number == 1:
            (folder / "longest-word" / "longest_word.py").write_text(block)
        for typed in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
            command, _, shown = typed.partition("\n")
            done = subprocess.run(command, shell=True, cwd=folder, env=shell, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert done.stdout.startswith(shown), (command, done.stdout)
    assert time.monotonic() - began < 120
    assert (folder / "longest-word" / "longest-word.wasm").is_file()
