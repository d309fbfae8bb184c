"""The images that lie on a page of a PDF: how many, where, and whether PDFium can show them. For the worker process only."""

import ctypes
import math
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image  # only worker commands that draw need Pillow

__all__ = ["holds_damaged_image", "images_on", "is_photographic"]

MOST_OBJECTS = 10_000  # of a page that are looked at for images; a page may have millions
DEEPEST_FORM = 8  # forms within forms
GRID = 128  # cells across and up a page, to tell which images overlap
LARGEST_IMAGES = 64  # of a page that are looked at for damage …
LEAST_PIXELS = 256  # … unless they are smaller than that in its picture
FINER = 16  # parts of a pixel
JPEG_END, END_BYTES = b"\xff\xd9", 1024  # of JPEG 2000 too; others may stand behind
ZLIB_HEADER_BYTES, INFLATED_AT_ONCE = 2, 32 << 10  # of which deflating makes a thousand times as much at most
WHITE = (255, 255, 255)
MOST_FILTERS, FILTER_NAME_BYTES = 16, 64

Matrix = tuple[float, float, float, float, float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top
Colour = tuple[Any, ...]


def is_photographic(page: Any) -> bool:
    """Whether an image or a form, which may hold one, is among the first objects of a page."""
    import pypdfium2.raw as pdfium

    kinds = (pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM)
    return any(
        pdfium.FPDFPageObj_GetType(pdfium.FPDFPage_GetObject(page, at)) in kinds
        for at in range(min(2_000, pdfium.FPDFPage_CountObjects(page)))
    )


def images_on(page: Any) -> tuple[int, float]:
    """How many images lie on a page, and which part of its area they cover, from 0 to 1.

    Images within forms count, eight forms deep; those outside the visible box do not. Of each image the box counts that encloses
    it, as far as it is visible. Where images overlap, the common part counts once, to within a 128th of the page's sides. At most
    10,000 objects are looked at.
    """
    box = _visible_box(page)
    boxes = [seen for _, seen in _visible_images(page, box)]
    whole = (box[2] - box[0]) * (box[3] - box[1])
    if not boxes or not whole > 0:
        return len(boxes), 0.0
    together = sum((right - left) * (top - bottom) for left, bottom, right, top in boxes) / whole
    # The cells of the grid that the images touch are an upper bound, and so is the sum: exact where nothing overlaps
    return len(boxes), round(min(1.0, together, _touched(boxes, box) if len(boxes) > 1 else 1.0), 4)


def holds_damaged_image(page: Any, picture: "Image.Image") -> bool:
    """Whether the picture that was drawn of a page lacks an image, or a part of one.

    PDFium leaves out an image that it cannot decode and fills up one that is cut short, both without a word: a damaged scan became
    an empty page. The 64 largest images are looked at, and those that take less than 256 pixels are let pass.

    Found is an image that cannot be decoded; one in JBIG2, and one in JPEG 2000 that has its end, only if nothing is drawn over its
    place. Found is a JPEG, or deflated data, that is cut short, if the place of what is missing has one colour at the image's edge.
    To tell more would take as long as to draw the page.
    """
    shown = [(thing, _place(page, box, picture)) for thing, box in _visible_images(page, _visible_box(page))]
    places = sorted(shown, key=lambda one: _area(one[1]), reverse=True)[:LARGEST_IMAGES]
    return any(_area(place) >= LEAST_PIXELS and _is_damaged(page, thing, picture, place) for thing, place in places)


def _place(page: Any, box: Box, picture: "Image.Image") -> tuple[int, int, int, int]:
    """Where a part of a page is in its picture, in whole pixels that it fills: left, upper, right, lower."""
    import pypdfium2.raw as pdfium

    x, y, across, down = ctypes.c_int(), ctypes.c_int(), [], []
    for at in (0, 2):
        size = picture.width * FINER, picture.height * FINER
        pdfium.FPDF_PageToDevice(page, 0, 0, *size, 0, box[at], box[at + 1], x, y)
        across.append(x.value / FINER)
        down.append(y.value / FINER)
    return math.ceil(min(across)), math.ceil(min(down)), math.floor(max(across)), math.floor(max(down))


def _area(place: tuple[int, int, int, int]) -> int:
    left, upper, right, lower = place
    return max(0, right - left) * max(0, lower - upper)


def _is_damaged(page: Any, image: Any, picture: "Image.Image", place: tuple[int, int, int, int]) -> bool:
    """Whether an image cannot be decoded, or is cut short."""
    import pypdfium2.raw as pdfium

    filters, part = _filters(image), picture.crop(place)
    # These are decoded as a whole to tell
    dear = filters[-1:] == [b"JBIG2Decode"] or (filters == [b"JPXDecode"] and JPEG_END in _raw(image)[-END_BYTES:])
    if dear and _colour(part) is None:
        return False
    facts = pdfium.FPDF_IMAGEOBJ_METADATA()
    if not pdfium.FPDFImageObj_GetImageMetadata(image, page, facts):
        return False
    if facts.bits_per_pixel == 0:
        return True
    edges = _colours_of_edges(part)
    if facts.colorspace in (pdfium.FPDF_COLORSPACE_DEVICEGRAY, pdfium.FPDF_COLORSPACE_DEVICERGB, pdfium.FPDF_COLORSPACE_ICCBASED):
        edges.discard(WHITE)  # what is missing is grey or black in these
    if not edges:
        return False
    if filters == [b"FlateDecode"]:
        return _breaks_off(_raw(image))
    return filters == [b"DCTDecode"] and _is_jpeg_cut_short(_raw(image))


def _colours_of_edges(part: "Image.Image") -> set[Colour]:
    """The colours of those of the four sides of a picture that have one colour only."""
    width, height = part.size
    edges = (0, 0, width, 1), (0, height - 1, width, height), (0, 0, 1, height), (width - 1, 0, width, height)
    return {colour for edge in edges if (colour := _colour(part.crop(edge))) is not None}


def _colour(part: "Image.Image") -> Colour | None:
    """The colour of a picture that has only one."""
    low, high = zip(*part.getextrema(), strict=True)
    return low if low == high else None


def _filters(image: Any) -> list[bytes]:
    """How the data of an image is packed, the outermost first."""
    import pypdfium2.raw as pdfium

    names, name = [], ctypes.create_string_buffer(FILTER_NAME_BYTES)
    for at in range(min(MOST_FILTERS, pdfium.FPDFImageObj_GetImageFilterCount(image))):
        pdfium.FPDFImageObj_GetImageFilter(image, at, name, FILTER_NAME_BYTES)
        names.append(name.value)
    return names


def _raw(image: Any) -> bytes:
    """The data of an image as it is in the file, though not encrypted."""
    import pypdfium2.raw as pdfium

    length = pdfium.FPDFImageObj_GetImageDataRaw(image, None, 0)
    data = (ctypes.c_char * length)()
    pdfium.FPDFImageObj_GetImageDataRaw(image, data, length)
    return bytes(data)


def _is_jpeg_cut_short(data: bytes) -> bool:
    """Whether a JPEG ends before its end."""
    if JPEG_END in data[-END_BYTES:]:
        return False
    from cuttlefish.media import images

    return images.is_damaged_jpeg(data)


def _breaks_off(data: bytes) -> bool:
    """Whether deflated data has no end. Its checksum is not looked at: many a good file has a wrong one, or none."""
    reader = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for at in range(ZLIB_HEADER_BYTES, len(data), INFLATED_AT_ONCE):
            reader.decompress(data[at : at + INFLATED_AT_ONCE])
            if reader.eof:
                return False
    except zlib.error:
        pass
    return True


def _touched(boxes: list[Box], page: Box) -> float:
    """The part of a page's grid that boxes touch. A row is a number with a bit for each cell."""
    rows = [0] * GRID
    across, up = GRID / (page[2] - page[0]), GRID / (page[3] - page[1])
    for left, bottom, right, top in boxes:
        first, last = int((left - page[0]) * across), math.ceil((right - page[0]) * across)
        cells = (1 << last) - (1 << first)
        for row in range(int((bottom - page[1]) * up), min(GRID, math.ceil((top - page[1]) * up))):
            rows[row] |= cells
    return sum(row.bit_count() for row in rows) / GRID**2


def _visible_box(page: Any) -> Box:
    """What of a page is visible, in its own coordinates."""
    import pypdfium2.raw as pdfium

    visible = pdfium.FS_RECTF()
    if not pdfium.FPDF_GetPageBoundingBox(page, visible):
        return 0.0, 0.0, 0.0, 0.0
    return visible.left, visible.bottom, visible.right, visible.top


def _visible_images(page: Any, visible: Box) -> list[tuple[Any, Box]]:
    """The image objects of a page, each with the part of the visible box that it takes."""
    import pypdfium2.raw as pdfium

    count, get, object_type = pdfium.FPDFPage_CountObjects, pdfium.FPDFPage_GetObject, pdfium.FPDFPageObj_GetType
    found: list[tuple[Any, Box]] = []
    left_to_see = MOST_OBJECTS
    # A container, its functions, how its coordinates become the page's, and how deep it is
    containers: list[tuple[Any, Any, Any, Matrix, int]] = [(page, count, get, (1, 0, 0, 1, 0, 0), 0)]
    while containers:
        container, count, get, matrix, depth = containers.pop()
        number = min(left_to_see, count(container))
        left_to_see -= number
        for at in range(number):
            thing = get(container, at)
            kind = object_type(thing)
            if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
                if seen := _visible_part(_bounds(thing), matrix, visible):
                    found.append((thing, seen))
            elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < DEEPEST_FORM:
                inner = _concatenated(_matrix(thing), matrix)
                containers.append((thing, pdfium.FPDFFormObj_CountObjects, pdfium.FPDFFormObj_GetObject, inner, depth + 1))
    return found


def _bounds(thing: Any) -> Box | None:
    """The box around an object, in the coordinates of what holds it."""
    import pypdfium2.raw as pdfium

    sides = [ctypes.c_float() for _ in range(4)]
    if not pdfium.FPDFPageObj_GetBounds(thing, *sides):
        return None
    left, bottom, right, top = (side.value for side in sides)
    return left, bottom, right, top


def _matrix(form: Any) -> Matrix:
    """How a form's coordinates become those of what holds it; its own /Matrix is applied to its objects by PDFium already."""
    import pypdfium2.raw as pdfium

    found = pdfium.FS_MATRIX()
    if not pdfium.FPDFPageObj_GetMatrix(form, found):
        return (1, 0, 0, 1, 0, 0)
    return found.a, found.b, found.c, found.d, found.e, found.f


def _concatenated(first: Matrix, then: Matrix) -> Matrix:
    a, b, c, d, e, f = first
    p, q, r, s, t, u = then
    return a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u


def _visible_part(box: Box | None, matrix: Matrix, visible: Box) -> Box | None:
    """What of a box lies in the visible one; None if nothing does, and for numbers that are none."""
    if box is None:
        return None
    a, b, c, d, e, f = matrix
    corners = [(x * a + y * c + e, x * b + y * d + f) for x in (box[0], box[2]) for y in (box[1], box[3])]
    across, up = [x for x, _ in corners], [y for _, y in corners]
    left, right = max(min(across), visible[0]), min(max(across), visible[2])
    bottom, top = max(min(up), visible[1]), min(max(up), visible[3])
    return (left, bottom, right, top) if left < right and bottom < top else None
