"""Documents and images, read in worker processes: what hostile files can reach is a process with nothing to lose.

PDFium is not thread-safe, and a file of 30 KB can cost gigabytes. So each command goes to a worker (`document_worker.py`) with
limits on memory and time; a worker that dies or overruns is the error of *that* command, and the next one gets a new worker.

The pool is our own, and small, for one reason: pools such as trio-parallel or `ProcessPoolExecutor` unpickle what a worker
sends, and a worker that a document took over could send anything. Here an answer is two lengths, a little JSON and plain bytes;
the lengths are checked before anything is allocated, each value before it is used.

    async with open_document_workers() as workers:
        facts = await workers.open_document(source, limits)
        text = await workers.page_text(source, 0, limits)
"""

import array
import concurrent.futures
import contextlib
import importlib.util
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import trio

from cuttlefish.errors import BadCommand, CuttlefishError, DocumentCrashed, DocumentInvalid, DocumentPassword, Unsupported
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.media.document_worker import FRAME

__all__ = [
    "DocumentFacts",
    "DocumentSource",
    "DocumentWorkers",
    "PageImage",
    "PageText",
    "PreparedImage",
    "open_document_workers",
]

PAGE_LONG_SIDE = 1024  # pixels
MOST_PAGES = 1 << 20  # PDFium believes no greater count
ANSWER_HEADER_BYTES = 4096
CHUNK_BYTES = 64 << 10
LAST_WORDS_BYTES = 4096
START_S = 60.0  # an interpreter and PDFium take a tenth of a second; a machine under load takes longer
REAP_S = 5.0  # a killed process gives back its memory first
REAP_POLL_S = 0.005
WORN_DOCUMENTS = 64  # a worker is replaced after so many …
WORN_BYTES = 256 << 20  # … or when it has grown to this by the time it changes documents; a fresh one has 30 MB

# Neither `cuttlefish/__init__.py` nor that of `media` runs in a worker: empty packages stand in for them.
BOOTSTRAP = """\
import json, sys, types
fd, memory, parent, packages, site = json.loads(sys.argv[1])
for name, path in packages:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.path += [path for path in site if path not in sys.path]
from cuttlefish.media.document_worker import main
main(fd, memory, parent)
"""

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Answer = Mapping[str, Any]  # JSON from a worker: nothing about it is known


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """An open file that was approved: the descriptor, and what it must be. `size` is its length when it was opened.

    The descriptor stays the caller's, who keeps it open for as long as a command runs. `name` is for messages only.
    """

    fd: int
    device: int
    inode: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class DocumentFacts:
    """`pages`: how many can be asked for. `has_text_layer`: a letter or digit was found; a scan has none."""

    pages: int
    has_text_layer: bool


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of a page. Empty for a page without text, which is not an error."""

    text: str


@dataclass(frozen=True, slots=True)
class PageImage:
    """A page as a picture: `png` for text and drawings, `jpeg` if the page holds an image or a form."""

    data: bytes
    format: Literal["png", "jpeg"]
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """A picture that every model's reader understands: upright, 8 bits a sample, grey or RGB."""

    data: bytes
    media_type: Literal["image/png", "image/jpeg"]
    width: int
    height: int


@contextlib.asynccontextmanager
async def open_document_workers(size: int | None = None) -> AsyncIterator["DocumentWorkers"]:
    """Open a pool of document workers, and end every one of its processes on leaving.

    At most `size` workers run at once (default: one for each processor that may be used); further commands wait for their
    turn. A worker is started when it is first needed, in about 0.1 s, and kept warm after that.

    Leaving kills what still runs, without waiting for it: a command of another task then raises `trio.ClosedResourceError`.

    Raises:
        Unsupported: on a system without descriptor passing (Windows).
    """
    if not hasattr(socket, "send_fds"):
        raise Unsupported("documents and images cannot be read on this system; use Linux or macOS, or WSL on Windows")
    if size is None:
        size = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    workers = DocumentWorkers(size)
    try:
        yield workers
    finally:
        await workers._close()


