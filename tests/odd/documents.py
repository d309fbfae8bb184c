"""PDFs whose structure is odd: page trees, tables, encryption, what stands around them, and what costs a reader too much."""

import zlib
from collections.abc import Callable, Sequence

from odd.expected import Document, Expected, OddFile, Page, Refused, Text
from odd.locked import locked_packed_pdf, locked_pdf
from odd.writer import (
    HEADER,
    LETTER,
    deflated,
    packed_pdf,
    page_objects,
    pages_pdf,
    pdf,
    slow_pdf,
    stream,
    updated,
    written,
)

__all__ = ["FILES"]

NOT_A_PDF = Refused("document_invalid", "is not a readable PDF: it is damaged, cut short or something else")
NO_PAGES = Refused("document_invalid", "is not a readable PDF: it has no pages")
NONE_FOUND = Refused("document_invalid", "is not a readable PDF: none of its pages can be found")
HIDDEN = Refused("document_invalid", "says that it has 1 page and holds 3, the others of which cannot be read; open it in")
LOCKED = Refused("document_password", "is locked with a password, and none was given")
UNKNOWN_LOCK = Refused("document_password", "is locked in a way that cannot be opened here")
MISSING = Page(refused=Refused("document_invalid", "is missing or damaged and cannot be read; other pages may be"))
TOO_MUCH = Refused("limit_exceeded", "document.")  # memory or time, whichever the machine reaches first

GOOD = pages_pdf(written("good"))
GOOD_SEEN = Document(1, True, (Page("good", images=0, coverage=0.0, size=(791, 1024)),))
ONE_KID = b"<</Type/Pages/Count 1/Kids[4 0 R]>>"
TWO_SEEN = Document(2, True, (Page("a"), Page("b")))


def says(*texts: str) -> Document:
    """A document with these texts on its pages, and nothing else in it."""
    return Document(len(texts), any(texts), tuple(Page(text) for text in texts))


def file(name: str, data: bytes | Callable[[], bytes], expected: Expected, heavy: bool = False, time_s: float = 10) -> OddFile:
    return OddFile(f"{name}.pdf", data if callable(data) else lambda: data, expected, heavy=heavy, time_s=time_s)


def locked(name: str, password: str, method: str, expected: Expected) -> OddFile:
    return OddFile(f"{name}.pdf", lambda: locked_pdf(password.encode(), method), expected, password or None)  # type: ignore[arg-type]


def with_loop_in_tables() -> bytes:
    """Two tables, each of which says that the other is the older one."""
    once = updated(pages_pdf(written("first"), trailer="/Prev 00000"), {5: written("second")}, 6)
    return once.replace(b"/Prev 00000", b"/Prev %05d" % (once.rindex(b"\nxref\n") + 1))


