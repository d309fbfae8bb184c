"""From a block's bytes to its first command: compiled anew, and from what was compiled before."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from benchmarks.guests import ECHO, ECHO_EXTISM, echo_event, scripted
from benchmarks.peers import BARE, EXTISM, OURS, Live, bare_guest, compiled, extism, extism_guest, our_guest
from benchmarks.report import Part, Row, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import interleave, times_of
from benchmarks.walk import BLOCK
from cuttlefish import BlockBytes, JobStatus, open_host

__all__ = ["measure"]

Open = Callable[[], AbstractContextManager[Live]]

DONE = scripted({"cmd": "done", "result": 1}, name="done.wasm")


def measure(scale: Scale) -> Part:
    """Start blocks in each way."""
    part = Part(
        "start",
        "From nothing until the first command is read and the guest closed again. Cold: from WebAssembly bytes; cuttlefish "
        "compiles in a process of its own, which can be killed, and writes the artefact to disk, the others compile in place. "
        "Cached: cuttlefish and bare wasmtime load the artefact from disk, Extism has its compiled plugin in memory. A whole job "
        "is from `Host.start` to the Envelope of a block that is done at once.",
        rows=[],
        targets=[],
    )
    word_count = BlockBytes(BLOCK.name, BLOCK.read_bytes())
    for block, value in ((ECHO, echo_event(64)), (word_count, b'{"path":"a"}')):
        cold: dict[str, Open] = {OURS: partial(_cold_ours, block), BARE: partial(bare_guest, block.wasm)}
        if block is ECHO and extism is not None:
            cold[EXTISM] = partial(extism_guest, ECHO_EXTISM)
        _race(part, f"cold, {block.name}", cold, value, scale.cold_starts)
        with compiled(block) as module:
            cached: dict[str, Open] = {OURS: partial(our_guest, module), BARE: partial(bare_guest, module)}
            if block is ECHO and extism is not None:
                cached[EXTISM] = partial(extism_guest, extism.CompiledPlugin(ECHO_EXTISM))
            ours = _race(part, f"cached, {block.name}", cached, value, scale.starts)
        part.targets.append(Target(f"first command of {block.name}, cached", 1.0, 1e3 * ours, unit="ms"))
    part.rows.append(trio.run(_whole_jobs, scale.starts))
    return part


@contextmanager
def _cold_ours(block: BlockBytes) -> Iterator[Live]:
    with compiled(block) as module, our_guest(module) as guest:
        yield guest


def _race(part: Part, case: str, contestants: Mapping[str, Open], value: bytes, rounds: int) -> float:
    """Add the rows; return our median in seconds."""
    first = {name: _first_command(opened, value) for name, opened in contestants.items()}
    if len(set(first.values())) != 1:
        raise AssertionError(f"{case}: the first commands differ: {first}")
    part.same_output[:] = dict.fromkeys([*part.same_output, *first])
    times = interleave({name: partial(_first_command, opened, value) for name, opened in contestants.items()}, rounds)
    part.rows.extend(timed(case, times))
    return times[OURS].median


def _first_command(opened: Open, value: bytes) -> bytes:
    with opened() as guest:
        command = guest.init(value)
        guest.read(command)
        return command


async def _whole_jobs(count: int) -> Row:
    seconds = []
    with TemporaryDirectory() as folder:
        async with open_host(cache_dir=Path(folder)) as host:
            await host.run(DONE, {})  # compiles
            for _ in range(count):
                began = time.perf_counter()
                envelope = await host.run(DONE, {})
                seconds.append(time.perf_counter() - began)
                assert envelope.status is JobStatus.COMPLETED, envelope
    return timed("cached, a whole job", {OURS: times_of(seconds)})[0]
