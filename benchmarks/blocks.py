"""The block word-count in every language that blocks are written in: its size, its start, a step, and a large file."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from benchmarks.peers import compiled, our_guest
from benchmarks.report import Part, Row, timed
from benchmarks.scale import Scale
from benchmarks.timing import interleave, interleave_awaited
from cuttlefish import BlockBytes, open_host
from cuttlefish.authoring.toolchains import LANGUAGES, build
from cuttlefish.engine.module import CompiledModule
from cuttlefish_abi import Emitted, Opened, Sliced, TextKind, encode_event

__all__ = ["SOURCES", "TITLES", "awkward_text", "counts_of", "measure"]

ROOT = Path(__file__).resolve().parent.parent
GUESTS = ROOT / "abi" / "guests"

SOURCES: dict[str, Path] = {
    "zig": ROOT / "blocks" / "word-count" / "word_count.zig",
    "c": GUESTS / "c" / "examples" / "word_count.c",
    "rust": GUESTS / "rust" / "examples" / "word_count.rs",
    "assemblyscript": GUESTS / "assemblyscript" / "examples" / "word_count.ts",
    "python": GUESTS / "python" / "examples" / "word_count.py",
}
"""Where the word-count of each language is. All have the same conversations, as a test sees to."""

TITLES = {language.name: language.title for language in LANGUAGES.values()} | {"python": "Python"}


STEP_TEXT = "a few words to count, sixty-four bytes of them, and then no more"
assert len(STEP_TEXT) == 64
EMITTED = encode_event(Emitted())


def measure(scale: Scale, made: Mapping[str, BlockBytes] | None = None) -> Part:
    """Count the words of one file with the block of each language: those `made` before, by title, or else each compiled now."""
    part = Part(
        "languages",
        "The block word-count, written in each language with its SDK. Start: from the artefact on disk to the first command. Step: "
        "one event of 64 bytes of text in, one command out, with all checks. File: a whole job over "
        f"{scale.awkward_bytes / (1 << 20):.3g} MiB of mixed scripts, emoji, quotes, control characters and all kinds of white "
        "space; every language counts what CPython counts.",
        rows=[],
        targets=[],
    )
    blocks = dict(_blocks() if made is None else made)
    part.rows.extend(Row("module", title, "KB", len(block.wasm) / 1000) for title, block in blocks.items())
    with ExitStack() as stack:
        modules = {title: stack.enter_context(compiled(block)) for title, block in blocks.items()}
        part.rows.extend(timed("start", interleave({t: partial(_start, m) for t, m in modules.items()}, scale.starts)))
        steps = {title: stack.enter_context(_steps(module)) for title, module in modules.items()}
        part.rows.extend(timed("step", interleave(steps, scale.rounds, scale.step_calls)))
    part.rows.extend(trio.run(_count_files, blocks, scale, part.same_output))
    return part


def _blocks() -> Iterator[tuple[str, BlockBytes]]:
    for name, source in SOURCES.items():
        if name == "python":
            block = trio.run(_build_python, source)
        else:
            block = BlockBytes(f"word-count-{name}.wasm", trio.run(build, LANGUAGES[name], source))
        yield TITLES[name], block


async def _build_python(source: Path) -> BlockBytes:
    with TemporaryDirectory() as folder:
        async with open_host(cache_dir=Path(folder)) as host:
            return await host.build(source)


def _start(module: CompiledModule) -> None:
    with our_guest(module) as guest:
        guest.init(b'{"path":"a"}')


@contextmanager
def _steps(module: CompiledModule) -> Iterator[Callable[[], object]]:
    """A call that steps a guest once, through a text that does not come to its end."""
    with our_guest(module) as guest:
        guest.init(b'{"path":"a"}')
        guest.step(encode_event(Opened(handle=0, len=1 << 50, kind=TextKind())))
        offset = 0

        def step() -> bytes:
            nonlocal offset
            offset += len(STEP_TEXT)
            command = guest.step(encode_event(Sliced(text=STEP_TEXT, next_offset=offset)))
            return guest.step(EMITTED) if b'"emit"' in command else command  # one in 64

        yield step


async def _count_files(blocks: dict[str, BlockBytes], scale: Scale, same_output: list[str]) -> list[Row]:
    with TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        data = awkward_text(scale.awkward_bytes).encode()
        text.write_bytes(data)
        wanted = {"path": text.name, **counts_of(data)}
        async with open_host(cache_dir=Path(folder) / "cache") as host:

            async def count(title: str) -> None:
                envelope = await host.run(blocks[title], {"path": text.name}, read=[text.parent], base_dir=text.parent)
                if envelope.result != wanted:
                    raise AssertionError(f"{title} gives {envelope}, and Python {wanted}")

            times, _ = await interleave_awaited({title: partial(count, title) for title in blocks}, scale.walk_rounds)
    same_output.extend(blocks)
    rates = [Row("throughput", title, "MB/s", len(data) / 1e6 / t.lowest, len(data) / 1e6 / t.median) for title, t in times.items()]
    return [*timed("file", times), *rates]


def counts_of(data: bytes) -> dict[str, int]:
    """What CPython counts."""
    return {"lines": data.count(b"\n"), "words": len(data.split()), "chars": len(data.decode())}


def awkward_text(size: int) -> str:
    """A little more than `size` bytes: mixed scripts, white space of all kinds, quotes, controls, words longer than a window."""
    dice = random.Random(3)
    words = ["squid", "näh", "日本", "😀", '"', "\\", "\x01\x1f", "a\u00a0b", "\ufeff", "x" * 70_000, "don't", "—"]
    gaps = [" ", "\n", "\r\n", "\t", "\v", "\f", "  ", " \n ", "\x1c", "\u2028", "\x85"]
    parts, length = [], 0
    while length < size:
        part = dice.choices(words, weights=[9] * 9 + [0.01, 9, 9])[0] + dice.choice(gaps)
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)