def tree(depth: int) -> bytes:
    """One page below so many nodes of the page tree."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>"]
    for at in range(depth):
        parent = f"/Parent {at + 1} 0 R" if at else ""
        objects.append(f"<</Type/Pages/Count 1/Kids[{at + 3} 0 R]{parent}>>".encode())
    font = "<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    objects.append(f"<</Type/Page/Parent {depth + 1} 0 R/MediaBox[{LETTER}]/Resources{font}/Contents {depth + 3} 0 R>>".encode())
    return pdf([*objects, written("deep")])


def with_nodes(root: str, node: str) -> bytes:
    """Three pages below one node below the root, which say how many there are."""
    objects = page_objects(*(written(text) for text in "abc"))
    kids = objects[1].partition(b"/Kids")[2]
    objects[1] = f"<</Type/Pages{root}/Kids[10 0 R]>>".encode()
    return pdf([*objects, f"<</Type/Pages/Parent 2 0 R{node}/Kids".encode() + kids])


def spaces(length: int) -> bytes:
    """A page of that many spaces, deflated twice."""
    return pages_pdf(stream(zlib.compress(zlib.compress(b" " * length)), "/Filter[/FlateDecode/FlateDecode]"))


def attachment() -> Sequence[bytes]:
    spec = b"<</Type/Filespec/F(evil.exe)/UF(evil.exe)/EF<</F 7 0 R>>>>"
    return [spec, stream(b"MZ attached words", "/Type/EmbeddedFile/Subtype/application#2Fx-msdownload")]


def page_trees() -> tuple[OddFile, ...]:
    """Page trees."""
    return (
        file("plain", GOOD, GOOD_SEEN),
        file("several-pages", pages_pdf(*(written(f"page {n}") for n in range(5))), says(*(f"page {n}" for n in range(5)))),
        file("zero-pages", pages_pdf(), NO_PAGES),
        file("no-page-tree", pdf([b"<</Type/Catalog>>"]), NO_PAGES),
        file("count-a-million", pages_pdf(written("a"), written("b"), count=1_000_000), TWO_SEEN),
        file("count-above-32-bits", pages_pdf(written("a"), written("b"), count=2**40), TWO_SEEN),
        file("count-negative", pages_pdf(written("a"), written("b"), count=-5), TWO_SEEN),
        # PDFium believes a count that is too small, and has no way to ask for more
        file("count-too-small", pages_pdf(*(written(t) for t in "abc"), count=1), HIDDEN),
        file("count-too-small-packed", packed_pdf(page_objects(*(written(t) for t in "abc"), count=1)), HIDDEN),
        file("count-too-small-predicted", packed_pdf(page_objects(*[written("a")] * 3, count=1), predicted=True), HIDDEN),
        file("count-too-small-locked", locked_packed_pdf(page_objects(*[b"null"] * 3, count=1)), HIDDEN),
        file("count-too-small-and-no-table", pages_pdf(*[written("a")] * 3, count=1).replace(b"startxref", b"startxxxx"), HIDDEN),
        file("count-too-small-below", with_nodes("/Count 0", "/Count 1"), HIDDEN),
        file("count-too-small-beyond-a-gap", pages_pdf(*[written("a")] * 3, count=1, kids="99 0 R 4 0 R 6 0 R 8 0 R"), NONE_FOUND),
        file("count-too-small-above", with_nodes("/Count 3", "/Count 1"), says("a", "b", "c")),
        file("more-places-than-pages", pages_pdf(written("a"), count=1, kids="4 0 R 99 0 R null (x) 3 0 R"), says("a")),
        file("page-taken-out-by-an-update", updated(pages_pdf(written("a"), written("b")), {2: ONE_KID}, 8), says("a")),
        file("page-of-an-unused-object", pages_pdf(written("a"), written("b"), count=1, kids="4 0 R"), says("a")),
        file("pages-locked-and-packed", locked_packed_pdf(page_objects(*[b"null"] * 3)), says("", "", "")),
        file("pages-packed-and-predicted", packed_pdf(page_objects(written("a"), written("b")), predicted=True), TWO_SEEN),
        file("count-zero", pages_pdf(written("a"), written("b"), count=0), TWO_SEEN),
        file("count-missing", pages_pdf(written("a"), written("b")).replace(b"/Count 2", b"/Xount 2"), TWO_SEEN),
        file(
            "count-two-too-many",
            pages_pdf(*(written(t) for t in "abc"), count=5),
            Document(5, True, (Page("a"), Page("b"), Page("c"), MISSING, MISSING)),
        ),
        file("tree-is-a-loop", pages_pdf(written("x"), count=1, kids="2 0 R"), NONE_FOUND),
        file("tree-of-nothing", pages_pdf(written("x"), count=5, kids="77 0 R"), NONE_FOUND),
        file(
            "loop-among-pages",
            pages_pdf(written("a"), written("b"), count=3, kids="4 0 R 2 0 R 6 0 R"),
            Document(3, True, (Page("a"),)),
        ),
        file("one-page-twice", pages_pdf(written("a"), written("b"), count=3, kids="4 0 R 6 0 R 4 0 R"), says("a", "b", "a")),
        file("tree-40-deep", tree(40), says("deep")),
        file("tree-3000-deep", tree(3000), NONE_FOUND),
        file(
            "bad-pages-among-good",
            pages_pdf(written("a"), written("b"), kids="4 0 R 99 0 R (x) 6 0 R", count=4),
            Document(4, True, (Page("a"), MISSING, MISSING, Page("b"))),
        ),
        file("no-contents", pages_pdf(written("a")).replace(b"/Contents 5 0 R", b"/Xontents 5 0 R"), says("")),
        file("contents-missing", pages_pdf(written("a")).replace(b"/Contents 5 0 R", b"/Contents 9 0 R"), says("")),
        file(
            "contents-in-pieces",
            pages_pdf(written("a"), more=[written("b")]).replace(b"/Contents 5 0 R", b"/Contents[5 0 R 6 0 R]"),
            says("ab"),
        ),
        file("contents-in-themselves", pages_pdf(b"[5 0 R 5 0 R]"), says("")),
        file(
            "page-labels",
            pages_pdf(written("a"), written("b"), catalogue="/PageLabels<</Nums[0<</S/r/St 7>>]>>"),
            TWO_SEEN,
        ),
        file(
            "outline-loop",
            pages_pdf(
                written("good"),
                catalogue="/Outlines<</First 6 0 R/Last 6 0 R/Count 1>>",
                more=[b"<</Title(x)/Next 6 0 R/First 6 0 R/Dest[4 0 R/Fit]>>"],
            ),
            GOOD_SEEN,
        ),
    )


def tables_and_headers() -> tuple[OddFile, ...]:
    """Tables, headers, and what stands before and behind."""
    return (
        file(
            "table-says-it-is-older-than-itself",
            GOOD.replace(b"/Root 1 0 R>>", b"/Root 1 0 R/Prev %d>>" % GOOD.index(b"xref\n")),
            GOOD_SEEN,
        ),
        file("tables-in-a-loop", with_loop_in_tables(), Document(1, True, (Page("second"),))),
        file("table-shifted", GOOD.replace(HEADER, HEADER + b"% some more bytes\n"), GOOD_SEEN),
        file("table-of-garbage", GOOD.replace(b"00000 n", b"zzzzz n"), GOOD_SEEN),
        file("table-missing", GOOD[: GOOD.index(b"xref\n")] + b"trailer\n<</Root 1 0 R>>\n%%EOF", GOOD_SEEN),
        file("table-elsewhere", GOOD.replace(b"startxref\n", b"startxref\n9"), GOOD_SEEN),
        file("trailer-missing", GOOD[: GOOD.index(b"trailer")], NOT_A_PDF),
        file("cut-at-a-third", GOOD[: len(GOOD) // 3], NOT_A_PDF),
        file("cut-in-the-last-line", GOOD[:-12], GOOD_SEEN),
        file("only-the-mark", b"%PDF-1.7", NOT_A_PDF),
        file("mark-and-garbage", b"%PDF-1.7\n" + bytes((n * n) % 251 for n in range(3000)), NOT_A_PDF),
        file("junk-of-500-bytes", b"~" * 500 + GOOD, GOOD_SEEN),
        file("junk-up-to-the-last-place", b"~" * 1019 + GOOD, GOOD_SEEN),
        file("junk-one-byte-more", b"~" * 1020 + GOOD, Text("~" * 1020 + GOOD.decode("latin-1"))),
        file("junk-of-2000-bytes", b"~" * 2000 + GOOD, Text("~" * 2000 + GOOD.decode("latin-1"))),
        file("junk-behind", GOOD + b"\0" * 3000, GOOD_SEEN),
        file("two-documents-in-one", GOOD + pages_pdf(written("second")), says("second")),
        file("a-version-that-is-none", GOOD.replace(b"%PDF-1.7", b"%PDF-9.z"), GOOD_SEEN),
        file("version-2.0", GOOD.replace(b"%PDF-1.7", b"%PDF-2.0"), GOOD_SEEN),
        file("lines-end-with-cr", pages_pdf(written("good"), header=b"%PDF-1.7\r").replace(b"\n", b"\r"), GOOD_SEEN),
        file("object-streams", packed_pdf(page_objects(written("packed"), written("twice"))), says("packed", "twice")),
        file("object-stream-in-itself", packed_pdf(page_objects(written("x"))).replace(b"/N 4", b"/N 9"), says("x")),
        file("update", updated(GOOD, {5: written("newer")}, 6), says("newer")),
        file(
            "updated-thrice",
            updated(updated(updated(GOOD, {5: written("1")}, 6), {5: written("2")}, 6), {5: written("3")}, 6),
            says("3"),
        ),
        file(
            "update-drops-a-page",
            updated(pages_pdf(written("a"), written("b")), {2: b"<</Type/Pages/Count 1/Kids[6 0 R]>>"}, 8),
            says("b"),
        ),
        file("update-of-an-older-table-that-is-none", updated(GOOD, {5: written("newer")}, 6, prev=7), says("newer")),
        file(
            "linearized-like",
            pages_pdf(
                written("good"), header=HEADER + b"9 0 obj\n<</Linearized 1/L 99999/H[700 200]/O 12/E 3000/N 1/T 9000>>\nendobj\n"
            ),
            GOOD_SEEN,
        ),
        file("root-missing", GOOD.replace(b"/Root 1 0 R", b"/Root 9 0 R"), NOT_A_PDF),
        file("length-too-long", GOOD.replace(b"/Length 42", b"/Length 4200"), GOOD_SEEN),
        file("length-negative", GOOD.replace(b"/Length 42", b"/Length -2"), GOOD_SEEN),
        file("length-of-itself", GOOD.replace(b"/Length 42", b"/Length 5 0 R"), GOOD_SEEN),
    )


def locks() -> tuple[OddFile, ...]:
    """Encryption, by each method with a user's password, with an owner's only, and in no known way."""
    secret = says("secret words")
    return (
        locked("locked-rc4-40", "pass", "rc4-40", LOCKED),
        locked("locked-rc4-128", "pass", "rc4-128", LOCKED),
        locked("locked-aes-128", "pass", "aes-128", LOCKED),
        locked("locked-aes-256-r5", "pass", "aes-256-r5", LOCKED),
        locked("locked-aes-256", "pass", "aes-256", LOCKED),
        locked("owner-only-rc4-40", "", "rc4-40", secret),
        locked("owner-only-rc4-128", "", "rc4-128", secret),
        locked("owner-only-aes-128", "", "aes-128", secret),
        locked("owner-only-aes-256-r5", "", "aes-256-r5", secret),
        locked("empty-password-aes-256", "", "aes-256", secret),
        OddFile(
            "locked-by-somebody-else.pdf",
            lambda: pages_pdf(written("x"), trailer="/Encrypt<</Filter/Somebody.Else/V 1>>"),
            UNKNOWN_LOCK,
        ),
        OddFile("lock-without-entries.pdf", lambda: pages_pdf(written("x"), trailer="/Encrypt<<>>"), UNKNOWN_LOCK),
        OddFile("lock-that-is-missing.pdf", lambda: pages_pdf(written("good"), trailer="/Encrypt 77 0 R"), GOOD_SEEN),
    )


def bombs_and_loops() -> tuple[OddFile, ...]:
    """What is small and costs a reader much, or would without limits."""
    form = "/XObject<</X 6 0 R>>"
    nested = deflated(b"q " * 200_000 + b"BT /F1 12 Tf 50 700 Td (nested) Tj ET" + b" Q" * 200_000)
    loop = stream(b"/X Do", f"/Type/XObject/Subtype/Form/BBox[{LETTER}]/Resources<</XObject<</X 6 0 R>>>>")
    doubling = [
        stream(b"/X Do /X Do " * 4, f"/Type/XObject/Subtype/Form/BBox[{LETTER}]/Resources<</XObject<</X {at + 7} 0 R>>>>")
        for at in range(9)
    ]
    pattern = stream(
        b"/Pattern cs /P scn 0 0 9 9 re f",
        "/PatternType 1/PaintType 1/TilingType 1/BBox[0 0 9 9]/XStep 9/YStep 9/Resources<</Pattern<</P 6 0 R>>>>",
    )
    return (
        file("operators-by-the-million", slow_pdf, TOO_MUCH, heavy=True),
        file("operators-twenty-thousand", slow_pdf(20_000), Document(1, True, (Page("a" * 20_000),))),
        file("spaces-100-mb-deflated-twice", lambda: spaces(100_000_000), says(""), heavy=True),
        file("nested-states", pages_pdf(nested), says("nested")),
        file("nested-arrays", pages_pdf(written("x"), more=[b"[" * 50_000 + b"]" * 50_000], catalogue="/X 6 0 R"), says("x")),
        file("nested-dictionaries", pages_pdf(written("x"), catalogue="/X " + "<</X" * 20_000 + " 1" + ">>" * 20_000), says("x")),
        file("many-objects", pages_pdf(written("x"), more=[b"null"] * 5_000), says("x")),
        file("many-pages", pages_pdf(*[written("x")] * 600), Document(600, True, (Page("x"),))),
        file(
            "form-in-itself", pages_pdf(stream(b"/X Do BT /F1 12 Tf 50 700 Td (x) Tj ET"), resources=form, more=[loop]), says("x")
        ),
        file(
            "forms-8-to-the-ninth",
            pages_pdf(
                stream(b"/X Do BT /F1 12 Tf 50 700 Td (x) Tj ET"),
                resources=form,
                more=[*doubling, stream(b"", f"/Type/XObject/Subtype/Form/BBox[{LETTER}]")],
            ),
            TOO_MUCH,
            heavy=True,
        ),
        file(
            "pattern-in-itself",
            pages_pdf(
                stream(b"/Pattern cs /P scn 0 0 99 99 re f BT /F1 12 Tf 50 700 Td (x) Tj ET"),
                resources="/Pattern<</P 6 0 R>>",
                more=[pattern],
            ),
            Document(1, True, (Page("x", picture_refused=Refused("limit_exceeded", "document.time is 2 seconds")),)),
            heavy=True,
            time_s=2,
        ),
        file("filters-by-the-hundred", pages_pdf(stream(b"x", "/Filter[" + "/ASCIIHexDecode" * 300 + "]")), says("")),
        file("lzw-and-run-lengths-of-garbage", pages_pdf(stream(b"\xff" * 99, "/Filter[/LZWDecode/RunLengthDecode]")), says("")),
        file(
            "image-that-claims-a-gigapixel",
            pages_pdf(
                stream(b"/X Do BT /F1 12 Tf 50 700 Td (x) Tj ET"),
                resources=form,
                more=[
                    deflated(
                        b"\0" * 1000, "/Type/XObject/Subtype/Image/Width 32000/Height 32000/ColorSpace/DeviceRGB/BitsPerComponent 8"
                    )
                ],
            ),
            says("x"),
        ),
        file(
            "jpeg-2000-of-garbage",
            pages_pdf(
                stream(b"q 99 0 0 99 0 0 cm /X Do Q BT /F1 12 Tf 50 700 Td (x) Tj ET"),
                resources=form,
                more=[
                    stream(
                        b"\0\0\0\x0cjP  \r\n\x87\n" + b"\xff" * 99, "/Type/XObject/Subtype/Image/Width 9/Height 9/Filter/JPXDecode"
                    )
                ],
            ),
            Document(1, True, (Page("x", picture_refused=Refused("document_invalid", "shows an image that is damaged")),)),
        ),
        file(
            "jbig2-of-garbage",
            pages_pdf(
                stream(b"q 99 0 0 99 0 0 cm /X Do Q BT /F1 12 Tf 50 700 Td (x) Tj ET"),
                resources=form,
                more=[
                    stream(
                        b"\0\0\0\0\x30\0\1\0\0\0\x13" + b"\xff" * 40,
                        "/Type/XObject/Subtype/Image/Width 9/Height 9/BitsPerComponent 1/ColorSpace/DeviceGray/Filter/JBIG2Decode",
                    )
                ],
            ),
            says("x"),
        ),
    )


def actions() -> tuple[OddFile, ...]:
    """What a viewer would do by itself. A reader does nothing, and gives the text."""

    def action(body: str) -> bytes:
        return pages_pdf(written("good"), catalogue=f"/OpenAction<<{body}>>", page=f"/AA<</O<<{body}>>>>")

    link = b"<</Type/Annot/Subtype/Link/Rect[0 0 99 99]/A<</S/URI/URI(http://127.0.0.1:9/)>>>>"
    return (
        file("script-at-opening", action("/S/JavaScript/JS(while \\(true\\) app.alert\\(1\\);)"), GOOD_SEEN),
        file(
            "script-with-a-name",
            pages_pdf(written("good"), catalogue="/Names<</JavaScript<</Names[(x)<</S/JavaScript/JS(while \\(1\\);)>>]>>>>"),
            GOOD_SEEN,
        ),
        file("launch-at-opening", action("/S/Launch/F(/bin/sh)"), GOOD_SEEN),
        file("address-at-opening", action("/S/URI/URI(http://127.0.0.1:9/)"), GOOD_SEEN),
        file("address-on-the-page", pages_pdf(written("good"), page="/Annots[6 0 R]", more=[link]), GOOD_SEEN),
        file("other-file-at-opening", action("/S/GoToR/F(/etc/passwd)/D[0/Fit]"), GOOD_SEEN),
        file("form-sent-at-opening", action("/S/SubmitForm/F(http://127.0.0.1:9/)/Flags 4"), GOOD_SEEN),
        file(
            "actions-in-a-loop",
            pages_pdf(written("good"), catalogue="/OpenAction 6 0 R", more=[b"<</S/GoTo/D[4 0 R/Fit]/Next 6 0 R>>"]),
            GOOD_SEEN,
        ),
        file(
            "attachment",
            pages_pdf(written("good"), catalogue="/Names<</EmbeddedFiles<</Names[(evil.exe) 6 0 R]>>>>", more=attachment()),
            GOOD_SEEN,
        ),
        file("text-in-another-file", pages_pdf(stream(b"", "/F(/etc/passwd)")), says("")),
    )


FILES: tuple[OddFile, ...] = (
    *page_trees(),
    *tables_and_headers(),
    *locks(),
    *bombs_and_loops(),
    *actions(),
)
