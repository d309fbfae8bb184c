"""What a handle names, as `opened` and `page_imaged` tell it to a block."""

from typing import Annotated, Literal

from pydantic import Field

from cuttlefish_abi.base import U32, Message

__all__ = ["BinaryKind", "DocumentKind", "ImageKind", "MediaKind", "TextKind"]


class TextKind(Message):
    """UTF-8 text: read it with `slice`."""

    kind: Literal["text"] = "text"


class ImageKind(Message):
    """A picture: show it to a model with `infer`."""

    kind: Literal["image"] = "image"
    format: str


class DocumentKind(Message):
    """A paged document: read it with `page_text`, or `page_image` where a page has no text."""

    kind: Literal["document"] = "document"
    pages: U32
    has_text_layer: bool


class BinaryKind(Message):
    """Anything else: `slice_bytes` reads it; `slice` as far as it is UTF-8."""

    kind: Literal["binary"] = "binary"


MediaKind = Annotated[TextKind | ImageKind | DocumentKind | BinaryKind, Field(discriminator="kind")]
