"""Texts of every kind, multi-page TIFFs, formats that cannot be read, and files whose name says something else."""

from odd.expected import Binary, Document, OddFile, Page, Refused, Text
from odd.images import TOO_LARGE, colours, pages_of_tiff, retagged, saved
from odd.writer import pages_pdf, png, written

__all__ = ["FILES"]

NO_IMAGE = Refused("bad_command", "is a binary file")
NOT_A_PDF = Refused("document_invalid", "is not a readable PDF")


def text(name: str, data: bytes, then: Refused | None = None) -> OddFile:
    return OddFile(name, lambda: data, Text(data.decode(), then))


def binary(name: str, data: bytes, named: Refused = NO_IMAGE) -> OddFile:
    return OddFile(name, lambda: data, Binary(named))


def unreadable(format: str, name: str, data: bytes) -> OddFile:
    """An image in a format that this host knows by name only."""
    return binary(name, data, Refused("unsupported", format))


def brand(name: bytes, *more: bytes) -> bytes:
    """The first box of an ISO media file, and some bytes that stand for the rest."""
    body = name + b"\0\0\0\0" + b"".join(more)
    return (8 + len(body)).to_bytes(4, "big") + b"ftyp" + body + b"\0\0\0\x08mdat" + bytes(64)


def texts() -> tuple[OddFile, ...]:
    sixteen = "sixteen bits: aé日\r\n"
    long = b"x" * 70_000
    return (
        text("empty.txt", b""),
        text("white-space.txt", b" \t\r\n \n"),
        text("utf-8.txt", "aé日\N{GRINNING FACE} e\u0301".encode()),
        text("utf-8-with-mark.txt", b"\xef\xbb\xbfmarked"),
        text("only-a-mark.txt", b"\xef\xbb\xbf"),
        text("crlf.txt", b"one\r\ntwo\r\n"),
        text("cr.txt", b"one\rtwo\r"),
        text("controls.txt", bytes(range(1, 32)) + b"\x7f"),
        text("no-characters.txt", "a\ufffe\uffff\U0010fffe".encode()),
        text("one-long-line.txt", b"word " * 50_000),
        text("direction-marks.txt", "a\u202eb\u200fc".encode()),
        text("really-a-text.pdf", b"these are words"),
        text("really-a-text.png", b"these are words"),
        OddFile(
            "long-then-garbage.txt",
            lambda: long + b"\xff" * 4,
            Text(long.decode(), Refused("bad_command", "is not UTF-8 at offset 70000 (byte 0xff)")),
        ),
        OddFile(
            "long-then-nul.txt",
            lambda: long + b"\0more",
            Text(long.decode() + "\0more"),
        ),
        binary("utf-16-le.txt", b"\xff\xfe" + sixteen.encode("utf-16-le")),
        binary("utf-16-be.txt", b"\xfe\xff" + sixteen.encode("utf-16-be")),
        binary("utf-32-le.txt", b"\xff\xfe\0\0" + sixteen.encode("utf-32-le")),
        binary("latin-1.txt", "café".encode("latin-1")),
        binary("nul.txt", b"a\0b"),
        binary("cut-character-at-the-end.txt", "日本".encode()[:-1]),
        binary("bad-byte-in-the-middle.txt", b"good \xff good"),
        binary("overlong.txt", b"a\xc0\xafb"),
        binary("surrogate.txt", b"a\xed\xa0\x80b"),
        binary("beyond-unicode.txt", b"a\xf5\x80\x80\x80b"),
        OddFile("speaks-of-pdf.txt", lambda: b"A PDF file starts with %PDF-1.7 and a line end.\n", NOT_A_PDF),
    )


