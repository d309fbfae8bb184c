"""Images: each format and mode, turned, animated, transparent, cut, lying and bombs."""

import io
import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from PIL import Image as Pillow
from PIL import ImageChops

from odd.expected import Colour, Image, OddFile, Picture, Refused
from odd.writer import png, png_header

__all__ = ["FILES"]

BLACK = (0, 0, 0)
RED, GREEN, BLUE, WHITE = CORNERS = (250, 10, 10), (10, 250, 10), (10, 10, 250), (255, 255, 255)
GREYS: tuple[Colour, Colour, Colour, Colour] = ((0, 0, 0), (80, 80, 80), (160, 160, 160), (240, 240, 240))
WIDTH, HEIGHT = 48, 32
LOSSY = 25  # of 255: what a codec may change in the middle of a flat area
DAMAGED = Refused("document_invalid", "is an image that is damaged or cut short")
RARE = Refused("unsupported", "is a TIFF of a rare kind, which this host cannot read; save it with 8 bits for each colour")
TOO_LARGE = Refused("limit_exceeded", "image.pixels is 40000000 pixels")

ORIENTATIONS = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_90,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_270,
}
"""How an upright picture is stored for each value of EXIF's orientation: the reverse of what a reader does."""


def colours() -> Pillow.Image:
    """Red, green, blue and white quarters."""
    picture = Pillow.new("RGB", (WIDTH, HEIGHT), WHITE)
    for colour, at in zip((RED, GREEN, BLUE), ((0, 0), (WIDTH // 2, 0), (0, HEIGHT // 2)), strict=True):
        picture.paste(colour, (*at, at[0] + WIDTH // 2, at[1] + HEIGHT // 2))
    return picture


def greys() -> Pillow.Image:
    """Four quarters from black to nearly white."""
    picture = Pillow.new("L", (WIDTH, HEIGHT))
    for at, (grey, _, _) in enumerate(GREYS):
        left, top = at % 2 * WIDTH // 2, at // 2 * HEIGHT // 2
        picture.paste(grey, (left, top, left + WIDTH // 2, top + HEIGHT // 2))
    return picture


def wide_greys(scale: int = 256, order: Literal["little", "big"] = "little") -> Pillow.Image:
    """The same in 16 bits."""
    data = b"".join((grey * scale).to_bytes(2, order) for grey in greys().tobytes())
    return Pillow.frombytes("I;16" if order == "little" else "I;16B", (WIDTH, HEIGHT), data)


def seen_through() -> Pillow.Image:
    """The coloured quarters, the white one replaced by a black that cannot be seen."""
    picture = colours().convert("RGBA")
    picture.paste((0, 0, 0, 0), (WIDTH // 2, HEIGHT // 2, WIDTH, HEIGHT))
    return picture


def saved(picture: Pillow.Image, format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **options)
    return out.getvalue()


def in_colour(tolerance: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Picture:
    return Picture(*size, "RGB", CORNERS, tolerance)


def in_grey(tolerance: int = 0, mode: Literal["L", "RGB"] = "L") -> Picture:
    return Picture(WIDTH, HEIGHT, mode, GREYS, tolerance)


def file(name: str, format: str, make: Callable[[], bytes], seen: Picture | Refused) -> OddFile:
    return OddFile(name, make, Image(format, seen))


def turned(orientation: int, format: str = "JPEG") -> bytes:
    exif = Pillow.Exif()
    exif[274] = orientation
    stored = colours().transpose(ORIENTATIONS[orientation]) if orientation in ORIENTATIONS else colours()
    return saved(stored, format, exif=exif, quality=95)


def interlaced(picture: Pillow.Image) -> bytes:
    """A PNG in seven passes, which Pillow reads and does not write."""
    rows = b""
    for left, top, across, down in (
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ):
        for y in range(top, picture.height, down):
            rows += b"\0" + b"".join(bytes(picture.getpixel((x, y))) for x in range(left, picture.width, across))  # type: ignore[arg-type]
    size = picture.width.to_bytes(4, "big") + picture.height.to_bytes(4, "big")
    return png((b"IHDR", size + b"\x08\x02\0\0\1"), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))


def wide_colours() -> bytes:
    """A PNG of 16 bits in each of red, green and blue."""
    rows = b"".join(
        b"\0" + b"".join(bytes(byte for part in colours().getpixel((x, y)) for byte in (part, 0)) for x in range(WIDTH))  # type: ignore[union-attr]
        for y in range(HEIGHT)
    )
    size = WIDTH.to_bytes(4, "big") + HEIGHT.to_bytes(4, "big")
    return png((b"IHDR", size + b"\x10\x02\0\0\0"), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))


def with_chunk(kind: bytes, data: bytes) -> bytes:
    """The coloured PNG with one chunk more, behind its header."""
    whole = saved(colours(), "PNG")
    return whole[:33] + png((kind, data))[8:] + whole[33:]


def cmyk(transform: int | None) -> bytes:
    """A JPEG of four inks. Adobe's marker says that they are inverted, and with 2 that they are stored as YCCK."""
    whole = saved(colours().convert("CMYK"), "JPEG", quality=95)
    marker = whole.index(b"\xff\xee")
    end = marker + 2 + int.from_bytes(whole[marker + 2 : marker + 4], "big")
    if transform is None:
        return whole[:marker] + whole[end:]
    return whole[: end - 1] + bytes([transform]) + whole[end:]


def animated(format: str, **options: Any) -> bytes:
    frames = [Pillow.new("RGB", (WIDTH, HEIGHT), (n * 9, 0, 0)) for n in range(1, 20)]
    return saved(colours(), format, save_all=True, append_images=frames, duration=40, **options)


def without_times(avif: bytes) -> bytes:
    """An animated AVIF says when it was made, three times."""
    data = bytearray(avif)
    for box in (b"mvhd", b"tkhd", b"mdhd"):
        at = data.index(box) + 4
        width = 16 if data[at] == 1 else 8  # both times, of the box's version
        data[at + 4 : at + 4 + width] = bytes(width)
    return bytes(data)


def pages_of_tiff(count: int) -> bytes:
    return saved(colours(), "TIFF", save_all=True, append_images=[greys()] * (count - 1))


def floating(*first: float) -> bytes:
    """The grey quarters as floating numbers in a TIFF, the first pixels replaced."""
    picture = greys().convert("F")
    for at, value in enumerate(first):
        picture.putpixel((at, 0), value)
    return saved(picture, "TIFF")


def retagged(tiff: bytes, tag: int, value: int) -> bytes:
    """A TIFF of Pillow's, one number of its first directory replaced."""
    data = bytearray(tiff)
    directory = int.from_bytes(data[4:8], "little")
    entries = range(directory + 2, directory + 2 + 12 * int.from_bytes(data[directory : directory + 2], "little"), 12)
    entry = next(at for at in entries if int.from_bytes(data[at : at + 2], "little") == tag)
    data[entry + 8 : entry + 12] = value.to_bytes(4, "little")
    return bytes(data)


def wide_planes() -> bytes:
    """A TIFF of 16 bits in each of red, green and blue, each of which lies by itself."""
    planes = [b"".join((level * 257).to_bytes(2, "little") for level in part.tobytes()) for part in colours().split()]
    entries = [(256, 4, 1, WIDTH), (257, 4, 1, HEIGHT), (258, 3, 3, 8), (259, 3, 1, 1), (262, 3, 1, 2)]
    entries += [(273, 4, 3, 14), (277, 3, 1, 3), (278, 4, 1, HEIGHT), (279, 4, 3, 26), (284, 3, 1, 2)]
    size, start = len(planes[0]), 38
    head = (16).to_bytes(2, "little") * 3
    for number in (*(start + size * at for at in range(3)), *[size] * 3):
        head += number.to_bytes(4, "little")
    directory = len(entries).to_bytes(2, "little") + b"".join(
        tag.to_bytes(2, "little") + kind.to_bytes(2, "little") + count.to_bytes(4, "little") + value.to_bytes(4, "little")
        for tag, kind, count, value in entries
    )
    return b"II*\0" + (start + 3 * size).to_bytes(4, "little") + head + b"".join(planes) + directory + bytes(4)


def cut(data: bytes, part: float) -> bytes:
    return data[: int(len(data) * part)]


def bmp(bits: int) -> bytes:
    return saved(colours() if bits > 8 else greys().convert("1"), "BMP")


def png_files() -> tuple[OddFile, ...]:
    bomb = zlib.compress(bytes(100 << 20))
    return (
        file(
            "grey-1-bit.png",
            "png",
            lambda: saved(greys().convert("1", dither=Pillow.Dither.NONE), "PNG"),
            Picture(WIDTH, HEIGHT, "L", ((0, 0, 0), (0, 0, 0), WHITE, WHITE)),
        ),
        file("grey-8-bit.png", "png", lambda: saved(greys(), "PNG"), in_grey()),
        file("grey-16-bit.png", "png", lambda: saved(wide_greys(), "PNG"), in_grey(1)),
        file("grey-16-bit-of-small-values.png", "png", lambda: saved(wide_greys(1), "PNG"), in_grey()),
        file("grey-16-bit-of-which-12-are-used.png", "png", lambda: saved(wide_greys(16), "PNG"), in_grey()),
        file("grey-16-bit-all-black.png", "png", lambda: saved(wide_greys(0), "PNG"), Picture(WIDTH, HEIGHT, "L", (BLACK,) * 4)),
        file(
            "grey-16-bit-with-one-that-is-transparent.png",
            "png",
            lambda: saved(wide_greys(), "PNG", transparency=0),
            Picture(WIDTH, HEIGHT, "L", (WHITE, *GREYS[1:])),
        ),
        file("grey-with-alpha.png", "png", lambda: saved(greys().convert("LA"), "PNG"), in_grey(1, "RGB")),
        file("palette.png", "png", lambda: saved(colours().quantize(4), "PNG"), in_colour()),
        file(
            "palette-with-transparency.png",
            "png",
            lambda: saved(seen_through().quantize(4, method=Pillow.Quantize.FASTOCTREE), "PNG"),
            in_colour(5),
        ),
        file("colours.png", "png", lambda: saved(colours(), "PNG"), in_colour()),
        file("colours-16-bit.png", "png", wide_colours, in_colour(1)),
        file(
            "colours-with-one-that-is-transparent.png",
            "png",
            lambda: saved(colours(), "PNG", transparency=BLUE),
            Picture(WIDTH, HEIGHT, "RGB", (RED, GREEN, WHITE, WHITE)),
        ),
        file("colours-with-alpha.png", "png", lambda: saved(seen_through(), "PNG"), in_colour()),
        file("interlaced.png", "png", lambda: interlaced(colours()), in_colour()),
        file("animated.png", "png", lambda: animated("PNG"), in_colour()),
        file("turned.png", "png", lambda: turned(6, "PNG"), in_colour()),
        file("one-pixel.png", "png", lambda: saved(Pillow.new("L", (1, 1)), "PNG"), Picture(1, 1, "L")),
        file("one-pixel-high.png", "png", lambda: saved(Pillow.new("L", (5000, 1)), "PNG"), Picture(5000, 1, "L")),
        file("cut-in-half.png", "png", lambda: cut(saved(colours(), "PNG"), 0.5), DAMAGED),
        file("cut-in-its-header.png", "png", lambda: saved(colours(), "PNG")[:20], DAMAGED),
        file("cut-before-its-last-chunk.png", "png", lambda: saved(colours(), "PNG")[:-12], in_colour()),
        file(
            "checksum-wrong.png", "png", lambda: saved(colours(), "PNG")[:-20] + b"\0" * 4 + saved(colours(), "PNG")[-16:], DAMAGED
        ),
        file("header-of-a-gigapixel.png", "png", lambda: png_header(32_000, 32_000), TOO_LARGE),
        file("header-of-2-to-the-62.png", "png", lambda: png_header(2**31 - 1, 2**31 - 1), TOO_LARGE),
        file("header-of-nothing.png", "png", lambda: png_header(0, 0), DAMAGED),
        file(
            "pixels-of-zeros-by-the-hundred-million.png",
            "png",
            lambda: png(
                (b"IHDR", (13_000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"),
                (b"IDAT", zlib.compress(bytes(13_000 * 13_001))),
                (b"IEND", b""),
            ),
            TOO_LARGE,
        ),
        file("text-of-100-mb.png", "png", lambda: with_chunk(b"zTXt", b"Comment\0\0" + bomb), DAMAGED),
        file(
            "text-above-1-mb.png",
            "png",
            lambda: with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"x" * 1_100_000),
            in_colour(),
        ),
        file(
            "deflated-text-above-1-mb.png",
            "png",
            lambda: with_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(" ".join(map(str, range(200_000))).encode())),
            in_colour(),
        ),
        file("international-text-of-100-mb.png", "png", lambda: with_chunk(b"iTXt", b"Comment\0\1\0\0\0" + bomb), DAMAGED),
        file("profile-of-100-mb.png", "png", lambda: with_chunk(b"iCCP", b"sRGB\0\0" + bomb), DAMAGED),
        file("exif-of-garbage.png", "png", lambda: with_chunk(b"eXIf", b"\xff" * 99), in_colour()),
        file(
            "thousand-text-chunks.png",
            "png",
            lambda: saved(colours(), "PNG")[:33] + png(*[(b"tEXt", b"a\0b")] * 1000)[8:] + saved(colours(), "PNG")[33:],
            in_colour(),
        ),
        file(
            "bits-that-cannot-be.png",
            "png",
            lambda: png((b"IHDR", b"\0\0\0\x09\0\0\0\x09\x07\x02\0\0\0"), (b"IDAT", zlib.compress(bytes(999))), (b"IEND", b"")),
            DAMAGED,
        ),
    )


def jpeg_files() -> tuple[OddFile, ...]:
    plain = partial(saved, format="JPEG", quality=95)
    return (
        file("grey.jpg", "jpeg", lambda: plain(greys()), in_grey(LOSSY)),
        file("colours.jpg", "jpeg", lambda: plain(colours()), in_colour(LOSSY)),
        file("progressive.jpg", "jpeg", lambda: plain(colours(), progressive=True), in_colour(LOSSY)),
        file("cmyk-adobe-0.jpg", "jpeg", lambda: cmyk(0), in_colour(40)),
        file("cmyk-adobe-2.jpg", "jpeg", lambda: ycck(), in_colour(40)),
        file("cmyk-no-marker.jpg", "jpeg", lambda: cmyk(None), in_colour(40)),
        *(file(f"turned-{n}.jpg", "jpeg", partial(turned, n), in_colour(LOSSY)) for n in range(1, 9)),
        file("turned-9-which-cannot-be.jpg", "jpeg", partial(turned, 9), in_colour(LOSSY)),
        file("turned-6-large.jpg", "jpeg", lambda: large_and_turned(), Picture(900, 1200, "RGB")),
        file("cut-in-half.jpg", "jpeg", lambda: cut(plain(colours()), 0.75), DAMAGED),
        file("cut-in-its-header.jpg", "jpeg", lambda: plain(colours())[:30], DAMAGED),
        file("cut-before-its-end.jpg", "jpeg", lambda: plain(colours())[:-2], DAMAGED),
        file("junk-behind.jpg", "jpeg", lambda: plain(colours()) + b"PK\3\4" * 500, in_colour(LOSSY)),
        file("exif-of-garbage.jpg", "jpeg", lambda: plain(colours(), exif=b"Exif\0\0" + b"\xff" * 60), in_colour(LOSSY)),
        file("header-of-4-gigapixels.jpg", "jpeg", lambda: sized(plain(colours()), b"\xff\xff\xff\xff"), TOO_LARGE),
        file("header-of-nothing.jpg", "jpeg", lambda: sized(plain(colours()), b"\0\0\0\0"), DAMAGED),
        file(
            "several-in-one.jpg",
            "jpeg",
            lambda: saved(colours(), "MPO", save_all=True, append_images=[greys().convert("RGB")], quality=95),
            in_colour(LOSSY),
        ),
    )


def ycck() -> bytes:
    """Inks stored as YCCK, which Pillow does not write: the inverted inks, converted by hand, in the same file as `cmyk`."""
    cyan, magenta, yellow, black = colours().convert("CMYK").split()
    light = Pillow.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    # Pillow inverts what it writes as CMYK, and only the black is to be
    stored = Pillow.merge("CMYK", (*(ImageChops.invert(part) for part in light), black))
    whole = saved(stored, "JPEG", quality=95)
    end = whole.index(b"\xff\xee") + 2 + int.from_bytes(whole[whole.index(b"\xff\xee") + 2 :][:2], "big")
    return whole[: end - 1] + b"\2" + whole[end:]


def large_and_turned() -> bytes:
    exif = Pillow.Exif()
    exif[274] = 6
    return saved(Pillow.new("RGB", (1200, 900), RED), "JPEG", exif=exif)


def sized(jpeg: bytes, size: bytes) -> bytes:
    """A JPEG that claims another height and width."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + size + jpeg[at + 4 :]


def other_formats() -> tuple[OddFile, ...]:
    stretched_levels = ((0, 0, 0), (85, 85, 85), (170, 170, 170), (255, 255, 255))
    stretched = Picture(WIDTH, HEIGHT, "L", stretched_levels, 2)
    stretched_back = Picture(WIDTH, HEIGHT, "L", stretched_levels[::-1], 2)
    negative = Picture(WIDTH, HEIGHT, "L", tuple((255 - grey,) * 3 for grey, _, _ in GREYS))  # type: ignore[arg-type]  # four
    return (
        file("still.gif", "gif", lambda: saved(colours(), "GIF"), in_colour(5)),
        file("animated.gif", "gif", lambda: animated("GIF"), in_colour(5)),
        file("transparent.gif", "gif", lambda: saved(seen_through(), "GIF"), in_colour(5)),
        file("cut.gif", "gif", lambda: cut(saved(colours(), "GIF"), 0.6), DAMAGED),
        file(
            "header-of-4-gigapixels.gif", "gif", lambda: b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\0;", TOO_LARGE
        ),
        file("without-a-frame.gif", "gif", lambda: b"GIF89a\x09\0\x09\0\0\0\0;", DAMAGED),
        file("lossy.webp", "webp", lambda: saved(colours(), "WEBP", quality=95), in_colour(LOSSY)),
        file("lossless.webp", "webp", lambda: saved(colours(), "WEBP", lossless=True), in_colour(LOSSY)),
        file("alpha.webp", "webp", lambda: saved(seen_through(), "WEBP", lossless=True), in_colour(LOSSY)),
        file("animated.webp", "webp", lambda: animated("WEBP", lossless=True), in_colour(LOSSY)),
        file("turned.webp", "webp", lambda: turned(6, "WEBP"), in_colour(LOSSY)),
        file("cut.webp", "webp", lambda: cut(saved(colours(), "WEBP", quality=95), 0.6), DAMAGED),
        file("single.tiff", "tiff", lambda: saved(colours(), "TIFF"), in_colour()),
        file("16-bit.tiff", "tiff", lambda: saved(wide_greys(), "TIFF"), in_grey(1)),
        file("16-bit-big-endian.tiff", "tiff", lambda: saved(wide_greys(order="big"), "TIFF"), in_grey(1)),
        file("16-bit-of-which-12-are-used.tiff", "tiff", lambda: saved(wide_greys(16), "TIFF"), in_grey()),
        file("white-is-zero.tiff", "tiff", lambda: retagged(saved(greys(), "TIFF"), 262, 0), negative),
        file("white-is-zero-16-bit.tiff", "tiff", lambda: retagged(saved(wide_greys(), "TIFF"), 262, 0), negative),
        file("white-is-zero-12-bit.tiff", "tiff", lambda: retagged(saved(wide_greys(16), "TIFF"), 262, 0), negative),
        file("white-is-zero-floating.tiff", "tiff", lambda: retagged(floating(), 262, 0), stretched_back),
        file("floating.tiff", "tiff", floating, stretched),
        file("floating-first-is-no-number.tiff", "tiff", lambda: floating(math.nan), stretched),
        file("floating-with-infinity.tiff", "tiff", lambda: floating(math.inf, -math.inf, 7, math.nan), stretched),
        file("floating-without-a-number.tiff", "tiff", lambda: saved(Pillow.new("F", (9, 9), math.nan), "TIFF"), DAMAGED),
        file("floating-64-bit.tiff", "tiff", lambda: retagged(floating(), 258, 64), RARE),
        file("16-bit-in-planes.tiff", "tiff", wide_planes, RARE),
        file("cmyk.tiff", "tiff", lambda: saved(colours().convert("CMYK"), "TIFF"), in_colour(15)),
        file("lzw.tiff", "tiff", lambda: saved(colours(), "TIFF", compression="tiff_lzw"), in_colour()),
        file("deflate.tiff", "tiff", lambda: saved(colours(), "TIFF", compression="tiff_adobe_deflate"), in_colour()),
        file(
            "fax.tiff",
            "tiff",
            lambda: saved(greys().convert("1", dither=Pillow.Dither.NONE), "TIFF", compression="group4"),
            Picture(WIDTH, HEIGHT, "L", ((0, 0, 0), (0, 0, 0), WHITE, WHITE)),
        ),
        file("turned.tiff", "tiff", lambda: turned(6, "TIFF"), in_colour()),
        file("cut.tiff", "tiff", lambda: cut(saved(colours(), "TIFF"), 0.5), DAMAGED),
        file("palette-8.bmp", "bmp", lambda: saved(colours().quantize(4), "BMP"), in_colour()),
        file(
            "1-bit.bmp",
            "bmp",
            lambda: saved(greys().convert("1", dither=Pillow.Dither.NONE), "BMP"),
            Picture(WIDTH, HEIGHT, "L", ((0, 0, 0), (0, 0, 0), WHITE, WHITE)),
        ),
        file("24-bit.bmp", "bmp", lambda: bmp(24), in_colour()),
        file("cut.bmp", "bmp", lambda: cut(bmp(24), 0.5), DAMAGED),
        file(
            "header-of-a-gigapixel.bmp", "bmp", lambda: bmp(24)[:18] + (32_000).to_bytes(4, "little") * 2 + bmp(24)[26:], TOO_LARGE
        ),
        file("colours.avif", "avif", lambda: saved(colours(), "AVIF", quality=95, max_threads=1), in_colour(LOSSY)),
        file("alpha.avif", "avif", lambda: saved(seen_through(), "AVIF", quality=95, max_threads=1), in_colour(LOSSY)),
        file("animated.avif", "avif", lambda: without_times(animated("AVIF", quality=95, max_threads=1)), in_colour(LOSSY)),
        file("cut.avif", "avif", lambda: cut(saved(colours(), "AVIF", quality=95, max_threads=1), 0.7), DAMAGED),
        file("really-a-png.jpg", "png", lambda: saved(colours(), "PNG"), in_colour()),
        file("really-a-jpeg.pdf", "jpeg", lambda: saved(colours(), "JPEG", quality=95), in_colour(LOSSY)),
        file("really-a-gif.txt", "gif", lambda: saved(colours(), "GIF"), in_colour(5)),
        file("really-a-webp", "webp", lambda: saved(colours(), "WEBP", lossless=True), in_colour(LOSSY)),
    )


FILES: tuple[OddFile, ...] = (*png_files(), *jpeg_files(), *other_formats())
