"""A whole step of a guest in its own thread, without any hop: what each command costs at least."""

from collections.abc import Callable
from functools import partial

from benchmarks.guests import ECHO, echo_event
from benchmarks.peers import EXTISM, FLOOR, OURS, Live, compiled, live_guests
from benchmarks.report import Part, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import interleave

__all__ = ["compare", "measure"]

SIZES = {"64 B": 64, "4 KB": 4 << 10, "64 KB": 64 << 10, "1 MB": 1 << 20}

EXTISM_CALL = "extism, call alone"


def measure(scale: Scale) -> Part:
    """Step every contestant with payloads of each size, both ways."""
    part = Part(
        "step",
        "A `sliced` event of the size named goes in as bytes, a `fail` command of the same size with the event's text comes out "
        "as bytes and is read: strictly (cuttlefish), by pydantic alone (unchecked), by `json` (the others). The guest copies the "
        "text once. The floor is the low-level call with prepared pointers, without a check, a deadline or a way to stop; the "
        "quickest is that with every trick that we know. “Call alone” is Extism's without reading the command, which the targets "
        "compare with.",
        rows=[],
        targets=[],
    )
    with compiled(ECHO) as module, live_guests(module, with_extism=True) as live:
        for case, size in SIZES.items():
            event = echo_event(size)
            part.same_output[:] = compare(live, event)
            contestants: dict[str, Callable[[], object]] = {name: partial(_full_step, each, event) for name, each in live.items()}
            if EXTISM in live:
                contestants[EXTISM_CALL] = partial(live[EXTISM].step, event)
            times = interleave(contestants, scale.rounds, max(1, scale.step_calls * 1024 // (1024 + size)))
            part.rows.extend(timed(case, times))
            part.targets.append(Target(f"step at {case}: cuttlefish / the floor", 2.5, times[OURS].lowest / times[FLOOR].lowest))
            if EXTISM in live and size <= SIZES["4 KB"]:
                ratio = times[OURS].lowest / times[EXTISM_CALL].lowest
                part.targets.append(Target(f"step at {case}: cuttlefish / Extism's call", 1 / 3, ratio))
    return part


def _full_step(live: Live, event: bytes) -> object:
    return live.read(live.step(event))


def compare(live: dict[str, Live], event: bytes) -> list[str]:
    """Step each with the same event; the names of all, as all gave the same command, of the event's size.

    Raises:
        AssertionError: they did not.
    """
    answers = {name: each.step(event) for name, each in live.items()}
    wanted = answers[OURS]
    if len(wanted) != len(event) or any(answer != wanted for answer in answers.values()):
        raise AssertionError(f"the contestants answer {len(event)} bytes differently: {[len(a) for a in answers.values()]}")
    return list(answers)
