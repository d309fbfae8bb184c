"""Images made ready for a model. Pure functions, and once through a worker."""

import contextlib
import io
import random
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
from odd.expected import Refused
from odd.observe import opening, told
from odd.writer import opened, png_header
from PIL import Image, features

from cuttlefish import open_host
from cuttlefish.errors import BadCommand, DocumentInvalid, LimitExceeded, Unsupported
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentWorkers, PageImage, PreparedImage, open_document_workers
from cuttlefish.media.images import ImageProblem, Prepared, crop, prepare, resize, take_frame
from cuttlefish_abi import Crop, Frame, Resize

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)
LIMITS = Limits()
FOREIGN = '"p.png" is {}, a kind of image that this host cannot read; convert it to PNG or JPEG'


@pytest.fixture
async def workers() -> AsyncIterator[DocumentWorkers]:
    async with open_document_workers(1) as workers:
        yield workers


def saved(picture: Image.Image, format: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **options)
    return out.getvalue()


def half_and_half(mode: str = "RGB") -> Image.Image:
    """16 wide, 8 high: the left half red, the right half blue."""
    picture = Image.new("RGB", (16, 8), BLUE)
    picture.paste(RED, (0, 0, 8, 8))
    return picture.convert(mode)


def prepared(data: bytes) -> Prepared:
    return prepare(data, max_pixels=40_000_000, max_bytes=64 << 20)


def pixels(made: Prepared) -> Image.Image:
    with Image.open(io.BytesIO(made.data)) as picture:
        assert picture.format == made.media_type.removeprefix("image/").upper()
        assert picture.size == (made.width, made.height)
        assert picture.mode in ("L", "RGB")
        picture.load()
        return picture.convert("RGB")


