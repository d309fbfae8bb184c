"""The process that reads hostile documents and images: one command at a time, with little to spend and nothing to reach.

`worker_process.py` starts it and talks to it over a socket. A question is a frame (two 32-bit lengths, a JSON header, a payload)
which may carry the descriptor of the document; the answer is a frame too, after others marked `more` where it comes in pieces.
It knows no paths and no names: it answers with numbers and kinds, and the sentences for people are made on the other side.
The reading itself is done by `pdf_reader.py`, `tiff_reader.py` and `images.py`.

It is started so that neither `cuttlefish/__init__.py` nor pydantic, trio or wasmtime are imported here: a start takes a tenth
of a second, a warm worker 30 MB. PDFium is not thread-safe, hence one thread.

Limits of the process: address space (`document.memory`), processor time (set anew for each command), no file may grow, no core
file, 32 descriptors, no new privileges. `RLIMIT_NPROC` is 0: it is compared with the number of the *user's* processes, but only
when *this* process forks, so 0 stops children here and disturbs nobody (root is exempt from it). On Linux, on x86_64 and aarch64,
the kernel refuses network, children, files that would change and a hold on other processes (`system_calls.py`); on other systems
there is no ban on the network beyond these limits and an empty environment. On Linux the kernel kills the worker when the thread
that started it ends. macOS has no such signal, and its kernel may not enforce the address space: there
an idle worker sees the closed socket, and a busy one ends with its processor time.
"""

import ctypes
import json
import logging
import math
import os
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cuttlefish.media.pdf_reader import open_pdf
from cuttlefish.media.reading import FileBlocks, OpenDocument, Problem
from cuttlefish.media.system_calls import refuse_system_calls
from cuttlefish.media.tiff_reader import TiffDocument, is_tiff

__all__ = ["AHEAD_BYTES", "FRAME", "main"]

FRAME = struct.Struct("!II")  # length of the JSON header, length of the payload

WHOLE_FILE_BYTES = 64 << 20  # up to here a PDF is read into memory at once; above, PDFium asks for the blocks that it needs
HEAD_BYTES = 1024
ONE_PIECE_BYTES = 64 << 10  # a smaller answer is sent, and wakes the host, once
AHEAD_BYTES = 1 << 20  # the most text of pages that nobody has asked for yet …
AHEAD_S = 0.1  # … and the time after which no other is begun
CPU_RENEWAL_S = 1.0
TOGETHER_S = 0.002
DESCRIPTORS = 32
PARENT_DEATH_SIGNAL, NO_NEW_PRIVILEGES = 1, 38  # linux/prctl.h
KEPT_FREE, LARGEST_FROM_HEAP = -1, -3  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


