"""Cancelling a guest that never ends: from the request until it is known that it stopped."""

import threading
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import trio
import wasmtime

from benchmarks.guests import SPIN_EXTISM, scripted
from benchmarks.peers import BARE, EXTISM, OURS, compiled, extism
from benchmarks.report import Part, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import Times, times_of
from cuttlefish import JobStatus, Progress, open_host
from cuttlefish.engine.settings import new_engine

__all__ = ["measure"]

SPINNING = scripted({"cmd": "emit", "progress": 1}, name="spin.wasm", spins=True)
SPINS_FOR_S = 0.005  # so that the guest is well inside its loop


def measure(scale: Scale) -> Part:
    """Cancel a spinning guest, again and again."""
    times = {OURS: trio.run(_ours, scale.cancels), BARE: _bare(scale.cancels)}
    if extism is not None:
        times[EXTISM] = _extism(scale.cancels)
    p99_ms = times[OURS].p99 * 1e3
    return Part(
        "cancel",
        "A guest spins in `cf_step`. cuttlefish: from `job.cancel()` to the cancelled Envelope, the guest closed and its thread "
        "returned. The others run it on a thread: from advancing the epoch (bare wasmtime) or `CancelHandle.cancel` (Extism) until "
        "that thread has its error.",
        rows=timed("spinning guest", times),
        targets=[Target("cancel a spinning guest, p99", 50.0, p99_ms, unit="ms")],
    )


async def _ours(count: int) -> Times:
    seconds = []
    with TemporaryDirectory() as folder:
        async with open_host(cache_dir=folder) as host:
            for _ in range(count):
                job = host.start(SPINNING, {})
                async for update in job:
                    assert isinstance(update, Progress), update
                    break
                await trio.sleep(SPINS_FOR_S)
                began = time.perf_counter()
                job.cancel()
                envelope = await job.envelope()
                seconds.append(time.perf_counter() - began)
                assert envelope.status is JobStatus.CANCELLED, envelope
    return times_of(seconds)


def _bare(count: int) -> Times:
    with compiled(SPINNING) as module:

        def once() -> float:
            engine = new_engine()
            with wasmtime.Store(engine) as store, wasmtime.Module.deserialize_file(engine, module.artefact) as loaded:
                store.set_epoch_deadline(1)
                step = wasmtime.Instance(store, loaded, []).exports(store)["cf_step"]
                assert isinstance(step, wasmtime.Func)
                return _stop(lambda: step(store, 0, 0), wasmtime.Trap, engine.increment_epoch)

        return times_of([once() for _ in range(count)])


def _extism(count: int) -> Times:
    assert extism is not None
    library, whole = extism, extism.CompiledPlugin(SPIN_EXTISM)

    def once() -> float:
        with library.Plugin(whole) as plugin:
            return _stop(lambda: plugin.call("spin", b""), library.Error, plugin.cancel_handle().cancel)

    return times_of([once() for _ in range(count)])


def _stop(spin: Callable[[], object], error: type[Exception], cancel: Callable[[], object]) -> float:
    """Run `spin` on a thread, cancel it, and return how long it took until it raised `error`."""
    ended: list[float] = []

    def run() -> None:
        try:
            spin()
        except error:
            ended.append(time.perf_counter())

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(SPINS_FOR_S)
    began = time.perf_counter()
    cancel()
    thread.join()
    return ended[0] - began
