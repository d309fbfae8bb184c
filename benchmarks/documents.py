"""Documents: what it costs that a PDF is read in a process that can be killed, beside PDFium in our own process."""

import importlib
import io
import os
import random
import shutil
import subprocess
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pypdfium2
import trio
from PIL import Image

from benchmarks.peers import OURS
from benchmarks.report import Part, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import interleave_awaited
from cuttlefish import Host, open_host
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentSource, DocumentWorkers, open_document_workers

pymupdf: ModuleType | None
try:
    pymupdf = importlib.import_module("pymupdf")
except ImportError:  # a peer under a licence that not everybody can use; it is measured where somebody installed it
    pymupdf = None

__all__ = ["compare", "measure_images", "measure_pages", "measure_text", "measure_together", "words"]

BLOCK = Path(__file__).resolve().parent.parent / "blocks" / "read-document" / "read-document.wasm"
BARE, BARE_OPENING, PDFTOTEXT, PYMUPDF = "bare pypdfium2", "bare pypdfium2, opening it anew", "pdftotext", "PyMuPDF"
JOB = "cuttlefish, a whole job"
ONE_BY_ONE = "cuttlefish, one after the other"

LIMITS = Limits()
WIDTH_PT, HEIGHT_PT = 576, 768  # drawn at four thirds it is 768 × 1024 exactly, so that nobody rounds
LONG_SIDE = 1024
LINES, LINE_CHARACTERS = 48, 84  # of a dense page: 10 pt letters, 14 pt apart
JPEG_QUALITY, PNG_LEVEL = 85, 1  # as ours: the encoders are the same, only where they run is compared

Run = Callable[[], Awaitable[object]]


def measure_text(scale: Scale) -> Part:
    """Read all text of a document at once."""
    part = Part(
        "text",
        f"All text of a PDF of {scale.document_pages} dense pages, by `document_text`. The worker is warm and has the document "
        "open, and so has bare pypdfium2 (`get_textpage().get_text_range()` for each page); its second row opens it each time. "
        f"{_others()}",
        rows=[],
        targets=[],
    )

    async def measure(workers: DocumentWorkers, path: Path, source: DocumentSource) -> None:
        with closing(pypdfium2.PdfDocument(path)) as pdf:
            contestants: dict[str, Run] = {
                OURS: partial(workers.document_text, source, LIMITS),
                BARE: partial(_in_async, lambda: "\n\n".join(_bare_texts(pdf))),
                BARE_OPENING: partial(_in_async, lambda: "\n\n".join(_opened_texts(path))),
            }
            if program := shutil.which(PDFTOTEXT):
                contestants[PDFTOTEXT] = partial(_in_async, partial(_pdftotext, program, path))
            if pymupdf is not None:
                contestants[PYMUPDF] = partial(_in_async, partial(_pymupdf, path))
            await compare(part, contestants, words)
            times, _ = await interleave_awaited(contestants, scale.document_rounds)
        part.rows.extend(timed("whole text", times))
        part.targets.append(Target("whole text: cuttlefish / bare pypdfium2", 1.3, times[OURS].lowest / times[BARE].lowest))

    _with_document(measure, scale.document_pages)
    return part


def measure_pages(scale: Scale) -> Part:
    """Read the text of a document page by page."""
    part = Part(
        "pages",
        f"The same document of {scale.document_pages} pages, each page asked for when the one before is there. cuttlefish is "
        "`page_text`, which counts images too. A whole job is the block read-document by the public Host, open and warm: grant, "
        "sniff, guest, a command for each page, Envelope with all texts.",
        rows=[],
        targets=[],
    )

    async def measure(workers: DocumentWorkers, path: Path, source: DocumentSource) -> None:
        async def ours() -> list[str]:
            texts = [(await workers.page_text(source, page, LIMITS)).text for page in range(scale.document_pages)]
            workers.forget(source)  # as a job does, so that the next walk finds nothing ready
            return texts

        with closing(pypdfium2.PdfDocument(path)) as pdf:
            async with open_host(cache_dir=path.parent / "cache") as host:
                contestants: dict[str, Run] = {
                    OURS: ours,
                    BARE: partial(_in_async, lambda: list(_bare_texts(pdf))),
                    JOB: partial(_in_host, host, path),
                }
                await compare(part, contestants, lambda texts: [words(text) for text in texts])
                times, _ = await interleave_awaited(contestants, scale.document_rounds)
        part.rows.extend(timed("page by page", times))
        part.targets.append(Target("page by page: cuttlefish / bare pypdfium2", 2.0, times[OURS].lowest / times[BARE].lowest))

    _with_document(measure, scale.document_pages)
    return part


