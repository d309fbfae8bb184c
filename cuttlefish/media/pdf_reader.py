"""A PDF as PDFium reads it: pages, their text, what lies on them, their pictures. For the worker process only.

PDFium is not thread-safe: one process, one thread, one call at a time. Its functions are untyped, therefore `Any`.
"""

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

from cuttlefish.media import pdf_copy, pdf_images, pdf_text, pdf_tree
from cuttlefish.media.reading import FileBlocks, PageRead, Problem, reader

__all__ = ["PdfDocument", "open_pdf"]

LARGEST_SIDE_PT = 14_400  # the largest page that PDF 1.7 allows (annex C)
TEXT_SEARCH_S = 2.0  # the most that opening spends on looking for text …
TEXT_SEARCH_PAGES = 512  # … and the most pages
FIRST_PAGES = 32  # searched in order; beyond them, pages evenly spread
MOST_COPIED_BYTES = 256 << 20  # the largest file that is copied to count its pages
GAP_PAGES = 256  # so many missing pages in a row end the page tree
JPEG_QUALITY = 85
PDFIUM_PASSWORD, PDFIUM_SECURITY = 4, 5  # fpdfview.h: FPDF_ERR_…


def open_pdf(source: bytes | FileBlocks, key: tuple[object, ...], password: str | None) -> "PdfDocument":
    """Open a PDF and count its pages. A password that it does not need is ignored.

    Raises:
        Problem: it cannot be opened, it has no pages, its own count hides some of them (`pages_hidden`), which PDFium then gives
            nobody, or its pages are only what stands in for a form that a reader has to build (`xfa`).
    """
    import pypdfium2.raw as pdfium

    document = _load(source, key, password)
    if pdfium.FPDF_GetFormType(document.pdf) == pdfium.FORMTYPE_XFA_FULL:
        document.close()
        raise Problem("xfa")
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
        """The text of a page, see `pdf_text`; with the images that lie on it, see `pdf_images`."""
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
            if lines := pdf_text.filled_in(shown, self.pdf.formenv):
                text = "\n\n".join(part for part in (text.rstrip("\n"), "\n".join(lines)) if part)
            return PageRead(text, *pdf_images.images_on(shown)) if with_images else PageRead(text)
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
            photographic = pdf_images.is_photographic(shown)
            if photographic and pdf_images.holds_damaged_image(shown, picture):
                raise Problem("damaged_on_page")
            data = images.encode(picture, "jpeg" if photographic else "png", JPEG_QUALITY)
            return {"width": width, "height": height}, data
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
        _check_sides(size, question)
        try:
            shown = self.pdf[page]
        except pypdfium2.PdfiumError:
            self.spoiled = True
            raise Problem("bad_page") from None
        if min(size) <= 0:
            # A crop box beside the page leaves nothing of it. Readers for people show the whole page then
            shown.set_cropbox(*shown.get_mediabox())
            try:
                _check_sides(shown.get_size(), question)
            except Problem:
                shown.close()
                raise
        return shown


def _check_sides(size: tuple[float, float], question: Mapping[str, Any]) -> None:
    """Refuse a page that is larger than PDF allows and than the limit at one pixel per point."""
    if max(size) > LARGEST_SIDE_PT and max(1, size[0]) * max(1, size[1]) > question["page_pixels"]:
        raise Problem("page_box", width=size[0], height=size[1])


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
    repaired and unlocked what it could. Files above 256 MiB are not copied, which would take as much memory. If the tree cannot be
    told in either, the claim stands.
    """
    found, size = None, len(source) if isinstance(source, bytes) else source.size
    try:
        found = pdf_tree.pages_in_tree(reader(source), size, claimed)
    except pdf_tree.TooLong:
        return claimed, True
    except pdf_tree.Unsure:
        pass
    if found == claimed or size > MOST_COPIED_BYTES:
        return found or claimed, True
    with contextlib.suppress(pdf_tree.Unsure):
        found = pdf_tree.pages_in_tree(*pdf_copy.copied(pdf), claimed)
    return found or claimed, False
