"""Python blocks through the public face: a .py file in the place of a .wasm file. What is inside is in test_python_guest.py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from PIL import Image

import cuttlefish
from cuttlefish import CuttlefishError, Envelope, JobStatus, LogLine, open_host
from cuttlefish.engine import python_block
from cuttlefish.engine.guest import Guest
from cuttlefish.engine.module import BlockBytes
from cuttlefish.engine.python_block import PythonSource

ROOT = Path(__file__).parent.parent
COUNT = """
SIGNATURE = "{path: text} -> {path: text, words: number}"

def run(input):
    file = yield open(input["path"])
    words = offset = 0
    print("reading", input["path"])
    while offset < file.len:
        window = yield slice(file.handle, offset)
        words += len(window.text.split())
        offset = window.next_offset
        yield emit({"done": offset, "of": file.len})
    print("done:", words, "words")
    return {"path": input["path"], "words": words}
"""
ASK = """
seen = []

def run(input):
    reply = yield infer(input, 9)
    return {"seen": seen, "reason": reply.finish_reason}

def on_token(token):
    seen.append(token)
    return len(seen) < 2
"""
NOTHING = "def run(input):\n    return input\n"


def write(folder: Path, text: str, name: str = "block.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


async def run(block: Path | PythonSource, input: object = None, **options: Any) -> Envelope:
    async with open_host() as host:
        return await host.run(block, input, **options)


def error_of(envelope: Envelope) -> tuple[str, str]:
    assert envelope.error is not None, envelope
    return envelope.error.code, envelope.error.message


async def test_a_file_of_python_runs_as_a_block_and_what_it_prints_is_an_update(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\nthree")
    block = write(tmp_path, COUNT, "count.py")
    async with open_host() as host:
        job = host.start(block, {"path": "a.txt"}, read=[tmp_path], base_dir=tmp_path)
        lines = [(update.block, update.text) async for update in job if isinstance(update, LogLine)]
        envelope = await job.envelope()
        facts = await host.inspect(block)
    assert envelope.result == {"path": "a.txt", "words": 3}
    assert list(envelope.model_dump()["result"]) == ["path", "words"]
    assert lines == [("count.py", "reading a.txt"), ("count.py", "done: 3 words")]
    assert facts.signature.describe() == "{path: text} -> {path: text, words: number}"
    exports = {export.name for export in facts.module.shape.exports}
    assert exports == {"memory", "cf_alloc", "cf_init", "cf_step", "cf_signature", "cf_log"}


async def test_on_token_hears_the_reply_and_stops_it(tmp_path: Path) -> None:
    envelope = await run(write(tmp_path, ASK), "Why?", model="stub:one two three four five six seven")
    assert isinstance(envelope.result, dict)
    assert envelope.result["reason"] == "stopped_by_block"
    assert len(envelope.result["seen"]) >= 2


async def test_a_pipeline_takes_python_blocks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\nthree")
    write(tmp_path, COUNT, "count.py")
    write(tmp_path, "def run(input):\n    return input['words'] * 2", "twice.py")
    pipeline = write(
        tmp_path,
        'name = "p"\nread = ["."]\n[nodes.count]\nblock = "count.py"\n'
        '[nodes.twice]\nblock = "./twice.py"\ninput = { words = "count.out.words" }\n',
        "p.toml",
    )
    assert (await run(pipeline, {"path": "a.txt"})).result == 6


async def test_a_python_block_goes_through_the_frames_of_an_animation(tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (8, 4 + number), (80 * number, 0, 0)) for number in range(3)]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=[picture.resize((8, 4)) for picture in pictures[1:]])
    source = """
SIGNATURE = "{path: text} -> {frames: number, formats: [text], opened: text}"
def run(input):
    file = yield open(input["path"])
    shown = yield frame(file, 0)
    formats = [shown.format]
    for index in range(1, shown.frames):
        small = yield resize((yield frame(file, index)), 4, 4)
        formats.append(small.format)
    return {"frames": shown.frames, "formats": formats, "opened": file.format}
