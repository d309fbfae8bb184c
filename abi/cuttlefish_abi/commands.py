"""What a block may ask of its host. Nothing else can come out of a block."""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from cuttlefish_abi.base import U32, U64, Message, OptionalObject, OptionalU32, PositiveU32, absent_unless_known
from cuttlefish_abi.strict_json import read_message

__all__ = [
    "Command",
    "Crop",
    "DocumentText",
    "Done",
    "Embed",
    "Emit",
    "Fail",
    "Frame",
    "ImageOp",
    "Infer",
    "InferOptions",
    "Open",
    "PageImage",
    "PageText",
    "PageTextOpt",
    "Resize",
    "Slice",
    "SliceBytes",
    "decode_command",
]


class InferOptions(Message):
    """How the model chooses its words. What is left out is as the model has it, and `temperature` is 0."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """0 takes the likeliest token each time."""
    seed: OptionalU32 = absent_unless_known()
    """Makes a choice above temperature 0 repeatable."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default=[], max_length=16)
    """The reply ends before the first of these texts."""
    json_schema: OptionalObject = Field(default=None, alias="schema", exclude_if=lambda value: value is None)
    """The reply is JSON that fits this schema, or the command fails."""


class Infer(Message):
    """Ask the model. Answered by `infer_done`; meanwhile each piece of the reply goes to `cf_on_token`."""

    cmd: Literal["infer"] = "infer"
    prompt: str
    max_tokens: U32
    images: list[U32] = Field(default=[])
    options: InferOptions = InferOptions()


class Embed(Message):
    """Turn texts into vectors, by the job's embedding model. Answered by `embedded`."""

    cmd: Literal["embed"] = "embed"
    texts: list[str]


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


class DocumentText(Message):
    """The text of all pages of a document in one. Answered by `page_texted`."""

    cmd: Literal["document_text"] = "document_text"
    handle: U32


class PageTextOpt(Message):
    """The text of a page, or the reason why there is none: one bad page need not end the job. Answered by
    `page_text_attempted`. A handle that is no document's still ends the job.
    """

    cmd: Literal["page_text_opt"] = "page_text_opt"
    handle: U32
    page: U32


class Resize(Message):
    """Make an image fit into a box. Keeps its proportions, and never enlarges."""

    op: Literal["resize"] = "resize"
    max_width: PositiveU32
    max_height: PositiveU32


class Crop(Message):
    """Cut a rectangle out of an image. It must lie wholly inside."""

    op: Literal["crop"] = "crop"
    x: U32
    y: U32
    width: PositiveU32
    height: PositiveU32


class Frame(Message):
    """Take one frame of an animation, counted from zero. Every other command sees the first one."""

    op: Literal["frame"] = "frame"
    index: U32


class ImageOp(Message):
    """Make a changed copy of an image, as a new handle. Answered by `page_imaged`."""

    cmd: Literal["image_op"] = "image_op"
    handle: U32
    op: Annotated[Resize | Crop | Frame, Field(discriminator="op")]


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
    Infer | Embed | Open | Slice | SliceBytes | PageText | PageTextOpt | DocumentText | PageImage | ImageOp | Emit | Done | Fail,
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
