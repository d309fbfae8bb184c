"""The pool of worker processes: which one does what, when one is started, and that none outlives it.

The pool is our own, and small, for one reason: pools such as trio-parallel or `ProcessPoolExecutor` unpickle what a worker
sends, and a worker that a document took over could send anything. Here an answer is two lengths, a little JSON and plain bytes;
the lengths are checked before anything is allocated, each value before it is used.
"""

import logging
import signal
from collections.abc import Callable
from typing import TypeVar

import trio

from cuttlefish.errors import CuttlefishError
from cuttlefish.limits import Limits
from cuttlefish.media.document_answers import Ask, Refusal, crashed, refusal, too_much, too_slow
from cuttlefish.media.worker_process import Answer, Launcher, WorkerGone, WorkerProcess

__all__ = ["WorkerPool"]

START_S = 60.0  # an interpreter and PDFium take a tenth of a second; a machine under load takes longer
REAP_S = 5.0  # a killed process gives back its memory first
WORN_DOCUMENTS = 64  # a worker is replaced after so many …
WORN_BYTES = 256 << 20  # … or when it has grown to this by the time it changes documents; a fresh one has 30 MB

log = logging.getLogger(__name__)

T = TypeVar("T")


class WorkerPool:
    """At most `size` workers at once; further commands wait for their turn. A failed command's worker is replaced."""

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._slots = trio.Semaphore(self._size)
        self._busy = 0
        self._idle: list[WorkerProcess] = []  # least recently used first
        self._all: set[WorkerProcess] = set()
        self._launcher = Launcher()
        self._closed = False

    @property
    def workers(self) -> frozenset[WorkerProcess]:
        """Those that exist now, idle and busy."""
        return frozenset(self._all)

    @property
    def at_rest(self) -> bool:
        """Whether no command runs, every place is free, and every worker idle."""
        return self._busy == 0 and self._slots.value == self._size and len(self._idle) == len(self._all)

    async def ask(
        self,
        ask: Ask,
        limits: Limits,
        reply_bytes: int,
        read: Callable[[Answer, bytes], T],
        piece: Callable[[Answer, bytes], None] | None = None,
        piece_time_s: float | None = None,
    ) -> T:
        """Have one command carried out by a worker, and its answer checked by `read`. Whatever goes wrong ends the worker.

        `piece` is given the parts of an answer that comes in several, each as it arrives; after each one the worker has
        `piece_time_s` (as long as for the first, if it is None) for the next. `reply_bytes` bounds them all together.

        Cancelling kills the worker. Raises what `DocumentWorkers` says of its methods.
        """
        async with self._slots:
            self._busy += 1
            worker = None
            try:
                self._check_open()
                worker = await self._take(ask.key, limits.document_memory_bytes)
                outcome = await self._converse(worker, ask, limits, reply_bytes, read, piece, piece_time_s)
                if not (isinstance(outcome, Refusal) and outcome.spoils_worker):
                    self._keep(worker)
                    worker = None
                if isinstance(outcome, Refusal):
                    raise outcome.error
                return outcome
            finally:
                self._busy -= 1
                if worker is not None:
                    self._end(worker)

    async def _converse(
        self,
        worker: WorkerProcess,
        ask: Ask,
        limits: Limits,
        reply_bytes: int,
        read: Callable[[Answer, bytes], T],
        piece: Callable[[Answer, bytes], None] | None,
        piece_time_s: float | None,
    ) -> T | Refusal:
        """Send a question and await the answer, for as long as the limit allows."""
        question = {
            "command": ask.command,
            "page": ask.page,
            "time_s": limits.document_time_s,
            "page_pixels": limits.page_pixels,
            "image_pixels": limits.image_pixels,
            "reply_bytes": reply_bytes,
            **ask.arguments,
        }
        fd, payload = None, b""
        if isinstance(ask.source, bytes):
            payload = ask.source
        else:
            fd, source = ask.source.fd, ask.source
            question |= {"device": source.device, "inode": source.inode, "size": source.size, "password": source.password}
        pieces, left = 0, reply_bytes
        try:
            with trio.fail_after(limits.document_time_s) as time:
                await worker.send(question, fd, payload)
                answer, data = await worker.receive(left)
                while "more" in answer:
                    if piece is None:
                        raise WorkerGone
                    piece(answer, data)
                    pieces += 1
                    left -= len(data)
                    time.deadline = trio.current_time() + (piece_time_s or limits.document_time_s)
                    answer, data = await worker.receive(left)
            return refusal(ask.after(pieces), answer, limits) if "problem" in answer else read(answer, data)
        except trio.TooSlowError:
            raise too_slow(ask.after(pieces), limits) from None
        except WorkerGone:
            self._check_open()
            await self._ended(worker)
            if worker.code == -signal.SIGXCPU:
                raise too_slow(ask.after(pieces), limits) from None
            # PDFium aborts when it gets no memory, and says nothing (measured, version 159); the C library's own aborts speak
            if worker.code == -signal.SIGABRT and not worker.last_words:
                raise too_much(ask.after(pieces), limits) from None
            raise crashed(ask.after(pieces), worker.code) from None

    async def _take(self, key: tuple[int, ...] | None, memory_bytes: int) -> WorkerProcess:
        """Choose an idle worker, the one that has this document open if there is one, or start one."""
        for dead in [worker for worker in self._idle if worker.process.poll() is not None]:
            self._idle.remove(dead)
            self._end(dead)
        fitting = [worker for worker in self._idle if worker.memory_bytes == memory_bytes]
        same = next((worker for worker in fitting if key is not None and worker.document == key), None)
        blank = next((worker for worker in fitting if worker.document is None), None)
        chosen = same or blank
        if chosen is None and len(self._idle) + self._busy > self._size:
            chosen = fitting[0] if fitting else self._idle[0]
        if chosen is not None:
            self._idle.remove(chosen)
            changes = key is not None and chosen.document != key
            worn = changes and (chosen.documents >= WORN_DOCUMENTS or chosen.resident > WORN_BYTES)
            if worn or chosen.resident > memory_bytes // 2 or chosen.memory_bytes != memory_bytes:
                self._end(chosen)
                chosen = None
        if chosen is None:
            chosen = await self._start(memory_bytes)
        if key is not None and chosen.document != key:
            chosen.document = key
            chosen.documents += 1
        return chosen

    async def _start(self, memory_bytes: int) -> WorkerProcess:
        """Start a worker and wait until it is ready."""
        worker = await self._launcher.start(memory_bytes)
        self._all.add(worker)
        ready = False
        try:
            self._check_open()
            with trio.fail_after(START_S):
                await worker.receive(0)
            ready = True
        except (WorkerGone, trio.TooSlowError):
            self._check_open()
            await self._ended(worker)
            log.error("a document worker did not start (exit code %s): %r", worker.code, worker.last_words)
            hint = "document.memory may be too small for it, or pypdfium2 cannot be loaded; the log has its last words"
            raise CuttlefishError(f"the process that reads documents did not start: {hint}") from None
        finally:
            if not ready:
                self._end(worker)
        return worker

    def _keep(self, worker: WorkerProcess) -> None:
        """Make a worker available for the next command."""
        if self._closed:
            self._end(worker)
        else:
            self._idle.append(worker)

    def _end(self, worker: WorkerProcess) -> None:
        """Kill a worker. Its process is collected by the launcher's thread."""
        if worker in self._all:
            self._all.remove(worker)
            worker.end()
            self._launcher.collect(worker)

    async def _ended(self, worker: WorkerProcess) -> None:
        """End a worker and wait for its exit code."""
        self._end(worker)
        with trio.move_on_after(REAP_S):
            await worker.collected.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the document workers were closed")

    async def close(self) -> None:
        """End all workers and the thread. Not cancellable: 5–20 ms, more if a large worker must give back its memory."""
        self._closed = True
        self._idle.clear()
        for worker in list(self._all):
            self._end(worker)
        with trio.CancelScope(shield=True):
            await self._launcher.close()
