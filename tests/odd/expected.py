"""What must come of an odd file, as data. `expected.json` of `scripts/make-odd-files` is these, written out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Binary", "Document", "Expected", "Image", "OddFile", "Page", "Picture", "Refused", "Text"]

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """An error: its code, and a part of its sentence."""

    code: str
    says: str


@dataclass(frozen=True, slots=True)
class Page:
    """What a page gives. What is None or empty is not looked at."""

    text: str | None = None
    holds: tuple[str, ...] = ()
    """Parts of its text, in this order."""
    lacks: tuple[str, ...] = ()
    refused: Refused | None = None
    """Its text cannot be had."""
    images: int | None = None
    coverage: float | None = None
    """The part of the page that images cover, to two digits."""
    size: tuple[int, int] | None = None
    """Pixels of its picture."""
    dark: tuple[float, float] | None = None
    """A place in its picture that is dark: parts of its width and height, from the upper left corner."""
    picture_refused: Refused | None = None


@dataclass(frozen=True, slots=True)
class Document:
    pages: int
    has_text_layer: bool
    shown: tuple[Page, ...] = ()
    """The first pages, or all of them."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What a model is shown. `corners`: colours near the upper left, upper right, lower left and lower right corner."""

    width: int
    height: int
    mode: Literal["L", "RGB"]
    corners: tuple[Colour, Colour, Colour, Colour] | None = None
    tolerance: int = 0


@dataclass(frozen=True, slots=True)
class Image:
    format: str
    seen: Picture | Refused


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    then: Refused | None = None
    """Asked for more at the end of `text`."""


@dataclass(frozen=True, slots=True)
class Binary:
    named: Refused
    """Shown to a model as an image."""


Expected = Document | Image | Text | Binary | Refused


@dataclass(frozen=True, slots=True)
class OddFile:
    """A file by name, and what must come of it. `make` always gives the same bytes."""

    name: str
    make: Callable[[], bytes]
    expected: Expected
    password: str | None = None
    """What would open it."""
    time_s: float = 10
    """What one command on it may take. Less for a file that takes for ever."""
    heavy: bool = False
    """Costs a reader seconds or gigabytes: the fuzz script leaves it out."""