def close(a: object, b: tuple[int, int, int], by: int = 12) -> bool:
    assert isinstance(a, tuple)
    return all(abs(x - y) <= by for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_a_plain_picture_comes_back_byte_for_byte(format: str, mode: str) -> None:
    data = saved(half_and_half(mode), format)
    assert prepared(data) == Prepared(data, f"image/{format.lower()}", 16, 8, unchanged=True)  # type: ignore[arg-type]  # one of two


@pytest.mark.parametrize(
    ("orientation", "size", "top_left", "bottom_right"),
    [
        (1, (16, 8), RED, BLUE),
        (2, (16, 8), BLUE, RED),
        (3, (16, 8), BLUE, RED),
        (4, (16, 8), RED, BLUE),
        (5, (8, 16), RED, BLUE),
        (6, (8, 16), RED, BLUE),
        (7, (8, 16), BLUE, RED),
        (8, (8, 16), BLUE, RED),
    ],
)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
def test_a_turned_picture_is_upright(
    format: str, orientation: int, size: tuple[int, int], top_left: tuple[int, int, int], bottom_right: tuple[int, int, int]
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    made = prepared(saved(half_and_half(), format, exif=exif))
    picture = pixels(made)
    assert picture.size == size
    assert close(picture.getpixel((1, 1)), top_left, 60)
    assert close(picture.getpixel((size[0] - 2, size[1] - 2)), bottom_right, 60)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_metadata_goes_when_a_picture_is_encoded_again(format: str) -> None:
    exif = Image.Exif()
    exif[274], exif[315] = 3, "somebody's name"
    made = prepared(
        saved(half_and_half(), format, exif=exif, icc_profile=b"a profile" * 20, comment=b"where it was taken", dpi=(300, 300))
    )
    assert not made.unchanged
    with Image.open(io.BytesIO(made.data)) as picture:
        assert not set(picture.info) & {"exif", "icc_profile", "comment", "dpi", "xmp"}
        assert not picture.getexif()


def test_sixteen_bit_grey_is_scaled_and_not_clipped() -> None:
    """Pillow's own conversion makes two levels of 256."""
    levels = [0, 0x0100, 0x4000, 0x7FFF, 0x8000, 0xC080, 0xFFFF]
    picture = Image.new("I;16", (len(levels), 1))
    for at, level in enumerate(levels):
        picture.putpixel((at, 0), level)
    for format in ("PNG", "TIFF"):
        shown = pixels(prepared(saved(picture, format))).convert("L")
        assert [shown.getpixel((at, 0)) for at in range(len(levels))] == [level >> 8 for level in levels]


def test_sixteen_bit_colour_is_encoded_again_with_eight() -> None:
    """Pillow calls it RGB, as if it were plain."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = struct.pack("!IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\xff\0\0\0\0")) + chunk(b"IEND", b"")
    )
    made = prepared(data)
    assert not made.unchanged
    assert pixels(made).getpixel((0, 0)) == RED


@pytest.mark.parametrize("mode", ["I", "F"])
def test_grey_of_unknown_range_is_stretched(mode: str) -> None:
    picture = Image.new(mode, (3, 1))
    for at, level in enumerate((-1000, 0, 1000)):
        picture.putpixel((at, 0), level)
    shown = pixels(prepared(saved(picture, "TIFF"))).convert("L")
    assert [shown.getpixel((at, 0)) for at in range(3)] == [0, 127, 255]


def test_floating_grey_without_numbers_is_an_error_and_no_black_picture() -> None:
    with pytest.raises(ImageProblem) as caught:
        prepared(saved(Image.new("F", (2, 1), float("nan")), "TIFF"))
    assert caught.value.kind == "image_damaged"


def test_what_is_no_number_is_found_wherever_it_stands_in_a_large_picture() -> None:
    picture = Image.new("F", (1000, 2100), 5.0)  # more than one strip
    for place, value in (((0, 0), float("nan")), ((999, 2099), 9.0), ((500, 1500), -3.0), ((7, 2000), float("inf"))):
        picture.putpixel(place, value)
    shown = pixels(prepared(saved(picture, "TIFF"))).convert("L")
    assert [shown.getpixel(place) for place in ((500, 1500), (1, 1), (999, 2099))] == [0, 170, 255]


@pytest.mark.parametrize("bits", [*range(1, 17)])
def test_grey_of_few_bits_in_sixteen_keeps_its_levels(bits: int) -> None:
    """Scaled by sixteen bits, the picture of a 12-bit camera is nearly black."""
    levels = [at * ((1 << bits) - 1) // 3 for at in range(4)]
    picture = Image.new("I;16", (4, 1))
    for at, level in enumerate(levels):
        picture.putpixel((at, 0), level)
    shown = pixels(prepared(saved(picture, "PNG"))).convert("L")
    used = 16 if bits >= 15 else max(8, bits)  # 15 bits and a dark picture of 16 cannot be told apart
    assert [shown.getpixel((at, 0)) for at in range(4)] == [level >> used - 8 for level in levels]


@pytest.mark.parametrize("transform", [0, 2, None])
def test_a_cmyk_jpeg_has_its_colours(transform: int | None) -> None:
    """Whether or not the Adobe marker is there, printers' JPEGs are inverted; Pillow and browsers read them so."""
    data = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    marker = data.index(b"\xff\xee")
    length = int.from_bytes(data[marker + 2 : marker + 4], "big")
    if transform is None:
        data = data[:marker] + data[marker + 2 + length :]
    elif transform == 2:
        at = marker + 2 + length - 1
        data = data[:at] + b"\2" + data[at + 1 :]
    colour = pixels(prepared(data)).getpixel((8, 8))
    if transform == 2:  # the same numbers, read as luma and chroma: another colour, but a colour and no error
        assert colour != RED
    else:
        assert close(colour, RED)


@pytest.mark.parametrize(
    ("mode", "format"),
    [("P", "PNG"), ("1", "PNG"), ("LA", "PNG"), ("RGBA", "PNG"), ("CMYK", "TIFF"), ("YCbCr", "TIFF"), ("P", "BMP")],
)
def test_any_mode_becomes_grey_or_rgb(mode: str, format: str) -> None:
    made = prepared(saved(half_and_half(mode), format))
    assert not made.unchanged
    shown = pixels(made)
    if mode not in ("1", "LA"):
        assert close(shown.getpixel((2, 4)), RED)
        assert close(shown.getpixel((14, 4)), BLUE)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF"])
def test_what_is_transparent_becomes_white(format: str) -> None:
    picture = Image.new("RGBA", (16, 8), (0, 0, 0, 0))
    picture.paste((255, 0, 0, 255), (0, 0, 8, 8))
    shown = pixels(prepared(saved(picture, format)))
    assert close(shown.getpixel((2, 4)), RED)
    assert close(shown.getpixel((14, 4)), WHITE)


def test_a_transparent_colour_of_a_plain_png_becomes_white() -> None:
    shown = pixels(prepared(saved(half_and_half(), "PNG", transparency=BLUE)))
    assert (shown.getpixel((2, 4)), shown.getpixel((14, 4))) == (RED, WHITE)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_is_shown(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE, WHITE)]
    made = prepared(saved(frames[0], format, save_all=True, append_images=frames[1:]))
    assert not made.unchanged
    assert close(pixels(made).getpixel((4, 4)), RED)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "AVIF"])
