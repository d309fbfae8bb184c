"""A PDF as PDFium reads it: pages, their text, what lies on them, their pictures. For the worker process only.

PDFium is not thread-safe: one process, one thread, one call at a time. Its functions are untyped, therefore `Any`.
"""

import contextlib
import ctypes
import math
import time
from collections.abc import Mapping
from typing import Any

from cuttlefish.media import pdf_text, pdf_tree
from cuttlefish.media.reading import FileBlocks, PageRead, Problem, reader

__all__ = ["PdfDocument", "open_pdf"]

LARGEST_SIDE_PT = 14_400  # the largest page that PDF 1.7 allows (annex C)
TEXT_SEARCH_S = 2.0  # the most that opening spends on looking for text …
TEXT_SEARCH_PAGES = 512  # … and the most pages
FIRST_PAGES = 32  # searched in order; beyond them, pages evenly spread
MOST_COPIED_BYTES = 64 << 20  # the largest file that is copied to count its pages
GAP_PAGES = 256  # so many missing pages in a row end the page tree
MOST_OBJECTS = 10_000  # of a page that are looked at for images; a page may have millions
DEEPEST_FORM = 8  # forms within forms
GRID = 128  # cells across and up a page, to tell which images overlap
JPEG_QUALITY = 85
PDFIUM_PASSWORD, PDFIUM_SECURITY = 4, 5  # fpdfview.h: FPDF_ERR_…

