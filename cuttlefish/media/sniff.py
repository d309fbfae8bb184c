"""What a file is, by its first bytes and never by its name. `abi/vectors/sniff.jsonl` holds the cases."""

import codecs
import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["HEAD_BYTES", "NAMED_FORMATS", "SniffedKind", "named_format", "sniff"]

HEAD_BYTES = 64 * 1024
"""How much of a file `sniff` looks at."""

DOCUMENT_HEADER_BYTES = 1024  # readers of PDF accept this much in front of the header, so files with a preamble exist

BMP_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)  # one for each version of the format
AVIF_BRANDS = (b"avif", b"avis")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")

XML_PROLOGUE_BYTES = 4096  # declaration, comments and document type of a drawing

FOREIGN_STARTS: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("JPEG 2000", (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")),
    ("JPEG XL", (b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a")),
    ("PSD", (b"8BPS\0\1", b"8BPS\0\2")),
    ("EPS", (b"\xc5\xd0\xd3\xc6",)),
    ("WMF", (b"\xd7\xcd\xc6\x9a\0\0",)),
    ("OpenEXR", (b"\x76\x2f\x31\x01",)),
    ("DDS", (b"DDS \x7c\0\0\0",)),
    ("camera raw", (b"IIRO\x08\0\0\0", b"IIRS\x08\0\0\0", b"MMOR\0\0\0\x08", b"IIU\0", b"FUJIFILMCCD-RAW 0")),
)
CAMERA_RAW_BRAND = b"crx "
SUBFILE_TYPE, SUB_DIRECTORIES, DNG_VERSION = 254, 330, 50706  # tags of TIFF and DNG
SMALLER_COPY = 1
MOST_ENTRIES = 256
NAMED_FORMATS = frozenset({"HEIC", "EPS", "ICO", "EMF", "DICOM", "DjVu", "XCF", "SVG"}.union(name for name, _ in FOREIGN_STARTS))
"""What `named_format` may answer."""


@dataclass(frozen=True, slots=True)
class SniffedKind:
    """A file's kind, as the contract names it. `format` is set for images only: "png", "jpeg", …; `foreign` for binary files
    that are an image of `NAMED_FORMATS`.
    """

    kind: Literal["text", "image", "document", "binary"]
    format: str | None = None
    foreign: str | None = None


def sniff(head: bytes, size: int) -> SniffedKind:
    """Tell what a file is from its first bytes: the whole file, or at least `HEAD_BYTES` of it. `size` is the file's length.

    In this order: a PDF header within the first 1,024 bytes makes a document; the start of a known image format an image; that
    of one of `NAMED_FORMATS` a binary file, also where it is written in letters (SVG, EPS); an empty file, or UTF-8 without NUL,
    a text; anything else is binary. A character that is cut at the end of `head` counts where the file goes on, and not where it
    ends. A TIFF is an image here; whether it has several pages and so is a document, a worker tells
    (`DocumentWorkers.open_document`). What a camera's sensor saw is binary, though it may be a TIFF too: as one it has but a small
    copy of the picture.
    """
    head = head[:HEAD_BYTES]
    if b"%PDF-" in head[:DOCUMENT_HEADER_BYTES]:
        return SniffedKind("document")
    if _is_camera_raw(head):
        return SniffedKind("binary", foreign="camera raw")
    if image := _image_format(head):
        return SniffedKind("image", image)
    foreign = named_format(head)
    if foreign is not None or b"\0" in head:
        return SniffedKind("binary", foreign=foreign)
    try:
        codecs.utf_8_decode(head, "strict", len(head) >= size)
    except UnicodeDecodeError:
        return SniffedKind("binary")
    return SniffedKind("text")


def named_format(head: bytes) -> str | None:
    """The name of an image format that this host knows and cannot read, one of `NAMED_FORMATS`; None for anything else.

    For error messages: whoever sends such a file deserves to hear more than "binary". It needs the first 1,024 bytes.
    """
    brands = _brands(head)
    if brands and (brands[0] in HEIC_BRANDS or any(brand in HEIC_BRANDS for brand in brands)):
        return "HEIC"
    if _is_camera_raw(head) or brands[:1] == [CAMERA_RAW_BRAND]:
        return "camera raw"
    for name, starts in FOREIGN_STARTS:
        if head.startswith(starts):
            return name
    if re.match(rb"%!PS-Adobe-[0-9.]+ EPSF", head):
        return "EPS"
    if head.startswith((b"\0\0\1\0", b"\0\0\2\0")) and len(head) >= 22 and head[4:6] != b"\0\0" and head[9] == 0:
        return "ICO"
    if head.startswith(b"\1\0\0\0") and head[40:44] == b" EMF":
        return "EMF"
    if head[128:132] == b"DICM" and b"\0" in head:
        return "DICOM"
    if head.startswith(b"AT&TFORM") and head[12:15] == b"DJV":
        return "DjVu"
    if head.startswith(b"gimp xcf ") and head[13:14] == b"\0":
        return "XCF"
    return "SVG" if _is_svg(head[:XML_PROLOGUE_BYTES]) else None


def _is_svg(head: bytes) -> bool:
    """Whether the root element is `svg`. A declaration, comments and a document type may stand before it; an HTML page with a
    drawing in it is a text.
    """
    at = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    while True:
        at += len(head[at:]) - len(head[at:].lstrip())
        for start, end in ((b"<?", b"?>"), (b"<!--", b"-->"), (b"<!", b">")):
            if head.startswith(start, at):
                closed = head.find(end, at)
                subset = head.find(b"[", at, closed) if start == b"<!" else -1
                if subset >= 0:
                    closed = head.find(b">", max(subset, head.find(b"]", subset)))
                if closed < 0:
                    return False
                at = closed + len(end)
                break
        else:
            return re.match(rb"<(?:[A-Za-z][\w.-]*:)?svg[\s/>]", head[at : at + 64]) is not None


def _image_format(head: bytes) -> str | None:
    if head.startswith(b"\x89PNG"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if _is_tiff(head):
        return "tiff"
    if _is_bmp(head):
        return "bmp"
    brands = _brands(head)
    # "mif1" alone is any picture of that container; the compatible brands say whether it is AVIF or HEIC.
    if brands and (brands[0] in AVIF_BRANDS or (brands[0] in (b"mif1", b"msf1") and any(b in AVIF_BRANDS for b in brands))):
        return "avif"
    return None


def _is_tiff(head: bytes) -> bool:
    order: Literal["little", "big"] = "little" if head[:2] == b"II" else "big"
    if head[:2] not in (b"II", b"MM") or len(head) < 8:
        return False
    version, first = int.from_bytes(head[2:4], order), int.from_bytes(head[4:8], order)
    # 42: where the first directory is, after the header. 43 (BigTIFF): offsets of eight bytes, then zero.
    return (version == 42 and first >= 8) or (version == 43 and head[4:8] in (b"\x08\0\0\0", b"\0\x08\0\0"))


def _is_camera_raw(head: bytes) -> bool:
    """Whether a TIFF is what a camera's sensor saw (DNG, NEF, ARW, CR2 …): readers of TIFF find only a small copy in such a file.

    DNG and Canon's format say so. Of the others the first picture is a smaller copy, of one that lies in a directory below it.
    """
    if not _is_tiff(head) or head[2:4] not in (b"*\0", b"\0*"):
        return False
    if head[8:10] == b"CR":
        return True
    order: Literal["little", "big"] = "little" if head[:2] == b"II" else "big"
    at = int.from_bytes(head[4:8], order)
    entries = [head[at + 2 + 12 * n :][:12] for n in range(min(MOST_ENTRIES, int.from_bytes(head[at : at + 2], order)))]
    tags = {int.from_bytes(entry[:2], order): int.from_bytes(entry[8:12], order) for entry in entries}
    return DNG_VERSION in tags or (bool(tags.get(SUBFILE_TYPE, 0) & SMALLER_COPY) and SUB_DIRECTORIES in tags)


def _is_bmp(head: bytes) -> bool:
    if head[:2] != b"BM" or len(head) < 18:
        return False
    pixels_at, header_size = int.from_bytes(head[10:14], "little"), int.from_bytes(head[14:18], "little")
    return header_size in BMP_HEADER_SIZES and pixels_at >= 14 + header_size


def _brands(head: bytes) -> list[bytes]:
    """What an ISO media file says it is: its main brand first, then those it is compatible with."""
    size = int.from_bytes(head[:4], "big")
    if head[4:8] != b"ftyp" or not 16 <= size <= 1024 or len(head) < 12:
        return []
    box = head[:size]
    return [box[8:12], *(box[at : at + 4] for at in range(16, len(box), 4))]
