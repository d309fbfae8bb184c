"""Damage, repeatable by its seed: an odd file becomes one that nobody thought of."""

import random
import re
from functools import cache

from odd import ODD_FILES

__all__ = ["mutated"]

MOST_BYTES = 256 << 10
"""Larger files are left out: what is damaged in them is mostly padding."""

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 10**30)
TOKENS = (
    *b"%PDF-1.7 endobj stream\n endstream xref trailer startxref << >> [ ] ( ) null /Kids /Count /Length /Type/Page".split(b" "),
    *b"/Filter/FlateDecode /Filter/DCTDecode /Prev Do Tj q Q BT ET".split(b" "),
    *b"IHDR IDAT IEND acTL GIF89a RIFF WEBP II*\0 MM\0* BM ftyp".split(b" "),
    b" 1 0 R ",
    b" 5 0 R ",
    b"\xff\xd8\xff",
    b"\xff\xc0",
    b"\xff\xda",
    b"\xff\xd9",
    b"\0" * 16,
    b"\xff" * 16,
    b"\xef\xbb\xbf",
)


@cache
def _base() -> tuple[tuple[str, bytes], ...]:
    """The files that are damaged: all that are small and cost little."""
    made = ((file.name, file.make()) for file in ODD_FILES.values() if not file.heavy)
    return tuple((name, data) for name, data in made if 0 < len(data) <= MOST_BYTES)


def mutated(seed: int) -> tuple[str, bytes]:
    """The name of a file, and its bytes after one to eight kinds of damage. The same for the same seed and catalogue."""
    chance = random.Random(seed)
    name, whole = chance.choice(_base())
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        chance.choice((_flip, _flip, _set, _cut, _drop, _repeat, _insert, _swap, _number, _number, _splice))(data, chance)
    return name, bytes(data)


def _place(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def _flip(data: bytearray, chance: random.Random) -> None:
    """One to four bits."""
    for _ in range(chance.randrange(1, 5) if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(data: bytearray, chance: random.Random) -> None:
    """A few bytes in a row."""
    at = _place(data, chance)
    data[at : at + 4] = bytes(chance.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in data[at : at + 4])


def _cut(data: bytearray, chance: random.Random) -> None:
    """The end."""
    del data[_place(data, chance) :]


def _drop(data: bytearray, chance: random.Random) -> None:
    """A piece of the middle."""
    at = _place(data, chance)
    del data[at : at + chance.choice((1, 2, 4, 16, 100, 1000))]


def _repeat(data: bytearray, chance: random.Random) -> None:
    """A piece, once more or many times."""
    at = _place(data, chance)
    piece = data[at : at + chance.choice((1, 4, 16, 100, 1000))]
    data[at:at] = piece * chance.choice((1, 1, 2, 10, 50))


def _insert(data: bytearray, chance: random.Random) -> None:
    """Random bytes, or a word that means something."""
    at = _place(data, chance)
    data[at:at] = chance.choice(TOKENS) if chance.random() < 0.7 else chance.randbytes(chance.choice((1, 4, 64)))


def _swap(data: bytearray, chance: random.Random) -> None:
    """Two pieces of equal length."""
    length = chance.choice((1, 4, 16, 100))
    one, two = sorted((_place(data, chance), _place(data, chance)))
    if one + length <= two and two + length <= len(data):
        data[one : one + length], data[two : two + length] = data[two : two + length], data[one : one + length]


def _number(data: bytearray, chance: random.Random) -> None:
    """A number, as digits where there are some, else as bytes."""
    digits = list(re.finditer(rb"-?\d+", data))
    if digits and chance.random() < 0.7:
        found = chance.choice(digits)
        data[found.start() : found.end()] = str(chance.choice(NUMBERS)).encode()
    elif len(data) >= 4:
        at, width = chance.randrange(len(data) - 3), chance.choice((1, 2, 4))
        number = chance.choice(NUMBERS) % (1 << 8 * width)
        data[at : at + width] = number.to_bytes(width, chance.choice(("big", "little")))


def _splice(data: bytearray, chance: random.Random) -> None:
    """The end of another file instead of its own."""
    _, other = chance.choice(_base())
    del data[_place(data, chance) :]
    data += other[chance.randrange(len(other)) :]