def test_a_picture_cut_short_is_an_error_wherever_it_is_cut(format: str) -> None:
    assert features.check("avif")
    noise = Image.frombytes("RGB", (96, 96), random.Random(1).randbytes(96 * 96 * 3))
    data = saved(noise, format)
    assert prepared(data).width == 96
    for end in [*range(1, 64), *range(64, len(data) - 64, max(1, len(data) // 60))]:
        with pytest.raises(ImageProblem) as problem:
            prepared(data[:end])
        assert problem.value.kind in ("image_damaged", "image_unknown")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "AVIF"])
def test_damage_gives_a_picture_or_a_known_error(format: str) -> None:
    """Every exception of a reader means a bad file."""
    chance = random.Random(format)
    whole = saved(Image.frombytes("RGB", (24, 24), chance.randbytes(24 * 24 * 3)), format)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with contextlib.suppress(ImageProblem):
            prepare(bytes(data), max_pixels=1_000_000, max_bytes=64 << 20)


def test_the_pixel_limit_is_judged_by_the_header() -> None:
    for side in (10_000, 100_000, 2**31 - 1):
        with pytest.raises(ImageProblem) as problem:
            prepared(png_header(side, side))
        assert (problem.value.kind, problem.value.facts) == ("image_pixels", {"width": side, "height": side})
    assert prepare(saved(half_and_half(), "PNG"), max_pixels=16 * 8, max_bytes=1 << 20).unchanged
    with pytest.raises(ImageProblem) as problem:
        prepare(saved(half_and_half(), "PNG"), max_pixels=16 * 8 - 1, max_bytes=1 << 20)
    assert problem.value.facts == {"width": 16, "height": 8}


def test_a_png_that_would_be_too_large_becomes_a_jpeg_and_then_an_error() -> None:
    data = saved(Image.frombytes("L", (300, 300), random.Random(1).randbytes(90_000)).convert("RGB"), "BMP")
    assert prepare(data, max_pixels=10**6, max_bytes=1 << 20).media_type == "image/png"
    assert prepare(data, max_pixels=10**6, max_bytes=100_000).media_type == "image/jpeg"
    with pytest.raises(ImageProblem) as problem:
        prepare(data, max_pixels=10**6, max_bytes=1_000)
    assert problem.value.kind == "image_bytes"


# --- Changed copies -------------------------------------------------------------------------------------------------------------


def resized(data: bytes, width: int, height: int) -> Prepared:
    return resize(data, width, height, max_pixels=40_000_000, max_bytes=64 << 20)


def cropped(data: bytes, *rectangle: int) -> Prepared:
    return crop(data, *rectangle, max_pixels=40_000_000, max_bytes=64 << 20)


def turned(size: tuple[int, int], orientation: int, format: str = "JPEG") -> bytes:
    """A picture of this size as stored: the left half red, the right half blue."""
    exif = Image.Exif()
    exif[274] = orientation
    picture = Image.new("RGB", size, BLUE)
    picture.paste(RED, (0, 0, size[0] // 2, size[1]))
    return saved(picture, format, exif=exif)


@pytest.mark.parametrize(
    ("size", "box", "result"),
    [
        ((4000, 3000), (1024, 1024), (1024, 768)),
        ((3000, 4000), (1024, 1024), (768, 1024)),
        ((4001, 3000), (1024, 1024), (1024, 768)),
        ((1000, 10), (100, 100), (100, 1)),
        ((10, 1000), (100, 100), (1, 100)),
        ((1000, 1), (7, 7), (7, 1)),
        ((1000, 15), (100, 100), (100, 2)),
        ((1000, 14), (100, 100), (100, 1)),
        ((300, 200), (300, 200), (300, 200)),
        ((300, 200), (2**32 - 1, 2**32 - 1), (300, 200)),
        ((300, 200), (150, 2**32 - 1), (150, 100)),
        ((300, 200), (2**32 - 1, 50), (75, 50)),
        ((300, 200), (1, 1), (1, 1)),
        ((301, 201), (300, 200), (300, 200)),
    ],
    ids=str,
)
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_resized_picture_fits_its_box_keeps_its_proportions_and_never_grows(
    format: str, size: tuple[int, int], box: tuple[int, int], result: tuple[int, int]
) -> None:
    data = saved(Image.new("RGB", size, RED), format)
    made = resized(data, *box)
    assert (made.width, made.height) == result
    assert made.media_type == f"image/{format.lower()}"
    assert close(pixels(made).getpixel((0, 0)), RED)
    assert made.unchanged == (size == result)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "TIFF", "PNG"])
def test_sizes_are_those_of_the_picture_as_seen(format: str, orientation: int) -> None:
    data = turned((400, 200), orientation, format)
    sideways = orientation >= 5
    made = resized(data, 100, 30)
    assert (made.width, made.height) == ((15, 30) if sideways else (60, 30))
    whole = prepared(data)
    left_or_top = cropped(data, 10, 10, 50, 50)
    assert (left_or_top.width, left_or_top.height) == (50, 50)
    seen, part = pixels(whole).getpixel((20, 20)), pixels(left_or_top).getpixel((10, 10))
    assert isinstance(seen, tuple)
    assert close(part, seen[:3])


def test_a_crop_is_the_rectangle_that_was_asked_for() -> None:
    picture = Image.new("RGB", (20, 10))
    for x in range(20):
        for y in range(10):
            picture.putpixel((x, y), (x, y, 0))
    made = cropped(saved(picture, "PNG"), 3, 4, 5, 6)
    assert [pixels(made).getpixel(place) for place in ((0, 0), (4, 5))] == [(3, 4, 0), (7, 9, 0)]
    whole = cropped(saved(picture, "PNG"), 0, 0, 20, 10)
    assert pixels(whole).tobytes() == picture.tobytes()


@pytest.mark.parametrize("rectangle", [(1, 0, 16, 8), (0, 1, 16, 8), (16, 0, 1, 1), (0, 0, 17, 1), (2**32 - 1, 0, 2**32 - 1, 1)])
def test_a_rectangle_outside_is_refused_with_the_pictures_size(rectangle: tuple[int, int, int, int]) -> None:
    with pytest.raises(ImageProblem) as problem:
        cropped(saved(half_and_half(), "PNG"), *rectangle)
    assert (problem.value.kind, problem.value.facts) == ("image_outside", {"width": 16, "height": 8})


def test_a_small_copy_of_a_large_photo_looks_like_it() -> None:
    """JPEGs are decoded at a part of their size first."""
    whole = Image.linear_gradient("L").resize((2400, 1600)).convert("RGB")
    made = resized(saved(whole, "JPEG", quality=95), 240, 160)
    expected = whole.resize((240, 160), Image.Resampling.LANCZOS)
    for place in ((0, 0), (120, 80), (239, 159), (10, 150)):
        wanted = expected.getpixel(place)
        assert isinstance(wanted, tuple)
        assert close(pixels(made).getpixel(place), wanted[:3], 6)


@pytest.mark.parametrize("change", [resized, lambda data, *_: cropped(data, 0, 0, 1, 1)], ids=["resize", "crop"])
def test_changes_judge_the_size_by_the_header_and_damage_as_ever(change: Callable[..., Prepared]) -> None:
    with pytest.raises(ImageProblem) as problem:
        change(png_header(100_000, 100_000), 10, 10)
    assert problem.value.kind == "image_pixels"
    with pytest.raises(ImageProblem) as problem:
        change(png_header(64, 64), 10, 10)
    assert problem.value.kind == "image_damaged"


# --- Through a worker -----------------------------------------------------------------------------------------------------------


async def test_a_worker_prepares_files_and_bytes_alike(workers: DocumentWorkers) -> None:
    plain, turned = saved(half_and_half(), "PNG"), saved(half_and_half(), "BMP")
    with opened(plain, "a.png") as source:
        assert await workers.prepare_image(source, LIMITS) == PreparedImage(plain, "image/png", 16, 8)
    assert await workers.prepare_image(plain, LIMITS) == PreparedImage(plain, "image/png", 16, 8)
    with opened(turned, "a.bmp") as source:
        from_file = await workers.prepare_image(source, LIMITS)
    assert from_file == await workers.prepare_image(turned, LIMITS)
    assert from_file.media_type == "image/png"


async def test_an_avif_is_read_by_a_worker_that_may_start_no_threads(workers: DocumentWorkers) -> None:
    made = await workers.prepare_image(saved(Image.new("RGB", (640, 480), RED), "AVIF"), LIMITS)
    assert (made.media_type, made.width, made.height) == ("image/jpeg", 640, 480)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"plain words", Unsupported, '"p.png" is no image of a known kind; use PNG, JPEG, GIF, WEBP, TIFF, BMP or AVIF'),
        (b"", Unsupported, '"p.png" is no image of a known kind; use PNG, JPEG, GIF, WEBP, TIFF, BMP or AVIF'),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", Unsupported, FOREIGN.format("EPS")),
        (b"\0\0\0\x18ftypheic" + bytes(50), Unsupported, FOREIGN.format("HEIC")),
        (b"<?xml?><svg/>", Unsupported, FOREIGN.format("SVG")),
        (png_header(64, 64), DocumentInvalid, '"p.png" is an image that is damaged or cut short'),
        (b"\x89PNG\r\n\x1a\n", DocumentInvalid, '"p.png" is an image that is damaged or cut short'),
        (
            png_header(100_000, 100_000),
            LimitExceeded,
            'image.pixels is 40000000 pixels; "p.png" is 100000×100000 and needs 10000000000',
        ),
    ],
    ids=["text", "empty", "EPS", "HEIC", "SVG", "no data", "no header", "giant"],
)
async def test_what_is_no_good_picture_is_said_in_the_users_words(
    workers: DocumentWorkers, data: bytes, error: type[Exception], message: str
) -> None:
    with opened(data, "p.png") as source, pytest.raises(error) as raised:
        await workers.prepare_image(source, LIMITS)
    assert str(raised.value) == message


