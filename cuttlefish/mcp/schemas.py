"""JSON Schemas (2020-12) of what a pipeline takes and gives."""

from collections.abc import Mapping

from pydantic import JsonValue

__all__ = ["LARGE_RESULT", "envelope_schema"]

LARGE_RESULT: dict[str, JsonValue] = {
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


def envelope_schema(result: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema of an Envelope whose result has the schema `result`.

    Whole numbers beyond 2^53 are strings of digits, because many JSON readers would round them; so a result's numbers may be
    strings. Instead of a result that is too large, there may be the reference to it (see `LARGE_RESULT`).
    """
    raise NotImplementedError
