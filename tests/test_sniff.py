"""What a file is, by content: the contract's cases, and the neighbours of each rule."""

import io
import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cuttlefish.media.sniff import HEAD_BYTES, NAMED_FORMATS, SniffedKind, named_format, sniff

VECTORS = [json.loads(line) for line in (Path(__file__).parent.parent / "abi/vectors/sniff.jsonl").read_text().splitlines()]
TEXT, BINARY, DOCUMENT = SniffedKind("text"), SniffedKind("binary"), SniffedKind("document")


def tiff_of(*entries: tuple[int, int], order: Literal["little", "big"] = "little") -> bytes:
    """The start of a TIFF whose first directory has these tags and values."""

    def number(value: int, length: int) -> bytes:
        return value.to_bytes(length, order)

    head = (b"II" if order == "little" else b"MM") + number(42, 2) + number(8, 4) + number(len(entries), 2)
    return head + b"".join(number(tag, 2) + number(4, 2) + number(1, 4) + number(value, 4) for tag, value in entries) + bytes(4)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["hex"][:24] or "empty")
def test_every_case_of_the_contract_is_told_as_it_says(case: dict[str, object]) -> None:
    head = bytes.fromhex(str(case["hex"]))
    found = sniff(head, len(head))
    assert {"kind": found.kind, **({"format": found.format} if found.format else {})} == case["kind"]


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "AVIF"])
def test_every_readable_format_is_recognised_in_a_real_file(format: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(file, format)
    data = file.getvalue()
    assert sniff(data, len(data)) == SniffedKind("image", format.lower())
    assert named_format(data) is None


def test_a_big_tiff_is_a_tiff() -> None:
    file = io.BytesIO()
    Image.new("L", (3, 3)).save(file, "TIFF", big_tiff=True)
    assert sniff(file.getvalue(), len(file.getvalue())) == SniffedKind("image", "tiff")


@pytest.mark.parametrize(
    "text",
    [
        b"BM is how Birmingham is written on the back of a car",
        b"MM*BM(\n",
        b"II* is no picture",
        b"RIFF is a word, WEBP too",
        b"GIF8 is not enough",
        b"    ftypavif is not a box",
        b"%PDF is not enough",
        b"8BPS",
    ],
)
def test_a_text_that_begins_like_an_image_is_a_text(text: bytes) -> None:
    assert sniff(text, len(text)) == TEXT


def test_a_pdf_header_counts_only_within_the_first_1024_bytes() -> None:
    assert sniff(b"x" * 1019 + b"%PDF-1.7", 5000) == DOCUMENT
    assert sniff(b"x" * 1020 + b"%PDF-1.7", 5000) == TEXT


def test_a_character_cut_by_the_edge_of_the_head_is_fine_and_one_cut_by_the_end_of_the_file_is_not() -> None:
    head = b"a" * (HEAD_BYTES - 1) + "é".encode()[:1]
    assert sniff(head, HEAD_BYTES + 1) == TEXT
    assert sniff(head, HEAD_BYTES) == BINARY


def test_nothing_after_the_first_64_kilobytes_changes_the_kind() -> None:
    data = b"a" * HEAD_BYTES + b"\0\xff"
    assert sniff(data, len(data)) == TEXT


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_utf8_without_nul_is_text_unless_it_claims_to_be_a_document_or_a_gif(text: str) -> None:
    data = text.encode()
    if b"%PDF-" not in data and not data.startswith((b"GIF87a", b"GIF89a")):
        assert sniff(data, len(data)) == TEXT


@given(st.binary(max_size=80))
def test_any_bytes_have_a_kind(data: bytes) -> None:
    assert sniff(data, len(data)).kind in ("text", "image", "document", "binary")
    named_format(data)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "HEIC"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'>", "SVG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- a drawing -->\n<svg\n", "SVG"),
        (b"<!DOCTYPE svg PUBLIC '-//W3C//DTD SVG 1.1//EN' [\n<!ENTITY a 'b>'>\n]>\n<svg>", "SVG"),
        (b"<!-- one --><!-- two --><s:svg xmlns:s='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "EPS"),
        (b"\xff\x0a" + bytes(9), "JPEG XL"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"\1\0\0\0" + bytes(36) + b" EMF", "EMF"),
        (bytes(128) + b"DICM", "DICOM"),
        (b"AT&TFORM\0\0\1\0DJVMDIRM", "DjVu"),
        (b"gimp xcf v011\0", "XCF"),
        (b"\xc5\xd0\xd3\xc6\x1e\0\0\0", "EPS"),
        (b"8BPS\0\1" + bytes(6), "PSD"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\xff\x4f\xff\x51", "JPEG 2000"),
        (b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0\x68\4\0\0\x16\0\0\0", "ICO"),
        (tiff_of((254, 1), (256, 160), (50706, 0x401)), "camera raw"),
        (tiff_of((254, 0), (50706, 0x401)), "camera raw"),
        (tiff_of((254, 1), (256, 160), (330, 9000)), "camera raw"),
        (tiff_of((254, 1), (256, 160), (330, 9000), order="big"), "camera raw"),
        (b"II*\0\x10\0\0\0CR\2\0" + bytes(20), "camera raw"),
        (b"IIRO\x08\0\0\0", "camera raw"),
        (b"FUJIFILMCCD-RAW 0201FF", "camera raw"),
        (b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", "camera raw"),
        (tiff_of((254, 0), (256, 160), (330, 9000)), None),
        (tiff_of((254, 1), (256, 160)), None),
        (tiff_of((256, 160)), None),
        (b"a text that mentions <svg>", None),
        (b"%!PS-Adobe-3.0\n", None),
        (b"\0\0\0\x18ftypmp42\0\0\0\0isommp42", None),
        (b"", None),
    ],
)
def test_images_that_cannot_be_read_are_binary_and_still_named(head: bytes, name: str | None) -> None:
    assert named_format(head) == name
    if name is not None:
        assert name in NAMED_FORMATS
        assert sniff(head, len(head)) == SniffedKind("binary", foreign=name)


@pytest.mark.parametrize(
    "text",
    [
        b"<!DOCTYPE html>\n<html><body><svg width='9'/></body></html>",
        b"<html><svg></svg></html>",
        b"<?xml version='1.0'?>\n<book>about <svg></book>",
        b"<!-- a comment without an end <svg>",
        b"<svgs>",
        b"<",
        b"DICM" * 40,
        b"AT&TFORM is a word",
        b"gimp xcf is a format",
    ],
)
def test_a_text_that_only_speaks_of_an_image_stays_a_text(text: bytes) -> None:
    assert named_format(text) is None
    assert sniff(text, len(text)) == TEXT


def test_a_picture_container_is_avif_only_when_it_says_so() -> None:
    assert sniff(b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif", 24) == SniffedKind("image", "avif")
    assert sniff(b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", 24) == SniffedKind("binary", foreign="HEIC")
    assert sniff(b"\0\0\0\x14ftypmif1\0\0\0\0mif1avif", 24) == BINARY, "what follows the box is not part of it"
