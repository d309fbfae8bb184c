"""Every error that a caller may meet.

    CuttlefishError              code
    ├── CapabilityDenied         capability_denied          the path is outside every grant
    ├── NotFound                 not_found                  the path is granted and absent
    ├── BadCommand               bad_command                the block's mistake
    ├── LimitExceeded            limit_exceeded             a limit of `limits.py` was reached
    ├── TimedOut                 timeout                    a time limit was reached
    ├── WasmTrap                 wasm_trap                  the block's code broke down
    ├── Unsupported              unsupported                this host, model or format cannot do it
    ├── SchemaMismatch           schema_validation_failed   a value has the wrong type
    ├── ModelLoadFailed          model_load_failed          the model could not be made ready
    ├── InferenceFailed          inference_failed           the model could not finish its answer
    ├── DocumentInvalid          document_invalid           the file cannot be read as what it says it is
    ├── DocumentPassword         document_password          the document is locked
    ├── DocumentCrashed          document_crashed           the process that read the document died
    ├── BuildFailed              build_failed               a block's source does not compile
    ├── JobCancelled             cancelled                  the caller ended the job
    └── BlockFailed              (the block's own)          the block gave up, in its own words

A message is one line for the person who reads it: what happened, to which thing, and what to do. It never holds a
library's text (but for a compiler's reason why a module or source is not valid, which its author can act on), nor anything about a
file that may not be seen.
"""

from typing import ClassVar

from cuttlefish_abi import ErrorCode

__all__ = [
    "BadCommand",
    "BlockFailed",
    "BuildFailed",
    "CapabilityDenied",
    "CuttlefishError",
    "DocumentCrashed",
    "DocumentInvalid",
    "DocumentPassword",
    "InferenceFailed",
    "JobCancelled",
    "LimitExceeded",
    "ModelLoadFailed",
    "NotFound",
    "SchemaMismatch",
    "TimedOut",
    "Unsupported",
    "WasmTrap",
]


class CuttlefishError(Exception):
    """The base of the tree: a stable `code` and a one-line `message`."""

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code: str = str(self.default_code) if code is None else code

    def add_context(self, before: str) -> None:
        """Put words before the message that say where it happened, such as the node of a pipeline."""
        self.message = f"{before}{self.message}"
        self.args = (self.message,)


class CapabilityDenied(CuttlefishError):
    """The caller's grant: add the folder with `read=[…]` or `--read`, if the block should see it."""

    default_code = ErrorCode.CAPABILITY_DENIED


class NotFound(CuttlefishError):
    """The caller's path: it lies inside a granted folder, and there is no such file."""

    default_code = ErrorCode.NOT_FOUND


class BadCommand(CuttlefishError):
    """The block's fault: it asked for something that cannot be meant, or did not answer with a command."""

    default_code = ErrorCode.BAD_COMMAND


class LimitExceeded(CuttlefishError):
    """A limit was reached. The message names it, its value and what was needed; raise it if the need is real."""

    default_code = ErrorCode.LIMIT_EXCEEDED


class TimedOut(CuttlefishError):
    """A time limit was reached. The message names it."""

    default_code = ErrorCode.TIMEOUT


class WasmTrap(CuttlefishError):
    """The block's fault: its code stopped in a way that has no answer. The instance is gone."""

    default_code = ErrorCode.WASM_TRAP


class Unsupported(CuttlefishError):
    """Nobody's fault: this host, model or file format cannot do what was asked. The message says what can."""

    default_code = ErrorCode.UNSUPPORTED


class SchemaMismatch(CuttlefishError):
    """A value does not fit the type that a signature gives for it."""

    default_code = ErrorCode.SCHEMA_VALIDATION_FAILED


class ModelLoadFailed(CuttlefishError):
    """The model is missing, damaged, or its engine is not installed. The message says how to get it."""

    default_code = ErrorCode.MODEL_LOAD_FAILED


class InferenceFailed(CuttlefishError):
    """The model was ready, and could not finish this prompt."""

    default_code = ErrorCode.INFERENCE_FAILED


class DocumentInvalid(CuttlefishError):
    """The document's fault: its content cannot be read as what it says it is."""

    default_code = ErrorCode.DOCUMENT_INVALID


class DocumentPassword(CuttlefishError):
    """The document is locked with a password."""

    default_code = ErrorCode.DOCUMENT_PASSWORD


class DocumentCrashed(CuttlefishError):
    """The document ended the process that read it. Other jobs are not affected."""

    default_code = ErrorCode.DOCUMENT_CRASHED


class BuildFailed(CuttlefishError):
    """The block's source: its compiler refused it. The message has the first problem, `output` all that the compiler said."""

    default_code = ErrorCode.BUILD_FAILED

    def __init__(self, message: str, *, output: str) -> None:
        super().__init__(message)
        self.output = output


class JobCancelled(CuttlefishError):
    """The caller ended the job."""

    default_code = ErrorCode.CANCELLED


class BlockFailed(CuttlefishError):
    """The block gave up by its own `fail` command; its code and message pass through unchanged."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