def unreadable_formats() -> tuple[OddFile, ...]:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    icon = b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0\x68\4\0\0\x16\0\0\0" + bytes(64)
    return (
        unreadable("HEIC", "phone.heic", brand(b"heic", b"mif1", b"heic")),
        unreadable("HEIC", "phone-mif1.heic", brand(b"mif1", b"mif1", b"heic")),
        unreadable("SVG", "drawing.svg", svg),
        unreadable("SVG", "drawing-with-declaration.svg", b'<?xml version="1.0"?>\n<!-- a drawing -->\n' + svg),
        unreadable("EPS", "drawing.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"),
        unreadable("EPS", "drawing-with-preview.eps", b"\xc5\xd0\xd3\xc6\x1e\0\0\0" + bytes(22) + b"%!PS-Adobe-3.0 EPSF-3.0\n"),
        unreadable("PSD", "layers.psd", b"8BPS\0\1" + bytes(6) + b"\0\3\0\0\0\x09\0\0\0\x09\0\x08\0\3"),
        unreadable("ICO", "icon.ico", icon),
        unreadable("JPEG 2000", "wavelets.jp2", b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14ftypjp2 \0\0\0\0jp2 "),
        unreadable("JPEG 2000", "wavelets.j2k", b"\xff\x4f\xff\x51\0\x29" + bytes(64)),
        unreadable("JPEG XL", "newest.jxl", b"\xff\x0a" + bytes(30)),
        unreadable("JPEG XL", "newest-in-a-box.jxl", b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(30)),
        unreadable("camera raw", "camera.dng", retagged(saved(colours(), "TIFF", tiffinfo={254: 1, 50706: 0x401}), 254, 1)),
        binary("archive.zip", b"PK\5\6" + bytes(18)),
        binary("program", b"\x7fELF\2\1\1" + bytes(57)),
        binary("film.mp4", brand(b"isom", b"isom", b"mp41")),
        binary("riff-of-sound.wav", b"RIFF\x24\0\0\0WAVEfmt " + bytes(24)),
        binary("almost-a-bmp.bmp", b"BM" + b"\xff" * 40),
        binary("one-byte", b"\xff"),
    )


def disagreements() -> tuple[OddFile, ...]:
    comment = png((b"tEXt", b"Comment\0%PDF-1.7"))[8:]
    picture = saved(colours(), "PNG")

    def tiff(*pages: Page) -> Document:
        return Document(len(pages), False, pages)

    scanned = Page("", images=1, coverage=1.0, size=(48, 32))
    return (
        OddFile("really-a-document.png", lambda: pages_pdf(written("words")), Document(1, True, (Page("words"),))),
        OddFile("really-a-document.txt", lambda: pages_pdf(written("words")), Document(1, True, (Page("words"),))),
        OddFile("really-a-document", lambda: pages_pdf(written("words")), Document(1, True, (Page("words"),))),
        OddFile("speaks-of-pdf.png", lambda: picture[:33] + comment + picture[33:], NOT_A_PDF),
        OddFile("two-pages.tiff", lambda: pages_of_tiff(2), tiff(scanned, scanned)),
        OddFile("hundred-pages.tiff", lambda: pages_of_tiff(100), Document(100, False, (scanned,) * 3)),
        OddFile("second-page-cut.tiff", lambda: pages_of_tiff(2)[:-500], Document(2, False, (scanned,))),
        OddFile("looped-pages.tiff", looped_tiff, Document(2, False, (scanned,))),
        OddFile("second-page-of-a-gigapixel.tiff", tiff_with_giant, Document(2, False, (scanned, Page(picture_refused=TOO_LARGE)))),
    )


def looped_tiff() -> bytes:
    """Two pages, of which the second says that the first comes next."""
    data = bytearray(pages_of_tiff(2))
    first = int.from_bytes(data[4:8], "little")
    second = int.from_bytes(data[_next(data, first) :][:4], "little")
    data[_next(data, second) : _next(data, second) + 4] = first.to_bytes(4, "little")
    return bytes(data)


def tiff_with_giant() -> bytes:
    data = bytearray(pages_of_tiff(2))
    first = int.from_bytes(data[4:8], "little")
    second = int.from_bytes(data[_next(data, first) :][:4], "little")
    for at in range(second + 2, _next(data, second), 12):
        tag, kind = (int.from_bytes(data[at + place : at + place + 2], "little") for place in (0, 2))
        if tag in (256, 257):
            data[at + 8 : at + 12] = (32_000).to_bytes(2 if kind == 3 else 4, "little").ljust(4, b"\0")
    return bytes(data)


def _next(data: bytearray, directory: int) -> int:
    """Where a directory says which one comes next."""
    return directory + 2 + 12 * int.from_bytes(data[directory : directory + 2], "little")


FILES: tuple[OddFile, ...] = (*texts(), *unreadable_formats(), *disagreements())