"""
    envelope = await run(write(tmp_path, source), {"path": "a.gif"}, read=[tmp_path], base_dir=tmp_path)
    assert envelope.result == {"frames": 3, "formats": ["png", "png", "png"], "opened": "gif"}
    past = source.replace("frame(file, 0)", "frame(file, 3)")
    code, message = error_of(await run(write(tmp_path, past), {"path": "a.gif"}, read=[tmp_path], base_dir=tmp_path))
    assert (code, message) == ("bad_command", 'image_op: frame 3 is past the end; "a.gif" has 3 frames (the first is 0)')


async def test_a_source_may_begin_with_the_mark_of_utf8_and_have_lines_of_windows() -> None:
    source = b'\xef\xbb\xbfdef run(input):\r\n    name = """\xc3\xa9\r\nb"""\r\n    return name\r\n'
    assert (await run(PythonSource("block.py", source))).result == "é\nb"


async def test_a_source_that_is_not_utf8_is_refused_with_its_line() -> None:
    source = b"# -*- coding: latin-1 -*-\ndef run(input):\n    return '\xe9'\n"
    code, message = error_of(await run(PythonSource("block.py", source)))
    assert code == "guest_error"
    assert message == '"block.py", line 3: the file is not UTF-8; save it as UTF-8 (whatever its coding comment says)'


async def test_the_input_is_checked_against_the_signature_before_the_block_runs(tmp_path: Path) -> None:
    code, message = error_of(await run(write(tmp_path, COUNT), {"path": 3}))
    assert code == "schema_validation_failed"
    assert message == 'the input does not fit what "block.py" takes, {path: text}: input.path must be text, found 3'


FAILURES = {
    "an exception": (
        "def run(input):\n    return 1 / 0\n",
        "guest_error",
        'Traceback (most recent call last):\n  File "block.py", line 2, in run\nZeroDivisionError: divide by zero',
    ),
    "fail": ("def run(input):\n    fail('no_luck', 'none at all')\n", "no_luck", "none at all"),
    "an iterator that is empty": (
        "def run(input):\n    first = next(iter([]))\n    yield emit(first)\n",
        "guest_error",
        'Traceback (most recent call last):\n  File "block.py", line 2, in run\nRuntimeError: generator raised StopIteration',
    ),
    "a coroutine": (
        "async def run(input):\n    return 5\n",
        "guest_error",
        'Traceback (most recent call last):\n  File "block.py", line 1\nSyntaxError: invalid syntax\n',
    ),
    "a command returned": (
        "def run(input):\n    return open('a')\n",
        "guest_error",
        "TypeError: run returned a command that was not yielded: write return (yield open(...))",
    ),
    "a command in the result": (
        "def run(input):\n    return {'file': open('a')}\n",
        "guest_error",
        "TypeError: what run returned holds a command that was not yielded: write answer = yield open(...)",
    ),
    "a generator in the result": (
        "def part():\n    yield emit(1)\ndef run(input):\n    return [part()]\n",
        "guest_error",
        "TypeError: what run returned holds a generator: call a function of yours that yields with yield from",
    ),
    "a generator yielded": (
        "def part():\n    yield emit(1)\ndef run(input):\n    yield part()\n",
        "guest_error",
        'Traceback (most recent call last):\n  File "block.py", line 4, in run\n'
        "TypeError: yield takes a command, found a generator: write yield from for a function of yours that yields",
    ),
    "a file that was not opened": (
        "def run(input):\n    file = open('a')\n    yield slice(file, 0)\n",
        "guest_error",
        'Traceback (most recent call last):\n  File "block.py", line 3, in run\n'
        "TypeError: handle must be a handle, found a command that was not yielded: write file = yield open(...)",
    ),
    "a file that is gone through by its lines": (
        "def run(input):\n    for line in open('a'):\n        pass\n",
        "guest_error",
        'Traceback (most recent call last):\n  File "block.py", line 2, in run\n'
        "AttributeError: a command has no '__getitem__'; it is only asked for: write answer = yield open(...)",
    ),
    "an exception at the top level": (
        "x = [][0]\n",
        "guest_error",
        'Traceback (most recent call last):\n  File "block.py", line 1, in <module>\nIndexError: list index out of range',
    ),
    "a type that is none": (
        'SIGNATURE = "{path: Text} -> json"\n' + NOTHING,
        "unsupported",
        '"block.py" has a signature that cannot be read: input: "Text" is no type; did you mean "text"?',
    ),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_what_goes_wrong_is_in_the_envelope(tmp_path: Path, what: str) -> None:
    source, code, message = FAILURES[what]
    found = error_of(await run(write(tmp_path, source)))
    assert found[0] == code
    assert found[1].startswith(message)


HOSTILE = {
    "an endless loop": ("def run(input):\n    while True: pass\n", "timeout"),
    "an endless loop at the top level": ("while True: pass\n", "timeout"),
    "an endless loop that catches everything": (
        "def run(input):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass\n",
        "timeout",
    ),
    "recursion": ("def run(input):\n    return run(input)\n", "guest_error"),
    "recursion in C": ("def run(input):\n    x = []\n    for i in range(100000): x = [x]\n    return repr(x)\n", "guest_error"),
    "a memory bomb": ("def run(input):\n    x = [0]\n    while True: x += x\n", "limit_exceeded"),
    "a memory bomb at the top level": ("x = []\nwhile True: x.append('a' * 1000000)\n", "limit_exceeded"),
    "a huge integer": ("def run(input):\n    return 7 ** (10 ** 9)\n", ("timeout", "limit_exceeded")),
    "a large integer as a result": ("def run(input):\n    return 7 ** 10000\n", "bad_command"),
    "yields that never end": ("def run(input):\n    while True: yield emit(1)\n", "limit_exceeded"),
    "yields of nothing": ("def run(input):\n    while True: yield\n", "guest_error"),
    "yields of junk, caught": (
        "def run(input):\n    while True:\n        try:\n            yield 5\n        except TypeError: pass\n",
        "timeout",
    ),
    "prints that never end": (
        "def run(input):\n    while True:\n        print('x' * 10000)\n        yield emit(1)\n",
        "limit_exceeded",
    ),
    "text that is not UTF-8": ("def run(input):\n    return chr(0xD800)\n", "guest_error"),
    "an unknown command": ("def run(input):\n    yield {'cmd': 'rm', 'path': '/'}\n", "bad_command"),
    "no source but bytes": ("\x00\x01\x02", "guest_error"),
    "brackets ten thousand deep": ("x = " + "(" * 10_000 + ")" * 10_000, ("guest_error", "wasm_trap", "limit_exceeded", "timeout")),
    "a file that does not end": ("#" * (2 << 20), "limit_exceeded"),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_hostile_python_ends_in_the_right_code_and_the_host_goes_on(tmp_path: Path, what: str) -> None:
    source, codes = HOSTILE[what]
    limits = {"guest.step_time": 1 if "timeout" in codes else 30, "guest.memory": "32MiB", "guest.commands": 500}
    async with open_host() as host:
        envelope = await host.run(write(tmp_path, source), None, limits=limits)
        assert (await host.run(PythonSource("well.py", NOTHING.encode()), [1, 2])).result == [1, 2]
    assert envelope.status is JobStatus.FAILED
    assert error_of(envelope)[0] in ((codes,) if isinstance(codes, str) else codes), envelope.error


async def test_cancelling_a_build_stops_the_authors_top_level(tmp_path: Path) -> None:
    async with open_host() as host:
        job = host.start(write(tmp_path, "while True: pass\n"), None)
        with trio.move_on_after(0.2):  # so that it is at it, mostly; the outcome is the same if it is not
            await job.envelope()
        job.cancel()
        with trio.fail_after(60):
            assert (await job.envelope()).status is JobStatus.CANCELLED


# Building


async def test_the_same_file_gives_the_same_bytes_wherever_and_whenever_it_is_built(tmp_path: Path) -> None:
    source = "names = {str(i): {i, 'x'} for i in range(50)}\nimport re, random\n" + COUNT + ASK.replace("def run", "def other")
    built = []
    for folder in ("one", "two"):
        path = write(tmp_path, source)
        async with open_host(cache_dir=tmp_path / folder) as host:
            built.append((await host.build(path)).wasm)
            assert (await host.build(PythonSource("block.py", source.encode()))).wasm == built[-1]  # from the cache
    program = f"""
