"""PDFs whose pages are odd: boxes, fonts and their maps, hyphens, scripts, scans, forms."""

import random
import zlib
from collections.abc import Mapping, Sequence

from PIL import Image as Pillow

from odd.documents import file, says
from odd.expected import Document, Expected, OddFile, Page, Refused
from odd.fonts import squares
from odd.images import saved
from odd.writer import LETTER, deflated, pages_pdf, stream, updated, written

__all__ = ["FILES"]

TOO_LARGE = Refused("limit_exceeded", "page.pixels is 40000000 pixels")
SCAN = deflated(bytes(64 * 64), "/Type/XObject/Subtype/Image/Width 64/Height 64/ColorSpace/DeviceGray/BitsPerComponent 8")
WHOLE_PAGE = "q 612 0 0 792 0 0 cm /S Do Q "
NEARLY_BLACK = (0.5, 0.5)


def boxed(name: str, box: str | None, size: tuple[int, int], page: str = "", text: str | None = "x") -> OddFile:
    return file(name, pages_pdf(written("x"), box=box, page=page), Document(1, True, (Page(text, size=size),)))


def boxes() -> tuple[OddFile, ...]:
    """Sizes in pixels are those of the picture, whose longer side is 1,024."""
    absurd = pages_pdf(written("x"), box="0 0 2000000000 2000000000")
    return (
        boxed("box-14400", "0 0 14400 14400", (1024, 1024)),
        file("box-2-billion", absurd, Document(1, False, (Page(refused=TOO_LARGE, picture_refused=TOO_LARGE),))),
        file(
            "one-absurd-page-among-good",
            pages_pdf(written("a"), written("b"), written("c"))
            .replace(b"[0 0 612 792]", b"[0 0 900000000 900000000]", 2)
            .replace(b"[0 0 900000000 900000000]", b"[0 0 612 792]", 1),
            Document(3, True, (Page("a"), Page(refused=TOO_LARGE, picture_refused=TOO_LARGE), Page("c"))),
        ),
        boxed("box-of-a-long-web-page", "0 0 800 40000", (20, 1024)),
        boxed("box-swapped", "612 792 0 0", (791, 1024)),
        boxed("box-of-fractions", "0 0 595.276 841.89", (724, 1024)),
        boxed("box-elsewhere", "-1000 -2000 -388 -1208", (791, 1024), text=None),
        boxed("box-of-a-point", "0 0 1 1", (1024, 1024), text=None),
        boxed("box-of-a-hair", "0 0 0.001 1000", (1, 1024), text=None),
        boxed("box-empty", "0 0 0 0", (791, 1024)),
        boxed("box-missing", None, (791, 1024)),
        boxed("box-of-words", "(a) (b) (c) (d)", (791, 1024)),
        boxed("box-of-three-numbers", "0 0 612", (791, 1024)),
        boxed("turned-90", LETTER, (1024, 791), "/Rotate 90"),
        boxed("turned-back-90", LETTER, (1024, 791), "/Rotate -90"),
        boxed("turned-450", LETTER, (1024, 791), "/Rotate 450"),
        boxed("turned-45-which-cannot-be", LETTER, (791, 1024), "/Rotate 45"),
        boxed("cropped", LETTER, (1024, 727), "/CropBox[0 650 200 850]"),
        boxed("cropped-outside-itself", LETTER, (791, 1024), "/CropBox[-900 -900 9000 9000]"),
        boxed("cropped-beside-itself", LETTER, (791, 1024), "/CropBox[700 900 800 1000]"),
        boxed("cropped-along-its-edge", LETTER, (791, 1024), "/CropBox[612 0 700 792]"),
        boxed("cropped-to-a-point", LETTER, (791, 1024), "/CropBox[10 10 10 10]"),
        boxed("cropped-beside-itself-and-turned", LETTER, (1024, 791), "/CropBox[700 900 800 1000]/Rotate 90"),
        file(
            "cropped-beside-an-absurd-page",
            pages_pdf(written("x"), box="0 0 900000000 900000000", page="/CropBox[-20 -20 -10 -10]"),
            Document(1, False, (Page(refused=TOO_LARGE, picture_refused=TOO_LARGE),)),
        ),
        boxed("user-unit", LETTER, (791, 1024), "/UserUnit 10"),
    )