Matrix = tuple[float, float, float, float, float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top


def open_pdf(source: bytes | FileBlocks, key: tuple[object, ...], password: str | None) -> "PdfDocument":
    """Open a PDF and count its pages. A password that it does not need is ignored.

    Raises:
        Problem: it cannot be opened, it has no pages, or its own count hides some of them (`pages_hidden`), which PDFium then gives
            nobody.
    """
    document = _load(source, key, password)
    claimed = len(document.pdf)
    document.pages, all_there = count_pages(document.pdf)
    if document.pages == 0:
        document.close()
        raise Problem("no_pages_left" if claimed else "no_pages")
    found, untouched = pages_found(document.pdf, source, claimed)
    if found > claimed:
        document.close()
        raise Problem("pages_hidden", claimed=claimed, found=found)
    if not all_there or not untouched:  # asking for pages that are not there has spoiled it; see `PdfDocument.spoiled`
        pages = document.pages
        document.close(keep_file=True)
        document = _load(source, key, password)
        document.pages = pages
    return document


def _load(source: bytes | FileBlocks, key: tuple[object, ...], password: str | None) -> "PdfDocument":
    import pypdfium2
    import pypdfium2.raw as pdfium

    kept: object = source
    if isinstance(source, FileBlocks):
        access, kept = pypdfium2.internal.get_bufreader(source)
    # Not by pypdfium2's own constructor: it loses a document without pages, and reports an older document's error for it.
    # A document that anyone may open refuses a password that is not its owner's, so without one comes last.
    secrets = [None] if password is None else [password.encode("utf-8", "surrogateescape"), None]
    for secret in secrets:
        if isinstance(source, bytes):
            raw = pdfium.FPDF_LoadMemDocument64(source, len(source), secret)
        else:
            raw = pdfium.FPDF_LoadCustomDocument(access, secret)
        if raw or pdfium.FPDF_GetLastError() != PDFIUM_PASSWORD:
            break
    if not raw:
        if isinstance(source, FileBlocks):
            source.close()
        kinds = {PDFIUM_PASSWORD: "password", PDFIUM_SECURITY: "security"}
        raise Problem(kinds.get(pdfium.FPDF_GetLastError(), "not_pdf"))
    document = PdfDocument(key, pypdfium2.PdfDocument(raw), (source, kept))
    with contextlib.suppress(pypdfium2.PdfiumError):  # a damaged form does not make the pages unreadable
        document.pdf.init_forms()  # before any page is loaded, or form fields are not drawn
    return document


class PdfDocument:
    """A PDF kept open between commands."""

    def __init__(self, key: tuple[object, ...], pdf: Any, source: tuple[bytes | FileBlocks, object]) -> None:
        self.key = key
        self.pdf = pdf
        self.pages = 0
        self.spoiled = False
        """Whether a page was asked for that is not there. When PDFium is then asked for an earlier one of that kind, it gives
        each page after it the content of the next, so a spoiled document must be opened anew.
        """
        self._source = source  # what PDFium reads from, and must not be collected before it

    def close(self, *, keep_file: bool = False) -> None:
        """Close PDFium's document, and with it what is left of its pages."""
        self.pdf.close()
        if isinstance(self._source[0], FileBlocks) and not keep_file:
            self._source[0].close()

    def facts(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What opening tells."""
        return {"pages": self.pages, "has_text_layer": self._has_text(question), "tiff_image": False}

    def read(self, page: int, question: Mapping[str, Any], with_images: bool) -> PageRead:
        """The text of a page, see `pdf_text`; with the images that lie on it, see `images_on`."""
        import pypdfium2

        shown = self._loaded(page, question)
        try:
            pdf_text.widen_thin_text(shown)
            try:
                text_page = shown.get_textpage()
            except pypdfium2.PdfiumError:
                raise Problem("bad_page") from None
            try:
                raw = text_page.get_text_range(errors="replace")
                text = pdf_text.tidy(raw, pdf_text.hyphen_marks(text_page, raw) if "\ufffe" in raw else set())
            finally:
                text_page.close()
            if self.pdf.formenv and (lines := pdf_text.field_lines(shown, self.pdf.formenv)):
                text = "\n\n".join(part for part in (text.rstrip("\n"), "\n".join(lines)) if part)
            return PageRead(text, *images_on(shown)) if with_images else PageRead(text)
        finally:
            shown.close()

    def picture(self, page: int, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A page on white, its longer side as asked. JPEG if it holds an image or a form, which may hold one; else PNG."""
        import pypdfium2
        import pypdfium2.raw as pdfium

        from cuttlefish.media import images

        shown = self._loaded(page, question)
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
                if self.pdf.formenv:
                    pdfium.FPDF_FFLDraw(self.pdf.formenv, *where)
                picture = bitmap.to_pil()
            finally:
                bitmap.close()
            return {"width": width, "height": height}, images.encode(
                picture, "jpeg" if is_photographic(shown) else "png", JPEG_QUALITY
            )
        finally:
            shown.close()

    def _has_text(self, question: Mapping[str, Any]) -> bool:
        """Whether a page has a letter or a digit.

        Bounded: the first 32 pages in order, then pages evenly spread, 512 in all, for 2 seconds or a quarter of `document.time`.
        A text that begins after that is not seen.
        """
        first = range(min(FIRST_PAGES, self.pages))
        rest = self.pages - FIRST_PAGES
        step = max(1, math.ceil(rest / (TEXT_SEARCH_PAGES - FIRST_PAGES)))
        end = time.monotonic() + min(TEXT_SEARCH_S, question["time_s"] / 4)
        for page in (*first, *range(FIRST_PAGES, self.pages, step)):
            with contextlib.suppress(Problem):  # that page's own error, when it is asked for
                if any(character.isalnum() for character in self.read(page, question, with_images=False).text):
                    return True
            if time.monotonic() > end:
                break
        return False

    def _loaded(self, page: int, question: Mapping[str, Any]) -> Any:
        """PDFium's page. The caller closes it.

        A page larger than PDF allows is refused first, unless it fits the limit at one pixel per point (a long web page may): the
        text too of one that was 2·10⁹ points wide took PDFium 480 MB.
        """
        import pypdfium2

        size = page_size(self.pdf, page)
        if size is None:
            self.spoiled = True
            raise Problem("bad_page")
        if max(size) > LARGEST_SIDE_PT and max(1, size[0]) * max(1, size[1]) > question["page_pixels"]:
            raise Problem("page_box", width=size[0], height=size[1])
        try:
            return self.pdf[page]
        except pypdfium2.PdfiumError:
            self.spoiled = True
            raise Problem("bad_page") from None


def page_size(pdf: Any, page: int) -> tuple[float, float] | None:
    """Width and height in points as shown, or None if the tree has no such page. Parses none of the page's content."""
    import pypdfium2.raw as pdfium

    size = pdfium.FS_SIZEF()
    return (size.width, size.height) if pdfium.FPDF_GetPageSizeByIndexF(pdf, page, size) else None


def count_pages(pdf: Any) -> tuple[int, bool]:
    """How many pages there are, given that a document may claim any number; and whether no page was missed while counting.

    The claim (`/Count`, at most 1,048,575 in PDFium) is believed if its last page is there. Otherwise the tree is walked from
    the front until it ends or 256 pages in a row are missing. If at least half of the claimed pages were found, the rest are
    damage: they count, and asking for one is an error that names it. If not, the claim is a lie: the pages end with the last
    one found. So a lie can at most double the number, and damage is never hidden unless most of the document is gone.
    """
    claimed = len(pdf)
    if claimed <= 0 or page_size(pdf, claimed - 1) is not None:
        return max(0, claimed), True
    found = missing = 0
    for page in range(claimed):
        if page_size(pdf, page) is not None:
            found, missing = page + 1, 0
        else:
            missing += 1
            if missing >= GAP_PAGES:
                break
    return (claimed if claimed <= 2 * found else found), False


def pages_found(pdf: Any, source: bytes | FileBlocks, claimed: int) -> tuple[int, bool]:
    """How many pages the tree holds, at least the `claimed` ones that PDFium gives out; and whether the document is as it was.

    What `pdf_tree` cannot read in the file itself, and what it finds to be wrong, is read in a copy that PDFium writes: it has
    repaired and unlocked what it could. Files above 64 MiB are not copied. If the tree cannot be told in either, the claim stands.
    """
    found, size = None, len(source) if isinstance(source, bytes) else source.size
    with contextlib.suppress(pdf_tree.Unsure):
        found = pdf_tree.pages_in_tree(reader(source), size, claimed)
    if found == claimed or size > MOST_COPIED_BYTES:
        return found or claimed, True
    with contextlib.suppress(pdf_tree.Unsure):
        copy = _copied(pdf)
        found = pdf_tree.pages_in_tree(reader(copy), len(copy), claimed)
    return found or claimed, False


def _copied(pdf: Any) -> bytes:
    """The document as PDFium writes it: every object by itself, without a password. Cut short at four times what may be copied."""
    import pypdfium2.raw as pdfium

    copy = bytearray()

    def write(_: object, block: Any, length: int) -> int:
        if len(copy) > 4 * MOST_COPIED_BYTES:
            return 0
        copy.extend(ctypes.string_at(block, length))
        return 1

    writer = pdfium.FPDF_FILEWRITE(version=1)
    writer.WriteBlock = type(writer.WriteBlock)(write)
    pdfium.FPDF_SaveAsCopy(pdf, writer, pdfium.FPDF_REMOVE_SECURITY)
    return bytes(copy)


def is_photographic(page: Any) -> bool:
    """Whether an image or a form, which may hold one, is among the first objects of a page."""
    import pypdfium2.raw as pdfium

    kinds = (pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM)
    return any(
        pdfium.FPDFPageObj_GetType(pdfium.FPDFPage_GetObject(page, at)) in kinds
        for at in range(min(2_000, pdfium.FPDFPage_CountObjects(page)))
    )


def images_on(page: Any) -> tuple[int, float]:
    """How many images lie on a page, and which part of its area they cover, from 0 to 1.

    Images within forms count, eight forms deep; those outside the visible box do not. Of each image the box counts that encloses
    it, as far as it is visible. Where images overlap, the common part counts once, to within a 128th of the page's sides. At most
    10,000 objects are looked at.
    """
    import pypdfium2.raw as pdfium

    visible = pdfium.FS_RECTF()
    if not pdfium.FPDF_GetPageBoundingBox(page, visible):
        return 0, 0.0
    box = (visible.left, visible.bottom, visible.right, visible.top)
    boxes = _image_boxes(page, box)
    whole = (box[2] - box[0]) * (box[3] - box[1])
    if not boxes or not whole > 0:
        return len(boxes), 0.0
    together = sum((right - left) * (top - bottom) for left, bottom, right, top in boxes) / whole
    # The cells of the grid that the images touch are an upper bound, and so is the sum: exact where nothing overlaps
    return len(boxes), round(min(1.0, together, _touched(boxes, box) if len(boxes) > 1 else 1.0), 4)


def _touched(boxes: list[Box], page: Box) -> float:
    """The part of a page's grid that boxes touch. A row is a number with a bit for each cell."""
    rows = [0] * GRID
    across, up = GRID / (page[2] - page[0]), GRID / (page[3] - page[1])
    for left, bottom, right, top in boxes:
        first, last = int((left - page[0]) * across), math.ceil((right - page[0]) * across)
        cells = (1 << last) - (1 << first)
        for row in range(int((bottom - page[1]) * up), min(GRID, math.ceil((top - page[1]) * up))):
            rows[row] |= cells
    return sum(row.bit_count() for row in rows) / GRID**2


def _image_boxes(page: Any, visible: Box) -> list[Box]:
    """Where on a page its images are visible."""
    import pypdfium2.raw as pdfium

    count, get, object_type = pdfium.FPDFPage_CountObjects, pdfium.FPDFPage_GetObject, pdfium.FPDFPageObj_GetType
    boxes: list[Box] = []
    left_to_see = MOST_OBJECTS
    # A container, its functions, how its coordinates become the page's, and how deep it is
    containers: list[tuple[Any, Any, Any, Matrix, int]] = [(page, count, get, (1, 0, 0, 1, 0, 0), 0)]
    while containers:
        container, count, get, matrix, depth = containers.pop()
        number = min(left_to_see, count(container))
        left_to_see -= number
        for at in range(number):
            thing = get(container, at)
            kind = object_type(thing)
            if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
                if seen := _visible_part(_bounds(thing), matrix, visible):
                    boxes.append(seen)
            elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < DEEPEST_FORM:
                inner = _concatenated(_matrix(thing), matrix)
                containers.append((thing, pdfium.FPDFFormObj_CountObjects, pdfium.FPDFFormObj_GetObject, inner, depth + 1))
    return boxes


def _bounds(thing: Any) -> Box | None:
    """The box around an object, in the coordinates of what holds it."""
    import pypdfium2.raw as pdfium

    sides = [ctypes.c_float() for _ in range(4)]
    if not pdfium.FPDFPageObj_GetBounds(thing, *sides):
        return None
    left, bottom, right, top = (side.value for side in sides)
    return left, bottom, right, top


def _matrix(form: Any) -> Matrix:
    """How a form's coordinates become those of what holds it; its own /Matrix is applied to its objects by PDFium already."""
    import pypdfium2.raw as pdfium

    found = pdfium.FS_MATRIX()
    if not pdfium.FPDFPageObj_GetMatrix(form, found):
        return (1, 0, 0, 1, 0, 0)
    return found.a, found.b, found.c, found.d, found.e, found.f


def _concatenated(first: Matrix, then: Matrix) -> Matrix:
    a, b, c, d, e, f = first
    p, q, r, s, t, u = then
    return a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u


def _visible_part(box: Box | None, matrix: Matrix, visible: Box) -> Box | None:
    """What of a box lies in the visible one; None if nothing does, and for numbers that are none."""
    if box is None:
        return None
    a, b, c, d, e, f = matrix
    corners = [(x * a + y * c + e, x * b + y * d + f) for x in (box[0], box[2]) for y in (box[1], box[3])]
    across, up = [x for x, _ in corners], [y for _, y in corners]
    left, right = max(min(across), visible[0]), min(max(across), visible[2])
    bottom, top = max(min(up), visible[1]), min(max(up), visible[3])
    return (left, bottom, right, top) if left < right and bottom < top else None