class DocumentWorkers:
    """The document workers that jobs share. Made by `open_document_workers`.

    Every method may be called from many tasks at once, and may be cancelled: that kills the worker at once (its memory is
    given back within 5–20 ms, more for a large one) and another replaces it. A command that failed changes nothing for others.

    Each may raise, beside what it names itself:
        DocumentInvalid: not a readable file of its kind, or it became shorter since it was opened.
        LimitExceeded: `document.time` for one command, by the wall clock, without waiting and starting; `document.memory`.
        DocumentCrashed: the worker died, or answered something that it should not have.
        trio.ClosedResourceError: the pool was closed.
    """

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._slots = trio.Semaphore(self._size)
        self._busy = 0
        self._idle: list[_Worker] = []  # least recently used first
        self._all: set[_Worker] = set()
        self._launcher = _Launcher()
        self._closed = False

    async def open_document(self, source: DocumentSource, limits: Limits) -> DocumentFacts:
        """Return what there is to know about a PDF before its pages are read.

        `pages` can be trusted to end: a count that the document's page tree does not bear out is replaced by the number found
        (`document_worker.count_pages` has the rule). The search for text is bounded (`document_worker.has_text_layer`): 512
        pages and 2 s.

        Raises:
            DocumentInvalid: not a PDF, damaged beyond repair, or without a page.
            DocumentPassword: it opens only with a password.
        """

        def read(answer: _Answer, _: bytes) -> DocumentFacts:
            return DocumentFacts(_whole(answer, "pages", 1, MOST_PAGES), _truth(answer, "has_text_layer"))

        return await self._ask(_Ask("open", source), limits, 0, read)

    async def page_text(self, source: DocumentSource, page: int, limits: Limits) -> PageText:
        r"""Return the text of a page, zero-based.

        Lines end with `\n`. A hyphen at the end of a line is `-\n`, as on the page: deleting each `-\n` joins the words. There
        are no control characters but `\n` and `\t`; U+FFFD stands for glyphs that mean no character. Offsets into this string
        are ours, and agree with no other reader's. A page read from the same document as the last one costs about 1 ms.

        Raises:
            BadCommand: there is no such page.
            DocumentInvalid: this page cannot be read; others may be.
            DocumentPassword: as in `open_document`.
            LimitExceeded: also `page.pixels`, if a side is longer than PDF's own 14,400 points and the page
                is too large at one pixel per point, and `guest.message`.
        """
        _check_page("page_text", page)

        def read(_: _Answer, data: bytes) -> PageText:
            try:
                return PageText(data.decode())
            except UnicodeDecodeError:
                raise _WorkerGone from None

        return await self._ask(_Ask("page_text", source, page), limits, limits.guest_message_bytes, read)

    async def page_image(self, source: DocumentSource, page: int, limits: Limits, long_side: int = PAGE_LONG_SIDE) -> PageImage:
        """Return a page, zero-based, drawn on white so that its longer side has `long_side` pixels.

        Rotation and crop box are applied; the document's user unit is not. Filled form fields are drawn. The picture is a PNG, or
        a JPEG of quality 85 if the page holds an image or a form object (which may hold one).

        Raises:
            BadCommand: there is no such page, or `long_side` is not positive.
            DocumentInvalid: this page cannot be read; others may be.
            DocumentPassword: as in `open_document`.
            LimitExceeded: also `page.pixels`, judged before drawing, or for a side as in `page_text`; and `image.bytes`.
        """
        _check_page("page_image", page)
        if long_side < 1:
            raise BadCommand(f"page_image: the longer side needs at least 1 pixel, found {long_side}")
        ask = _Ask("page_image", source, page, {"long_side": long_side})

        def read(answer: _Answer, data: bytes) -> PageImage:
            width, height = _whole(answer, "width", 1, long_side), _whole(answer, "height", 1, long_side)
            return PageImage(data, _picture_format(data, width, height), width, height)

        return await self._ask(ask, limits, limits.image_bytes, read)

    async def prepare_image(self, source: DocumentSource | bytes, limits: Limits) -> PreparedImage:
        """Return an image as an upright PNG or JPEG of 8-bit grey or RGB, which any model's reader understands.

        Accepts PNG, JPEG, GIF, WEBP, TIFF, BMP and AVIF, told apart by content. What already fits comes back unchanged, byte for
        byte (and was decoded once, so that it is known to be whole). `images.prepare` says how the rest is converted; metadata
        is dropped then. Sizes are those after turning.

        Raises:
            Unsupported: another format; HEIC and SVG are named.
            DocumentInvalid: damaged or cut short.
            LimitExceeded: also `image.bytes`, for the file and for the result, and `image.pixels`, judged by the header.
        """
        size = len(source) if isinstance(source, bytes) else source.size
        ask = _Ask("prepare_image", source, None, {"image_pixels": limits.image_pixels})
        if size > limits.image_bytes:
            raise limit_exceeded("image_bytes", limits.image_bytes, f"{ask.thing} has {size}")

        def read(answer: _Answer, data: bytes) -> PreparedImage:
            width = _whole(answer, "width", 1, limits.image_pixels)
            height = _whole(answer, "height", 1, limits.image_pixels // width)
            if isinstance(source, bytes) and _truth(answer, "unchanged"):
                data = source
            return PreparedImage(
                data, "image/png" if _picture_format(data, width, height) == "png" else "image/jpeg", width, height
            )

        return await self._ask(ask, limits, limits.image_bytes, read)

    async def _ask(self, ask: "_Ask", limits: Limits, reply_bytes: int, read: Callable[["_Answer", bytes], _T]) -> _T:
        """Have one command carried out by a worker, and its answer checked by `read`. Whatever goes wrong ends the worker."""
        async with self._slots:
            self._busy += 1
            worker = None
            try:
                self._check_open()
                worker = await self._take(ask.key, limits.document_memory_bytes)
                outcome = await self._converse(worker, ask, limits, reply_bytes, read)
                if isinstance(outcome, _Refusal):
                    if not outcome.spoils_worker:
                        self._keep(worker)
                        worker = None
                    raise outcome.error
                self._keep(worker)
                worker = None
                return outcome
            finally:
                self._busy -= 1
                if worker is not None:
                    self._end(worker)

    async def _converse(
        self, worker: "_Worker", ask: "_Ask", limits: Limits, reply_bytes: int, read: Callable[["_Answer", bytes], _T]
    ) -> "_T | _Refusal":
        """Send a question and await the answer, for as long as the limit allows."""
        question = {
            "command": ask.command,
            "page": ask.page,
            "time_s": limits.document_time_s,
            "page_pixels": limits.page_pixels,
            "reply_bytes": reply_bytes,
            **ask.arguments,
        }
        fd, payload = None, b""
        if isinstance(ask.source, bytes):
            payload = ask.source
        else:
            fd = ask.source.fd
            question |= {"device": ask.source.device, "inode": ask.source.inode, "size": ask.source.size}
        try:
            with trio.fail_after(limits.document_time_s):
                await worker.send(question, fd, payload)
                answer, data = await worker.receive(reply_bytes)
            return _refusal(ask, answer, limits) if "problem" in answer else read(answer, data)
        except trio.TooSlowError:
            raise _too_slow(ask, limits) from None
        except _WorkerGone:
            self._check_open()
            await self._ended(worker)
            if worker.code == -signal.SIGXCPU:
                raise _too_slow(ask, limits) from None
            # PDFium aborts when it gets no memory, and says nothing (measured, version 159); the C library's own aborts speak
            if worker.code == -signal.SIGABRT and not worker.last_words:
                raise _too_much(ask, limits) from None
            raise _crashed(ask, worker.code) from None

    async def _take(self, key: tuple[int, ...] | None, memory_bytes: int) -> "_Worker":
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

    async def _start(self, memory_bytes: int) -> "_Worker":
        """Start a worker and wait until it is ready."""
        worker = await self._launcher.start(memory_bytes)
        self._all.add(worker)
        ready = False
        try:
            self._check_open()
            with trio.fail_after(START_S):
                await worker.receive(0)
            ready = True
        except (_WorkerGone, trio.TooSlowError):
            self._check_open()
            await self._ended(worker)
            log.error("a document worker did not start (exit code %s): %r", worker.code, worker.last_words)
            hint = "document.memory may be too small for it, or pypdfium2 cannot be loaded; the log has its last words"
            raise CuttlefishError(f"the process that reads documents did not start: {hint}") from None
        finally:
            if not ready:
                self._end(worker)
        return worker

    def _keep(self, worker: "_Worker") -> None:
        """Make a worker available for the next command."""
        if self._closed:
            self._end(worker)
        else:
            self._idle.append(worker)

    def _end(self, worker: "_Worker") -> None:
        """Kill a worker. Its process is collected by the launcher's thread."""
        if worker in self._all:
            self._all.remove(worker)
            worker.end()
            self._launcher.collect(worker)

    async def _ended(self, worker: "_Worker") -> None:
        """End a worker and wait for its exit code."""
        self._end(worker)
        with trio.move_on_after(REAP_S):
            await worker.collected.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the document workers were closed")

    async def _close(self) -> None:
        """End all workers and the thread. Not cancellable: 5–20 ms, more if a large worker must give back its memory."""
        self._closed = True
        self._idle.clear()
        for worker in list(self._all):
            self._end(worker)
        with trio.CancelScope(shield=True):
            await self._launcher.close()


@dataclass(frozen=True, slots=True)
class _Ask:
    """One command, and what it is called in messages."""

    command: Literal["open", "page_text", "page_image", "prepare_image"]
    source: DocumentSource | bytes
    page: int | None = None
    arguments: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, ...] | None:
        """What tells one document from another. None: nothing that a worker would keep open."""
        if self.command == "prepare_image" or isinstance(self.source, bytes):
            return None
        return self.source.device, self.source.inode, self.source.size

    @property
    def thing(self) -> str:
        """The file, as its user knows it. Control characters in its name are escaped."""
        if isinstance(self.source, bytes):
            return "the image"
        return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in self.source.name) + '"'

    @property
    def subject(self) -> str:
        """The page, or the file."""
        return self.thing if self.page is None else f"page {self.page} of {self.thing}"