class Worker:
    """Carries out commands, and remembers one document."""

    def __init__(self, answers: "Answers") -> None:
        self.document: OpenDocument | None = None
        self.answers = answers

    def carry_out(self, question: Mapping[str, Any], fd: int | None, payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Answer one question, after any number of pieces. The descriptor is closed, or kept with the document."""
        command = question["command"]
        if command in ("prepare_image", "image_op"):
            return change_image(question, fd, payload)
        assert fd is not None  # the host sends one with every command on a document
        try:
            return self.read_document(command, self.opened(question, fd), question)
        finally:
            if self.document is not None and self.document.spoiled:
                self.document.close()
                self.document = None

    def read_document(self, command: str, document: OpenDocument, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a question about the document that is open."""
        if command == "open":
            return document.facts(question), b""
        if command == "document_text":
            return self.document_text(document, question)
        page = question["page"]
        if page >= document.pages:
            raise Problem("no_page", pages=document.pages)
        if command == "page_text":
            return self.page_texts(document, question)
        facts, data = document.picture(page, question)
        if len(data) > question["reply_bytes"]:
            raise Problem("image_bytes", needed=len(data))
        return facts, data

    def opened(self, question: Mapping[str, Any], fd: int) -> OpenDocument:
        """The document behind a descriptor, opened now or before. Takes the descriptor over."""
        try:
            status = checked(question, fd)
            # The password too: who does not know it must not get what another opened with it
            key = (status.st_dev, status.st_ino, question["size"], status.st_mtime_ns, question["password"])
            if self.document is not None:
                if self.document.key == key:
                    return self.document
                self.document.close()
                self.document = None
            size = question["size"]
            source: bytes | FileBlocks = read_whole(fd, size) if size <= WHOLE_FILE_BYTES else FileBlocks(fd, size)
            if isinstance(source, FileBlocks):
                fd = -1
            if is_tiff(source[:HEAD_BYTES] if isinstance(source, bytes) else os.pread(source.fd, HEAD_BYTES, 0)):
                self.document = TiffDocument(key, source)
            else:
                self.document = open_pdf(source, key, question["password"])
            return self.document
        finally:
            if fd >= 0:
                os.close(fd)

    def page_texts(self, document: OpenDocument, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A page, and those after it that the host would like to have already. The first is sent as soon as it is there, so that
        whatever happens on a later page costs it nothing: the host asks for that one again.
        """
        asked, ahead_bytes, end = question["page"], 0, time.monotonic() + AHEAD_S
        for page in range(asked, min(asked + question["count"], document.pages)):
            read = document.read(page, question, with_images=True)
            text = read.text.encode()
            if page == asked:
                if len(text) > question["text_bytes"]:
                    raise Problem("text_too_long", needed=len(text))
            else:
                ahead_bytes += len(text)
                if ahead_bytes > AHEAD_BYTES:
                    break
            # The page that was asked for goes before another is begun. Those ahead may be lost with the worker
            facts = {"more": True, "images": read.images, "coverage": read.coverage}
            self.answers.send(facts, text, may_wait=page > asked)
            if time.monotonic() > end:
                break
        return {}, b""

    def document_text(self, document: OpenDocument, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """All pages, one piece for each: the host knows by their number which page is next, and gives it time of its own."""
        total, renewed = 0, time.monotonic()
        for page in range(document.pages):
            text = document.read(page, question, with_images=False).text.encode()
            total += len(text)
            if total > question["reply_bytes"]:
                raise Problem("document_too_long")
            self.answers.send({"more": True}, text)
            if time.monotonic() > renewed + CPU_RENEWAL_S:
                renewed = time.monotonic()
                allow_cpu(question["time_s"])
        return {}, b""


def change_image(question: Mapping[str, Any], fd: int | None, payload: bytes) -> tuple[dict[str, Any], bytes]:
    """See `images.prepare`, `images.resize`, `images.crop` and `images.take_frame`."""
    from cuttlefish.media import images  # here, because reading PDF text needs no Pillow

    if fd is not None:
        try:
            checked(question, fd)
            payload = read_whole(fd, question["size"])
        finally:
            os.close(fd)
    functions: dict[str, Callable[..., images.Prepared]] = {
        "prepare": images.prepare,
        "resize": images.resize,
        "crop": images.crop,
        "frame": images.take_frame,
    }
    change, *numbers = question["change"]
    try:
        made = functions[change](payload, *numbers, max_pixels=question["image_pixels"], max_bytes=question["reply_bytes"])
    except images.ImageProblem as problem:
        raise Problem(problem.kind, **problem.facts) from None
    facts = {
        "media_type": made.media_type,
        "width": made.width,
        "height": made.height,
        "unchanged": made.unchanged,
        "frames": made.frames,
    }
    return facts, b"" if made.unchanged and fd is None else made.data


def checked(question: Mapping[str, Any], fd: int) -> os.stat_result:
    """The status of a descriptor, which must be the file that was approved, and at least as long as it was then."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (question["device"], question["inode"]):
        raise Problem("other_file")
    if status.st_size < question["size"]:
        raise Problem("changed")
    return status


def read_whole(fd: int, size: int) -> bytes:
    """The first `size` bytes of a file."""
    whole = bytearray(size)
    view, at = memoryview(whole), 0
    while at < size:
        count = os.preadv(fd, [view[at:]], at)
        if count == 0:
            raise Problem("changed")
        at += count
    return bytes(whole)


def confine(memory_bytes: int, parent: int) -> None:
    """Give up what a reader of documents does not need. On Linux everything must succeed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the host's to handle
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        for option, value in ((PARENT_DEATH_SIGNAL, signal.SIGKILL), (NO_NEW_PRIVILEGES, 1)):
            if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
                raise OSError(ctypes.get_errno(), f"prctl option {option}")
        refuse_system_calls()  # where the kernel cannot, what stands below has to do
        if hasattr(libc, "mallopt"):  # glibc would give a page's picture back to the system, and take the memory again for the next
            libc.mallopt(KEPT_FREE, 64 << 20)
            libc.mallopt(LARGEST_FROM_HEAP, 32 << 20)
        if os.getppid() != parent:  # it ended before the signal was asked for
            sys.exit(1)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, DESCRIPTORS),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        hard = resource.getrlimit(limit)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        try:
            resource.setrlimit(limit, (value, value))
        except (OSError, ValueError):
            if sys.platform == "linux":
                raise


def allow_cpu(time_s: float) -> None:
    """Set the processor time for the next command. The parent's clock is stricter; this one works without a parent."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft, hard = math.ceil(used.ru_utime + used.ru_stime + time_s + CPU_RENEWAL_S) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def resident_bytes() -> int:
    """Memory in use now, 0 where the system does not tell."""
    try:
        fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 100).split()[1]) * resource.getpagesize()
    finally:
        os.close(fd)


