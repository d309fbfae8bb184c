"""Whole numbers beyond 2^53, which JavaScript and others that read numbers as doubles confuse with their neighbours.

Answers have them as strings of digits, and arguments may: whoever cannot write the number hands on the string that it was given.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import JsonValue

__all__ = ["read_large_number", "with_large_numbers", "write_large_numbers"]

SAFE_INTEGER = 2**53
MOST_DIGITS = 4_300  # as in numbers: Python reads no more, because the time grows with the square
DIGITS = re.compile(r"-?[1-9][0-9]{15,}")
AS_DIGITS: Mapping[str, JsonValue] = {"type": "string", "pattern": "^-?[1-9][0-9]{15,}$"}
SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")
SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs")
NOT_ABOUT_THE_VALUE = ("description", "default", "examples", "title")


def write_large_numbers(value: object) -> object:
    """A JSON value with whole numbers beyond 2^53 as strings of digits."""
    if isinstance(value, dict):
        return {name: write_large_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [write_large_numbers(part) for part in value]
    if isinstance(value, int) and abs(value) > SAFE_INTEGER:
        return str(value)
    return value


def read_large_number(value: object) -> int | None:
    """The number that `write_large_numbers` writes as this string; None for any other value."""
    if not isinstance(value, str) or len(value) > MOST_DIGITS or not DIGITS.fullmatch(value):
        return None
    number = int(value)
    return number if abs(number) > SAFE_INTEGER else None


def with_large_numbers(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A JSON Schema in which a number that may be that large may also be a string of digits."""

    def walk(part: Any) -> Any:  # a JSON Schema, which may be true or false, or a list of them
        if isinstance(part, list):
            return [walk(one) for one in part]
        if not isinstance(part, dict):
            return part
        inner = {key: within(key, one) for key, one in part.items()}
        if part.get("type") not in ("integer", "number") or "enum" in part or _is_small(part):
            return inner
        said = {key: inner.pop(key) for key in NOT_ABOUT_THE_VALUE if key in inner}
        return {"anyOf": [inner, dict(AS_DIGITS)], **said}

    def within(key: str, value: Any) -> Any:
        if key in SCHEMAS_BY_NAME and isinstance(value, dict):
            return {name: walk(one) for name, one in value.items()}
        return walk(value) if key in SCHEMAS else value

    return cast("dict[str, JsonValue]", walk(dict(schema)))


def _is_small(schema: Mapping[str, Any]) -> bool:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    return least is not None and most is not None and -SAFE_INTEGER <= least <= most <= SAFE_INTEGER
