"""The process that reads hostile documents and images: one command at a time, with little to spend and nothing to reach.

`documents.py` starts it and talks to it over a socket. A question is a frame (two 32-bit lengths, a JSON header, a payload)
which may carry the descriptor of the document; the answer is a frame too. It knows no paths and no names: it answers with
numbers and kinds, and the sentences for people are made on the other side.

It is started so that neither `cuttlefish/__init__.py` nor pydantic, trio or wasmtime are imported here: a start takes a tenth
of a second, a warm worker 30 MB. PDFium is not thread-safe, hence one thread.

Limits of the process: address space (`document.memory`), processor time (set anew for each command), no file may grow, no core
file, 32 descriptors, no new privileges. `RLIMIT_NPROC` is 0: it is compared with the number of the *user's* processes, but only
when *this* process forks, so 0 stops children here and disturbs nobody (root is exempt from it). On Linux the kernel kills the
worker when the thread that started it ends. macOS has no such signal, and its kernel may not enforce the address space: there
an idle worker sees the closed socket, and a busy one ends with its processor time.
"""

import contextlib
import ctypes
import json
import logging
import math
import os
import re
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["FRAME", "main"]

FRAME = struct.Struct("!II")  # length of the JSON header, length of the payload

WHOLE_FILE_BYTES = 64 << 20  # up to here a PDF is read into memory at once; above, PDFium asks for the blocks that it needs
ONE_PIECE_BYTES = 64 << 10  # a smaller answer is sent, and wakes the host, once
DESCRIPTORS = 32
LARGEST_SIDE_PT = 14_400  # the largest page that PDF 1.7 allows (annex C)
TEXT_SEARCH_S = 2.0  # the most that opening spends on looking for text …
TEXT_SEARCH_PAGES = 512  # … and the most pages
FIRST_PAGES = 32  # searched in order; beyond them, pages evenly spread
GAP_PAGES = 256  # so many missing pages in a row end the page tree
PAGE_JPEG_QUALITY = 85
PARENT_DEATH_SIGNAL, NO_NEW_PRIVILEGES = 1, 38  # linux/prctl.h
PDFIUM_FORMAT, PDFIUM_PASSWORD, PDFIUM_SECURITY = 3, 4, 5  # fpdfview.h: FPDF_ERR_…


class Problem(Exception):  # becomes an error of `errors.py` on the other side
    """Why a command cannot be carried out: a kind that `documents.py` knows, and its numbers."""

    def __init__(self, kind: str, **numbers: float) -> None:
        super().__init__(kind)
        self.kind = kind
        self.numbers = numbers


class FileBlocks:
    """The document's bytes for PDFium, read where it asks: `pread` only, so that the shared file offset does not matter."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size, self.at = fd, size, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Choose where the next read starts."""
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        """Where the next read starts."""
        return self.at

    def read(self, length: int = -1) -> bytes:
        """Required of a stream by pypdfium2; PDFium itself uses `readinto`."""
        block = os.pread(self.fd, max(0, self.size - self.at) if length < 0 else length, self.at)
        self.at += len(block)
        return block

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; fewer bytes than it holds make PDFium give up on that block."""
        count = os.preadv(self.fd, [buffer], self.at)
        self.at += count
        return count

    def close(self) -> None:
        """Close the descriptor, which is this process's own copy."""
        os.close(self.fd)


@dataclass(slots=True)
class OpenDocument:
    """A document kept open between commands. PDFium is untyped, therefore `Any`."""

    key: tuple[int, ...]
    pdf: Any
    pages: int
    source: tuple[bytes | FileBlocks, object]  # what PDFium reads from, and must not be collected before it

    def close(self) -> None:
        """Close PDFium's document, and with it what is left of its pages."""
        self.pdf.close()
        if isinstance(self.source[0], FileBlocks):
            self.source[0].close()


