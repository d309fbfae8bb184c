"""What a host tells a block: the answer to its last command."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from cuttlefish_abi.base import U32, U64, Message, PositiveU32, absent_unless_known
from cuttlefish_abi.media import ImageKind, MediaKind, TextKind
from cuttlefish_abi.strict_json import read_message

__all__ = [
    "Embedded",
    "Emitted",
    "Event",
    "InferDone",
    "Opened",
    "PageImaged",
    "PageTextAttempted",
    "PageTexted",
    "Sliced",
    "SlicedBytes",
    "decode_event",
    "encode_event",
]


class InferDone(Message):
    """The model's whole reply, the same text that went to `cf_on_token` piece by piece."""

    event: Literal["infer_done"] = "infer_done"
    text: str
    tokens_out: U32
    finish_reason: Literal["stop", "length", "stopped_by_block"] | None = absent_unless_known()
    """Who ended it: the model, `max_tokens` (the reply is cut short), or `cf_on_token`."""


class Embedded(Message):
    """One vector for each text, in order, all of one length."""

    event: Literal["embedded"] = "embedded"
    vectors: list[list[float]]


class Opened(Message):
    """A file is open. `len` is in bytes of the file; `kind` says which commands read it."""

    event: Literal["opened"] = "opened"
    handle: U32
    len: U64
    kind: MediaKind = Field(default_factory=TextKind, json_schema_extra={"default": {"kind": "text"}})


class Sliced(Message):
    """Whole characters, and the byte offset to read on from."""

    event: Literal["sliced"] = "sliced"
    text: str
    next_offset: U64


class SlicedBytes(Message):
    """Raw bytes in base64 (standard alphabet, padded), and the byte offset to read on from."""

    event: Literal["sliced_bytes"] = "sliced_bytes"
    bytes_base64: str
    next_offset: U64


class PageTexted(Message):
    """A page's text; empty where the page has none. For a single page, `images` and `coverage` tell a scan from an empty page:
    how many images lie on it, and which part of its area they cover, from 0 to 1.
    """

    event: Literal["page_texted"] = "page_texted"
    text: str
    images: U32 | None = absent_unless_known()
    coverage: Annotated[float, Field(ge=0, le=1)] | None = absent_unless_known()


class PageTextAttempted(Message):
    """A page's text, or the reason why it cannot be read: one of the two is null."""

    event: Literal["page_text_attempted"] = "page_text_attempted"
    text: str | None
    error: str | None


class PageImaged(Message):
    """A picture as a new handle, of `len` bytes, and its kind, which names the format. `frames`: how many the image has of which
    `image_op` took one.
    """

    event: Literal["page_imaged"] = "page_imaged"
    handle: U32
    len: U64
    kind: ImageKind | None = absent_unless_known()
    frames: PositiveU32 | None = absent_unless_known()


class Emitted(Message):
    """The progress was passed on."""

    event: Literal["emitted"] = "emitted"


Event = Annotated[
    InferDone | Embedded | Opened | Sliced | SlicedBytes | PageTexted | PageTextAttempted | PageImaged | Emitted,
    Field(discriminator="event"),
]

_adapter: TypeAdapter[Event] = TypeAdapter(Event)


def encode_event(event: Event) -> bytes:
    """The event as a block gets it: UTF-8 JSON, the tag first, fields in the order of the contract, no ASCII escapes."""
    return event.__pydantic_serializer__.to_json(event)


def decode_event(data: bytes, *, max_depth: int = 128) -> Event:
    """Read an event, as test tools and recordings do.

    Raises:
        BadJson: naming the field, or the line and column.
    """
    return read_message(_adapter, data, "event", max_depth)
