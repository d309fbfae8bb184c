r"""The text of a PDF's page, as blocks get it. For the worker process only.

What PDFium finds on a page becomes ours by these rules, and offsets into the result agree with no other reader's:

- Lines end with `\n`.
- A hyphen at the end of a line, soft (U+00AD) or not, is `-\n`, as on the page: deleting each `-\n` joins the words. A soft
  hyphen inside a line is left out.
- Ligatures (ﬀ ﬁ ﬂ ﬃ ﬄ ﬅ ﬆ) are their letters.
- No control characters but `\t` and `\n`. U+FFFD stands for what means no character: noncharacters, halves of surrogate pairs,
  and private characters, which only the file's own font knows; but the bullets of Symbol and Wingdings are bullets.
- Text in a font that is neither in the file nor on this machine is there too, also where it runs downwards (`widen_thin_text`).
- What was filled in follows the page's own text after a blank line, in the file's order. A form field gives a line with its value,
  or `label: value` where the form has a label for people to read (not the field's technical name): text fields (several lines as
  they are; no passwords), the chosen entries of lists (`a, b`), and checked boxes with the value that they stand for. Words that
  somebody typed onto the page (annotations of the kind "free text") are there too, comments are not. PDFium itself finds none of
  these in a page's text.
"""

import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["filled_in", "hyphen_marks", "tidy", "widen_thin_text"]

MOST_OBJECTS = 100_000  # of a page that are looked at, in a tenth of a second
DEEPEST_FORM = 8  # forms within forms
THIN_PT = 0.01  # PDFium leaves out the text of objects that are less wide
OUTLINE_PT = 0.1
MOST_FIELDS = 2_000  # of a page, and entries of a list
FREE_TEXT, WIDGET = 3, 20  # fpdf_annot.h: FPDF_ANNOT_…
PASSWORD_FLAG = 1 << 13  # PDF 1.7, table 228
UNSEEN_FLAGS = 1 << 1 | 1 << 5  # hidden, no view: PDF 1.7, table 165

LIGATURES = dict(zip(range(0xFB00, 0xFB07), ("ff", "fi", "fl", "ffi", "ffl", "st", "st"), strict=True))
IS_LIGATURE = re.compile("[\ufb00-\ufb06]")
BULLETS = str.maketrans({"\uf0b7": "•", "\uf0a7": "▪"})  # as Word writes lists with Symbol and Wingdings
LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f]")
NOT_CHARACTERS = re.compile("[\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff\U000f0000-\U0010ffff]")
NOT_CHARACTERS_ABOVE = re.compile("[" + "".join(chr(plane << 16 | end) for plane in range(1, 15) for end in (0xFFFE, 0xFFFF)) + "]")


def widen_thin_text(page: Any) -> None:
    """Let PDFium find the text of objects that have no width, by giving them an outline. Call it before the page's text is read,
    and draw nothing of the page after it.

    PDFium leaves such objects out, which loses whole pages: in a font that is neither in the file nor on this machine glyphs have
    no outline, and then only the direction in which a text runs has a length. So text that runs downwards, or that is turned
    sideways, has no width. Text of no size at all, which no person sees, stays out.
    """
    import pypdfium2.raw as pdfium

    quick, left_to_see, sides = _quick_calls(), MOST_OBJECTS, (ctypes.c_float * 4)()
    left = ctypes.addressof(sides)
    where = left, left + 4, left + 8, left + 12
    containers = [(ctypes.cast(page.raw, ctypes.c_void_p).value, quick.count_on_page, quick.object_of_page, 0)]
    while containers:
        container, count, get, depth = containers.pop()
        number = min(left_to_see, count(container))
        left_to_see -= number
        for at in range(number):
            thing = get(container, at)
            kind = quick.object_type(thing)
            if kind == pdfium.FPDF_PAGEOBJ_TEXT:
                if quick.bounds(thing, *where) and sides[2] - sides[0] < THIN_PT:
                    _outline(ctypes.cast(thing, pdfium.FPDF_PAGEOBJECT))
            elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < DEEPEST_FORM:
                containers.append((thing, quick.count_in_form, quick.object_of_form, depth + 1))


def _outline(text: Any) -> None:
    """Give a text object an outline, if its letters have an extent, however its font draws them."""
    import pypdfium2.raw as pdfium

    matrix, size = pdfium.FS_MATRIX(), ctypes.c_float()
    if not (pdfium.FPDFPageObj_GetMatrix(text, matrix) and pdfium.FPDFTextObj_GetFontSize(text, size)):
        return
    if abs(matrix.a * matrix.d - matrix.b * matrix.c) * size.value**2 > THIN_PT:
        pdfium.FPDFTextObj_SetTextRenderMode(text, pdfium.FPDF_TEXTRENDERMODE_STROKE)
        pdfium.FPDFPageObj_SetStrokeWidth(text, OUTLINE_PT)
        pdfium.FPDFPageObj_Transform(text, 1, 0, 0, 1, 0, 0)  # so that the bounds are measured again


class _QuickCalls(NamedTuple):
    count_on_page: Callable[[Any], int]
    object_of_page: Callable[[Any, int], Any]
    count_in_form: Callable[[Any], int]
    object_of_form: Callable[[Any, int], Any]
    object_type: Callable[[Any], int]
    bounds: Callable[..., int]


