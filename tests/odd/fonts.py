"""The smallest font that draws: a few squares. Documents whose fonts are not embedded depend on the machine's fonts."""

import struct

__all__ = ["squares"]


def squares(glyphs: int) -> bytes:
    """A TrueType font of so many glyphs, each of them a square of 0.8 em on the line."""
    square = struct.pack(">hhhhh", 1, 0, 0, 800, 800) + struct.pack(">HH", 3, 0)  # one outline of four points, no instructions
    square += b"\1\1\1\1" + struct.pack(">4h", 0, 800, 0, -800) + struct.pack(">4h", 0, 0, 800, 0)
    square += bytes(-len(square) % 4)
    tables = {
        b"glyf": square * glyphs,
        b"head": struct.pack(">IIIIHHQQ4hHHhhh", 0x10000, 0x10000, 0, 0x5F0F3CF5, 3, 1000, 0, 0, 0, 0, 800, 800, 0, 8, 2, 1, 0),
        b"hhea": struct.pack(">I15hH", 0x10000, 800, -200, 0, 1000, 0, 200, 800, *[0] * 8, glyphs),
        b"hmtx": struct.pack(">Hh", 1000, 0) * glyphs,
        b"loca": b"".join(struct.pack(">I", len(square) * at) for at in range(glyphs + 1)),
        b"maxp": struct.pack(">IHHHHHHHHHHHHHH", 0x10000, glyphs, 4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
    }
    at, rows, body = 12 + 16 * len(tables), b"", b""
    for name, data in tables.items():
        rows += name + struct.pack(">III", 0, at + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    return struct.pack(">IHHHH", 0x10000, len(tables), 64, 2, 32) + rows + body
