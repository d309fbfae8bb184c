"""The handle that a caller holds on a running job."""

from collections.abc import AsyncIterator, Callable

import trio

from cuttlefish.jobs.result_images import ResultImage
from cuttlefish.jobs.updates import Finished, LogLine, Origin, Progress, TokenPiece, Update, UpdateLog
from cuttlefish.pipeline.run import NodeRecord
from cuttlefish_abi import Envelope, JobStatus

__all__ = ["Job"]


class Job:
    """One job, from `Host.start` on.

    `async for update in job` gives what it tells, ending with `Finished`; several loops may read at once, and a slow one never
    delays the job. `await job.envelope()` gives the outcome. `cancel()` ends it.

    Use it from Trio's thread. It is the host that runs the job: leaving the host cancels it.
    """

    def __init__(self, id: str, updates_kept: int, jobs_ahead: Callable[[], int] = lambda: 0) -> None:
        self.id = id
        self.status = JobStatus.QUEUED
        self.jobs_ahead = jobs_ahead
        """How many of the jobs that wait have their turn before this one, while it is queued. It rises when a client with fewer of
        them comes (see `Host.start`)."""
        self.scope = trio.CancelScope()
        """What the host runs the job in."""
        self.nodes: dict[str, NodeRecord] = {}
        """What became of each node of a pipeline."""
        self.images: tuple[ResultImage, ...] = ()
        """The images in the result of a job that is over, where `keep_images` asked for them."""
        self._updates = UpdateLog(updates_kept)
        self._over = trio.Event()
        self._envelope: Envelope | None = None

    def __aiter__(self) -> AsyncIterator[Update]:
        """Every update from the start of the job, as far as the newest `job.updates` are kept."""
        return aiter(self._updates)

    def cancel(self) -> None:
        """End the job: the block is stepped no more, and the model or document worker that it waits for stops.

        Returns at once; the Envelope follows within milliseconds. Does nothing to a job that is over.
        """
        self.scope.cancel()

    async def envelope(self) -> Envelope:
        """Wait for the job to end, however it does, and return its outcome. Cancelling the wait leaves the job alone."""
        await self._over.wait()
        assert self._envelope is not None
        return self._envelope

    def progress(self, value: object, size_bytes: int = 0, origin: Origin | None = None) -> None:
        """A block emitted `value`, so many bytes of JSON. For the command loop; any thread."""
        self._updates.publish(Progress(value, origin), size_bytes)

    def token(self, piece: str, origin: Origin | None = None) -> None:
        """The model's reply went on. For the command loop; any thread."""
        self._updates.publish(TokenPiece(piece, origin), len(piece))

    def log(self, block: str, text: str) -> None:
        """A block printed some text. For the command loop; any thread."""
        for line in text.removesuffix("\n").split("\n"):
            self._updates.publish(LogLine(block, line), len(line))

    def keep_updates(self, count: int) -> None:
        """Keep so many updates that nobody has read. For the host, which learns of a pipeline's limits when it reads it."""
        self._updates.capacity = count

    def started(self) -> None:
        """The job has its turn. For the host."""
        self.status = JobStatus.RUNNING

    def finished(self, envelope: Envelope) -> None:
        """The job is over. For the host. When the last update is read, the status is already final."""
        self._envelope = envelope
        self.status = envelope.status
        self._updates.publish(Finished(envelope), last=True)
        self._over.set()
