"""Windows of a file: some of its bytes, or whole characters of its text. `abi/vectors/slices.jsonl` holds the cases.

Functions of a descriptor and numbers, which remember nothing. Offsets and lengths are bytes of the file. All of them read with
`pread`, the window and at most three bytes on each side, so the cost does not depend on the file's size. They block: call
them from a guest's thread.

`name` is how messages call the file, such as `handle 3 ("notes.txt")`.
"""

import codecs
import errno
import os
from dataclasses import dataclass

from cuttlefish.errors import BadCommand, DocumentInvalid

__all__ = ["Window", "read_bytes", "read_exactly", "read_window"]

AROUND = 3  # a character has at most four bytes: three more on each side show where it starts and ends


@dataclass(frozen=True, slots=True)
class Window:
    """Whole characters, and the offset of the byte after them."""

    text: str
    next_offset: int


def read_window(fd: int, size: int, offset: int, length: int, name: str) -> Window:
    """Return the whole characters within `length` bytes from `offset`, and where to read on.

    Cut back to the last character that fits; following `next_offset` up to `size` gives the file's text exactly, whatever the
    windows (of at least four bytes). Bytes that are not UTF-8 end the window before them. At the end of the file, and for a
    length of 0, the window is empty. Bytes are kept as they are: a byte order mark stays, line ends are not changed.

    `size` is the file's length when it was opened. The caller caps `length`, which is how much memory this takes.

    Raises:
        BadCommand: `offset` past the end or inside a character, a window too small for the character at `offset`, or bytes
            there that are not UTF-8. The message says which, and where a character starts.
        DocumentInvalid: the file is shorter than it was when it was opened, or the system cannot read it.
    """
    _check_start(size, offset, "slice", name)
    if length == 0 or offset == size:
        return Window("", offset)
    first = max(0, offset - AROUND)
    data = read_exactly(fd, first, min(offset + length + AROUND, size) - first, "slice", name)
    at = offset - first
    window = memoryview(data)[at : at + length]
    try:
        # `final` is false: a character cut by the window's edge is left for the next one.
        text, used = codecs.utf_8_decode(window, "strict", False)
    except UnicodeDecodeError as failure:
        used = failure.start
        text = str(window[:used], "utf-8")
    if used == 0:
        raise _no_character(data, at, offset, length, name)
    return Window(text, offset + used)


def read_bytes(fd: int, size: int, offset: int, length: int, name: str) -> bytes:
    """Return the bytes from `offset`: `length` of them, or fewer where the file ends.

    Raises:
        BadCommand: `offset` past the end.
        DocumentInvalid: the file is shorter than it was when it was opened, or the system cannot read it.
    """
    _check_start(size, offset, "slice_bytes", name)
    return read_exactly(fd, offset, min(length, size - offset), "slice_bytes", name)


def read_exactly(fd: int, offset: int, count: int, command: str, name: str) -> bytes:
    """Return `count` bytes, which the file had when it was opened. `command` is what messages say was being done.

    Raises:
        DocumentInvalid: it does not have them any more, or the system cannot read them.
    """
    parts: list[bytes] = []
    done = 0
    while done < count:
        try:
            part = os.pread(fd, count - done, offset + done)
        except OSError as failure:
            reason = errno.errorcode.get(failure.errno or 0, "no reason given")
            raise DocumentInvalid(f"{command}: {name} cannot be read: the system reports an error ({reason})") from None
        if not part:
            raise DocumentInvalid(
                f"{command}: {name} changed while it was read: it has no byte {offset + done} any more. "
                "Run the job again when nothing writes to the file"
            )
        parts.append(part)
        done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_start(size: int, offset: int, command: str, name: str) -> None:
    if offset > size:
        raise BadCommand(f"{command}: offset {offset} is past the end of {name}, which has {size} bytes")


def _no_character(data: bytes, at: int, offset: int, length: int, name: str) -> BadCommand:
    """The error for a window in which no character starts and ends. `data` reaches three bytes further on both sides."""
    if width := _character_width(data, at):
        return BadCommand(
            f"slice: a window of {length} bytes is too small for the character at offset {offset} of {name}, "
            f"which has {width}; ask for at least 4"
        )
    for back in range(1, min(AROUND, at) + 1):
        # A lead byte is never inside another character, so one that reaches over `offset` is the character there.
        if (width := _character_width(data, at - back)) > back:
            start, after = offset - back, offset - back + width
            return BadCommand(
                f"slice: offset {offset} of {name} is inside a character, which starts at {start}; "
                f"read from {start}, or from {after} after it"
            )
    return BadCommand(
        f"slice: {name} is not UTF-8 at offset {offset} (byte 0x{data[at]:02x}); "
        f"read such bytes with slice_bytes, or go on at {offset + 1}"
    )


def _character_width(data: bytes, at: int) -> int:
    """How many bytes the character at `at` has; 0 where none starts."""
    lead = data[at]
    width = 1 if lead < 0x80 else 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4 if 0xF0 <= lead <= 0xF4 else 0
    try:
        return width if len(data[at : at + width].decode()) == 1 else 0
    except UnicodeDecodeError:
        return 0
