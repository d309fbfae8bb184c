"""What is left of many jobs: private memory, descriptors, threads. Each contestant has a process to itself."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from benchmarks.child import measure_in_child
from benchmarks.guests import ECHO, ECHO_EXTISM, echo_event, scripted
from benchmarks.peers import BARE, EXTISM, OURS, bare_guest, compiled, extism, extism_guest
from benchmarks.report import Part, Row, Target
from benchmarks.scale import Scale
from cuttlefish import Host, JobStatus, open_host

__all__ = ["MIB", "left_by_bare_instances", "left_by_extism_plugins", "left_by_our_jobs", "measure", "private_dirty_bytes"]

MIB = 1 << 20
AT_ONCE = 4
DONE = scripted({"cmd": "emit", "progress": 1}, {"cmd": "done", "result": {"ok": True}}, name="done.wasm")


def measure(scale: Scale) -> Part:
    """Run many jobs, one after another on a few tasks, after a tenth of them to warm up."""
    jobs = scale.jobs
    part = Part(
        "memory",
        f"By how much private dirty memory (smaps_rollup) grew in {jobs:,} jobs, after {jobs // 10:,} to warm up, in a process of "
        "its own, the host still open. Descriptors and threads are those after closing the host beyond those before opening it. "
        "A job is a whole one: fresh guest, two commands, Envelope. For the others it is a fresh instance and one call.",
        rows=[],
        targets=[],
    )
    case = f"private memory after {jobs:,} jobs"
    left = measure_in_child("jobs", jobs)
    part.rows.append(Row(case, OURS, "bytes", left["bytes"]))
    part.rows.append(Row("descriptors left", OURS, "descriptors", left["descriptors"]))
    part.rows.append(Row("threads left", OURS, "threads", left["threads"]))
    part.rows.append(Row(case, BARE, "bytes", measure_in_child("bare", jobs)["bytes"]))
    if extism is not None:
        part.rows.append(Row(case, EXTISM, "bytes", measure_in_child("extism", jobs)["bytes"]))
    part.targets.append(Target(f"private memory after {jobs:,} jobs", 5.0, left["bytes"] / MIB, unit="MiB"))
    part.targets.append(Target("descriptors left", 0.0, left["descriptors"], unit="descriptors"))
    part.targets.append(Target("threads left", 0.0, left["threads"], unit="threads"))
    return part


def private_dirty_bytes() -> int:
    """Memory that is this process's alone and was written to. Mapped modules, which RSS counts again and again, are not in it."""
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) << 10
    raise AssertionError("smaps_rollup without Private_Dirty")


def left_by_our_jobs(jobs: int) -> dict[str, float]:
    """For a child process: what `jobs` jobs leave behind."""

    async def run_some(host: Host, count: int) -> None:
        for _ in range(count):
            envelope = await host.run(DONE, {})
            assert envelope.status is JobStatus.COMPLETED, envelope

    async def run_all(host: Host, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(run_some, host, count // AT_ONCE)

    async def main() -> float:
        with TemporaryDirectory() as folder:
            async with open_host(cache_dir=folder) as host:
                await run_all(host, max(AT_ONCE, jobs // 10))
                before = private_dirty_bytes()
                await run_all(host, jobs)
                return private_dirty_bytes() - before

    trio.run(trio.sleep, 0)  # Trio's own lasting descriptors
    descriptors, threads = _descriptors(), _threads()
    grown = trio.run(main)
    return {"bytes": grown, "descriptors": _descriptors() - descriptors, "threads": _threads() - threads}


def left_by_bare_instances(jobs: int) -> dict[str, float]:
    """For a child process: the same number of instances, by hand."""
    event = echo_event(64)
    with compiled(ECHO) as module:

        def job() -> None:
            with bare_guest(module) as guest:
                guest.step(event)

        return {"bytes": _growth(job, jobs)}


def left_by_extism_plugins(jobs: int) -> dict[str, float]:
    """For a child process: the same number of Extism's plugins, from one that is compiled."""
    assert extism is not None
    event, whole = echo_event(64), extism.CompiledPlugin(ECHO_EXTISM)

    def job() -> None:
        with extism_guest(whole) as guest:
            guest.step(event)

    return {"bytes": _growth(job, jobs)}


def _growth(job: Callable[[], None], jobs: int) -> int:
    for _ in range(jobs // 10):
        job()
    before = private_dirty_bytes()
    for _ in range(jobs):
        job()
    return private_dirty_bytes() - before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _threads() -> int:
    """All threads of the process but Trio's idle ones, which it keeps for ten seconds."""
    idle = sum(thread.name.startswith("Trio thread ") for thread in threading.enumerate())
    return len(list(Path("/proc/self/task").iterdir())) - idle
