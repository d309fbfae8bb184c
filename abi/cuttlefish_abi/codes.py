"""The codes that an Envelope's error may carry.

Agents branch on these strings, so a code is never renamed. A block's own `fail` may bring any other code.
"""

from enum import StrEnum
from typing import Self

__all__ = ["ErrorCode"]


class ErrorCode(StrEnum):
    """Every code that the host itself gives, in one place, each with its `meaning` for people."""

    meaning: str

    def __new__(cls, code: str, meaning: str = "") -> Self:
        """Make a member from its code and meaning. A code alone looks a member up, and needs no meaning."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    MODEL_LOAD_FAILED = "model_load_failed", "The model or its engine could not be made ready."
    CAPABILITY_DENIED = "capability_denied", "A path outside every granted folder, or one that may not be read."
    SCHEMA_VALIDATION_FAILED = (
        "schema_validation_failed",
        "A value does not have the type that a signature promises, or a pipeline is not well (`cuttlefish check` says why).",
    )
    WASM_TRAP = "wasm_trap", "The block's code broke down: unreachable code, a bad access, a stack overflow."
    TIMEOUT = "timeout", "A time limit was reached; the message names it."
    CANCELLED = "cancelled", "The caller ended the job."
    UNSUPPORTED = "unsupported", "This host, model or file format cannot do what was asked."
    NOT_FOUND = "not_found", "A path inside a granted folder that does not exist."
    BAD_COMMAND = "bad_command", "The block asked for something that cannot be meant, or answered with no command at all."
    LIMIT_EXCEEDED = "limit_exceeded", "A limit was reached; the message names it, its value and what was needed."
    INFERENCE_FAILED = "inference_failed", "The model started to answer and could not finish."
    DOCUMENT_INVALID = "document_invalid", "A file that says it is a document or an image, and cannot be read as one."
    DOCUMENT_PASSWORD = "document_password", "A document that is locked with a password."
    DOCUMENT_CRASHED = "document_crashed", "The process that read a document died. Only this job is affected."
    REPLAY_DIVERGED = "replay_diverged", "A block answered recorded events with other commands than were recorded."
    BUILD_FAILED = "build_failed", "A block's source does not compile."
    INTERNAL = "internal", "A bug of the host. The message has a reference to the log."