def measure_images(scale: Scale) -> Part:
    """Draw pages."""
    part = Part(
        "images",
        f"{scale.drawn_pages} pages are drawn, {LONG_SIDE} pixels high, one after the other, by `page_image`; the time is for one. "
        "Text becomes a PNG; a photograph, which fills its page, a JPEG. Bare pypdfium2 draws and Pillow encodes, with the same "
        "settings. The pictures were equal to the pixel.",
        rows=[],
        targets=[],
    )

    async def measure(case: str, format: str, workers: DocumentWorkers, path: Path, source: DocumentSource) -> None:
        async def ours() -> list[bytes]:
            return [(await workers.page_image(source, page, LIMITS, LONG_SIDE)).data for page in range(scale.drawn_pages)]

        with closing(pypdfium2.PdfDocument(path)) as pdf:
            contestants: dict[str, Run] = {OURS: ours, BARE: partial(_in_async, lambda: list(_bare_images(pdf, format)))}
            await compare(part, contestants, lambda pictures: [_pixels(data, format) for data in pictures])
            times, _ = await interleave_awaited(contestants, scale.document_rounds, scale.drawn_pages)
        part.rows.extend(timed(case, times))
        part.targets.append(Target(f"{case}: cuttlefish / bare pypdfium2", 1.4, times[OURS].lowest / times[BARE].lowest))

    _with_document(partial(measure, "a page of text", "PNG"), scale.drawn_pages)
    _with_document(partial(measure, "a photograph", "JPEG"), scale.drawn_pages, photographs=True)
    return part


def measure_together(scale: Scale) -> Part:
    """Read two documents at once."""
    part = Part(
        "together",
        f"All text of two documents of {scale.document_pages} pages each: both at once, by two tasks, and one after the other. The "
        "pool has two workers, warm, each with one of the documents open.",
        rows=[],
        targets=[],
    )

    async def measure() -> None:
        with TemporaryDirectory() as folder, ExitStack() as files:
            sources = []
            for seed in (1, 2):
                path = Path(folder) / f"{seed}.pdf"
                path.write_bytes(document([_text_page(random.Random(seed + page)) for page in range(scale.document_pages)]))
                sources.append(files.enter_context(_source(path)))
            async with open_document_workers(2) as workers:
                contestants: dict[str, Run] = {
                    OURS: partial(_at_once, workers, sources),
                    ONE_BY_ONE: partial(_one_by_one, workers, sources),
                }
                await compare(part, contestants, lambda texts: texts)
                times, _ = await interleave_awaited(contestants, scale.document_rounds)
        part.rows.extend(timed("two documents", times))
        gain = times[ONE_BY_ONE].lowest / times[OURS].lowest
        part.targets.append(Target("two documents: one after the other / at once", 1.6, gain, at_least=True))

    trio.run(measure)
    return part


async def compare(part: Part, contestants: Mapping[str, Run], essence: Callable[[Any], Any]) -> None:
    """See that all give the same, as far as `essence` tells. `Any`: what they give differs from part to part.

    Raises:
        AssertionError: they do not.
    """
    found = {name: essence(await run()) for name, run in contestants.items()}
    for name, value in found.items():
        if value != found[BARE if BARE in found else ONE_BY_ONE]:
            raise AssertionError(f"{part.name}: {name} gives something else")
        if not value:
            raise AssertionError(f"{part.name}: {name} gives nothing")
    part.same_output[:] = dict.fromkeys([*part.same_output, *found])


def words(text: str) -> str:
    """A text without what its readers may well do differently: the space between words."""
    return " ".join(text.split())


def _others() -> str:
    missing = [PDFTOTEXT] * (shutil.which(PDFTOTEXT) is None) + [PYMUPDF] * (pymupdf is None)
    return f"Not installed on this machine: {', '.join(missing)}." if missing else f"{PDFTOTEXT} and {PYMUPDF} open it each time."


# --- Contestants ----------------------------------------------------------------------------------------------------------------


async def _in_async(function: Callable[[], object]) -> object:
    await trio.lowlevel.checkpoint()
    return function()


def _bare_texts(pdf: Any) -> Iterator[str]:
    """The loop that anybody would write. `Any`: pypdfium2 has no types."""
    for page in pdf:
        with closing(page), closing(page.get_textpage()) as text_page:
            yield text_page.get_text_range()


def _opened_texts(path: Path) -> Iterator[str]:
    with closing(pypdfium2.PdfDocument(path)) as pdf:
        yield from _bare_texts(pdf)


