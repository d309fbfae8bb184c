"""What pydantic finds wrong with arguments, as violations: in our words, with their places as an agent knows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue, ValidationError
from pydantic_core import ErrorDetails

from cuttlefish.mcp.checking import MOST_VIOLATIONS, place_of
from cuttlefish.pipeline.violations import Violation, shorten
from cuttlefish_abi.strict_json import show

__all__ = ["violations_of"]


def violations_of(error: ValidationError, arguments: Mapping[str, JsonValue]) -> list[Violation]:
    """Each thing that is wrong with the arguments, the first 20 of them. What a validator says is repeated as it is."""
    found = [_violation(one, arguments) for one in error.errors(include_url=False)[:MOST_VIOLATIONS]]
    return list({(one.field, one.message): one for one in found}.values())


def _violation(error: ErrorDetails, arguments: Mapping[str, JsonValue]) -> Violation:
    path, value = _follow(error["loc"], arguments)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
        return Violation(place_of(path), "required", f"{place_of(path)} is missing", None)
    field, place = place_of(path), place_of(path) or "the arguments"
    if error["type"] in ("value_error", "assertion_error"):
        reason = str(error["ctx"]["error"]) or "a validator does not accept this"
        return Violation(field, "validator", f"{place}: {reason}", None, shorten(value), has_got=True)
    told = error["msg"]
    told = f"{place} must {told.removeprefix('Input should ')}" if told.startswith("Input should ") else f"{place}: {told}"
    return Violation(field, "type", f"{told}, found {show(value)}", None, shorten(value), has_got=True)


def _follow(location: Sequence[str | int], arguments: Mapping[str, JsonValue]) -> tuple[list[str | int], JsonValue]:
    """The path within the arguments, without what pydantic calls its branches, and what stands there."""
    path: list[str | int] = []
    value: Any = dict(arguments)  # JSON, of whatever form
    for part in location:
        is_item = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if is_item or (isinstance(value, dict) and part in value):
            path.append(part)
            value = value[part]
    return path, value