class _WorkerGone(Exception):  # never leaves this module
    """The worker closed its connection, or broke the rules of the conversation."""


class _Worker:
    """One process and the connection to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: trio.socket.SocketType, stderr: int, memory_bytes: int
    ) -> None:
        self.process = process
        self.memory_bytes = memory_bytes
        self.document: tuple[int, ...] | None = None  # what it has open, as far as we know
        self.documents = 0
        self.resident = 0
        self.last_words = b""
        self.code: int | None = None
        self.collected = trio.Event()
        self._connection = connection
        self._unread = b""
        self._stderr = stderr

    async def send(self, question: Mapping[str, Any], fd: int | None, payload: bytes) -> None:
        """Send a question, with a copy of a descriptor.

        Raises:
            _WorkerGone: nobody reads it.
        """
        header = json.dumps(question).encode()
        start = FRAME.pack(len(header), len(payload)) + header
        try:
            if fd is None:
                sent = await self._connection.send(start)
            else:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                sent = await self._connection.sendmsg([start], rights)
            for part in (memoryview(start)[sent:], memoryview(payload)):
                at = 0
                while at < len(part):
                    at += await self._connection.send(part[at:])
        except (BrokenPipeError, ConnectionResetError):
            raise _WorkerGone from None

    async def receive(self, reply_bytes: int) -> tuple[Mapping[str, Any], bytes]:
        """Return an answer's header and payload, which holds at most `reply_bytes`.

        Raises:
            _WorkerGone: no answer, or one that is no answer.
        """
        header_bytes, payload_bytes = FRAME.unpack(await self._exactly(FRAME.size))
        if header_bytes > ANSWER_HEADER_BYTES or payload_bytes > reply_bytes:
            raise _WorkerGone
        try:
            answer = json.loads(await self._exactly(header_bytes))
        except (ValueError, RecursionError):
            raise _WorkerGone from None
        if not isinstance(answer, dict):
            raise _WorkerGone
        resident = answer.get("resident")
        self.resident = resident if isinstance(resident, int) else 0
        payload = bytes(await self._exactly(payload_bytes))
        if self._unread:  # it went on talking: that could pass for the answer to the next question
            raise _WorkerGone
        return answer, payload

    async def _exactly(self, length: int) -> bytearray:
        """The next bytes. A small answer arrives in one piece, and each wait costs as much as the rest of a hop together."""
        whole = bytearray(length)
        at = min(length, len(self._unread))
        whole[:at] = self._unread[:at]
        self._unread = self._unread[at:]
        try:
            while length - at > CHUNK_BYTES:
                count = await self._connection.recv_into(memoryview(whole)[at:])
                if count == 0:
                    raise _WorkerGone
                at += count
            while at < length:
                self._unread = await self._connection.recv(CHUNK_BYTES)
                if not self._unread:
                    raise _WorkerGone
                count = min(length - at, len(self._unread))
                whole[at : at + count] = self._unread[:count]
                self._unread = self._unread[count:]
                at += count
        except ConnectionResetError:
            raise _WorkerGone from None
        return whole

    def end(self) -> None:
        """Kill the process and let go of it. Does not wait."""
        with contextlib.suppress(BlockingIOError):
            self.last_words = os.read(self._stderr, LAST_WORDS_BYTES)
        os.close(self._stderr)
        self.process.kill()
        self._connection.close()
        if self.last_words:
            log.debug("a document worker's last words: %r", self.last_words)


class _Launcher:
    """The one thread that starts workers and collects dead ones. It lives as long as the pool.

    Linux sends the parent-death signal when the *thread* that started a process ends. Threads of `trio.to_thread` end when they
    have been idle for some seconds: a worker started there died with them.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[int, concurrent.futures.Future[_Worker]] | _Worker | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._media = Path(__file__).parent
        self._site = _site_folders()

    async def start(self, memory_bytes: int) -> _Worker:
        """Start a process. Takes 1–3 ms, during which it cannot be cancelled."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cuttlefish document workers", daemon=True)
            self._thread.start()
        future: concurrent.futures.Future[_Worker] = concurrent.futures.Future()
        done = trio.Event()
        future.add_done_callback(lambda _: self._token.run_sync_soon(done.set))
        self._tasks.put((memory_bytes, future))
        with trio.CancelScope(shield=True):
            await done.wait()
        return future.result()

    def collect(self, worker: _Worker) -> None:
        """Have a killed worker's process collected, so that it does not stay as a zombie."""
        self._tasks.put(worker)

    async def close(self) -> None:
        """Wait until all killed processes are gone."""
        if self._thread is not None:
            self._tasks.put(None)
            await trio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        living: set[_Worker] = set()
        dying: list[_Worker] = []
        closing = False
        while not closing or dying:
            with contextlib.suppress(queue.Empty):
                task = self._tasks.get(timeout=REAP_POLL_S if dying else None)
                if task is None:
                    closing = True
                    for worker in living:  # one whose start was still under way, that nobody has asked to collect
                        worker.process.kill()
                    dying += living
                    living.clear()
                elif isinstance(task, _Worker):
                    if task in living:
                        living.remove(task)
                        dying.append(task)
                else:
                    try:
                        worker = self._spawn(task[0])
                        living.add(worker)
                        task[1].set_result(worker)
                    except Exception as error:  # noqa: BLE001  # raised again by whoever waits for the future
                        task[1].set_exception(error)
            for worker in list(dying):
                worker.code = worker.process.poll()
                if worker.code is not None:
                    dying.remove(worker)
                    with contextlib.suppress(trio.RunFinishedError):
                        self._token.run_sync_soon(worker.collected.set)

    def _spawn(self, memory_bytes: int) -> _Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stderr, stderr_end = os.pipe()
        try:
            # A full pipe blocks its writer for ever. Without blocking, what does not fit is lost, and nobody has to read
            os.set_blocking(stderr, False)
            os.set_blocking(stderr_end, False)
            packages = [["cuttlefish", str(self._media.parent)], ["cuttlefish.media", str(self._media)]]
            arguments = json.dumps([theirs.fileno(), memory_bytes, os.getpid(), packages, self._site])
            process = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", "-W", "ignore", "-c", BOOTSTRAP, arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr_end,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            os.close(stderr)
            raise
        finally:
            theirs.close()
            os.close(stderr_end)
        ours.setblocking(False)
        return _Worker(process, trio.socket.from_stdlib_socket(ours), stderr, memory_bytes)