import sys, trio, cuttlefish
async def main():
    async with cuttlefish.open_host(cache_dir={str(tmp_path / "three")!r}) as host:
        sys.stdout.buffer.write((await host.build({str(path)!r})).wasm)
trio.run(main)
"""
    built.append((await trio.run_process([sys.executable, "-c", program], capture_stdout=True)).stdout)
    assert built[0] == built[1] == built[2]


async def test_a_built_block_is_a_module_like_any_other(tmp_path: Path) -> None:
    async with open_host() as host:
        built = await host.build(write(tmp_path, ASK))
        envelope = await host.run(BlockBytes("ask.wasm", built.wasm), "Why?", model="stub:one two three")
    assert envelope.status is JobStatus.COMPLETED
    assert b"cf_load" not in built.wasm
    assert b"_initialize" not in built.wasm
    assert len(built.wasm) < 1 << 20


async def test_the_same_events_give_the_same_commands(tmp_path: Path) -> None:
    source = """
import random
def run(input):
    bag = {str(random.random()): random.randint(1, 9) for _ in range(20)}
    while True:
        yield emit({"bag": bag, "set": list({"a", "b", "c", 1.5})})
        bag[str(len(bag))] = random.random()
"""
    async with open_host() as host:
        module = (await host.inspect(write(tmp_path, source))).module

    def play() -> list[bytes]:
        guest = Guest(module, cuttlefish.Limits())
        try:
            guest.start()
            return [guest.init(b"null"), *(guest.step(b'{"event":"emitted"}') for _ in range(20))]
        finally:
            guest.close()

    first = play()
    assert play() == first
    assert len(set(first)) == 21


async def test_a_damaged_built_block_is_made_anew(tmp_path: Path) -> None:
    block = write(tmp_path, NOTHING)
    async with open_host(cache_dir=tmp_path) as host:
        built = await host.build(block)
        (kept,) = (tmp_path / "modules").glob("*.wasm")
        kept.write_bytes(kept.read_bytes()[:-1])
        assert await host.build(block) == built
        assert await host.build(block) == built


async def test_without_the_interpreter_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_block, "interpreter_path", lambda: tmp_path / "none.wasm")
    async with open_host() as host:
        with pytest.raises(CuttlefishError) as caught:
            await host.build(write(tmp_path, NOTHING))
    assert caught.value.code == "unsupported"
    assert caught.value.message == (
        '"block.py" is a Python block, and its interpreter is not there. In a checkout build it: scripts/prepare dev '
        "&& scripts/build-python-guest; "
        "an installed cuttlefish has it, so install it anew"
    )


def test_the_interpreter_is_the_one_whose_digest_is_committed_and_is_not_built_twice() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "build-python-guest"], capture_output=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_missing_compiler_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": str(tmp_path / "python")}
    command = [sys.executable, ROOT / "scripts" / "build-python-guest", "--stress", tmp_path / "out.wasm"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no package ziglang, which is the compiler. Run scripts/prepare dev" in done.stderr


# The command line


def cuttlefish_run(*words: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "cuttlefish", "run", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=300)


def test_the_command_line_runs_a_file_of_python_and_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\nthree")
    write(tmp_path, COUNT.replace('print("done:"', 'print("\\x1b[31mdone:"'), "count.py")
    done = cuttlefish_run("count.py", "--input", "path=a.txt", "--read", ".", folder=tmp_path)
    assert json.loads(done.stdout)["result"] == {"path": "a.txt", "words": 3}
    assert done.stderr.decode() == "count.py: reading a.txt\ncount.py: \\x1b[31mdone: 3 words\n"
    quiet = cuttlefish_run("count.py", "--input", "path=a.txt", "--read", ".", "--progress", "never", folder=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, b"")


def test_the_command_line_says_that_there_is_no_such_file(tmp_path: Path) -> None:
    done = cuttlefish_run("cuont.py", "--input", "1", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == 'cuttlefish: there is no block "cuont.py"\n'
