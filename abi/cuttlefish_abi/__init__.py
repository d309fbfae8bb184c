"""The contract between a host and its blocks, as pydantic models. `abi/README.md` is its prose."""

from cuttlefish_abi.base import U32, U64, Message
from cuttlefish_abi.codes import ErrorCode
from cuttlefish_abi.commands import (
    Command,
    Done,
    Emit,
    Fail,
    Infer,
    Open,
    PageImage,
    PageText,
    Slice,
    SliceBytes,
    decode_command,
)
from cuttlefish_abi.envelope import FINAL_STATUSES, Envelope, JobError, JobStatus, Usage
from cuttlefish_abi.events import (
    Emitted,
    Event,
    InferDone,
    Opened,
    PageImaged,
    PageTexted,
    Sliced,
    SlicedBytes,
    decode_event,
    encode_event,
)
from cuttlefish_abi.media import BinaryKind, DocumentKind, ImageKind, MediaKind, TextKind
from cuttlefish_abi.strict_json import BadJson, parse_json
from cuttlefish_abi.tokens import TokenAction
from cuttlefish_abi.types import MAX_TYPE_CHARS, MAX_TYPE_DEPTH, Signature, Ty, TyError, decode_signature

__all__ = [
    "FINAL_STATUSES",
    "MAX_TYPE_CHARS",
    "MAX_TYPE_DEPTH",
    "U32",
    "U64",
    "BadJson",
    "BinaryKind",
    "Command",
    "DocumentKind",
    "Done",
    "Emit",
    "Emitted",
    "Envelope",
    "ErrorCode",
    "Event",
    "Fail",
    "ImageKind",
    "Infer",
    "InferDone",
    "JobError",
    "JobStatus",
    "MediaKind",
    "Message",
    "Open",
    "Opened",
    "PageImage",
    "PageImaged",
    "PageText",
    "PageTexted",
    "Signature",
    "Slice",
    "SliceBytes",
    "Sliced",
    "SlicedBytes",
    "TextKind",
    "TokenAction",
    "Ty",
    "TyError",
    "Usage",
    "decode_command",
    "decode_event",
    "decode_signature",
    "encode_event",
    "parse_json",
]