def _site_folders() -> list[str]:
    """Where the worker's libraries are: an isolated interpreter may not look in the same places as this one."""
    folders = []
    for name in ("pypdfium2", "PIL"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).resolve().parent.parent))
    return folders


def _check_page(command: str, page: int) -> None:
    if page < 0:
        raise BadCommand(f"{command}: page {page} cannot be; the first page is 0")


def _whole(answer: _Answer, name: str, lowest: int, highest: int) -> int:
    """A whole number within bounds."""
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise _WorkerGone
    return value


def _truth(answer: _Answer, name: str) -> bool:
    value = answer.get(name)
    if not isinstance(value, bool):
        raise _WorkerGone
    return value


def _picture_format(data: bytes, width: int, height: int) -> Literal["png", "jpeg"]:
    """What a picture is, by its own first bytes; a PNG says there how large it is."""
    if data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    raise _WorkerGone


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A worker's "no", as the error to raise, and whether the worker may serve on."""

    error: CuttlefishError
    spoils_worker: bool = False


def _refusal(ask: _Ask, answer: _Answer, limits: Limits) -> _Refusal:
    """What a worker's problem means. The words are ours; of the worker's answer only the kind and checked numbers are used."""
    thing, subject, command = ask.thing, ask.subject, ask.command
    match answer.get("problem"):
        case "memory":
            return _Refusal(_too_much(ask, limits), spoils_worker=True)  # what else it lacks memory for is not known
        case "changed":
            return _Refusal(DocumentInvalid(f"{command}: {thing} became shorter after it was opened; start again when it is whole"))
        case "other_file":
            return _Refusal(DocumentInvalid(f"{command}: {thing} is no longer the file that was opened"))
        case "not_pdf":
            return _Refusal(
                DocumentInvalid(f"{command}: {thing} is not a readable PDF: it is damaged, cut short or something else")
            )
        case "no_pages":
            return _Refusal(DocumentInvalid(f"{command}: {thing} is not a readable PDF: it has no pages"))
        case "no_pages_left":
            return _Refusal(DocumentInvalid(f"{command}: {thing} is not a readable PDF: none of its pages can be found"))
        case "password":
            return _Refusal(
                DocumentPassword(f"{command}: {thing} is locked with a password, and none was given; use an unlocked copy")
            )
        case "security":
            return _Refusal(
                DocumentPassword(f"{command}: {thing} is locked in a way that cannot be opened here; use an unlocked copy")
            )
        case "no_page":
            pages = _whole(answer, "pages", 1, MOST_PAGES)
            count = "1 page" if pages == 1 else f"{pages} pages"
            return _Refusal(BadCommand(f"{command}: page {ask.page} is past the end; {thing} has {count} (the first is 0)"))
        case "bad_page":
            return _Refusal(DocumentInvalid(f"{command}: {subject} is missing or damaged and cannot be read; other pages may be"))
        case "page_box":
            width_pt, height_pt = _side(answer, "width"), _side(answer, "height")
            needed = (
                f"{subject} measures {width_pt:.6g}×{height_pt:.6g} points and needs {max(1.0, width_pt) * max(1.0, height_pt):.6g}"
            )
            return _Refusal(limit_exceeded("page_pixels", limits.page_pixels, needed))
        case "page_pixels":
            width, height = _whole(answer, "width", 1, 1 << 32), _whole(answer, "height", 1, 1 << 32)
            needed = f"{subject} at {width}×{height} needs {width * height}"
            return _Refusal(limit_exceeded("page_pixels", limits.page_pixels, needed))
        case "text_too_long":
            needed = f"the text of {subject} has {_whole(answer, 'needed', 1, 1 << 40)}"
            return _Refusal(limit_exceeded("guest_message_bytes", limits.guest_message_bytes, needed))
        case "image_bytes":
            needed = f"{subject}, as a picture for a model, has {_whole(answer, 'needed', 1, 1 << 40)}"
            return _Refusal(limit_exceeded("image_bytes", limits.image_bytes, needed))
        case "image_pixels":
            width, height = _whole(answer, "width", 1, 1 << 32), _whole(answer, "height", 1, 1 << 32)
            needed = f"{thing} is {width}×{height} and needs {width * height}"
            return _Refusal(limit_exceeded("image_pixels", limits.image_pixels, needed))
        case "image_damaged":
            return _Refusal(DocumentInvalid(f"{thing} is an image that is damaged or cut short"))
        case "image_unknown":
            return _Refusal(Unsupported(f"{thing} is no image of a known kind; use PNG, JPEG, GIF, WEBP, TIFF, BMP or AVIF"))
        case "image_heic":
            return _Refusal(Unsupported(f"{thing} is a HEIC image, which cannot be read here; convert it to JPEG"))
        case "image_svg":
            return _Refusal(Unsupported(f"{thing} is an SVG drawing, which cannot be read here; convert it to PNG"))
        case _:
            raise _WorkerGone


def _side(answer: _Answer, name: str) -> float:
    value = answer.get(name)
    if not isinstance(value, float) or not 0 <= value <= 1e39:  # PDFium's sizes are 32-bit floats
        raise _WorkerGone
    return value


def _too_slow(ask: _Ask, limits: Limits) -> CuttlefishError:
    return limit_exceeded("document_time_s", limits.document_time_s, f"{ask.subject} was not done by then ({ask.command})")


def _too_much(ask: _Ask, limits: Limits) -> CuttlefishError:
    return limit_exceeded("document_memory_bytes", limits.document_memory_bytes, f"{ask.subject} needs more ({ask.command})")


def _crashed(ask: _Ask, code: int | None) -> CuttlefishError:
    reason = "it did not keep to the rules" if code is None or code >= 0 else signal.Signals(-code).name
    return DocumentCrashed(
        f"{ask.command}: {ask.subject} crashed the process that read it ({reason}); other documents are not affected"
    )
