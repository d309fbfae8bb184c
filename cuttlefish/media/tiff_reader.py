"""A TIFF of several frames as a document without text, whose pages are pictures. For the worker process only."""

import io
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from cuttlefish.media.reading import FileBlocks, PageRead, Problem, Read, reader

__all__ = ["TiffDocument", "has_frames", "is_tiff", "page_frames"]

MOST_FRAMES = 1 << 16
SUBFILE_TYPE = 254  # TIFF 6.0, page 36: bit 0 a smaller copy of another frame, bit 2 a mask
NOT_A_PAGE = 0b101
JPEG_QUALITY = 85


def is_tiff(head: bytes) -> bool:
    """Whether a file starts like a TIFF, and is none of those with a PDF in front part (`sniff.py` has the order)."""
    return head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") and b"%PDF-" not in head[:1024]


def page_frames(read: Read) -> list[int]:
    """The numbers of the frames that are pages: all but smaller copies and masks. 65,536 frames are looked at.

    A file that has no page is given one, whose damage shows when it is read.
    """
    return [number for number, is_page in enumerate(_frames(read)) if is_page] or [0]


def has_frames(read: Read) -> bool:
    """Whether there is a frame whose directory can be read."""
    return any(True for _ in _frames(read))


def _frames(read: Read) -> Iterator[bool]:
    """For each frame whether it is a page. Reads a few bytes of its directory. A damaged one, or one seen before, ends it."""
    head = read(16, 0)
    order: Literal["little", "big"] = "little" if head[:1] == b"I" else "big"
    big = int.from_bytes(head[2:4], order) == 43
    count_bytes, entry_bytes, offset_bytes = (8, 20, 8) if big else (2, 12, 4)
    at = int.from_bytes(head[8:16] if big else head[4:8], order)
    seen = set[int]()
    while at and at not in seen and len(seen) < MOST_FRAMES:
        start = read(count_bytes + 4 * entry_bytes, at)  # entries are sorted: the subfile type is among the first
        count = int.from_bytes(start[:count_bytes], order)
        end = read(offset_bytes, at + count_bytes + count * entry_bytes) if 0 < count < 1 << 16 else b""
        if len(end) < offset_bytes:
            break
        kind = 0
        for entry in range(min(4, count)):
            field = start[count_bytes + entry * entry_bytes :][:entry_bytes]
            if int.from_bytes(field[:2], order) == SUBFILE_TYPE:
                kind = int.from_bytes(field[-offset_bytes:][:4], order)
        yield not kind & NOT_A_PAGE
        seen.add(at)
        at = int.from_bytes(end, order)


class TiffDocument:
    """A TIFF kept open between commands."""

    def __init__(self, key: tuple[object, ...], source: bytes | FileBlocks) -> None:
        self.key = key
        self._source = source
        self._image: Any = None  # of Pillow, while it is in a good state
        self._frames = page_frames(reader(source))
        self.pages = len(self._frames)
        self.spoiled = False

    def close(self) -> None:
        """Let go of the file."""
        self._image = None
        if isinstance(self._source, FileBlocks):
            self._source.close()

    def facts(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """What opening tells: one frame makes an image, not a document."""
        return {"pages": self.pages, "has_text_layer": False, "tiff_image": self.pages == 1}

    def read(self, page: int, _: Mapping[str, Any], with_images: bool) -> PageRead:
        """A page has no text, and is one picture."""
        return PageRead("", 1, 1.0) if with_images else PageRead("")

    def picture(self, page: int, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A page upright on white, shrunk to the longer side that was asked for, never enlarged; JPEG."""
        from cuttlefish.media import images

        side, image = question["long_side"], self._image
        self._image = None  # a frame that fails leaves it in no known state
        try:
            if image is None:
                image = images.open_frames(io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source)
            picture = images.frame(image, self._frames[page], question["image_pixels"])
        except images.ImageProblem as problem:
            if problem.kind == "image_pixels":
                raise Problem("image_pixels", **problem.facts) from None
            raise Problem("bad_page") from None
        self._image = image
        picture = images.scaled(picture, images.fitted(picture.size, side, side))
        return {"width": picture.width, "height": picture.height}, images.encode(picture, "jpeg", JPEG_QUALITY)