@functools.cache
def _quick_calls() -> _QuickCalls:
    """Functions that are called for every object of a page, by bare addresses: the usual way takes more than twice the time."""
    import pypdfium2.raw as pdfium

    def direct(function: Any, result: Any, *arguments: Any) -> Any:
        place = ctypes.cast(function, ctypes.c_void_p).value
        assert place is not None  # a function that exists
        return ctypes.PYFUNCTYPE(result, *arguments)(place)

    whole, address = ctypes.c_int, ctypes.c_void_p
    return _QuickCalls(
        count_on_page=direct(pdfium.FPDFPage_CountObjects, whole, address),
        object_of_page=direct(pdfium.FPDFPage_GetObject, address, address, whole),
        count_in_form=direct(pdfium.FPDFFormObj_CountObjects, whole, address),
        object_of_form=direct(pdfium.FPDFFormObj_GetObject, address, address, ctypes.c_ulong),
        object_type=direct(pdfium.FPDFPageObj_GetType, whole, address),
        bounds=direct(pdfium.FPDFPageObj_GetBounds, whole, *[address] * 5),
    )


def tidy(raw: str, hyphens: set[int]) -> str:
    """PDFium's text as ours. `hyphens`: where in it PDFium put a mark *instead* of a hyphen and the line's end."""
    if hyphens:
        raw = "".join("-\n" if at in hyphens else character for at, character in enumerate(raw))
    text = raw.replace("\r\n", "\n")
    if not text.isascii() and IS_LIGATURE.search(text):
        text = text.translate(LIGATURES)
    if text.replace("\n", "").isprintable():  # nearly always, and fifty times faster than to look for what is not
        return text
    text = LINE_ENDS.sub("\n", text)
    text = text.replace("\u00ad\n", "-\n").replace("\u00ad", "").translate(BULLETS)
    return NOT_CHARACTERS_ABOVE.sub("\ufffd", NOT_CHARACTERS.sub("\ufffd", CONTROLS.sub("", text)))


def hyphen_marks(text_page: Any, raw: str) -> set[int]:
    """Where in `raw` PDFium put U+FFFE for a hyphen at the end of a line. It puts the same for glyphs that mean nothing."""
    import pypdfium2.raw as pdfium

    marks, unit, seen = set(), 0, 0
    for match in re.finditer("\ufffe", raw):
        # PDFium counts UTF-16 units, and leaves some characters out
        unit += len(raw[seen : match.start()].encode("utf-16-le", "surrogatepass")) // 2
        seen = match.start()
        if pdfium.FPDFText_IsHyphen(text_page, pdfium.FPDFText_GetCharIndexFromTextIndex(text_page, unit)) == 1:
            marks.add(match.start())
    return marks


def filled_in(page: Any, form: Any) -> list[str]:
    """What was filled into the fields of a page and typed onto it, in order. `form` is PDFium's form environment, or None."""
    import pypdfium2.raw as pdfium

    lines: dict[str, None] = {}  # a field may be shown twice on a page
    for at in range(min(MOST_FIELDS, pdfium.FPDFPage_GetAnnotCount(page))):
        annotation = pdfium.FPDFPage_GetAnnot(page, at)
        if not annotation:
            continue
        try:
            if pdfium.FPDFAnnot_GetFlags(annotation) & UNSEEN_FLAGS:
                continue  # words that no person sees are none to put before a model
            kind = pdfium.FPDFAnnot_GetSubtype(annotation)
            if kind == FREE_TEXT:
                lines[tidy(string_of(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents"), set()).strip()] = None
            elif kind == WIDGET and form:
                value = tidy(field_value(form, annotation), set()).strip()
                label = tidy(string_of(pdfium.FPDFAnnot_GetFormFieldAlternateName, form, annotation), set()).strip()
                lines[f"{label}: {value}" if label and value else value] = None
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)
    return [line for line in lines if line]


def field_value(form: Any, annotation: Any) -> str:
    """What a person filled in; empty for a field that holds no words."""
    import pypdfium2.raw as pdfium

    match pdfium.FPDFAnnot_GetFormFieldType(form, annotation):
        case pdfium.FPDF_FORMFIELD_TEXTFIELD:
            secret = pdfium.FPDFAnnot_GetFormFieldFlags(form, annotation) & PASSWORD_FLAG
            return "" if secret else string_of(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation)
        case pdfium.FPDF_FORMFIELD_COMBOBOX | pdfium.FPDF_FORMFIELD_LISTBOX:
            chosen = ", ".join(chosen_entries(form, annotation))
            return chosen or string_of(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation)  # what was typed, not chosen
        case pdfium.FPDF_FORMFIELD_CHECKBOX | pdfium.FPDF_FORMFIELD_RADIOBUTTON if pdfium.FPDFAnnot_IsChecked(form, annotation):
            return string_of(pdfium.FPDFAnnot_GetFormFieldExportValue, form, annotation)
    return ""


def chosen_entries(form: Any, annotation: Any) -> Iterator[str]:
    """The selected entries of a list, as it shows them."""
    import pypdfium2.raw as pdfium

    for at in range(min(MOST_FIELDS, pdfium.FPDFAnnot_GetOptionCount(form, annotation))):
        if pdfium.FPDFAnnot_IsOptionSelected(form, annotation, at):
            yield string_of(pdfium.FPDFAnnot_GetOptionLabel, form, annotation, at)


def string_of(ask: Callable[..., int], *of: Any) -> str:
    """A string of PDFium's: its length is asked first. Half a surrogate pair becomes U+FFFD."""
    needed = ask(*of, None, 0)
    if needed <= 2:
        return ""
    buffer = (ctypes.c_ushort * ((needed + 1) // 2))()
    ask(*of, buffer, needed)
    return bytes(buffer)[: needed - 2].decode("utf-16-le", "replace")
