"""The jobs that agents started: what is known of each while it runs, and its outcome afterwards.

The one place that knows how long a job is remembered. Today that is as long as the server runs; a store that survives it goes here.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import trio

from cuttlefish.background import background_tasks
from cuttlefish.jobs.job import Job
from cuttlefish.jobs.turns import Client
from cuttlefish.jobs.updates import Dropped, Finished, Progress, TokenPiece
from cuttlefish.mcp.results import Outcome, write_outcome
from cuttlefish_abi import JobStatus
from cuttlefish_abi.strict_json import clip, show

__all__ = ["JobsStore", "StoredJob", "open_jobs_store"]

MOST_UNFINISHED = 1_000
"""Of all clients; what one may have is less, see `JobsStore.has_room`."""
MOST_FINISHED = 1_000
MOST_PROGRESS_CHARS = 200
MOST_PROGRESS_PARTS = 10
MOST_FINISHED_BYTES = 256 << 20
"""Of outcomes; the oldest are forgotten first. The newest stays, whatever its size."""


@dataclass(slots=True, eq=False)
class StoredJob:
    """One job, from its start until it is forgotten."""

    id: str
    tool: str
    """The tool that started it."""
    client: Client
    """For whom."""
    started_at: datetime
    changed_at: datetime
    job: Job | None
    """The handle on the running job; nothing is kept of it when it is over."""
    tokens: int = 0
    """Pieces of the model's words so far."""
    reports: int = 0
    """How often it reported progress."""
    progress: str = ""
    """The newest of these reports, cut short."""
    outcome: Outcome | None = None
    over: trio.Event = field(default_factory=trio.Event)
    """Set when the outcome is there."""

    @property
    def status(self) -> JobStatus:
        """Where it stands."""
        if self.outcome is not None:
            return self.outcome.status
        assert self.job is not None
        return JobStatus.QUEUED if self.job.status is JobStatus.QUEUED else JobStatus.RUNNING

    def state(self) -> str:
        """Where it stands, as a short sentence."""
        if self.job is None:
            return str(self.status)
        if self.status is JobStatus.QUEUED:
            ahead = self.job.jobs_ahead()
            return "waiting: next in line" if not ahead else f"waiting: {ahead} job{'s' if ahead > 1 else ''} ahead"
        parts = [self.progress] if self.progress else []
        parts += [f"{self.tokens} tokens"] if self.tokens else []
        return f"running: {', '.join(parts)}" if parts else "running"

    def cancel(self) -> None:
        """End it. Does nothing to a job that is over."""
        if self.job is not None:
            self.job.cancel()


class JobsStore:
    """Jobs by id, in the order of starting. Made by `open_jobs_store`; belongs to Trio's thread."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._jobs: dict[str, StoredJob] = {}
        self._unfinished: Counter[Client] = Counter()
        """How many jobs wait or run: of each client, of each whole that it is part of, and of all, which is `()`."""
        self._bytes = 0

    def has_room(self, client: Client) -> bool:
        """Whether one more job of the client may wait.

        What is free of the room is shared: a machine may have as many places as it leaves free, and a program on it as many as are
        left of these. So the room is never full for who comes later: one program has a third of it at most, one machine half.
        """
        return sum(self._unfinished[part] for part in _wholes(client)) < MOST_UNFINISHED

    def add(self, tool: str, job: Job, client: Client) -> StoredJob:
        """Follow a job that was just started."""
        now = datetime.now(UTC)
        stored = self._jobs[job.id] = StoredJob(job.id, tool, client, now, now, job)
        self._unfinished.update(_wholes(client))
        self._nursery.start_soon(self._follow, stored, job)
        return stored

    def get(self, id: str) -> StoredJob | None:
        """A job that is not forgotten."""
        return self._jobs.get(id)

    def all(self) -> list[StoredJob]:
        """Every job that is not forgotten, the oldest first."""
        return list(self._jobs.values())

    async def _follow(self, stored: StoredJob, job: Job) -> None:
        async for update in job:
            stored.changed_at = datetime.now(UTC)
            match update:
                case TokenPiece():
                    stored.tokens += 1
                case Progress(value):
                    stored.reports += 1
                    stored.progress = _describe_progress(value)
                case Dropped() | Finished():
                    pass
        envelope = await job.envelope()
        stored.outcome = await trio.to_thread.run_sync(write_outcome, envelope, job.id, job.images)
        stored.job = None
        self._unfinished -= Counter(_wholes(stored.client))
        self._bytes += stored.outcome.size_bytes
        self._forget()
        stored.over.set()

    def _forget(self) -> None:
        finished = [stored for stored in self._jobs.values() if stored.outcome is not None]
        count = len(finished)
        for stored in finished[:-1]:
            if count <= MOST_FINISHED and self._bytes <= MOST_FINISHED_BYTES:
                break
            assert stored.outcome is not None
            count -= 1
            self._bytes -= stored.outcome.size_bytes
            del self._jobs[stored.id]


def _describe_progress(value: object) -> str:
    """What a job reported, as people read it: `{"message": "reading", "page": 3}` is `reading, page 3`."""
    if not isinstance(value, dict) or len(value) > MOST_PROGRESS_PARTS:
        return show(value, MOST_PROGRESS_CHARS)
    plain = {name: part if isinstance(part, str) else show(part, MOST_PROGRESS_CHARS) for name, part in value.items()}
    told = ", ".join(part if name == "message" else f"{name} {part[:MOST_PROGRESS_CHARS]}" for name, part in plain.items())
    return clip(told, MOST_PROGRESS_CHARS)


def _wholes(client: Client) -> list[Client]:
    """All that it is part of, itself the last."""
    return [client[:length] for length in range(len(client) + 1)]


@asynccontextmanager
async def open_jobs_store() -> AsyncIterator[JobsStore]:
    """A store for as long as the block lasts. It follows jobs; it is their host that runs and ends them."""
    async with background_tasks() as nursery:
        yield JobsStore(nursery)