async def test_a_file_above_the_byte_limit_is_not_read(workers: DocumentWorkers) -> None:
    limits = LIMITS.with_values({"image.bytes": 100})
    with opened(bytes(101), "p.png") as source, pytest.raises(LimitExceeded) as raised:
        await workers.prepare_image(source, limits)
    assert raised.value.message == 'image.bytes is 100 bytes; "p.png" has 101'
    with pytest.raises(LimitExceeded) as raised:
        await workers.prepare_image(bytes(101), limits)
    assert raised.value.message == "image.bytes is 100 bytes; the image has 101"


async def test_a_picture_that_needs_too_much_memory_is_that_limits_error(workers: DocumentWorkers) -> None:
    data = saved(Image.new("L", (6000, 6000)), "GIF")
    with pytest.raises(LimitExceeded) as raised:
        await workers.prepare_image(data, LIMITS.with_values({"document.memory": "200MiB"}))
    assert raised.value.message == "document.memory is 209715200 bytes; the image needs more (prepare_image)"
    with trio.fail_after(60):
        assert (await workers.prepare_image(data, LIMITS)).width == 6000


async def test_an_image_is_resized_and_cropped_from_a_file_or_from_bytes(workers: DocumentWorkers) -> None:
    data = saved(half_and_half(), "PNG")
    small = await workers.image_op(data, Resize(max_width=4, max_height=4), LIMITS)
    assert (small.format, small.width, small.height) == ("png", 4, 2)
    with opened(turned((40, 20), 6), "a.jpg") as source:
        part = await workers.image_op(source, Crop(x=0, y=30, width=20, height=10), LIMITS)
    assert (part.format, part.width, part.height) == ("jpeg", 20, 10)
    with Image.open(io.BytesIO(part.data)) as picture:
        assert close(picture.getpixel((10, 5)), BLUE)
    assert await workers.image_op(data, Resize(max_width=99, max_height=99), LIMITS) == PageImage(data, "png", 16, 8)