def to_unicode(width: int, numbers: Mapping[int, str]) -> bytes:
    """A font's map from codes of so many bytes to UTF-16 numbers."""
    rows = " ".join(f"<{code:0{2 * width}X}> <{number}>" for code, number in numbers.items())
    return f"""/CIDInit /ProcSet findresource begin begincmap /CMapName /X def /CMapType 2 def
1 begincodespacerange <{"00" * width}> <{"FF" * width}> endcodespacerange
{len(numbers)} beginbfchar {rows} endbfchar
endcmap end""".encode()


def mapped(name: str, to: Sequence[str], text: str, expected: Expected) -> OddFile:
    """A page that says `text`, in a font that maps A, B, C … to these UTF-16 numbers."""
    mapping = to_unicode(1, {ord("A") + at: number for at, number in enumerate(to)})
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/ToUnicode 6 0 R>>"
    data = pages_pdf(written(text), more=[stream(mapping), font]).replace(b"/F1 3 0 R", b"/F1 7 0 R")
    return file(name, data, expected)


def spelt(name: str, text: str, leftward: bool = False) -> OddFile:
    """A page whose font maps to the letters of this text. Drawn from the left in any case, as documents are."""
    letters = sorted(set(text) - {" "})
    codes = "".join(chr(ord("A") + letters.index(letter)) if letter != " " else " " for letter in text)
    if leftward:
        codes = codes[::-1]
    return mapped(name, [letter.encode("utf-16-be").hex() for letter in letters], codes, says(text))


def font(name: str, font: bytes, content: bytes, expected: Expected, more: Sequence[bytes] = ()) -> OddFile:
    data = pages_pdf(content, more=[font, *more]).replace(b"/F1 3 0 R", b"/F1 6 0 R")
    return file(name, data, expected)


def absent(name: str, writing: str, operators: str | None, text: str) -> OddFile:
    """Japanese in a font that is not in the file; in a form where no operators are given. The glyphs are three kana, which have no
    outline on a machine without Japanese fonts, and the map calls them otherwise.
    """
    parent = f"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-{writing}/DescendantFonts[7 0 R]/ToUnicode 8 0 R>>"
    system = "/CIDSystemInfo<</Registry(Adobe)/Ordering(Japan1)/Supplement 2>>"
    described = "/FontDescriptor<</Type/FontDescriptor/FontName/X/Flags 4/FontBBox[0 0 0 0]/Ascent 800>>"
    descendant = f"<</Type/Font/Subtype/CIDFontType0/BaseFont/X/DW 1000{system}{described}>>"
    mapping = stream(to_unicode(2, {843: "65E5", 845: "672C", 847: "8A9E"}))
    content = f"BT /F1 12 Tf 300 700 Td {operators or '<034b034d034f> Tj'} ET"
    more = [parent.encode(), descendant.encode(), mapping]
    if operators is None:
        more.append(stream(content.encode(), "/Type/XObject/Subtype/Form/BBox[0 0 612 792]/Resources<</Font<</F1 6 0 R>>>>"))
        content = "/X Do"
    data = pages_pdf(stream(content.encode()), resources="/XObject<</X 9 0 R>>", more=more).replace(b"/F1 3 0 R", b"/F1 6 0 R")
    return file(name, data, says(text))


