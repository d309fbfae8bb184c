"""What a file is, by its first bytes and never by its name. `abi/vectors/sniff.jsonl` holds the cases."""

import codecs
import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["HEAD_BYTES", "SniffedKind", "named_format", "sniff"]

HEAD_BYTES = 64 * 1024
"""How much of a file `sniff` looks at."""

DOCUMENT_HEADER_BYTES = 1024  # readers of PDF accept this much in front of the header, so files with a preamble exist

BMP_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)  # one for each version of the format
AVIF_BRANDS = (b"avif", b"avis")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")


@dataclass(frozen=True, slots=True)
class SniffedKind:
    """A file's kind, as the contract names it. `format` is set for images only: "png", "jpeg", …"""

    kind: Literal["text", "image", "document", "binary"]
    format: str | None = None


def sniff(head: bytes, size: int) -> SniffedKind:
    """Tell what a file is from its first bytes: the whole file, or at least `HEAD_BYTES` of it. `size` is the file's length.

    In this order: a PDF header within the first 1,024 bytes makes a document; the start of a known image format an image; an
    empty file, or UTF-8 without NUL, a text; anything else is binary. A character that is cut at the end of `head` counts
    where the file goes on, and not where it ends.
    """
    head = head[:HEAD_BYTES]
    if b"%PDF-" in head[:DOCUMENT_HEADER_BYTES]:
        return SniffedKind("document")
    if image := _image_format(head):
        return SniffedKind("image", image)
    if b"\0" in head:
        return SniffedKind("binary")
    try:
        codecs.utf_8_decode(head, "strict", len(head) >= size)
    except UnicodeDecodeError:
        return SniffedKind("binary")
    return SniffedKind("text")


def named_format(head: bytes) -> str | None:
    """The name of an image format that this host knows and cannot read, such as "HEIC"; None for anything else.

    For error messages: whoever sends such a file deserves to hear more than "binary". It needs the first 1,024 bytes.
    """
    brands = _brands(head)
    if brands and (brands[0] in HEIC_BRANDS or any(brand in HEIC_BRANDS for brand in brands)):
        return "HEIC"
    if head.startswith((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")):
        return "JPEG 2000"
    if head.startswith((b"8BPS\0\1", b"8BPS\0\2")):
        return "PSD"
    if head.startswith(b"\xc5\xd0\xd3\xc6") or re.match(rb"%!PS-Adobe-[0-9.]+ EPSF", head):
        return "EPS"
    if head.startswith(b"\0\0\1\0") and len(head) >= 22 and head[4:6] != b"\0\0" and head[9] == 0:
        return "ICO"
    # The root element may follow a declaration, comments and a document type.
    if re.match(rb"(?:\xef\xbb\xbf)?\s*<", head) and re.search(rb"<svg[\s>]", head[:1024]):
        return "SVG"
    return None


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
