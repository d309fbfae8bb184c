"""Images made ready for a model: pure functions over bytes, for the worker process only.

A worker calls them because a decoder is the part of a host that hostile files aim at, and because a small file may need
gigabytes; nothing here belongs on the host's own side. This module needs Pillow and little of ours, so that a worker starts
quickly. It names what is wrong by a `kind`; the sentences for people are made on the other side, in `document_answers.py`.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageMath,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from cuttlefish.media.reading import reader
from cuttlefish.media.sniff import HEAD_BYTES, named_format, sniff
from cuttlefish.media.tiff_reader import has_frames, page_frames

__all__ = [
    "FORMATS",
    "ImageProblem",
    "Prepared",
    "crop",
    "encode",
    "fitted",
    "frame",
    "is_damaged_jpeg",
    "open_frames",
    "prepare",
    "resize",
    "scaled",
    "take_frame",
    "upright",
]

# Importing a plugin registers its format. Pillow's own `init` would register 70, some of which start other programs
READERS = (PngImagePlugin, JpegImagePlugin, GifImagePlugin, WebPImagePlugin, TiffImagePlugin, BmpImagePlugin, AvifImagePlugin)
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "AVIF")
PLAIN_TEXT_BYTES = 64 << 10  # metadata that may stay in a picture which is passed on unchanged
PngImagePlugin.MAX_TEXT_CHUNK = 8 << 20  # deflated texts and colour profiles of real pictures; Pillow's own 1 MiB refuses some
JPEG_QUALITY = 90  # of a re-encoded picture: no visible loss
PNG_LEVEL = 1  # level 6 takes twice the time for a tenth of the bytes

Kind = Literal[
    "image_unknown", "image_foreign", "image_rare", "image_damaged", "image_pixels", "image_bytes", "image_outside", "no_frame"
]

# EXIF tag 274, its value: what turns the stored picture upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

SIDEWAYS = (5, 6, 7, 8)  # of these, width and height change places

BITS_PER_SAMPLE, PHOTOMETRIC, PLANAR = 258, 262, 284  # TIFF 6.0, part 1
WHITE_IS_ZERO, PLANES_APART = 0, 2
FULL_RANGE_FROM = 1 << 14  # 16-bit grey whose highest value is below was written by something that has 14 bits or fewer
LARGEST_FLOAT = 3.4028234663852886e38
STRIP_PIXELS = 1 << 20

AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # a worker may start no threads, and has one page or picture to do at a time


class ImageProblem(Exception):  # named for what happened, like the errors of `errors.py` that it becomes
    """What is wrong with a picture, and the numbers (or the format's name) to say so with."""

    def __init__(self, kind: Kind, **facts: int | str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.facts = facts


@dataclass(frozen=True, slots=True)
class Prepared:
    """An upright picture of 8-bit grey or RGB. `unchanged`: `data` is the file as it was given. `frames`: how many there are, of
    which this is one; 0 where they were not counted.
    """

    data: bytes
    media_type: Literal["image/png", "image/jpeg"]
    width: int
    height: int
    unchanged: bool
    frames: int = 0


def prepare(data: bytes, *, max_pixels: int, max_bytes: int) -> Prepared:
    """Return a picture that any model's reader understands: PNG or JPEG, upright, 8-bit grey or RGB.

    A file that already is one comes back unchanged, after it was decoded once to know that it can be. Anything else is
    decoded, turned by its EXIF orientation, put on white where it is transparent, and encoded again without metadata: JPEG,
    WEBP and AVIF as JPEG of quality 90, the others as PNG (as JPEG too, if the PNG would be larger than `max_bytes`).
    Of an animation the first frame is taken; `take_frame` takes another. 16-bit grey is scaled by the bits that are in use;
    32-bit and floating grey is stretched from its lowest to its highest number. CMYK is converted without its colour profile.

    Raises:
        ImageProblem: `image_unknown`, `image_foreign` (format): none of `FORMATS`. `image_rare`: a TIFF whose samples cannot be
            read, though its directory can. `image_pixels` (width, height): judged by
            the header, before anything is decoded. `image_damaged`: cut short or broken. `image_bytes` (needed): the result
            would be larger than `max_bytes`.
        MemoryError: the process's memory limit was reached.
    """
    with _quiet():
        image = _open(data, max_pixels)
        with _damage_is_the_files_fault():
            image.load()
        if _orientation(image) not in UPRIGHT and _is_plain(image, data):
            return _unchanged(image, data)
        return _encoded(upright(image), _is_lossy(image), max_bytes)


def resize(data: bytes, max_width: int, max_height: int, *, max_pixels: int, max_bytes: int) -> Prepared:
    """Return a picture made to fit into a box, upright as `prepare` makes it. The proportions stay; each side is rounded to the
    nearest pixel and has at least one. A picture that fits already is only prepared.

    Raises:
        What `prepare` raises.
    """
    with _quiet():
        image = _open(data, max_pixels)
        size = None
        if image.format == "JPEG":  # decoding a half, a quarter or an eighth of it costs as much less
            turned = _orientation(image) in SIDEWAYS
            size = fitted(image.size[::-1] if turned else image.size, max_width, max_height)
            least_width, least_height = size[::-1] if turned else size
            with _damage_is_the_files_fault():
                image.draft(None, (least_width * 3 // 2, least_height * 3 // 2))
        with _damage_is_the_files_fault():
            image.load()
        fits = image.width <= max_width and image.height <= max_height and size in (None, image.size)
        if fits and _orientation(image) not in UPRIGHT and _is_plain(image, data):
            return _unchanged(image, data)
        picture = upright(image)
        return _encoded(scaled(picture, size or fitted(picture.size, max_width, max_height)), _is_lossy(image), max_bytes)


def crop(data: bytes, x: int, y: int, width: int, height: int, *, max_pixels: int, max_bytes: int) -> Prepared:
    """Return a rectangle of a picture, upright as `prepare` makes it: the coordinates are those of the picture as seen.

    Raises:
        ImageProblem: `image_outside` (width, height: the picture's own): the rectangle does not lie inside. Otherwise as `prepare`.
    """
    with _quiet():
        image = _open(data, max_pixels)
        picture = upright(image)
        if x + width > picture.width or y + height > picture.height:
            raise ImageProblem("image_outside", width=picture.width, height=picture.height)
        return _encoded(picture.crop((x, y, x + width, y + height)), _is_lossy(image), max_bytes)


def take_frame(data: bytes, index: int, *, max_pixels: int, max_bytes: int) -> Prepared:
    """Return a frame of an animation, counted from zero, as `prepare` makes the first: the whole picture as it is then seen.

    A picture that does not move has one frame. Of a TIFF the smaller copies and masks are none, and one of several pages is a
    document. Frames build on those before them, so that a late one takes as long as all of them.

    Raises:
        ImageProblem: `no_frame` (frames: how many there are). `image_pixels`: also of a frame before. Otherwise as `prepare`.
    """
    with _quiet():
        image = _open(data, max_pixels)
        with _damage_is_the_files_fault():
            frames = len(page_frames(reader(data))) if image.format == "TIFF" else getattr(image, "n_frames", 1)
        if index >= frames:
            raise ImageProblem("no_frame", frames=frames)
        if index == 0:
            return replace(prepare(data, max_pixels=max_pixels, max_bytes=max_bytes), frames=frames)
        for number in [page_frames(reader(data))[index]] if image.format == "TIFF" else range(1, index + 1):
            with _damage_is_the_files_fault():
                image.seek(number)
            _judge_header(image, max_pixels)  # a frame of a GIF may make the picture larger
        return replace(_encoded(upright(image), _is_lossy(image), max_bytes), frames=frames)


def upright(image: Image.Image) -> Image.Image:
    """Decode a picture: 8-bit grey or RGB on white, turned by its EXIF orientation.

    Raises:
        ImageProblem: `image_damaged`.
        MemoryError: the process's memory limit was reached.
    """
    with _damage_is_the_files_fault():
        image.load()
        turn = UPRIGHT.get(_orientation(image))
        picture = _eight_bit(image)
    return picture if turn is None else picture.transpose(turn)


def fitted(size: tuple[int, int], max_width: int, max_height: int) -> tuple[int, int]:
    """The size of a picture that was shrunk into a box; its own if it fits."""
    width, height = size
    if width <= max_width and height <= max_height:
        return size
    if width * max_height >= height * max_width:
        return max_width, max(1, (2 * height * max_width + width) // (2 * width))
    return max(1, (2 * width * max_height + height) // (2 * height)), max_height


def scaled(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """An `L` or `RGB` picture at another size."""
    return picture if picture.size == size else picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def open_frames(source: Any) -> ImageFile.ImageFile:
    """Open a TIFF, whose frames are then chosen by `seek`. `source` is a file of bytes, read from as long as the picture is used.

    Raises:
        ImageProblem: `image_damaged`.
    """
    with _quiet(), _damage_is_the_files_fault():
        try:
            return Image.open(source, formats=("TIFF",))
        except UnidentifiedImageError:
            raise ImageProblem("image_damaged") from None


def frame(image: ImageFile.ImageFile, number: int, max_pixels: int) -> Image.Image:
    """A frame of an opened TIFF, as `upright` gives it.

    Raises:
        ImageProblem: `image_damaged`; `image_pixels` (width, height), judged before decoding.
        MemoryError: the process's memory limit was reached.
    """
    with _quiet():
        with _damage_is_the_files_fault():
            image.seek(number)
        _judge_header(image, max_pixels)
        return upright(image)


def is_damaged_jpeg(data: bytes) -> bool:
    """Whether a JPEG cannot be decoded to its end."""
    with _quiet():
        try:
            with _damage_is_the_files_fault():
                Image.open(io.BytesIO(data), formats=("JPEG",)).load()
        except (UnidentifiedImageError, ImageProblem):
            return True
    return False


def encode(picture: Image.Image, format: Literal["png", "jpeg"], quality: int) -> bytes:
    """Return the bytes of an `L` or `RGB` picture, without metadata."""
    out = io.BytesIO()
    picture.info.clear()  # some encoders write what they find here: comments, profiles, EXIF
    if format == "png":
        picture.save(out, "PNG", compress_level=PNG_LEVEL)
    else:
        picture.save(out, "JPEG", quality=quality)
    return out.getvalue()


def _encoded(picture: Image.Image, lossy: bool, max_bytes: int) -> Prepared:
    encoded = encode(picture, "jpeg" if lossy else "png", JPEG_QUALITY)
    if len(encoded) > max_bytes and not lossy:
        lossy, encoded = True, encode(picture, "jpeg", JPEG_QUALITY)
    if len(encoded) > max_bytes:
        raise ImageProblem("image_bytes", needed=len(encoded))
    return Prepared(encoded, "image/jpeg" if lossy else "image/png", picture.width, picture.height, unchanged=False)


def _unchanged(image: ImageFile.ImageFile, data: bytes) -> Prepared:
    return Prepared(data, "image/png" if image.format == "PNG" else "image/jpeg", image.width, image.height, unchanged=True)


def _is_lossy(image: ImageFile.ImageFile) -> bool:
    return image.format in ("JPEG", "MPO", "WEBP", "AVIF")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    Image.MAX_IMAGE_PIXELS = None  # Pillow's own bound only warns up to 179 Mpx; ours stands below, and may be set higher
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged metadata, mostly: no reason to refuse a picture
        yield


@contextlib.contextmanager
def _damage_is_the_files_fault() -> Iterator[None]:
    """Whatever a reader raises while it looks at a file says that the file is bad, except that memory is short."""
    try:
        yield
    except (MemoryError, UnidentifiedImageError, ImageProblem):
        raise
    except Exception:  # noqa: BLE001  # seen: OSError, SyntaxError, ValueError, EOFError, KeyError, TypeError, RuntimeError (AVIF)
        raise ImageProblem("image_damaged") from None


def _open(data: bytes, max_pixels: int) -> ImageFile.ImageFile:
    """Read the header of a file of one of `FORMATS`, and judge by it."""
    image = None
    with contextlib.suppress(UnidentifiedImageError), _damage_is_the_files_fault():
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image is None:
        if foreign := named_format(data[:HEAD_BYTES]):
            raise ImageProblem("image_foreign", format=foreign)
        sniffed = sniff(data, len(data))
        if sniffed.format == "tiff" and has_frames(reader(data)):
            raise ImageProblem("image_rare")
        raise ImageProblem("image_damaged" if sniffed.kind == "image" else "image_unknown")
    _judge_header(image, max_pixels)
    return image


def _judge_header(image: Image.Image, max_pixels: int) -> None:
    """Refuse what cannot be decoded, or not rightly: too many pixels, none, and one kind of TIFF."""
    if image.width < 1 or image.height < 1:
        raise ImageProblem("image_damaged")
    if image.width * image.height > max_pixels:
        raise ImageProblem("image_pixels", width=image.width, height=image.height)
    if isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(PLANAR) == PLANES_APART:
        # Pillow 13 shows noise where colours of 16 bits lie in planes of their own and are not packed
        wide = max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))) > 8
        if wide and len(image.getbands()) > 1 and any(tile[0] == "raw" for tile in image.tile):
            raise ImageProblem("image_rare")


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation, 1 if there is none that can be read. Asked after `load`: TIFF turns itself there."""
    value: object = 1
    with contextlib.suppress(ImageProblem), _damage_is_the_files_fault():
        value = image.getexif().get(274, 1)
    return value if isinstance(value, int) else 1


def _is_plain(image: Image.Image, data: bytes) -> bool:
    """Whether every reader sees in these bytes what Pillow saw."""
    if image.mode not in ("L", "RGB") or "transparency" in image.info:
        return False
    if image.format == "PNG":
        # Byte 24 is the bits per sample: Pillow shows 16-bit RGB as mode RGB. Frames are counted for PNG only, where the number
        # stands in the header; TIFF reads on for it. Long deflated texts are a bomb to some readers
        texts = sum(len(value) for value in image.info.values() if isinstance(value, str | bytes))
        return data[24] == 8 and getattr(image, "n_frames", 1) == 1 and texts <= PLAIN_TEXT_BYTES
    return image.format == "JPEG" and _jpeg_coding(data) in (0xC0, 0xC1, 0xC2)


def _jpeg_coding(data: bytes) -> int:
    """The start-of-frame marker. C0 to C2 are what every decoder reads; arithmetic coding (C9 and on) is not."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return marker
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return 0


def _eight_bit(image: Image.Image) -> Image.Image:
    """The picture as `L` or `RGB`, on white."""
    if image.mode.startswith("I;16"):
        return _scaled_down(image)
    if image.mode in ("I", "F"):
        return _stretched(image)
    if image.mode == "1":
        return image.convert("L")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        seen = image if image.mode == "RGBA" and "transparency" not in image.info else image.convert("RGBA")
        ground = Image.new("RGB", seen.size, (255, 255, 255))
        ground.paste(seen.convert("RGB"), mask=seen.getchannel("A"))  # with fewer copies at once than `alpha_composite` makes
        return ground
    return image.copy() if image.mode in ("L", "RGB") else image.convert("RGB")


def _scaled_down(image: Image.Image) -> Image.Image:
    """16-bit grey as `L`. `convert` would clip instead of scaling: 256 levels became 2.

    Cameras and scanners of 10, 12 or 14 bits write their values as they are: scaled by 16 bits, such a picture is nearly black. So
    where no value uses the upper two bits, it is scaled by the bits that are used, eight at least.
    """
    wide = image.convert("I")
    highest = int(_extrema(wide)[1])
    shift = 8 if highest >= FULL_RANGE_FROM else max(0, highest.bit_length() - 8)
    levels = [min(255, value >> shift) for value in range(1 << 16)]
    if _white_is_zero(image):
        levels = [255 - level for level in levels]
    transparent = image.info.get("transparency")
    if isinstance(transparent, int) and 0 <= transparent < len(levels):
        levels[transparent] = 255
    return wide.point(levels, "L")


def _stretched(image: Image.Image) -> Image.Image:
    """32-bit or floating grey: the lowest number black, the highest white, because the file does not say which they are.

    Raises:
        ImageProblem: `image_damaged`: it holds no number.
    """
    grey = image.convert("F")
    low, high = _range_of_numbers(grey)
    if low > high:
        raise ImageProblem("image_damaged")
    if not 0 < high - low < math.inf:
        return Image.new("L", image.size, 0)
    if _white_is_zero(image):
        low, high = high, low
    scale = 255.0 / (high - low)
    return grey.point(lambda value: value * scale - low * scale).convert("L")


def _range_of_numbers(grey: Image.Image) -> tuple[float, float]:
    """The lowest and highest pixel of an `F` picture that is a finite number; what was not measured is often written otherwise."""
    low, high = _extrema(grey)
    if math.isfinite(low) and math.isfinite(high):  # Pillow passes over what is no number, unless it is the first pixel
        return low, high
    low, high = math.inf, -math.inf
    rows = max(1, STRIP_PIXELS // grey.width)
    for top in range(0, grey.height, rows):  # in strips, because this takes several copies
        strip = grey.crop((0, top, grey.width, min(grey.height, top + rows)))
        others = ImageMath.lambda_eval(lambda of: of["convert"]((abs(of["strip"]) <= LARGEST_FLOAT) * 255, "L"), strip=strip)
        others = others.point(lambda value: 255 - value, "1")
        strip.paste(math.inf, None, others)
        low = min(low, _extrema(strip)[0])
        strip.paste(-math.inf, None, others)
        high = max(high, _extrema(strip)[1])
    return low, high


def _extrema(grey: Image.Image) -> tuple[float, float]:
    low, high = grey.getextrema()
    assert isinstance(low, int | float)  # one band gives one pair
    assert isinstance(high, int | float)
    return low, high


def _white_is_zero(image: Image.Image) -> bool:
    """Whether a TIFF counts its grey from white to black. Pillow turns that around up to 8 bits, and not above."""
    return isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO
