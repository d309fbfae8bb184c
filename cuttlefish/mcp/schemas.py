"""JSON Schemas (2020-12) of what a skill takes and gives."""

from collections.abc import Mapping

from pydantic import JsonValue

from cuttlefish.mcp.large_numbers import with_large_numbers
from cuttlefish.pipeline.forms import InputField, Pipeline
from cuttlefish.pipeline.inputs import WHOLE, InputForm
from cuttlefish_abi import Ty

__all__ = ["LARGE_RESULT", "envelope_schema", "input_schema", "result_schema"]

Schema = dict[str, JsonValue]

LARGE_RESULT: Schema = {
    "type": "object",
    "description": "In place of a result that is too large to be answered: where all of it can be read, and how it begins.",
    "properties": {
        "resource": {"type": "string", "description": "A URI for resources/read."},
        "size_bytes": {"type": "integer"},
        "preview": {"type": "string"},
    },
    "required": ["resource", "size_bytes", "preview"],
    "additionalProperties": False,
}

_TAKEN: Mapping[str, Schema] = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "json": {},
}

_GIVEN: Mapping[str, Schema] = {
    **_TAKEN,
    "image": {
        "type": "integer",
        "minimum": 0,
        "maximum": 2**53,
        "description": "The number of an image within the job; the answer shows the image itself.",
    },
    "document": {"type": "integer", "minimum": 0, "maximum": 2**53, "description": "The number of a document within the job."},
}


def input_schema(form: InputForm, pipeline: Pipeline) -> Schema:
    """The schema of the arguments of a pipeline's skill: always an object, closed where its fields are known.

    An input that is no record is the argument `input`. Fields stand in the order of the file's `[input]`, others by name.
    A pipeline that takes images or documents has no such schema, because those are handles, which nobody outside a job has.
    """
    types = {**dict(form.type.fields), **form.optional}
    if form.type.kind not in ("record", "json"):
        types = {WHOLE: form.type}
    elif form.is_used and not types:
        return {"type": "object"}
    order = [*(name for name in pipeline.input if name in types), *(name for name in sorted(types) if name not in pipeline.input)]
    said = {name: pipeline.input.get(name, InputField()) for name in order}
    properties: Schema = {name: _property(types[name], said[name]) for name in order}
    required: list[JsonValue] = [name for name in order if name not in form.optional and not said[name].has_default]
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | {"required": required} if required else schema


def result_schema(result: Ty) -> Schema:
    """The schema of what a pipeline gives."""
    return with_large_numbers(_of_type(result, _GIVEN))


def envelope_schema(result: Mapping[str, JsonValue]) -> Schema:
    """The schema of an Envelope whose result has the schema `result`.

    Instead of a result that is too large there may be the reference to it, `LARGE_RESULT`.
    """
    whole: Schema = {"anyOf": [dict(result), LARGE_RESULT]} if result else {}
    about = "There when status is completed. Whole numbers beyond 2^53 are strings of digits."
    count: Schema = {"type": "integer", "minimum": 0}
    return {
        "type": "object",
        "properties": {
            "status": {"enum": ["completed", "failed", "cancelled"]},
            "result": {"description": about, **whole},
            "error": {
                "type": "object",
                "description": "There unless status is completed.",
                "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
                "required": ["code", "message"],
            },
            "usage": {
                "type": "object",
                "properties": {
                    "tokens_in": count,
                    "tokens_out": count,
                    "duration_ms": count,
                    "model": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["tokens_in", "tokens_out", "duration_ms", "model"],
            },
        },
        "required": ["status", "usage"],
    }


def _property(ty: Ty, said: InputField) -> Schema:
    schema = _of_type(ty, _TAKEN)
    if said.description:
        schema["description"] = said.description
    if said.has_default:
        schema["default"] = said.default
    if "example" in said.model_fields_set:
        schema["examples"] = [said.example]
    return schema


def _of_type(ty: Ty, scalars: Mapping[str, Schema]) -> Schema:
    if ty.item is not None:
        return {"type": "array", "items": _of_type(ty.item, scalars)}
    if ty.kind == "record":
        fields: Schema = {name: _of_type(inner, scalars) for name, inner in ty.fields}
        names: list[JsonValue] = list(fields)
        return {"type": "object", "properties": fields, "required": names} if names else {"type": "object"}
    return dict(scalars[ty.kind])