def receive(connection: socket.socket) -> tuple[dict[str, Any], int | None, bytes] | None:
    """The next question, or None when the host has closed the connection."""
    start, fds, _, _ = socket.recv_fds(connection, FRAME.size, 1)
    if not start:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    header_bytes, payload_bytes = FRAME.unpack(start + receive_exactly(connection, FRAME.size - len(start)))
    question = json.loads(receive_exactly(connection, header_bytes))
    return question, fds[0] if fds else None, receive_exactly(connection, payload_bytes)


def receive_exactly(connection: socket.socket, length: int) -> bytes:
    """Bytes of the host's, which is trusted."""
    whole = bytearray(length)
    view, at = memoryview(whole), 0
    while at < length:
        count = connection.recv_into(view[at:])
        if count == 0:
            sys.exit(1)
        at += count
    return bytes(whole)


class Answers:
    """What goes to the host. A piece that may wait goes with the next one, because each waking of the host costs as much as
    reading a short page: for 2 ms, or until 64 KiB are together.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.waiting = bytearray()
        self.sent = 0.0

    def send(self, header: Mapping[str, Any], payload: bytes = b"", *, may_wait: bool = False) -> None:
        """Send a piece, an answer, or that the worker is ready."""
        encoded = json.dumps(header).encode()
        self.waiting += FRAME.pack(len(encoded), len(payload)) + encoded
        if len(self.waiting) + len(payload) <= ONE_PIECE_BYTES:
            self.waiting += payload
            payload = b""
            if may_wait and time.monotonic() < self.sent + TOGETHER_S:
                return
        self.connection.sendall(self.waiting)
        self.connection.sendall(payload)
        self.waiting.clear()
        self.sent = time.monotonic()


def main(connection_fd: int, memory_bytes: int, parent: int) -> NoReturn:
    """Serve the host until it closes the connection."""
    confine(memory_bytes, parent)
    logging.disable()  # a silent abort means "out of memory" to the host: nothing else may write to stderr
    import pypdfium2  # noqa: F401  # now, so that no command pays for it

    connection = socket.socket(fileno=connection_fd)
    answers = Answers(connection)
    worker = Worker(answers)
    answers.send({"ready": True})
    while (received := receive(connection)) is not None:
        question, fd, payload = received
        del received
        allow_cpu(question["time_s"])
        try:
            answer, data = worker.carry_out(question, fd, payload)
        except Problem as problem:
            answer, data = {"problem": problem.kind, **problem.facts}, b""
        except MemoryError:
            answer, data = {"problem": "memory"}, b""
        del payload
        answers.send({**answer, "resident": resident_bytes()}, data)
        del data
    os._exit(0)  # without PDFium's own tidying up, which may crash after a bad document
