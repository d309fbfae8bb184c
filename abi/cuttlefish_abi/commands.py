"""What a block may ask of its host. Nothing else can come out of a block."""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from cuttlefish_abi.base import U32, U64, Message
from cuttlefish_abi.strict_json import read_message

__all__ = [
    "Command",
    "Done",
    "Emit",
    "Fail",
    "Infer",
    "Open",
    "PageImage",
    "PageText",
    "Slice",
    "SliceBytes",
    "decode_command",
]


class Infer(Message):
    """Ask the model. Answered by `infer_done`; meanwhile each piece of the reply goes to `cf_on_token`."""

    cmd: Literal["infer"] = "infer"
    prompt: str
    max_tokens: U32
    images: list[U32] = Field(default=[])


class Open(Message):
    """Open a granted file. Answered by `opened`."""

    cmd: Literal["open"] = "open"
    path: str


class Slice(Message):
    """Read whole characters of a text: at most `len` bytes from byte `offset`. Answered by `sliced`."""

    cmd: Literal["slice"] = "slice"
    handle: U32
    offset: U64
    len: U64


class SliceBytes(Message):
    """Read raw bytes of anything. Answered by `sliced_bytes`."""

    cmd: Literal["slice_bytes"] = "slice_bytes"
    handle: U32
    offset: U64
    len: U64


class PageText(Message):
    """The text of a document's page, counted from zero. Answered by `page_texted`."""

    cmd: Literal["page_text"] = "page_text"
    handle: U32
    page: U32


class PageImage(Message):
    """A picture of a document's page, counted from zero, as a new handle. Answered by `page_imaged`."""

    cmd: Literal["page_image"] = "page_image"
    handle: U32
    page: U32


class Emit(Message):
    """Tell whoever watches how far the block is. Answered by `emitted`."""

    holds_any_json = True

    cmd: Literal["emit"] = "emit"
    progress: Any


class Done(Message):
    """The block's result. The last command."""

    holds_any_json = True

    cmd: Literal["done"] = "done"
    result: Any


class Fail(Message):
    """The block gives up; code and message reach the caller unchanged. The last command."""

    cmd: Literal["fail"] = "fail"
    code: str
    message: str


Command = Annotated[
    Infer | Open | Slice | SliceBytes | PageText | PageImage | Emit | Done | Fail,
    Field(discriminator="cmd"),
]

_adapter: TypeAdapter[Command] = TypeAdapter(Command)


def decode_command(data: bytes, *, max_depth: int = 128) -> Command:
    """Read a command exactly as the contract writes it.

    `data` is UTF-8 JSON. Cap its size before: memory is taken in proportion to it.

    Raises:
        BadJson: not JSON (a BOM, trailing text, NaN, a duplicate key, a lone surrogate, nesting beyond `max_depth`), an
            unknown command, or a field that is missing or has another type. The text names the place.
    """
    return read_message(_adapter, data, "cmd", max_depth)
