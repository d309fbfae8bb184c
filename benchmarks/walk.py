"""Walking a large text through a compiled block: what the host costs when it has real work to do."""

import codecs
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from benchmarks.child import measure_in_child
from benchmarks.memory import MIB, private_dirty_bytes
from benchmarks.peers import BARE, FLOOR, OURS, Call, Live, compiled, live_guests
from benchmarks.report import Part, Row, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import interleave
from cuttlefish import BlockBytes, Host, open_host
from cuttlefish_abi import Event, Opened, Sliced, TextKind, encode_event

__all__ = ["grown_while_walking", "measure"]

BLOCK = Path(__file__).resolve().parent.parent / "blocks" / "word-count" / "word-count.wasm"
WINDOW = 64 << 10

Encode = Callable[[Event], bytes]


def measure(scale: Scale) -> Part:
    """Count the words of one file in each way."""
    part = Part(
        "walk",
        f"The block word-count reads a text of {scale.walk_bytes / 1e6:,.0f} MB (words, lines, some letters of two and three "
        "bytes) in windows of 64 KiB. cuttlefish is a whole job, with opening and closing the host: grant, sniff, loop, Envelope. "
        "The others are a loop written by hand around the same artefact, which trusts the block and the file: bare wasmtime with "
        "its public calls and `json`, the floor with the unchecked call and pydantic. Extism has no such block.",
        rows=[],
        targets=[],
    )
    block = BlockBytes(BLOCK.name, BLOCK.read_bytes())
    with TemporaryDirectory() as folder:
        text, wanted = write_text(Path(folder) / "text.txt", scale.walk_bytes)
        with compiled(block) as module:
            contestants = {
                OURS: partial(trio.run, _walk_in_host, text, Path(folder) / "cache"),
                BARE: partial(_walk_by_hand, module, BARE, text),
                FLOOR: partial(_walk_by_hand, module, FLOOR, text),
            }
            for name, contestant in contestants.items():
                if (found := contestant()) != wanted:
                    raise AssertionError(f"{name} counts {found}, and Python {wanted}")
                part.same_output.append(name)
            times = interleave(contestants, scale.walk_rounds)
    slices = -(-scale.walk_bytes // WINDOW)
    part.rows.extend(timed("whole file", times))
    part.rows.extend(Row("slices per second", peer, "1/s", slices / t.lowest, slices / t.median) for peer, t in times.items())
    for peer in (BARE, FLOOR):
        ratio = times[peer].lowest / times[OURS].lowest
        part.targets.append(Target(f"slices per second: cuttlefish / a loop by hand, {peer}", 0.8, ratio, at_least=True))
    growth = measure_in_child("walk", scale.walk_bytes)["bytes"]
    part.rows.append(Row("private memory, peak beyond that of a tenth", OURS, "bytes", growth))
    memory = "memory of host and guest: peak over the whole file, beyond the peak over a tenth of it"
    part.targets.append(Target(memory, 2.0, growth / MIB, unit="MiB"))
    return part


def write_text(path: Path, size: int) -> tuple[Path, dict[str, int]]:
    """A text of about `size` bytes, and what word-count must find in it."""
    dice = random.Random(7)
    words = ["".join(dice.choices("etaoinshrdlucmfwypéß日", k=dice.randint(1, 10))) for _ in range(3_000)]
    page = "".join(" ".join(dice.choices(words, k=12)) + "\n" for _ in range(8_000)).encode()
    data = (page * (size // len(page) + 1))[:size].decode("utf-8", "ignore").encode()
    path.write_bytes(data)
    return path, {"lines": data.count(b"\n"), "words": len(data.split()), "chars": len(data.decode())}


async def _walk_in_host(text: Path, cache: Path) -> dict[str, int]:
    async with open_host(cache_dir=cache) as host:
        return await _count(host, text)


async def _count(host: Host, text: Path) -> dict[str, int]:
    envelope = await host.run(BLOCK, {"path": text.name}, read=[text.parent], base_dir=text.parent)
    if envelope.error is not None:
        raise AssertionError(envelope.error.message)
    return _counts(envelope.result)


def _counts(result: Any) -> dict[str, int]:
    return {key: result[key] for key in ("lines", "words", "chars")}


def _walk_by_hand(module: Any, peer: str, text: Path) -> dict[str, int]:
    with live_guests(module, with_extism=False) as live:
        return _walk(live[peer], encode_event if peer == FLOOR else _encode_by_json, text)


def _walk(guest: Live, encode: Encode, text: Path) -> dict[str, int]:
    """The loop that anybody would write: init, then answer each command until `done`."""
    step: Call = guest.step
    with _opened(text) as fd:
        command = guest.read(guest.init(json.dumps({"path": text.name}).encode()))
        while True:
            match _field(command, "cmd"):
                case "open":
                    event: Event = Opened(handle=0, len=os.fstat(fd).st_size, kind=TextKind())
                case "slice":
                    offset = _field(command, "offset")
                    window, used = codecs.utf_8_decode(os.pread(fd, _field(command, "len"), offset), "strict", False)
                    event = Sliced(text=window, next_offset=offset + used)
                case "done":
                    return _counts(_field(command, "result"))
                case _:
                    command = guest.read(step(b'{"event":"emitted"}'))
                    continue
            command = guest.read(step(encode(event)))


def _field(command: Any, name: str) -> Any:
    return command[name] if isinstance(command, dict) else getattr(command, name)


def _encode_by_json(event: Event) -> bytes:
    return json.dumps(dict(event) | ({"kind": dict(event.kind)} if isinstance(event, Opened) else {}), ensure_ascii=False).encode()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def grown_while_walking(size: int) -> dict[str, float]:
    """For a child process: by how many bytes the peak of private memory over `size` bytes exceeds that over a tenth."""

    async def peak(host: Host, text: Path) -> int:
        job = host.start(BLOCK, {"path": text.name}, read=[text.parent], base_dir=text.parent)
        highest = 0
        async for _ in job:  # word-count emits every 64 windows, and the end is told too: the guest lives at most of them
            highest = max(highest, private_dirty_bytes())
        return highest

    async def main() -> float:
        with TemporaryDirectory() as folder:
            short, _ = write_text(Path(folder) / "short.txt", size // 10)
            long, _ = write_text(Path(folder) / "long.txt", size)
            async with open_host(cache_dir=Path(folder) / "cache") as host:
                before = max([await peak(host, short) for _ in range(3)])
                return await peak(host, long) - before

    return {"bytes": trio.run(main)}
