"""Documents made by hand for tests: small, and wrong in one way each."""

import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cuttlefish.media.documents import DocumentSource

LETTER = "0 0 612 792"


@contextmanager
def opened(data: bytes, name: str = "x.pdf") -> Iterator[DocumentSource]:
    """A file with this content that has no path any more, open for reading."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        status = os.fstat(file.fileno())
        yield DocumentSource(file.fileno(), status.st_dev, status.st_ino, status.st_size, name)


def pdf(objects: Sequence[bytes], trailer: str = "") -> bytes:
    """A PDF of these objects, numbered from 1; the first is the catalogue."""
    out, places = bytearray(b"%PDF-1.7\n"), []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer.encode(), table)
    return bytes(out)


def stream(data: bytes, entries: str = "") -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (entries.encode(), len(data), data)


def deflated(data: bytes) -> bytes:
    return stream(zlib.compress(data, 9), "/Filter/FlateDecode")


def written(*lines: str) -> bytes:
    """Page content: lines of text."""
    return stream(("BT /F1 12 Tf 50 700 Td 14 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET").encode("latin-1"))


def pages_pdf(
    *contents: bytes,
    count: int | None = None,
    kids: str | None = None,
    box: str = LETTER,
    page: str = "",
    catalogue: str = "",
    more: Sequence[bytes] = (),
) -> bytes:
    """A PDF with a page for each content, which are objects 4, 6, 8 …; `more` objects follow. `count` and `kids` may lie."""
    objects = [b"", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"]
    for content in contents:
        entries = f"/MediaBox[{box}]/Resources<</Font<</F1 3 0 R>>>>/Contents {len(objects) + 2} 0 R{page}"
        objects += [f"<</Type/Page/Parent 2 0 R{entries}>>".encode(), content]
    if kids is None:
        kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(contents)))
    objects[0] = f"<</Type/Catalog/Pages 2 0 R{catalogue}>>".encode()
    objects[1] = f"<</Type/Pages/Count {len(contents) if count is None else count}/Kids[{kids}]>>".encode()
    return pdf([*objects, *more])


def locked_pdf(user_password: bytes) -> bytes:
    """A PDF encrypted with 40-bit RC4 (PDF 1.7, 7.6.3, revision 2). An empty password opens by itself."""
    filler = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
    user, owner_key = (user_password + filler)[:32], hashlib.md5((b"owner" + filler)[:32]).digest()[:5]
    owner_entry, permissions, identifier = rc4(owner_key, user), -4, b"0123456789abcdef"
    key = hashlib.md5(user + owner_entry + permissions.to_bytes(4, "little", signed=True) + identifier).digest()[:5]
    content = b"BT /F1 12 Tf 50 700 Td (secret words) Tj ET"
    object_key = hashlib.md5(key + (5).to_bytes(3, "little") + (0).to_bytes(2, "little")).digest()[
        :10
    ]  # object 5, the page's content
    lock = f"<</Filter/Standard/V 1/R 2/O<{owner_entry.hex()}>/U<{rc4(key, filler).hex()}>/P {permissions}>>"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count 1/Kids[4 0 R]>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        f"<</Type/Page/Parent 2 0 R/MediaBox[{LETTER}]/Resources<</Font<</F1 3 0 R>>>>/Contents 5 0 R>>".encode(),
        stream(rc4(object_key, content)),
    ]
    return pdf(objects, f"/Encrypt {lock}/ID[<{identifier.hex()}><{identifier.hex()}>]")


def rc4(key: bytes, data: bytes) -> bytes:
    box, j = list(range(256)), 0
    for i in range(256):
        j = (j + box[i] + key[i % len(key)]) % 256
        box[i], box[j] = box[j], box[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + box[i]) % 256
        box[i], box[j] = box[j], box[i]
        out.append(byte ^ box[(box[i] + box[j]) % 256])
    return bytes(out)


def slow_pdf(operators: int = 3_000_000) -> bytes:
    """A page that takes PDFium seconds and gigabytes, in 10 bytes for each 1,000 operators."""
    return pages_pdf(deflated(b"BT /F1 12 Tf 10 10 Td " + b"(a) Tj " * operators + b" ET"))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has next to no data."""
    chunks = [
        (b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"),
        (b"IDAT", zlib.compress(b"\0")),
        (b"IEND", b""),
    ]
    body = b"".join(len(d).to_bytes(4, "big") + kind + d + zlib.crc32(kind + d).to_bytes(4, "big") for kind, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body
