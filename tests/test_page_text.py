"""The text of a page, by the rules of `pdf_text`, and what else is told of a page."""

from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd.writer import deflated, opened, pages_pdf, stream, written

from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentWorkers, PageText, open_document_workers
from cuttlefish.media.pdf_text import tidy

LIMITS = Limits()


@pytest.fixture
async def workers() -> AsyncIterator[DocumentWorkers]:
    async with open_document_workers(1) as workers:
        yield workers


async def page_of(workers: DocumentWorkers, data: bytes) -> PageText:
    with opened(data) as source:
        return await workers.page_text(source, 0, LIMITS)


def mapped(text: str, *meanings: str) -> bytes:
    """A page of this text in a font whose A, B, C … mean something else."""
    rows = " ".join(f"<{ord('A') + at:02X}> <{meaning.encode('utf-16-be').hex()}>" for at, meaning in enumerate(meanings))
    mapping = f"""/CIDInit /ProcSet findresource begin begincmap /CMapName /X def /CMapType 2 def
1 begincodespacerange <00> <FF> endcodespacerange {len(meanings)} beginbfchar {rows} endbfchar endcmap end"""
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/ToUnicode 6 0 R>>"
    return pages_pdf(written(*text.split("\n")), more=[stream(mapping.encode()), font]).replace(b"/F1 3 0 R", b"/F1 7 0 R")


# --- Characters -----------------------------------------------------------------------------------------------------------------


async def test_ligatures_are_their_letters(workers: DocumentWorkers) -> None:
    page = await page_of(workers, mapped("oAce Bsh Cy DeE F", "ﬃ", "ﬁ", "ﬂ", "ﬀ", "ﬄ", "ﬆ"))
    assert page.text == "office fish fly ffeffl st"


async def test_a_soft_hyphen_joins_words_at_the_end_of_a_line_and_is_nothing_within_one(workers: DocumentWorkers) -> None:
    page = await page_of(workers, mapped("an examA\nple, hyAphen", "\u00ad"))
    assert page.text == "an exam-\nple, hyphen"


async def test_private_characters_are_unknown_and_words_bullets_are_bullets(workers: DocumentWorkers) -> None:
    page = await page_of(workers, mapped("xAy B one C two", "\ue001", "\uf0b7", "\uf0a7"))
    assert page.text == "x\ufffdy • one ▪ two"


NOT_TEXT = [
    (0, 8),
    (0xB, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),
    (0xD800, 0xF8FF),
    (0xFB00, 0xFB06),
    (0xFDD0, 0xFDEF),
    (0xF0000, 0x10FFFF),
]


@given(st.text(alphabet=st.characters(codec=None)), st.sets(st.integers(0, 20)))
def test_whatever_pdfium_finds_becomes_text(raw: str, hyphens: set[int]) -> None:
    text = tidy(raw, hyphens)
    assert not any(low <= ord(c) <= high for c in text for low, high in NOT_TEXT if c != "\n")
    assert not any(ord(c) & 0xFFFE == 0xFFFE for c in text)
    text.encode()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("a\r\nb\rc\nd", "a\nb\nc\nd"),
        ("a\x0bb\x0cc\x85d\u2028e\u2029f", "a\nb\nc\nd\ne\nf"),
        ("a\tb", "a\tb"),
        ("a\x00b\x1bc\x9fd", "abcd"),
        ("a\u00ad\r\nb\u00adc\u00ad", "a-\nbc"),
        ("\U0001fffe\U0010ffff\U000f0001\ue000\uffff", "\ufffd" * 5),
        ("non\u00a0breaking\u2009thin\u200bzero", "non\u00a0breaking\u2009thin\u200bzero"),
        ("ﬅﬆ", "stst"),
    ],
    ids=repr,
)
def test_each_rule_for_characters(raw: str, text: str) -> None:
    assert tidy(raw, set()) == text


# --- Forms ----------------------------------------------------------------------------------------------------------------------

APPEARANCE = stream(b"0 0 0 rg 0 0 200 100 re f", "/Type/XObject/Subtype/Form/BBox[0 0 200 100]")
BOX = "/AP<</N<</Yes 6 0 R/Off 6 0 R>>>>"