def letters_and_fonts() -> tuple[OddFile, ...]:
    """What glyphs mean."""
    vertical = b"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-V/DescendantFonts[7 0 R]/ToUnicode 8 0 R>>"
    descendant = (
        b"<</Type/Font/Subtype/CIDFontType2/BaseFont/X/CIDToGIDMap/Identity/DW 1000"
        b"/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>"
        b"/FontDescriptor<</Type/FontDescriptor/FontName/X/Flags 4/FontBBox[0 0 1000 1000]/Ascent 800/FontFile2 9 0 R>>>>"
    )
    japanese = to_unicode(2, {1: "65E5", 2: "672C", 3: "8A9E"})
    own = (
        b"<</Type/Font/Subtype/Type3/FontBBox[0 0 9 9]/FontMatrix[.1 0 0 .1 0 0]/FirstChar 65/LastChar 65/Widths[9]"
        b"/CharProcs<</a 7 0 R>>/Encoding<</Differences[65/a]>>/Resources<</Font<</F1 6 0 R>>>>>>"
    )
    broken = (
        b"<</Type/Font/Subtype/TrueType/BaseFont/X/Encoding/WinAnsiEncoding"
        b"/FontDescriptor<</Type/FontDescriptor/FontName/X/Flags 32/FontFile2 7 0 R>>>>"
    )
    return (
        mapped("ligature-of-three-letters", ["006600660069"], "oAce", says("office")),
        mapped("ligature-as-one-character", ["FB03", "FB01", "FB06"], "oAce Bsh Cop", says("office fish stop")),
        mapped("maps-to-nul", ["0000"], "xAy", Document(1, True, (Page("x\ufffdy"),))),
        mapped("maps-to-private-use", ["E001", "F0B7"], "xAy xBy", Document(1, True, (Page("x\ufffdy x\u2022y"),))),
        mapped("maps-to-half-surrogates", ["D83D", "DE00"], "xAy xBy", Document(1, True, (Page("x\ufffdy x\ufffdy"),))),
        mapped(
            "maps-to-no-characters",
            ["FFFE", "FDD0", "FFFF"],
            "xAy xBy xCy",
            Document(1, True, (Page(holds=("x", "y", "x", "y", "x", "y"), lacks=("\ufffe", "\ufdd0", "\uffff", "-\n")),)),
        ),
        mapped(
            "maps-to-controls",
            ["0007", "001B", "0085", "007F"],
            "xAy xBy xCy xDy",
            Document(1, True, (Page("xy xy x\ny xy"),)),
        ),
        mapped(
            "maps-to-line-ends",
            ["000D", "000A", "2028"],
            "xAy xBy xCy",
            Document(1, True, (Page("x\ny x\ny x\ny"),)),
        ),
        mapped("maps-to-a-soft-hyphen", ["00AD"], "hyAphen and more", says("hyphen and more")),
        mapped("maps-to-an-emoji", ["D83DDE00"], "xAy", says("x\N{GRINNING FACE}y")),
        mapped("maps-to-a-combining-mark", ["0301"], "eA", Document(1, True, (Page("e\u0301"),))),
        mapped("maps-to-a-thousand-letters", ["0078" * 1000], "A", says("x" * 1000)),
        mapped("maps-to-direction-marks", ["202E", "200F"], "xAy xBy", Document(1, True, (Page("x\u202ey x\u200fy"),))),
        mapped("maps-to-zero-width", ["200B", "FEFF"], "xAy xBy", Document(1, True, (Page("x\u200by x\ufeffy"),))),
        spelt("hebrew", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", leftward=True),
        spelt("arabic", "\u0633\u0644\u0627\u0645", leftward=True),
        spelt("chinese", "\u4f60\u597d \u4e16\u754c"),
        spelt("japanese", "\u65e5\u672c\u8a9e\u306e\u6587"),
        spelt("korean", "\uc548\ub155"),
        spelt("greek-and-cyrillic", "\u03b1\u03b2\u03b3 \u0434\u0430"),
        spelt("beyond-16-bits", "\U00020000\U0001d400"),
        font(
            "vertical-japanese",
            vertical,
            stream(b"BT /F1 12 Tf 300 700 Td <000100020003> Tj ET"),
            says("\u65e5\u672c\u8a9e"),
            [descendant, stream(japanese), stream(squares(4))],
        ),
        absent("vertical-in-an-absent-font", "V", "<034b034d> Tj 30 0 Td <034f> Tj", "\u65e5\u672c \u8a9e"),
        absent("vertical-letter-by-letter-in-an-absent-font", "V", "<034b> Tj 0 -12 Td <034d> Tj", "\u65e5\n\u672c"),
        absent("sideways-in-an-absent-font", "H", "0 1 -1 0 300 100 Tm <034b034d034f> Tj", "\u65e5\u672c\u8a9e"),
        absent("level-in-an-absent-font", "H", "<034b034d034f> Tj", "\u65e5\u672c\u8a9e"),
        absent("words-of-no-size-in-an-absent-font", "V", "/F1 0 Tf <034b034d034f> Tj", ""),
        absent("vertical-in-an-absent-font-in-a-form", "V", None, "\u65e5\u672c\u8a9e"),
        font(
            "font-of-drawings-in-itself",
            own,
            stream(b"BT /F1 12 Tf 50 700 Td (AA) Tj ET"),
            says("AA"),
            [stream(b"9 0 d0 BT /F1 1 Tf (A) Tj ET")],
        ),
        font("font-is-missing", b"null", stream(b"BT /F1 12 Tf 50 700 Td (words) Tj ET"), says("words")),
        font("font-is-a-number", b"7", stream(b"BT /F1 12 Tf 50 700 Td (words) Tj ET"), says("words")),
        font(
            "font-file-of-garbage",
            broken,
            stream(b"BT /F1 12 Tf 50 700 Td (words) Tj ET"),
            says("words"),
            [stream(b"\0\1\0\0" + b"\xff" * 300)],
        ),
        # In this encoding the code is a hyphen; only a map makes it a soft one
        file("soft-hyphen-in-a-line", pages_pdf(written(r"hy\255phen and more")), Document(1, True, (Page("hy-phen and more"),))),
        file(
            "soft-hyphen-at-the-end-of-a-line",
            pages_pdf(written(r"an exam\255", "ple that goes on")),
            Document(1, True, (Page("an exam-\nple that goes on"),)),
        ),
        file(
            "hyphens-at-the-ends-of-lines",
            pages_pdf(written("an exam-", "ple, pages 3-", "9, and a - b")),
            says("an exam-\nple, pages 3-\n9, and a - b"),
        ),
        file("curly-quotes-and-euro", pages_pdf(written(r"\223quoted\224 \200 5")), says("\u201cquoted\u201d \u20ac 5")),
        file("spaces-only", pages_pdf(written("   ", " ")), Document(1, False)),
        file("dots-only", pages_pdf(written(". . .")), Document(1, False, (Page(". . ."),))),
        file(
            "tiny-and-giant-letters",
            pages_pdf(stream(b"BT /F1 0.01 Tf 50 700 Td (tiny) Tj ET BT /F1 900 Tf 50 100 Td (giant) Tj ET")),
            Document(1, True, (Page(holds=("tiny", "giant")),)),
        ),
        file(
            "letters-outside-the-page",
            pages_pdf(stream(b"BT /F1 12 Tf 50 700 Td (inside) Tj 9000 9000 Td (outside) Tj ET")),
            Document(1, True, (Page("inside\noutside"),)),
        ),
        file(
            "letters-of-numbers-too-large",
            pages_pdf(stream(b"BT /F1 12 Tf 50 700 Td (good) Tj 1e38 1e38 Td 9999999999999999999999 Tc (far) Tj ET")),
            Document(1, True, (Page("good far"),)),
        ),
        file(
            "operators-that-do-not-exist",
            pages_pdf(stream(b"1 2 3 foo BT /F1 12 Tf 50 700 Td (good) Tj bar ET >> ] )")),
            says("good"),
        ),
        file(
            "content-stops-in-a-string",
            pages_pdf(stream(b"BT /F1 12 Tf 50 700 Td (good) Tj (never closed")),
            Document(1, True, (Page("good"),)),
        ),
    )


def scans() -> tuple[OddFile, ...]:
    """Images on pages, and pages without words."""

    def scanned(*contents: str) -> bytes:
        streams = [stream(content.encode()) for content in contents]
        image = 4 + 2 * len(contents)
        return pages_pdf(*streams, resources=f"/XObject<</S {image} 0 R>>", more=[SCAN])

    words = "BT /F1 12 Tf 50 700 Td (words) Tj ET"
    unseen = "BT 3 Tr /F1 12 Tf 50 700 Td (found by a reader) Tj ET"
    inline = "q 306 0 0 396 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \0 EI Q"
    small = "q 10 0 0 10 300 300 cm /S Do Q "
    return (
        file(
            "scan",
            scanned(WHOLE_PAGE),
            Document(1, False, (Page("", images=1, coverage=1.0, size=(791, 1024), dark=NEARLY_BLACK),)),
        ),
        file(
            "scan-with-unseen-text",
            scanned(WHOLE_PAGE + unseen),
            Document(1, True, (Page("found by a reader", images=1, coverage=1.0, dark=NEARLY_BLACK),)),
        ),
        file(
            "scan-on-half-a-page",
            scanned("q 612 0 0 396 0 0 cm /S Do Q"),
            Document(1, False, (Page("", images=1, coverage=0.5, dark=(0.5, 0.75)),)),
        ),
        file(
            "scan-in-strips",
            scanned("".join(f"q 612 0 0 99 0 {99 * at} cm /S Do Q " for at in range(8))),
            Document(1, False, (Page("", images=8, coverage=1.0, dark=NEARLY_BLACK),)),
        ),
        file(
            "scan-larger-than-its-page",
            scanned("q 6120 0 0 7920 -300 -300 cm /S Do Q"),
            Document(1, False, (Page("", images=1, coverage=1.0),)),
        ),
        file("scan-outside-its-page", scanned("q 612 0 0 792 5000 5000 cm /S Do Q"), Document(1, False, (Page("", coverage=0.0),))),
        file("scan-drawn-twice-in-one-place", scanned(WHOLE_PAGE * 2), Document(1, False, (Page("", images=2, coverage=1.0),))),
        file("scan-of-no-size", scanned("q 0 0 0 0 0 0 cm /S Do Q"), Document(1, False, (Page("", coverage=0.0),))),
        file(
            "image-within-the-content", scanned(inline), Document(1, False, (Page("", images=1, coverage=0.25, dark=(0.25, 0.75)),))
        ),
        file("blank", pages_pdf(written()), Document(1, False, (Page("", images=0, coverage=0.0, size=(791, 1024)),))),
        file(
            "only-drawings",
            pages_pdf(stream(b"0 0 612 792 re f")),
            Document(1, False, (Page("", images=0, coverage=0.0, dark=NEARLY_BLACK),)),
        ),
        file(
            "words-scan-blank-and-both",
            scanned(words, WHOLE_PAGE, "", WHOLE_PAGE + words),
            Document(
                4,
                True,
                (
                    Page("words", images=0, coverage=0.0),
                    Page("", images=1, coverage=1.0),
                    Page("", images=0, coverage=0.0),
                    Page("words", images=1, coverage=1.0),
                ),
            ),
        ),
        file("scans-and-words-on-the-last-page", scanned(*[WHOLE_PAGE] * 40, words), Document(41, True, (Page("", images=1),))),
        file("words-and-a-small-image", scanned(words + " " + small), Document(1, True, (Page("words", images=1, coverage=0.0),))),
        file("many-small-images", scanned(small * 3_000), Document(1, False, (Page("", coverage=0.0),))),
    )


def damaged_scans() -> tuple[OddFile, ...]:
    """Images that PDFium leaves out or fills up without a word, and what only looks like that."""
    picture = Pillow.frombytes("L", (64, 64), random.Random(1).randbytes(64 * 64))
    jpeg = saved(picture, "JPEG", quality=90)
    wavelets = saved(picture, "JPEG2000", no_jp2=True)
    deflated_noise = zlib.compress(picture.tobytes())
    lacking = Refused("document_invalid", "shows an image that is damaged or cut short, so its picture would lack it; page_text")
    entries = "/Type/XObject/Subtype/Image/Width 64/Height 64/ColorSpace/DeviceGray/BitsPerComponent 8"

    def scan(name: str, filters: str, data: bytes, expected: Page, content: str = WHOLE_PAGE) -> OddFile:
        image = stream(data, f"{entries}/Filter{filters}")
        words = "BT /F1 12 Tf 50 700 Td (words) Tj ET"
        data = pages_pdf(stream((content + words).encode()), resources="/XObject<</S 6 0 R>>", more=[image])
        return file(name, data, Document(1, True, (expected,)))

    whole = Page("words", images=1, size=(791, 1024))
    bad = Page("words", images=1, picture_refused=lacking)
    small = "q 300 0 0 300 9 9 cm /S Do Q "
    in_form = stream(b"q 1 0 0 1 0 0 cm /S Do Q", "/Type/XObject/Subtype/Form/BBox[0 0 1 1]/Resources<</XObject<</S 7 0 R>>>>")
    return (
        scan("scan-jpeg", "/DCTDecode", jpeg, whole),
        scan("scan-jpeg-of-garbage", "/DCTDecode", b"\xff" * 300, bad),
        scan("scan-jpeg-of-nothing", "/DCTDecode", b"", bad),
        scan("scan-jpeg-cut", "/DCTDecode", jpeg[: len(jpeg) // 2], bad),
        scan("scan-jpeg-without-its-end", "/DCTDecode", jpeg[:-2], whole),
        scan("scan-jpeg-with-junk-behind", "/DCTDecode", jpeg + bytes(2000), whole),
        scan("scan-deflated", "/FlateDecode", deflated_noise, whole),
        scan("scan-deflated-cut", "/FlateDecode", deflated_noise[: len(deflated_noise) // 2], bad),
        scan("scan-deflated-without-checksum", "/FlateDecode", zlib.compress(bytes(64 * 64))[:-4], whole),
        scan("scan-wavelets-of-garbage", "/JPXDecode", b"\0\0\0\x0cjP  \r\n\x87\n" + b"\xff" * 99, bad),
        scan("scan-wavelets", "/JPXDecode", wavelets, whole),
        scan("scan-wavelets-cut", "/JPXDecode", wavelets[: len(wavelets) // 2], bad),
        scan("scan-in-an-unknown-code", "/NobodysDecode", jpeg, bad),
        scan("damaged-image-on-a-part-of-the-page", "/DCTDecode", b"\xff" * 300, bad, small),
        scan("damaged-image-of-a-point", "/DCTDecode", b"\xff" * 300, whole, "q 1 0 0 1 9 9 cm /S Do Q "),
        file(
            "damaged-image-in-a-form",
            pages_pdf(
                stream(b"q 300 0 0 300 9 9 cm /X Do Q"),
                resources="/XObject<</X 6 0 R>>",
                more=[in_form, stream(b"\xff" * 300, f"{entries}/Filter/DCTDecode")],
            ),
            Document(1, False, (Page("", images=1, picture_refused=lacking),)),
        ),
    )


def form(name: str, field: str, expected: Page, *more: bytes, fields: str = "", flags: int = 4) -> OddFile:
    """A page that says "above", with one field, which is object 6."""
    entries = f"<</Type/Annot/Subtype/Widget/F {flags}/Rect[100 100 300 200]/P 4 0 R{field}>>"
    data = pages_pdf(
        written("above"),
        page="/Annots[6 0 R]",
        catalogue=f"/AcroForm<</Fields[6 0 R]/DA(/F1 12 Tf 0 g)/DR<</Font<</F1 3 0 R>>>>{fields}>>",
        more=[entries.encode(), *more],
    )
    return file(name, data, Document(1, True, (expected,)))


def forms() -> tuple[OddFile, ...]:
    """The values of form fields are text of their page; their names are not."""
    looks = stream(b"0 0 0 rg 0 0 200 100 re f", "/Type/XObject/Subtype/Form/BBox[0 0 200 100]")
    said = stream(
        b"BT /F1 12 Tf 5 5 Td (Jane Doe) Tj ET", "/Type/XObject/Subtype/Form/BBox[0 0 200 100]/Resources<</Font<</F1 3 0 R>>>>"
    )
    off = stream(b"", "/Type/XObject/Subtype/Form/BBox[0 0 200 100]")
    box = "/FT/Btn/T(agreed)/AP<</N<</Yes 7 0 R/Off 8 0 R>>>>"
    place = (200 / 612, 1 - 150 / 792)
    utf_16 = "<FEFF" + "Zo\u00eb \u65e5\u672c".encode("utf-16-be").hex() + ">"
    kids = b"<</Type/Annot/Subtype/Widget/F 4/Rect[100 400 300 450]/P 4 0 R/Parent 6 0 R>>"
    return (
        form(
            "form-with-appearance",
            "/FT/Tx/T(name)/V(Jane Doe)/AP<</N 7 0 R>>",
            Page("above\n\nJane Doe"),
            said,
        ),
        form(
            "form-with-appearance-that-is-a-drawing",
            "/FT/Tx/T(name)/V(Jane Doe)/AP<</N 7 0 R>>",
            Page("above\n\nJane Doe", dark=place),
            looks,
        ),
        form("form-without-appearance", "/FT/Tx/T(name)/V(Jane Doe)", Page("above\n\nJane Doe")),
        form(
            "form-that-needs-appearances",
            "/FT/Tx/T(name)/V(Jane Doe)",
            Page("above\n\nJane Doe"),
            fields="/NeedAppearances true",
        ),
        form("form-without-value", "/FT/Tx/T(name)", Page("above")),
        form("form-with-a-value-in-utf-16", f"/FT/Tx/T(name)/V{utf_16}", Page("above\n\nZo\u00eb \u65e5\u672c")),
        form(
            "form-with-lines",
            r"/FT/Tx/Ff 4096/T(name)/V(one\rtwo\r\nthree)",
            Page("above\n\none\ntwo\nthree"),
        ),
        form("form-with-a-ligature", "/FT/Tx/T(name)/V<FEFF006FFB0300630065>", Page("above\n\noffice")),
        form("form-with-a-value-of-garbage", r"/FT/Tx/T(name)/V<FEFFD83D0007>", Page("above\n\n\ufffd")),
        form(
            "form-with-a-choice",
            "/FT/Ch/Ff 131072/T(colour)/Opt[(red)(green)]/V(green)",
            Page("above\n\ngreen"),
        ),
        form("form-with-a-ticked-box", box + "/V/Yes/AS/Yes", Page("above\n\nYes", dark=place), looks, off),
        form("form-with-an-empty-box", box + "/V/Off/AS/Off", Page("above"), looks, off),
        form("form-with-a-secret", "/FT/Tx/Ff 8192/T(password)/V(hunter2)", Page("above")),
        form("form-with-a-hidden-field", "/FT/Tx/T(name)/V(hidden words)", Page("above"), flags=2),
        form("form-with-a-field-of-itself", "/FT/Tx/T(name)/V(Jane Doe)/Parent 6 0 R/Kids[6 0 R]", Page("above")),
        form("form-with-a-value-in-its-parent", "/FT/Tx/T(name)/V(Jane Doe)/Kids[7 0 R]", Page("above\n\nJane Doe"), kids),
        form(
            "form-with-a-script",
            "/FT/Tx/T(name)/V(Jane Doe)/AA<</C<</S/JavaScript/JS(event.value='changed')>>/F<</S/JavaScript/JS(while\\(1\\);)>>>>",
            Page("above\n\nJane Doe"),
        ),
        form(
            "form-with-a-signature",
            "/FT/Sig/T(signed)/V<</Type/Sig/Filter/Adobe.PPKLite/Contents<00>/ByteRange[0 9 9 9]>>",
            Page("above"),
        ),
        file(
            "form-of-fields-that-are-missing",
            pages_pdf(written("above"), catalogue="/AcroForm<</Fields[77 0 R 1 0 R]>>"),
            says("above"),
        ),
        file(
            "form-in-xml",
            pages_pdf(
                written("above"),
                catalogue="/AcroForm<</XFA 6 0 R/Fields[]>>",
                more=[stream(b"<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'><broken")],
            ),
            says("above"),
        ),
        file(
            "form-that-its-reader-has-to-build",
            pages_pdf(
                written("Please wait..."),
                catalogue="/NeedsRendering true/AcroForm<</XFA 6 0 R/Fields[]>>",
                more=[stream(b"<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'/>")],
            ),
            Refused("unsupported", "is a form that only Adobe's programs can show (XFA)"),
        ),
        file(
            "words-typed-onto-a-page",
            pages_pdf(
                written("above"),
                page="/Annots[6 0 R 7 0 R 8 0 R 6 0 R]",
                more=[
                    rb"<</Type/Annot/Subtype/FreeText/F 4/Rect[9 9 99 99]/DA(/Helv 12 Tf)/Contents(Jane\rDoe)>>",
                    b"<</Type/Annot/Subtype/FreeText/F 2/Rect[9 9 99 99]/Contents(hidden words)>>",
                    b"<</Type/Annot/Subtype/Link/F 4/Rect[9 9 99 99]/Contents(a link)>>",
                ],
            ),
            says("above\n\nJane\nDoe"),
        ),
        file(
            "annotation-with-a-comment",
            pages_pdf(
                written("above"), page="/Annots[6 0 R]", more=[b"<</Type/Annot/Subtype/Text/Rect[9 9 29 29]/Contents(a note)>>"]
            ),
            Document(1, True, (Page("above"),)),
        ),
        file("annotations-that-are-missing", pages_pdf(written("above"), page="/Annots[77 0 R 4 0 R null 7]"), says("above")),
        OddFile(
            "form-filled-by-an-update.pdf",
            filled_by_an_update,
            Document(1, True, (Page("above\n\nlater"),)),
        ),
    )


def filled_by_an_update() -> bytes:
    field = "<</Type/Annot/Subtype/Widget/FT/Tx/T(name)/F 4/Rect[100 100 300 200]/P 4 0 R/V(%s)>>"
    before = pages_pdf(
        written("above"), page="/Annots[6 0 R]", catalogue="/AcroForm<</Fields[6 0 R]>>", more=[(field % "earlier").encode()]
    )
    return updated(before, {6: (field % "later").encode()}, 7)


FILES: tuple[OddFile, ...] = (*boxes(), *letters_and_fonts(), *scans(), *damaged_scans(), *forms())