async def test_a_crop_outside_names_both_rectangles(workers: DocumentWorkers) -> None:
    with opened(saved(half_and_half(), "PNG"), "p.png") as source, pytest.raises(BadCommand) as raised:
        await workers.image_op(source, Crop(x=10, y=2, width=7, height=3), LIMITS)
    assert raised.value.message == (
        'image_op: the rectangle 7×3 at (10, 2) does not lie inside "p.png", which is 16×8: the largest x is 15, the largest y 7'
    )


def animated(format: str, frames: int = 3, **options: object) -> bytes:
    """Frames whose red grows from one to the next; every second one changes its left half only."""
    pictures = []
    for number in range(frames):
        picture = pictures[-1].copy() if number % 2 else Image.new("RGB", (16, 8), (60 * number, 0, 90))
        picture.paste((60 * number, 200, 0), (0, 0, 8, 8))
        pictures.append(picture)
    return saved(pictures[0], format, save_all=True, append_images=pictures[1:], duration=100, **options)


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("GIF", {}),
        ("GIF", {"disposal": 2}),
        ("WEBP", {"lossless": True}),
        ("PNG", {}),
        ("PNG", {"disposal": 1}),
        ("AVIF", {"quality": 100}),
    ],
    ids=str,
)
def test_every_frame_of_an_animation_can_be_had_as_it_is_seen(format: str, options: dict[str, object]) -> None:
    data = animated(format, **options)
    for index in range(3):
        made = take_frame(data, index, max_pixels=40_000_000, max_bytes=64 << 20)
        assert (made.width, made.height, made.frames) == (16, 8, 3)
        assert close(pixels(made).getpixel((3, 3)), (60 * index, 200, 0), 25)
        assert close(pixels(made).getpixel((13, 3)), (60 * (index - index % 2), 0, 90), 25)
    assert take_frame(data, 0, max_pixels=40_000_000, max_bytes=64 << 20).data == prepared(data).data


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "TIFF", "WEBP", "AVIF", "GIF"])
def test_a_picture_that_does_not_move_has_one_frame(format: str) -> None:
    data = saved(half_and_half(), format)
    assert take_frame(data, 0, max_pixels=40_000_000, max_bytes=64 << 20).frames == 1
    with pytest.raises(ImageProblem) as problem:
        take_frame(data, 1, max_pixels=40_000_000, max_bytes=64 << 20)
    assert (problem.value.kind, problem.value.facts) == ("no_frame", {"frames": 1})