def form(*fields: str, lines: Sequence[str] = ("above",), more: Sequence[bytes] = ()) -> bytes:
    """A page with these fields; object 6 is how something looks, and fields start at 7."""
    widgets = [
        f"<</Type/Annot/Subtype/Widget/F 4/Rect[100 {90 * at} 300 {90 * at + 80}]{field}>>".encode()
        for at, field in enumerate(fields)
    ]
    refs = " ".join(f"{7 + at} 0 R" for at in range(len(fields)))
    parents = " ".join(f"{7 + len(fields) + at} 0 R" for at in range(len(more)))
    return pages_pdf(
        written(*lines),
        page=f"/Annots[{refs}]",
        catalogue=f"/AcroForm<</Fields[{refs} {parents}]>>",
        more=[APPEARANCE, *widgets, *more],
    )


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("/FT/Tx/T(name)/V(Jane Doe)", "Jane Doe"),
        ("/FT/Tx/T(name)/TU(Your name)/V(Jane Doe)", "Your name: Jane Doe"),
        ("/FT/Tx/T(name)/V(Jane Doe)/AP<</N 6 0 R>>", "Jane Doe"),
        (r"/FT/Tx/Ff 4096/T(note)/V(one\rtwo\r\nthree)", "one\ntwo\nthree"),
        ("/FT/Tx/T(name)/V<FEFF" + "Zoë 日ﬁ\U0001f600".encode("utf-16-be").hex() + ">", "Zoë 日fi\U0001f600"),
        ("/FT/Tx/T(name)/V<FEFFD83D0007>", "\ufffd"),
        ("/FT/Tx/Ff 8192/T(pin)/V(1234)", ""),
        ("/FT/Tx/T(name)/V(  )", ""),
        ("/FT/Tx/T(name)", ""),
        ("/FT/Ch/Ff 131072/T(fruit)/Opt[(apple)(pear)]/V(pear)", "pear"),
        ("/FT/Ch/Ff 131072/T(fruit)/Opt[[(a)(Apple)][(p)(Pear)]]/V(p)", "Pear"),
        ("/FT/Ch/Ff 393216/T(fruit)/Opt[(apple)]/V(kiwi)", "kiwi"),
        ("/FT/Ch/Ff 2097152/T(fruit)/Opt[(apple)(pear)(kiwi)]/V[(apple)(kiwi)]/I[0 2]", "apple, kiwi"),
        (f"/FT/Btn/T(agreed){BOX}/V/Yes/AS/Yes", "Yes"),
        (f"/FT/Btn/T(agreed)/TU(I agree){BOX}/V/Yes/AS/Yes", "I agree: Yes"),
        (f"/FT/Btn/T(agreed){BOX}/V/Off/AS/Off", ""),
        ("/FT/Btn/Ff 65536/T(send)/MK<</CA(Send)>>", ""),
        ("/FT/Sig/T(signed)/V<</Type/Sig/Contents<00>>>", ""),
    ],
)
async def test_a_filled_field_follows_the_text_of_its_page(workers: DocumentWorkers, field: str, line: str) -> None:
    assert (await page_of(workers, form(field))).text == (f"above\n\n{line}" if line else "above")


async def test_fields_follow_in_the_files_order_and_a_page_of_fields_only_begins_with_them(workers: DocumentWorkers) -> None:
    fields = ["/FT/Tx/T(a)/V(one)", "/FT/Tx/T(b)/V(two)", "/FT/Tx/T(c)/TU(Three)/V(three)"]
    assert (await page_of(workers, form(*fields, lines=()))).text == "one\ntwo\nThree: three"


async def test_of_radio_buttons_the_chosen_one_counts(workers: DocumentWorkers) -> None:
    kids = [f"/Parent 9 0 R/AS/{state}/AP<</N<</{name} 6 0 R/Off 6 0 R>>>>" for name, state in (("One", "Off"), ("Two", "Two"))]
    group = b"<</FT/Btn/Ff 49152/T(choice)/V/Two/Kids[7 0 R 8 0 R]>>"
    assert (await page_of(workers, form(*kids, more=[group]))).text == "above\n\nTwo"


async def test_a_form_that_is_filled_makes_a_text_layer(workers: DocumentWorkers) -> None:
    for field, found in (("/FT/Tx/T(a)/V(words)", True), ("/FT/Tx/T(a)", False)):
        with opened(form(field, lines=())) as source:
            assert (await workers.open_document(source, LIMITS)).has_text_layer == found