class Worker:
    """Carries out commands, and remembers one document."""

    def __init__(self) -> None:
        self.document: OpenDocument | None = None

    def carry_out(self, question: Mapping[str, Any], fd: int | None, payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Answer one question. The descriptor is closed, or kept with the document."""
        command = question["command"]
        if command == "prepare_image":
            return self.prepare_image(question, fd, payload)
        assert fd is not None  # the host sends one with every command on a document
        document = self.opened(question, fd)
        if command == "open":
            return {"pages": document.pages, "has_text_layer": has_text_layer(document, question)}, b""
        page = question["page"]
        if page >= document.pages:
            raise Problem("no_page", pages=document.pages)
        check_box(document, page, question["page_pixels"])
        if command == "page_text":
            text = page_text(document, page).encode()
            if len(text) > question["reply_bytes"]:
                raise Problem("text_too_long", needed=len(text))
            return {}, text
        return page_image(document, page, question)

    def opened(self, question: Mapping[str, Any], fd: int) -> OpenDocument:
        """The document behind a descriptor, opened now or before. Takes the descriptor over."""
        try:
            status = checked(question, fd)
            key = (status.st_dev, status.st_ino, question["size"], status.st_mtime_ns)
            if self.document is not None:
                if self.document.key == key:
                    return self.document
                self.document.close()
                self.document = None
            source: bytes | FileBlocks = read_whole(fd, key[2]) if key[2] <= WHOLE_FILE_BYTES else FileBlocks(fd, key[2])
            if isinstance(source, FileBlocks):
                fd = -1
            self.document = load(source, key)
            return self.document
        finally:
            if fd >= 0:
                os.close(fd)

    def prepare_image(self, question: Mapping[str, Any], fd: int | None, payload: bytes) -> tuple[dict[str, Any], bytes]:
        """See `images.prepare`."""
        from cuttlefish.media import images  # here, because reading PDF text needs no Pillow

        if fd is not None:
            try:
                checked(question, fd)
                payload = read_whole(fd, question["size"])
            finally:
                os.close(fd)
        try:
            made = images.prepare(payload, max_pixels=question["image_pixels"], max_bytes=question["reply_bytes"])
        except images.ImageProblem as problem:
            raise Problem(problem.kind, **problem.numbers) from None
        facts = {"media_type": made.media_type, "width": made.width, "height": made.height, "unchanged": made.unchanged}
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


def load(source: bytes | FileBlocks, key: tuple[int, ...]) -> OpenDocument:
    """Open a PDF and count its pages."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    # Not by pypdfium2's own constructor: it loses a document without pages, and reports an older document's error for it
    if isinstance(source, bytes):
        kept: object = source
        raw = pdfium.FPDF_LoadMemDocument64(source, len(source), None)
    else:
        access, kept = pypdfium2.internal.get_bufreader(source)
        raw = pdfium.FPDF_LoadCustomDocument(access, None)
    if not raw:
        if isinstance(source, FileBlocks):
            source.close()
        kinds = {PDFIUM_PASSWORD: "password", PDFIUM_SECURITY: "security"}
        raise Problem(kinds.get(pdfium.FPDF_GetLastError(), "not_pdf"))
    document = OpenDocument(key, pypdfium2.PdfDocument(raw), 0, (source, kept))
    with contextlib.suppress(pypdfium2.PdfiumError):  # a damaged form does not make the pages unreadable
        document.pdf.init_forms()  # before any page is loaded, or form fields are not drawn
    document.pages = count_pages(document.pdf)
    if document.pages == 0:
        problem = "no_pages_left" if len(document.pdf) else "no_pages"
        document.close()
        raise Problem(problem)
    return document


def page_size(pdf: Any, page: int) -> tuple[float, float] | None:
    """Width and height in points as shown, or None if the tree has no such page. Parses none of the page's content."""
    import pypdfium2.raw as pdfium

    size = pdfium.FS_SIZEF()
    return (size.width, size.height) if pdfium.FPDF_GetPageSizeByIndexF(pdf, page, size) else None


def count_pages(pdf: Any) -> int:
    """How many pages there are, given that a document may claim any number.

    The claim (`/Count`, at most 1,048,575 in PDFium) is believed if its last page is there. Otherwise the tree is walked from
    the front until it ends or 256 pages in a row are missing. If at least half of the claimed pages were found, the rest are
    damage: they count, and asking for one is an error that names it. If not, the claim is a lie: the pages end with the last
    one found. So a lie can at most double the number, and damage is never hidden unless most of the document is gone.
    """
    claimed = len(pdf)
    if claimed <= 0 or page_size(pdf, claimed - 1) is not None:
        return max(0, claimed)
    found = missing = 0
    for page in range(claimed):
        if page_size(pdf, page) is not None:
            found, missing = page + 1, 0
        else:
            missing += 1
            if missing >= GAP_PAGES:
                break
    return claimed if claimed <= 2 * found else found


def has_text_layer(document: OpenDocument, question: Mapping[str, Any]) -> bool:
    """Whether a page has a letter or a digit.

    Bounded: the first 32 pages in order, then pages evenly spread, 512 in all, for 2 seconds or a quarter of `document.time`.
    A text that begins after that is not seen.
    """
    first = range(min(FIRST_PAGES, document.pages))
    rest = document.pages - FIRST_PAGES
    step = max(1, math.ceil(rest / (TEXT_SEARCH_PAGES - FIRST_PAGES)))
    end = time.monotonic() + min(TEXT_SEARCH_S, question["time_s"] / 4)
    for page in (*first, *range(FIRST_PAGES, document.pages, step)):
        try:
            check_box(document, page, question["page_pixels"])
            if any(character.isalnum() for character in page_text(document, page)):
                return True
        except Problem:
            pass  # that page's own error, when it is asked for
        if time.monotonic() > end:
            break
    return False


def check_box(document: OpenDocument, page: int, page_pixels: int) -> None:
    """Refuse a page larger than PDF allows, unless it fits the limit at one pixel per point (a long web page may).

    Before its text is read too: that of a page 2·10⁹ points wide took PDFium 480 MB.
    """
    size = page_size(document.pdf, page)
    if size is None:
        raise Problem("bad_page")
    if max(size) > LARGEST_SIDE_PT and max(1, size[0]) * max(1, size[1]) > page_pixels:
        raise Problem("page_box", width=size[0], height=size[1])


def loaded(document: OpenDocument, page: int) -> Any:
    """PDFium's page. The caller closes it."""
    import pypdfium2

    try:
        return document.pdf[page]
    except pypdfium2.PdfiumError:
        raise Problem("bad_page") from None


def page_text(document: OpenDocument, page: int) -> str:
    """The text of a page, see `tidy`."""
    import pypdfium2

    shown = loaded(document, page)
    try:
        try:
            text_page = shown.get_textpage()
        except pypdfium2.PdfiumError:
            raise Problem("bad_page") from None
        try:
            raw = text_page.get_text_range(errors="replace")
            return tidy(raw, hyphen_marks(text_page, raw))
        finally:
            text_page.close()
    finally:
        shown.close()


def hyphen_marks(text_page: Any, raw: str) -> set[int]:
    """Where in `raw` PDFium put U+FFFE for a hyphen at the end of a line. It puts the same for glyphs that mean nothing."""
    import pypdfium2.raw as pdfium

    marks, unit, seen = set(), 0, 0
    for match in re.finditer("\ufffe", raw):
        unit += (
            len(raw[seen : match.start()].encode("utf-16-le")) // 2
        )  # PDFium counts UTF-16 units, and leaves some characters out
        seen = match.start()
        if pdfium.FPDFText_IsHyphen(text_page, pdfium.FPDFText_GetCharIndexFromTextIndex(text_page, unit)) == 1:
            marks.add(match.start())
    return marks


def tidy(raw: str, hyphens: set[int]) -> str:
    r"""PDFium's text as ours.

    Lines end with `\n`. A hyphen at the end of a line, of which PDFium makes a mark *instead* of the line's end, is `-\n`
    again, as on the page: deleting each `-\n` joins the words. No other control characters than `\t` and `\n`; U+FFFD stands
    for what is no character (noncharacters, halves of surrogate pairs).
    """
    if hyphens:
        raw = "".join("-\n" if at in hyphens else character for at, character in enumerate(raw))
    text = raw.replace("\r\n", "\n")
    if text.replace("\n", "").isprintable():  # nearly always, and fifty times faster than to look for what is not
        return text
    text = re.sub("[\r\x0b\x0c\x85]", "\n", text)
    text = re.sub("[\x00-\x08\x0e-\x1f\x7f-\x9f]", "", text)
    return NOT_CHARACTERS.sub("\ufffd", text)


NOT_CHARACTERS = re.compile(
    "[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(1, 17))
    + "]"
)


def page_image(document: OpenDocument, page: int, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """A page on white, its longer side as asked. JPEG (quality 85) if it holds an image or a form, which may hold one; else PNG."""
    import pypdfium2
    import pypdfium2.raw as pdfium

    from cuttlefish.media import images

    shown = loaded(document, page)
    try:
        width_pt, height_pt = shown.get_size()
        scale = question["long_side"] / max(width_pt, height_pt)
        # Sizes are rounded by us and given to PDFium as whole pixels: pypdfium2's `render` rounds up, 1024 became 1025
        width, height = max(1, round(width_pt * scale)), max(1, round(height_pt * scale))
        if width * height > question["page_pixels"]:
            raise Problem("page_pixels", width=width, height=height)
        try:
            bitmap = pypdfium2.PdfBitmap.new_native(width, height, pdfium.FPDFBitmap_BGR)
            bitmap.fill_rect((255, 255, 255, 255), 0, 0, width, height)
        except pypdfium2.PdfiumError:
            raise Problem("memory") from None
        try:
            where = (bitmap, shown, 0, 0, width, height, 0, pdfium.FPDF_ANNOT)
            pdfium.FPDF_RenderPageBitmap(*where)
            if document.pdf.formenv:
                pdfium.FPDF_FFLDraw(document.pdf.formenv, *where)
            picture = bitmap.to_pil()
        finally:
            bitmap.close()
        kinds = {
            pdfium.FPDFPageObj_GetType(pdfium.FPDFPage_GetObject(shown, at))
            for at in range(min(2_000, pdfium.FPDFPage_CountObjects(shown)))  # a page may have millions
        }
        photographic = bool(kinds & {pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM})
        data = images.encode(picture, "jpeg" if photographic else "png", PAGE_JPEG_QUALITY)
        if len(data) > question["reply_bytes"]:
            raise Problem("image_bytes", needed=len(data))
        return {"format": "jpeg" if photographic else "png", "width": width, "height": height}, data
    finally:
        shown.close()


def confine(memory_bytes: int, parent: int) -> None:
    """Give up what a reader of documents does not need. On Linux everything must succeed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the host's to handle
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        for option, value in ((PARENT_DEATH_SIGNAL, signal.SIGKILL), (NO_NEW_PRIVILEGES, 1)):
            if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
                raise OSError(ctypes.get_errno(), f"prctl option {option}")
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
    soft, hard = math.ceil(used.ru_utime + used.ru_stime + time_s) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]
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


def send(connection: socket.socket, header: Mapping[str, Any], payload: bytes) -> None:
    """Answer, or say that the worker is ready."""
    encoded = json.dumps(header).encode()
    start = FRAME.pack(len(encoded), len(payload)) + encoded
    if len(payload) <= ONE_PIECE_BYTES:
        connection.sendall(start + payload)
    else:
        connection.sendall(start)
        connection.sendall(payload)


def main(connection_fd: int, memory_bytes: int, parent: int) -> NoReturn:
    """Serve the host until it closes the connection."""
    confine(memory_bytes, parent)
    logging.disable()  # a silent abort means "out of memory" to the host: nothing else may write to stderr
    import pypdfium2  # noqa: F401  # now, so that no command pays for it

    connection = socket.socket(fileno=connection_fd)
    worker = Worker()
    send(connection, {"ready": True}, b"")
    while (received := receive(connection)) is not None:
        question, fd, payload = received
        del received
        allow_cpu(question["time_s"])
        try:
            answer, data = worker.carry_out(question, fd, payload)
        except Problem as problem:
            answer, data = {"problem": problem.kind, **problem.numbers}, b""
        except MemoryError:
            answer, data = {"problem": "memory"}, b""
        del payload
        send(connection, {**answer, "resident": resident_bytes()}, data)
        del data
    os._exit(0)  # without PDFium's own tidying up, which may crash after a bad document
