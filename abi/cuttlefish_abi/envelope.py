"""What every job ends in, whatever happened."""

from enum import StrEnum
from typing import Any, Self

from pydantic import (
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cuttlefish_abi.base import CONTRACT

__all__ = ["FINAL_STATUSES", "Envelope", "JobError", "JobStatus", "Usage"]


class JobStatus(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


FINAL_STATUSES = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})

_WITH_ERROR = (JobStatus.FAILED, JobStatus.CANCELLED)
_OPEN = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.INTERRUPTED)


class JobError(BaseModel):
    """Why a job has no result. Branch on `code`; show `message`."""

    model_config = CONTRACT

    code: str
    message: str


class Usage(BaseModel):
    """What a job cost, with the work that failed or was cancelled. `model` is null where no model was asked."""

    model_config = {**CONTRACT, "json_schema_serialization_defaults_required": True}

    tokens_in: int = Field(default=0, ge=0)
    tokens_out: int = Field(default=0, ge=0)
    duration_ms: int = Field(default=0, ge=0)
    model: str | None = None


class Envelope(BaseModel):
    """The one form in which a job ends.

    `result` is there when the status is completed (it may be null), `error` when it is failed or cancelled; otherwise they are
    absent, not null. `usage` is always there.
    """

    model_config = CONTRACT

    status: JobStatus
    result: JsonValue = None
    error: JobError | None = None
    usage: Usage

    @model_validator(mode="after")
    def _parts_fit_the_status(self) -> Self:
        failed = self.status in _WITH_ERROR
        if failed != (self.error is not None):
            raise ValueError(f"a {self.status} job {'has' if failed else 'has no'} error")
        if self.status is not JobStatus.COMPLETED and self.result is not None:
            raise ValueError(f"a {self.status} job has no result")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        parts: dict[str, Any] = handler(self)
        if self.status is not JobStatus.COMPLETED:
            parts.pop("result", None)  # already gone when the caller excludes defaults
        if self.error is None:
            parts.pop("error", None)
        return parts

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Say what is written: pydantic alone would only say "an object", because a function writes it."""
        form = handler.resolve_ref_schema(handler(_without_serializer(schema)))
        error = next(part for part in form["properties"]["error"]["anyOf"] if part != {"type": "null"})
        form["properties"] |= {"result": {}, "error": error}
        form["required"] = ["status", "usage"]
        form["oneOf"] = [
            {"properties": {"status": {"const": "completed"}, "error": False}, "required": ["result"]},
            {"properties": {"status": {"enum": [str(s) for s in _WITH_ERROR]}, "result": False}, "required": ["error"]},
            {"properties": {"status": {"enum": [str(s) for s in _OPEN]}, "result": False, "error": False}},
        ]
        return form


def _without_serializer(schema: Any) -> Any:
    """The core schema of a model, without the function that writes it. `Any`: core schemas are nested typed dicts of many forms."""
    if not isinstance(schema, dict):
        return schema
    return {key: _without_serializer(part) if key == "schema" else part for key, part in schema.items() if key != "serialization"}