# --- Images ---------------------------------------------------------------------------------------------------------------------

IMAGE = stream(b"\0", "/Type/XObject/Subtype/Image/Width 1/Height 1/BitsPerComponent 8/ColorSpace/DeviceGray")


def with_images(content: str, *more: bytes, page: str = "", box: str = "0 0 100 200") -> bytes:
    """A page whose /I is an image (object 6) and whose /F is a form (object 7)."""
    resources = "/Resources<</Font<</F1 3 0 R>>/XObject<</I 6 0 R/F 7 0 R>>>>"
    data = pages_pdf(stream(content.encode()), box=box, page=page, more=[IMAGE, *more])
    return data.replace(b"/Resources<</Font<</F1 3 0 R>>>>", resources.encode(), 1)


def form_of(content: str, entries: str = "") -> bytes:
    return stream(
        content.encode(),
        f"/Type/XObject/Subtype/Form/BBox[-999 -999 999 999]{entries}/Resources<</XObject<</I 6 0 R/F 7 0 R/G 8 0 R>>>>",
    )


@pytest.mark.parametrize(
    ("data", "images", "coverage"),
    [
        (pages_pdf(written("x")), 0, 0.0),
        (pages_pdf(written()), 0, 0.0),
        (with_images("q 100 0 0 200 0 0 cm /I Do Q"), 1, 1.0),
        (with_images("q 50 0 0 50 0 0 cm /I Do Q"), 1, 0.125),
        (with_images("q 50 0 0 50 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \0 EI Q"), 1, 0.125),
        (with_images("q 0 50 -50 0 50 0 cm /I Do Q", page="/Rotate 90"), 1, 0.125),
        (with_images("q 900 0 0 900 -300 -300 cm /I Do Q"), 1, 1.0),
        (with_images("q 100 0 0 200 300 0 cm /I Do Q"), 0, 0.0),
        (with_images("q 100 0 0 200 0 0 cm /I Do Q", page="/CropBox[0 0 50 50]"), 1, 1.0),
        (with_images("q 50 0 0 50 0 0 cm /I Do Q q 50 0 0 50 50 100 cm /I Do Q"), 2, 0.25),
        (with_images("q 50 0 0 50 0 0 cm /I Do Q " * 9), 9, 0.125),
        (with_images("q 1 0 0 1 10 10 cm /F Do Q", form_of("q 50 0 0 50 0 0 cm /I Do Q")), 1, 0.125),
        (with_images("q .5 0 0 .5 10 10 cm /F Do Q", form_of("q 20 0 0 20 0 0 cm /I Do Q", "/Matrix[5 0 0 5 3 3]")), 1, 0.125),
        (
            with_images(
                "q .5 0 0 .5 0 0 cm /F Do Q", form_of("q 1 0 0 1 100 0 cm /G Do Q"), form_of("q 100 0 0 100 0 0 cm /I Do Q")
            ),
            1,
            0.125,
        ),
        (with_images("/F Do " * 2, form_of("q 50 0 0 50 0 0 cm /I Do Q")), 2, 0.125),
    ],
    ids=[
        "none",
        "empty page",
        "whole page",
        "part",
        "within the content",
        "turned",
        "larger than the page",
        "outside",
        "cropped",
        "two",
        "nine in one place",
        "in a form",
        "in a form that scales",
        "a form in a form",
        "a form twice",
    ],
)
async def test_the_images_of_a_page_are_counted_and_measured(
    workers: DocumentWorkers, data: bytes, images: int, coverage: float
) -> None:
    page = await page_of(workers, data)
    assert page.images == images
    assert page.coverage == pytest.approx(coverage, abs=0.005)


async def test_forms_without_end_and_pages_of_a_million_objects_are_looked_at_in_part(workers: DocumentWorkers) -> None:
    assert (await page_of(workers, with_images("/F Do", form_of("/F Do q 50 0 0 50 0 0 cm /I Do Q")))).images < 20
    many = pages_pdf(deflated(b"0 0 1 1 re f " * 100_000))
    assert await page_of(workers, many) == PageText("", 0, 0.0)
