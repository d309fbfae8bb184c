"""What goes into the document workers and what comes out of them."""

from dataclasses import dataclass, field
from typing import Literal, Self

from cuttlefish.media.capabilities import OpenedFile
from cuttlefish_abi import DocumentKind, ImageKind

__all__ = ["DocumentFacts", "DocumentSource", "PageImage", "PageText", "PreparedImage"]


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """An open file that was approved: the descriptor, and what it must be. `size` is its length when it was opened.

    The descriptor stays the caller's, who keeps it open for as long as a command runs. `name` is for messages only. `password`
    opens a document that is locked, as its user's or its owner's; one that is not needed is ignored. It goes to the worker through
    the socket, and into no message, log, argument list or environment.
    """

    fd: int
    device: int
    inode: int
    size: int
    name: str
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, file: OpenedFile, password: str | None = None) -> Self:
        """A granted file that was opened; it stays its owner's."""
        return cls(file.fd, file.device, file.inode, file.size, file.name, password)


@dataclass(frozen=True, slots=True)
class DocumentFacts:
    """`pages`: how many can be asked for. `has_text_layer`: a letter or digit was found; a scan has none.

    `image` is set for a file that turned out to be a picture of this format and no document: a TIFF of one frame.
    """

    pages: int
    has_text_layer: bool
    image: Literal["tiff"] | None = None

    @property
    def kind(self) -> DocumentKind | ImageKind:
        """The contract's word for it."""
        if self.image is not None:
            return ImageKind(format=self.image)
        return DocumentKind(pages=self.pages, has_text_layer=self.has_text_layer)


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of a page. Empty for a page without text, which is not an error: `images` and `coverage` tell a scan from an
    empty page. They say how many images lie on the page and which part of its area they cover, from 0 to 1.
    """

    text: str
    images: int = 0
    coverage: float = 0.0


@dataclass(frozen=True, slots=True)
class PageImage:
    """A picture, of a page or made from another one. `format` is what it is encoded as. `frames`: how many the other one has, of
    which this is one; None where they were not counted.
    """

    data: bytes
    format: Literal["png", "jpeg"]
    width: int
    height: int
    frames: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """A picture that every model's reader understands: upright, 8 bits a sample, grey or RGB."""

    data: bytes
    media_type: Literal["image/png", "image/jpeg"]
    width: int
    height: int
