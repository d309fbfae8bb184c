"""How times are taken: all contestants in one process, in rounds, so that whatever else the machine does hits them alike."""

import gc
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Times", "interleave", "interleave_awaited", "times_of"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds per call, over `repeats` repeats. `p99` is the slowest but one per cent, so the slowest where repeats are few."""

    lowest: float
    median: float
    p99: float
    repeats: int


def times_of(seconds: Sequence[float]) -> Times:
    """Sum up the repeats of one thing."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return Times(ordered[0], ordered[len(ordered) // 2], ordered[min(last, int(0.99 * len(ordered)))], len(ordered))


def interleave(contestants: Mapping[str, Callable[[], object]], rounds: int, calls: int = 1) -> dict[str, Times]:
    """Time each contestant `rounds` times, each time as the mean of `calls` calls, taking turns; each round another one begins.

    The first call of each, which may fill caches, is not timed.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for contestant in contestants.values():
        contestant()
    gc.collect()
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            contestant, turns = contestants[name], range(calls)
            began = time.perf_counter()
            for _ in turns:
                contestant()
            seconds[name].append((time.perf_counter() - began) / calls)
    return {name: times_of(each) for name, each in seconds.items()}


async def interleave_awaited(
    contestants: Mapping[str, Callable[[], Awaitable[object]]], rounds: int, per: int = 1
) -> tuple[dict[str, Times], dict[str, float]]:
    """As `interleave`, for what has to be awaited, divided by `per`; and the median of this process's processor time.

    Processor time, because a difference of two times by the clock is lost in whatever else the machine does.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    busy: dict[str, list[float]] = {name: [] for name in names}
    for contestant in contestants.values():
        await contestant()
    gc.collect()
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began, busy_before = time.perf_counter(), time.process_time()
            await contestants[name]()
            seconds[name].append((time.perf_counter() - began) / per)
            busy[name].append((time.process_time() - busy_before) / per)
    return {name: times_of(each) for name, each in seconds.items()}, {name: times_of(each).median for name, each in busy.items()}