def test_a_frame_that_makes_the_picture_too_large_is_refused_before_it_is_decoded() -> None:
    small, large = saved(Image.new("RGB", (8, 8), RED), "GIF"), saved(Image.new("RGB", (4000, 4000), BLUE), "GIF")
    block = large.index(b"\x2c")
    data = small[:-1] + large[block:-1] + small[small.index(b"\x2c") :]
    assert take_frame(data, 0, max_pixels=100, max_bytes=64 << 20).frames == 3
    with pytest.raises(ImageProblem) as problem:
        take_frame(data, 2, max_pixels=100, max_bytes=64 << 20)
    assert (problem.value.kind, problem.value.facts) == ("image_pixels", {"width": 4000, "height": 4000})


def test_an_animation_cut_short_gives_its_whole_frames_and_is_damaged_after_them() -> None:
    data = animated("GIF", 6)
    cut = data[: len(data) * 2 // 3]
    seen = []
    for index in range(6):
        try:
            seen.append(take_frame(cut, index, max_pixels=1000, max_bytes=64 << 20).frames)
        except ImageProblem as problem:
            seen.append(problem.kind)
    assert seen[0] == seen[1]
    assert isinstance(seen[0], int)
    assert set(seen[seen[0] :]) == {"no_frame"}


async def test_a_frame_comes_with_the_number_of_frames_and_one_past_the_end_tells_it(workers: DocumentWorkers) -> None:
    data = animated("PNG")
    taken = await workers.image_op(data, Frame(index=2), LIMITS)
    assert (taken.format, taken.width, taken.height, taken.frames) == ("png", 16, 8, 3)
    assert (await workers.image_op(data, Resize(max_width=9, max_height=9), LIMITS)).frames is None
    with opened(data, "a.png") as source, pytest.raises(BadCommand) as raised:
        await workers.image_op(source, Frame(index=3), LIMITS)
    assert raised.value.message == 'image_op: frame 3 is past the end; "a.png" has 3 frames (the first is 0)'
    with pytest.raises(BadCommand) as raised:
        await workers.image_op(saved(half_and_half(), "PNG"), Frame(index=1), LIMITS)
    assert raised.value.message == "image_op: frame 1 is past the end; the image has 1 frame (the first is 0)"


async def test_a_block_asks_for_the_first_frame_and_then_for_any_other(tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_bytes(animated("GIF"))

    def frame(index: int) -> dict[str, object]:
        return {"cmd": "image_op", "handle": 0, "op": {"op": "frame", "index": index}}

    async with open_host() as host:
        seen = await told(host, tmp_path, opening("a.gif"), frame(0), frame(2))
        assert isinstance(seen, list)
        assert [(event["handle"], event["kind"], event["frames"]) for event in seen[1:]] == [
            (1, {"kind": "image", "format": "png"}, 3),
            (2, {"kind": "image", "format": "png"}, 3),
        ]
        failed = await told(host, tmp_path, opening("a.gif"), frame(3))
    assert failed == Refused("bad_command", 'image_op: frame 3 is past the end; "a.gif" has 3 frames (the first is 0)')
