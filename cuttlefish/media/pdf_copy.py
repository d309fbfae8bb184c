"""A copy of a PDF as PDFium writes it, repaired and unlocked, to read its page tree in. For the worker process only.

Only what a page tree may be written in is kept: of a file of 200 MB that is a few, because nearly all of it are pictures.
"""

import bisect
import ctypes
import time
from typing import Any

from cuttlefish.media.reading import Read

__all__ = ["copied"]

MOST_KEPT_BYTES = 64 << 20
COPY_S = 5.0  # PDFium deflates what is not, at 15 MB/s


def copied(pdf: Any) -> tuple[Read, int]:
    """The copy, and its length. It ends early, without its tables, where it takes more than 5 s or 64 MiB; and what streams hold is
    missing from it, in which nothing is found.
    """
    import pypdfium2.raw as pdfium

    starts: list[int] = []
    blocks: list[bytes] = []
    length = kept = 0
    end = time.monotonic() + COPY_S

    def write(_: object, data: Any, count: int) -> int:
        nonlocal length, kept
        block = ctypes.string_at(data, count)
        # PDFium writes 32 KiB at a time: without these letters they are the middle of one object, and of no long list of kids
        if b"obj" in block or b" 0 R" in block:
            starts.append(length)
            blocks.append(block)
            kept += count
        length += count
        return int(kept <= MOST_KEPT_BYTES and time.monotonic() < end)

    writer = pdfium.FPDF_FILEWRITE(version=1)
    writer.WriteBlock = type(writer.WriteBlock)(write)
    pdfium.FPDF_SaveAsCopy(pdf, writer, pdfium.FPDF_REMOVE_SECURITY)

    def read(count: int, at: int) -> bytes:
        """Zeros stand for what was not kept."""
        found = bytearray(max(0, min(count, length - at)))
        number = max(0, bisect.bisect_right(starts, at) - 1)
        while number < len(starts) and starts[number] < at + len(found):
            first = max(at, starts[number])
            part = blocks[number][first - starts[number] :][: at + len(found) - first]
            found[first - at : first - at + len(part)] = part
            number += 1
        return bytes(found)

    return read, length
