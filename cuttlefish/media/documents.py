"""Documents and images, read in worker processes: what hostile files can reach is a process with nothing to lose.

PDFium is not thread-safe, and a file of 30 KB can cost gigabytes. So each command goes to a worker (`document_worker.py`) with
limits on memory and time; a worker that dies or overruns is the error of *that* command, and the next one gets a new worker.

    async with open_document_workers() as workers:
        facts = await workers.open_document(source, limits)
        text = await workers.page_text(source, 0, limits)

On this side: `document_types.py` says what goes in and comes out, `worker_pool.py` which worker does what, `worker_process.py` how
one is talked to, `document_answers.py` what its answers mean, `read_ahead.py` which pages are there before they are asked for.
"""

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from typing import Literal

import trio

from cuttlefish.errors import BadCommand, CuttlefishError, Unsupported
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.media.document_answers import MOST_FRAMES, MOST_PAGES, Ask, number, picture_format, truth, whole
from cuttlefish.media.document_types import DocumentFacts, DocumentSource, PageImage, PageText, PreparedImage
from cuttlefish.media.document_worker import AHEAD_BYTES
from cuttlefish.media.read_ahead import ReadAhead
from cuttlefish.media.worker_pool import WorkerPool
from cuttlefish.media.worker_process import Answer, WorkerGone
from cuttlefish_abi import Crop, Frame, Resize

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
AHEAD_PATIENCE_S = 0.5  # for each page that nobody has asked for yet
MOST_IMAGES = 1 << 20  # more than a worker looks at


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
    pool = WorkerPool(size)
    try:
        yield DocumentWorkers(pool)
    finally:
        await pool.close()


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

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._ahead = ReadAhead()

    async def open_document(self, source: DocumentSource, limits: Limits) -> DocumentFacts:
        """Return what there is to know about a PDF or a TIFF before its pages are read.

        `pages` can be trusted to end: a count that a PDF's page tree does not bear out is replaced by the number found
        (`pdf_reader.count_pages` has the rule), and one that hides pages is an error (`pdf_reader.pages_found`). The search for
        text is bounded (`PdfDocument._has_text`): 512 pages and 2 s. A TIFF is a document if it has several frames
        (`tiff_reader.page_frames`), without a text layer; otherwise `image` says that it is an image. Damage in a TIFF
        is not looked for.

        Raises:
            DocumentInvalid: neither, damaged beyond repair, without a page, or with more pages than it says.
            DocumentPassword: it opens only with a password. The message says whether one was given, and how to give it.
            Unsupported: a form of Adobe's XFA, whose pages a reader would have to build.
        """

        def read(answer: Answer, _: bytes) -> DocumentFacts:
            image: Literal["tiff"] | None = "tiff" if truth(answer, "tiff_image") else None
            return DocumentFacts(whole(answer, "pages", 1, MOST_PAGES), truth(answer, "has_text_layer"), image)

        return await self._pool.ask(Ask("open", source), limits, 0, read)

    async def page_text(self, source: DocumentSource, page: int, limits: Limits) -> PageText:
        r"""Return the text of a page, zero-based, and what else lies on it; `pdf_text` has the rules for the text.

        Pages that are asked for in order come from a worker several at a time (1, 4, 16, then 64; 1 MiB of text and 0.1 s at
        most) and wait here until they are asked for. That changes nothing but the time it takes: what goes wrong on a later page
        is told when that one is asked for. `images` and `coverage` are counted as `pdf_images.images_on` says; a page of a TIFF
        is one image that covers it.

        Raises:
            BadCommand: there is no such page.
            DocumentInvalid: this page cannot be read; others may be.
            DocumentPassword: as in `open_document`.
            LimitExceeded: also `page.pixels`, if a side is longer than PDF's own 14,400 points and the page
                is too large at one pixel per point, and `guest.message`.
        """
        _check_page("page_text", page)
        walk = self._ahead.walk(source, limits)
        if (there := walk.take(page)) is not None:
            await trio.lowlevel.checkpoint()
            return there
        count = walk.count(page)
        texts: list[PageText] = []

        def piece(answer: Answer, data: bytes) -> None:
            if len(texts) == count or len(data) > limits.guest_message_bytes:
                raise WorkerGone
            images, coverage = whole(answer, "images", 0, MOST_IMAGES), number(answer, "coverage", 0.0, 1.0)
            texts.append(PageText(_decoded(data), images, coverage))

        def end(_: Answer, data: bytes) -> None:
            if not texts or data:
                raise WorkerGone

        try:
            ask = Ask("page_text", source, page, {"count": count, "text_bytes": limits.guest_message_bytes})
            reply_bytes = limits.guest_message_bytes + AHEAD_BYTES
            await self._pool.ask(ask, limits, reply_bytes, end, piece, AHEAD_PATIENCE_S)
        except CuttlefishError:
            if not texts:
                raise
        walk.keep(page, count, texts)
        return texts[0]

    async def document_text(self, source: DocumentSource, limits: Limits) -> str:
        """Return the text of all pages in order, with one blank line between two. A page without text leaves no trace.

        Each page reads as in `page_text`. `document.time` holds for the opening and for each page, not for the whole; a long
        document may take as long as it needs, until the job is cancelled or `job.time` ends it.

        Raises:
            DocumentInvalid: a page cannot be read; the message names it. `page_text` still reads the others.
            DocumentPassword: as in `open_document`.
            LimitExceeded: also `guest.message`, for the whole text; for a page as in `page_text`.
        """
        texts: list[str] = []

        def piece(_: Answer, data: bytes) -> None:
            if len(texts) == MOST_PAGES:
                raise WorkerGone
            texts.append(_decoded(data))

        def end(_: Answer, data: bytes) -> str:
            if not texts or data:
                raise WorkerGone
            return "\n\n".join(stripped for text in texts if (stripped := text.strip("\n")))

        return await self._pool.ask(Ask("document_text", source, 0), limits, limits.guest_message_bytes, end, piece)

    async def page_image(self, source: DocumentSource, page: int, limits: Limits, long_side: int = PAGE_LONG_SIDE) -> PageImage:
        """Return a page, zero-based, drawn on white so that its longer side has `long_side` pixels.

        Rotation and crop box are applied; the document's user unit is not. Filled form fields are drawn. The picture is a PNG, or
        a JPEG of quality 85 if the page holds an image or a form object (which may hold one). A page of a TIFF is turned as its
        orientation says, shrunk but never enlarged, and always a JPEG.

        Raises:
            BadCommand: there is no such page, or `long_side` is not positive.
            DocumentInvalid: this page cannot be read, others may be; or an image on it cannot (`pdf_images.holds_damaged_image`).
            DocumentPassword: as in `open_document`.
            LimitExceeded: also `page.pixels`, judged before drawing, or for a side as in `page_text`; of a TIFF `image.pixels`,
                judged by the header of the page; `image.bytes`.
        """
        _check_page("page_image", page)
        if long_side < 1:
            raise BadCommand(f"page_image: the longer side needs at least 1 pixel, found {long_side}")

        def read(answer: Answer, data: bytes) -> PageImage:
            width, height = whole(answer, "width", 1, long_side), whole(answer, "height", 1, long_side)
            return PageImage(data, picture_format(data, width, height), width, height)

        return await self._pool.ask(Ask("page_image", source, page, {"long_side": long_side}), limits, limits.image_bytes, read)

    async def prepare_image(self, source: DocumentSource | bytes, limits: Limits) -> PreparedImage:
        """Return an image as an upright PNG or JPEG of 8-bit grey or RGB, which any model's reader understands.

        Accepts PNG, JPEG, GIF, WEBP, TIFF, BMP and AVIF, told apart by content. What already fits comes back unchanged, byte for
        byte (and was decoded once, so that it is known to be whole). `images.prepare` says how the rest is converted; metadata
        is dropped then. Sizes are those after turning.

        Raises:
            Unsupported: another format; those of `sniff.NAMED_FORMATS` are named.
            DocumentInvalid: damaged or cut short.
            LimitExceeded: also `image.bytes`, for the file and for the result, and `image.pixels`, judged by the header.
        """
        made = await self._changed(Ask("prepare_image", source, None, {"change": ["prepare"]}), limits)
        return PreparedImage(made.data, "image/png" if made.format == "png" else "image/jpeg", made.width, made.height)

    async def image_op(self, source: DocumentSource | bytes, op: Resize | Crop | Frame, limits: Limits) -> PageImage:
        """Return a changed copy of an image, as `prepare_image` would make it: upright first, so that sizes and places are those
        of the picture that a person sees.

        `Resize` makes it fit into the box: the proportions stay, sides are rounded, have at least one pixel and never grow.
        `Crop` cuts a rectangle out. `Frame` takes one frame of an animation, counted from zero, and `frames` tells how many there
        are; the others see the first. Frames build on those before them, so a late one takes as long as all of them.

        Raises:
            BadCommand: the rectangle does not lie inside; the message names it and the picture's size. Or there is no such frame;
                the message tells how many there are.
            What `prepare_image` raises.
        """
        match op:
            case Resize():
                return await self._changed(
                    Ask("image_op", source, None, {"change": ["resize", op.max_width, op.max_height]}), limits
                )
            case Crop():
                rectangle = (op.x, op.y, op.width, op.height)
                return await self._changed(Ask("image_op", source, None, {"change": ["crop", *rectangle]}, rectangle), limits)
            case Frame():
                return await self._changed(Ask("image_op", source, None, {"change": ["frame", op.index]}, frame=op.index), limits)

    def forget(self, source: DocumentSource) -> None:
        """Drop the page texts that are kept of this document. Call it when a job is done with it; a few are kept otherwise."""
        self._ahead.forget(source)

    async def _changed(self, ask: Ask, limits: Limits) -> PageImage:
        """Have a worker make a picture from one."""
        source = ask.source
        size = len(source) if isinstance(source, bytes) else source.size
        if size > limits.image_bytes:
            raise limit_exceeded("image_bytes", limits.image_bytes, f"{ask.thing} has {size}")

        def read(answer: Answer, data: bytes) -> PageImage:
            width = whole(answer, "width", 1, limits.image_pixels)
            height = whole(answer, "height", 1, limits.image_pixels // width)
            if isinstance(source, bytes) and truth(answer, "unchanged"):
                data = source
            frames = whole(answer, "frames", 0, MOST_FRAMES) or None
            return PageImage(data, picture_format(data, width, height), width, height, frames)

        return await self._pool.ask(ask, limits, limits.image_bytes, read)


def _check_page(command: str, page: int) -> None:
    if page < 0:
        raise BadCommand(f"{command}: page {page} cannot be; the first page is 0")


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WorkerGone from None