def _bare_images(pdf: Any, format: str) -> Iterator[bytes]:
    for page in pdf:
        with closing(page), closing(page.render(scale=LONG_SIDE / HEIGHT_PT)) as bitmap:
            out = io.BytesIO()
            bitmap.to_pil().save(out, format, compress_level=PNG_LEVEL, quality=JPEG_QUALITY)
            yield out.getvalue()


def _pixels(data: bytes, format: str) -> tuple[tuple[int, int], bytes]:
    with Image.open(io.BytesIO(data), formats=[format]) as picture:
        return picture.size, picture.convert("RGB").tobytes()


def _pdftotext(program: str, path: Path) -> str:
    command = [program, "-enc", "UTF-8", str(path), "-"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()


def _pymupdf(path: Path) -> str:
    assert pymupdf is not None
    with pymupdf.open(path) as pdf:
        return "\n\n".join(page.get_text() for page in pdf)


async def _in_host(host: Host, path: Path) -> list[str]:
    envelope = await host.run(BLOCK, {"path": path.name}, read=[path.parent], base_dir=path.parent)
    if envelope.error is not None:
        raise AssertionError(envelope.error.message)
    result: Any = envelope.result  # JSON of the block's own
    return [page["text"] for page in result["pages"]]


async def _at_once(workers: DocumentWorkers, sources: Sequence[DocumentSource]) -> list[str]:
    texts = [""] * len(sources)

    async def read(at: int) -> None:
        texts[at] = await workers.document_text(sources[at], LIMITS)

    async with trio.open_nursery() as nursery:
        for at in range(len(sources)):
            nursery.start_soon(read, at)
    return texts


async def _one_by_one(workers: DocumentWorkers, sources: Sequence[DocumentSource]) -> list[str]:
    return [await workers.document_text(source, LIMITS) for source in sources]


# --- Documents ------------------------------------------------------------------------------------------------------------------


def _with_document(
    measure: Callable[[DocumentWorkers, Path, DocumentSource], Awaitable[None]], pages: int, *, photographs: bool = False
) -> None:
    """Measure with one worker and a document of so many pages."""
    page = _photograph if photographs else _text_page

    async def main() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "document.pdf"
            path.write_bytes(document([page(random.Random(number)) for number in range(pages)]))
            with _source(path) as source:
                async with open_document_workers(1) as workers:
                    await measure(workers, path, source)

    trio.run(main)


@contextmanager
def _source(path: Path) -> Iterator[DocumentSource]:
    fd = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(fd)
        yield DocumentSource(fd, status.st_dev, status.st_ino, status.st_size, path.name)
    finally:
        os.close(fd)


def document(pages: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """A PDF of these pages: for each its content, and the image that it may name `/I`."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    kids = []
    for content, image in pages:
        number = len(objects) + 1
        kids.append(b"%d 0 R" % number)
        images = b"/XObject<</I %d 0 R>>" % (number + 2) if image is not None else b""
        objects += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]/Resources<</Font<</F 3 0 R>>%s>>/Contents %d 0 R>>"
            % (WIDTH_PT, HEIGHT_PT, images, number + 1),
            _stream(zlib.compress(content), b"/Filter/FlateDecode"),
        ]
        if image is not None:
            objects.append(image)
    objects[1] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(kids))
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


def _stream(data: bytes, entries: bytes) -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (entries, len(data), data)


def _text_page(dice: random.Random) -> tuple[bytes, None]:
    """Lines of words: letters only, so that no reader joins or splits one."""
    lines = []
    for _ in range(LINES):
        line = ""
        while len(line) < LINE_CHARACTERS:
            line += "".join(dice.choices("etaoinshrdlucmfwyp", k=dice.randint(2, 10))) + " "
        lines.append(f"({line.strip()}) Tj T*")
    return f"BT /F 10 Tf 50 720 Td 14 TL {' '.join(lines)} ET".encode(), None


def _photograph(dice: random.Random) -> tuple[bytes, bytes]:
    """Coloured blurs that fill a page, as a scanner would store them."""
    width, height = WIDTH_PT * 2, HEIGHT_PT * 2
    small = Image.frombytes("RGB", (48, 64), dice.randbytes(48 * 64 * 3))
    out = io.BytesIO()
    small.resize((width, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=JPEG_QUALITY)
    entries = b"/Type/XObject/Subtype/Image/Width %d/Height %d/ColorSpace/DeviceRGB/BitsPerComponent 8/Filter/DCTDecode"
    return b"%d 0 0 %d 0 0 cm /I Do" % (WIDTH_PT, HEIGHT_PT), _stream(out.getvalue(), entries % (width, height))
