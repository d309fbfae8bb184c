"""The one PDF writer of the tests: small documents made by hand, right unless told otherwise."""

import os
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cuttlefish.media.documents import DocumentSource

LETTER = "0 0 612 792"
HEADER = b"%PDF-1.7\n"


@contextmanager
def opened(data: bytes, name: str = "x.pdf") -> Iterator[DocumentSource]:
    """A file with this content that has no path any more, open for reading."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        status = os.fstat(file.fileno())
        yield DocumentSource(file.fileno(), status.st_dev, status.st_ino, status.st_size, name)


def pdf(objects: Sequence[bytes], trailer: str = "", header: bytes = HEADER) -> bytes:
    """A PDF of these objects, numbered from 1; the first is the catalogue."""
    out, places = bytearray(header), []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer.encode(), table)
    return bytes(out)


def packed_pdf(
    objects: Sequence[bytes],
    *,
    trailer: str = "",
    lock: Callable[[int, bytes], bytes] = lambda _, data: data,
    predicted: bool = False,
) -> bytes:
    """As `pdf`, but with a table that is a stream, and with every object that is no stream itself inside an object stream.

    `lock` encrypts the bytes of that one, given its number. `predicted`: each row of the table as its difference to the one above.
    """
    out, places = bytearray(HEADER), {}
    packed = [(number, content) for number, content in enumerate(objects, 1) if b"stream\n" not in content]
    for number, content in enumerate(objects, 1):
        if b"stream\n" in content:
            places[number] = (1, len(out), 0)
            out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    box, table = len(objects) + 1, len(objects) + 2
    body, index = b"", b""
    for at, (number, content) in enumerate(packed):
        index += b"%d %d " % (number, len(body))
        body += content + b"\n"
        places[number] = (2, box, at)
    places[box] = (1, len(out), 0)
    entries = f"/Type/ObjStm/N {len(packed)}/First {len(index)}/Filter/FlateDecode"
    out += b"%d 0 obj\n%s\nendobj\n" % (box, stream(lock(box, zlib.compress(index + body, 9)), entries))
    places[table] = (1, len(out), 0)
    rows = b"\0\0\0\0\0\xff" + b"".join(
        bytes([kind]) + place.to_bytes(4, "big") + bytes([at]) for _, (kind, place, at) in sorted(places.items())
    )
    start, entries = len(out), f"/Type/XRef/Size {table + 1}/W[1 4 1]/Root 1 0 R{trailer}"
    if predicted:
        entries += "/DecodeParms<</Predictor 12/Columns 6>>"
        rows = b"".join(
            b"\2" + bytes((one - other) % 256 for one, other in zip(rows[at : at + 6], above, strict=True))
            for at in range(0, len(rows), 6)
            for above in [rows[at - 6 : at] or bytes(6)]
        )
    out += b"%d 0 obj\n%s\nendobj\n" % (table, deflated(rows, entries))
    out += b"startxref\n%d\n%%%%EOF\n" % start
    return bytes(out)


def updated(data: bytes, objects: Mapping[int, bytes], size: int, prev: int | None = None) -> bytes:
    """A PDF of `pdf` with an update behind it that replaces these objects. `prev` is where the older table is said to be."""
    out, rows = bytearray(data), b""
    for number, content in objects.items():
        rows += b"%d 1\n%010d 00000 n \n" % (number, len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    if prev is None:
        prev = int(data.rpartition(b"startxref\n")[2].split()[0])
    out += b"xref\n%strailer\n<</Size %d/Root 1 0 R/Prev %d>>\nstartxref\n%d\n%%%%EOF\n" % (rows, size, prev, table)
    return bytes(out)


def stream(data: bytes, entries: str = "") -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (entries.encode(), len(data), data)


def deflated(data: bytes, entries: str = "") -> bytes:
    return stream(zlib.compress(data, 9), entries + "/Filter/FlateDecode")


def written(*lines: str) -> bytes:
    """Page content: lines of text."""
    return stream(("BT /F1 12 Tf 50 700 Td 14 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET").encode("latin-1"))


def pages_pdf(
    *contents: bytes,
    count: int | None = None,
    kids: str | None = None,
    box: str | None = LETTER,
    page: str = "",
    resources: str = "",
    catalogue: str = "",
    more: Sequence[bytes] = (),
    trailer: str = "",
    header: bytes = HEADER,
) -> bytes:
    """A PDF with a page for each content, which are objects 4, 6, 8 …; `more` objects follow. `count` and `kids` may lie."""
    return pdf(
        page_objects(*contents, count=count, kids=kids, box=box, page=page, resources=resources, catalogue=catalogue, more=more),
        trailer,
        header,
    )


def page_objects(
    *contents: bytes,
    count: int | None = None,
    kids: str | None = None,
    box: str | None = LETTER,
    page: str = "",
    resources: str = "",
    catalogue: str = "",
    more: Sequence[bytes] = (),
) -> list[bytes]:
    """The objects of `pages_pdf`: the catalogue, the page tree, the font, then each page and its content."""
    objects = [b"", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"]
    media_box = "" if box is None else f"/MediaBox[{box}]"
    for content in contents:
        entries = f"{media_box}/Resources<</Font<</F1 3 0 R>>{resources}>>/Contents {len(objects) + 2} 0 R{page}"
        objects += [f"<</Type/Page/Parent 2 0 R{entries}>>".encode(), content]
    if kids is None:
        kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(contents)))
    objects[0] = f"<</Type/Catalog/Pages 2 0 R{catalogue}>>".encode()
    objects[1] = f"<</Type/Pages/Count {len(contents) if count is None else count}/Kids[{kids}]>>".encode()
    return [*objects, *more]


def slow_pdf(operators: int = 3_000_000) -> bytes:
    """A page that takes PDFium seconds and gigabytes, in 10 bytes for each 1,000 operators."""
    return pages_pdf(deflated(b"BT /F1 12 Tf 10 10 Td " + b"(a) Tj " * operators + b" ET"))


def long_pdf(images: int = 10_000) -> bytes:
    """A page that takes PDFium some 4 ms for each image to draw (40 s in all, when it was written), and little memory."""
    noise = random.Random(1).randbytes(300 * 300 * 3)
    image = deflated(noise, "/Type/XObject/Subtype/Image/Width 300/Height 300/ColorSpace/DeviceRGB/BitsPerComponent 8")
    half_seen = "/XObject<</I 6 0 R>>/ExtGState<</G<</ca .5>>>>"
    return pages_pdf(deflated(b"/G gs " + b"q 612 0 0 792 0 0 cm /I Do Q " * images), resources=half_seen, more=[image])


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of these chunks."""
    body = b"".join(len(d).to_bytes(4, "big") + kind + d + zlib.crc32(kind + d).to_bytes(4, "big") for kind, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has next to no data."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return png((b"IHDR", size + b"\x08\x02\0\0\0"), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
