"""Damaged files through a whole host, one after another, two at a time: what `scripts/fuzz` and its test run."""

import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from cuttlefish import Host, open_host
from odd import ODD_FILES
from odd.expected import Refused
from odd.mutate import mutated
from odd.observe import LIMITS, Command, is_character, of_page, opening, showing, told

__all__ = ["Totals", "fuzz"]

AT_ONCE = 2
BATCH = 50
FILE_S = 10.0
WORKER_BYTES = 1 << 30
HOST_GROWTH_BYTES = 64 << 20  # since the first batch; allocators keep some
PAGES_SHOWN = 3
PAGES_IN_ONE = 200
GOOD = "plain.pdf"

FILES_FAULT = {"document_invalid", "document_password", "document_crashed", "limit_exceeded", "unsupported"}
"""What a damaged file may cause. Anything else is our mistake: the commands are right."""


@dataclass(slots=True)
class Totals:
    """What came of all files. `finds` are lines for a person, each with the command that shows it again."""

    files: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    finds: list[str] = field(default_factory=list)
    crashes: list[int] = field(default_factory=list)
    """Seeds whose file killed its worker: allowed, and worth a look."""
    slowest_s: float = 0
    slowest_seed: int = -1
    worker_bytes: int = 0
    """The most that a worker, or any process that the host started, held at once."""
    host_growth_bytes: int = 0

    def lines(self) -> list[str]:
        outcomes = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        return [
            *self.finds,
            f"{self.files} files: {outcomes}",
            f"slowest: {self.slowest_s:.1f} s, seed {self.slowest_seed}; largest worker: {self.worker_bytes >> 20} MiB; "
            f"the host grew by {self.host_growth_bytes >> 20} MiB; seeds of crashed workers: {self.crashes or 'none'}",
        ]


async def fuzz(seeds: Iterable[int], say: Callable[[str], None], keep: Path | None = None) -> Totals:
    """Run all seeds, and a good job after each 50. Finds are said at once. `keep` is a folder that gets the damaged files."""
    totals, remaining = Totals(), list(reversed(list(seeds)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / GOOD).write_bytes(ODD_FILES[GOOD].make())
        async with open_host() as host:
            run = _Fuzz(host, folder, keep, totals, say)
            await run.check_good_job()
            base = None
            while remaining:
                batch = [remaining.pop() for _ in range(min(BATCH, len(remaining)))]
                async with trio.open_nursery() as nursery:
                    for _ in range(AT_ONCE):
                        nursery.start_soon(run.work, batch)
                await run.check_good_job()
                base = base if base is not None else _resident_bytes()
            totals.host_growth_bytes = _resident_bytes() - (base or 0)
    totals.worker_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # all have been collected by now
    if totals.worker_bytes > WORKER_BYTES:
        run.find(f"a worker held {totals.worker_bytes >> 20} MiB")
    if totals.host_growth_bytes > HOST_GROWTH_BYTES:
        run.find(f"the host grew by {totals.host_growth_bytes >> 20} MiB")
    return totals


@dataclass(slots=True)
class _Fuzz:
    host: Host
    folder: Path
    keep: Path | None
    totals: Totals
    say: Callable[[str], None]

    def find(self, what: str) -> None:
        self.totals.finds.append(what)
        self.say(what)

    async def work(self, batch: list[int]) -> None:
        while batch:
            await self.try_seed(batch.pop())

    async def try_seed(self, seed: int) -> None:
        name, data = mutated(seed)
        file = f"{seed}-{name}"
        (self.folder / file).write_bytes(data)
        if self.keep is not None:
            (self.keep / file).write_bytes(data)
        start = time.monotonic()
        faults = [fault async for fault in _Attempt(self.host, self.folder, file, self.totals, seed).faults()]
        took_s = time.monotonic() - start
        if took_s > self.totals.slowest_s:
            self.totals.slowest_s, self.totals.slowest_seed = took_s, seed
        if took_s > FILE_S:
            faults.append(f"took {took_s:.1f} s")
        self.totals.files += 1
        for fault in faults:
            self.find(f"seed {seed} ({name}): {fault}. Again: scripts/fuzz --start {seed} --seeds 1 --keep .")
        (self.folder / file).unlink()

    async def check_good_job(self) -> None:
        seen = await told(self.host, self.folder, opening(GOOD), of_page("page_text", 0))
        if isinstance(seen, Refused) or seen[-1]["text"] != "good":
            self.find(f"a good document after {self.totals.files} damaged ones gives {seen}")


@dataclass(slots=True)
class _Attempt:
    """All that a block may do with one file."""

    host: Host
    folder: Path
    file: str
    totals: Totals
    seed: int

    async def faults(self) -> AsyncIterator[str]:
        """What should not have come of it, in sentences."""
        opened = await self.told()
        if isinstance(opened, Refused):
            self.totals.outcomes[opened.code] += 1
            if opened.code not in FILES_FAULT:
                yield f"open: {opened}"
            return
        kind = opened[0]["kind"]
        self.totals.outcomes[kind["kind"]] += 1
        for commands, refused_with in self.jobs(kind):
            seen = await self.told(*commands)
            if isinstance(seen, Refused):
                self.totals.outcomes[f"{kind['kind']}: {seen.code}"] += 1
                if seen.code not in FILES_FAULT | refused_with:
                    yield f"{commands[0]['cmd']}: {seen}"
                continue
            for event in seen:
                text = event.get("text") or ""
                if event.get("error") and event["error"].partition(":")[0] not in FILES_FAULT:
                    yield f"page_text_opt: {event}"
                if event["event"].startswith("page_text") and not all(map(is_character, text)):
                    yield f"{event['event']}: {text[:200]!r} is not all text"

    def jobs(self, kind: dict[str, Any]) -> list[tuple[list[Command], set[str]]]:
        """What is asked of a file of this kind, and what it may be refused with beside the file's own faults."""
        show = showing(self.file, 0)
        match kind["kind"]:
            case "document":
                pages = min(kind["pages"], PAGES_SHOWN)
                whole: list[Command] = [{"cmd": "document_text", "handle": 0}] if kind["pages"] <= PAGES_IN_ONE else []
                return [
                    ([of_page("page_text_opt", page) for page in range(pages)], set()),
                    *([([command], set[str]()) for command in whole]),
                    ([of_page("page_image", pages - 1), showing(self.file, 1)], set()),
                ]
            case "image":
                resize = {"cmd": "image_op", "handle": 0, "op": {"op": "resize", "max_width": 50, "max_height": 20}}
                crop = {"cmd": "image_op", "handle": 0, "op": {"op": "crop", "x": 0, "y": 0, "width": 1, "height": 1}}
                return [([show], set()), ([resize, crop, showing(self.file, 1, 2)], set())]
            case "text":
                # Bytes that are no text may begin behind what was looked at when the file was opened
                return [([{"cmd": "slice", "handle": 0, "offset": 0, "len": 1 << 20}], {"bad_command"}), ([show], {"bad_command"})]
            case _:
                read = {"cmd": "slice_bytes", "handle": 0, "offset": 0, "len": 1 << 20}
                return [([read], set()), ([show], {"bad_command"})]

    async def told(self, *commands: Command) -> list[dict[str, Any]] | Refused:
        seen = await told(self.host, self.folder, opening(self.file), *commands, time_s=FILE_S)
        if "crashed" in str(seen) and self.seed not in self.totals.crashes:
            self.totals.crashes.append(self.seed)
        return seen


def _resident_bytes() -> int:
    """This process's memory, 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0


assert LIMITS["document.memory"] == WORKER_BYTES
