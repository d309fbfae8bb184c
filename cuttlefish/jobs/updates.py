"""What a job tells while it runs, in order, to however many readers, without ever waiting for one."""

import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice
from typing import Self, TypeAlias

import trio

from cuttlefish_abi import Envelope

__all__ = ["Dropped", "Finished", "LogLine", "Origin", "Progress", "TokenPiece", "Update", "UpdateLog"]

MOST_BYTES = 32 << 20
"""Of the JSON and text that updates hold; a block could otherwise fill the host's memory with what nobody reads."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which run of a pipeline's block an update is from."""

    node: str
    item: int | None = None
    """The number of the item, for a node that runs over many."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A JSON value that a block emitted; without an origin, from a block by itself, or told by the host about a node."""

    value: object
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """Some characters by which the model's reply went on. Pieces of one origin follow each other; those of others stand between."""

    text: str
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a block printed."""

    block: str
    """The name of its file."""
    text: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """So many updates stood here and are gone, because the reader was slower than the job (limit `job.updates`)."""

    count: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is over. Always the last update."""

    envelope: Envelope


Update: TypeAlias = Progress | TokenPiece | LogLine | Dropped | Finished


class UpdateLog:
    """The newest `capacity` updates, and of these what fits into `MOST_BYTES`. Any thread may `publish`; it never waits.

    Made within a Trio run, and used only during it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept: deque[Update] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._published = 0
        self._closed = False
        self._lock = threading.Lock()  # the number and the place in the queue belong together
        self._news = trio.Event()
        self._awaited = False
        self._trio = trio.lowlevel.current_trio_token()

    def publish(self, update: Update, size_bytes: int = 0, *, last: bool = False) -> None:
        """Add an update of about so many bytes; after the one that is `last` no more come."""
        with self._lock:
            assert not self._closed
            self._kept.append(update)
            self._sizes.append(size_bytes)
            self._bytes += size_bytes
            while len(self._kept) > self.capacity or (self._bytes > MOST_BYTES and len(self._kept) > 1):
                self._kept.popleft()
                self._bytes -= self._sizes.popleft()
            self._published += 1
            self._closed = last
            awaited = self._awaited
        if awaited:  # waking Trio costs more than all the rest
            self._trio.run_sync_soon(self._wake, idempotent=True)

    def __aiter__(self) -> AsyncIterator[Update]:
        """All updates that are still kept, then each new one as it comes, up to the last. Each reader has its own place."""
        return _Reader(self)

    def read_from(self, place: int) -> tuple[list[Update], int, bool]:
        """The updates from the `place`-th on, the place after them, and whether the last is among them or before."""
        with self._lock:
            oldest = self._published - len(self._kept)
            updates = list(islice(self._kept, max(place, oldest) - oldest, None))
            if place < oldest:
                updates.insert(0, Dropped(oldest - place))
            return updates, self._published, self._closed

    @property
    def news(self) -> trio.Event:
        """Set when something is published after this moment."""
        self._awaited = True
        return self._news

    def _wake(self) -> None:
        self._awaited = False
        news, self._news = self._news, trio.Event()
        news.set()


class _Reader:
    """One reader's place. A class and not an async generator: those must be closed when a loop over them is left early."""

    def __init__(self, log: UpdateLog) -> None:
        self._log = log
        self._place = 0
        self._batch: deque[Update] = deque()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        has_waited = False
        while not self._batch:
            if self._ended:
                await trio.lowlevel.checkpoint()
                raise StopAsyncIteration
            news = self._log.news  # taken before reading: what comes in between sets it
            updates, self._place, self._ended = self._log.read_from(self._place)
            self._batch.extend(updates)
            if not self._batch and not self._ended:
                await news.wait()
                has_waited = True
            elif not has_waited:
                await trio.lowlevel.checkpoint()
        return self._batch.popleft()
