"""JSON at the border, read more strictly than parsers do by themselves.

pydantic's parser lets duplicate keys, NaN inside `Any` and nesting up to 200 levels through. What it lets through is looked
for here. The usual small command is cleared by counting colons; only the rest is read a second time.
"""

import difflib
import json
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from cuttlefish_abi.base import Message

__all__ = ["MAX_JSON_DEPTH", "BadJson", "TooDeep", "has_more_values", "parse_json", "read_message"]

T = TypeVar("T")

MAX_JSON_DEPTH = 200
"""Levels at which pydantic's parser gives up; a larger `max_depth` counts as this."""
_MOST_DIGITS = 4300  # what Python and pydantic's parser read at most: the time to convert them grows with the square

# Possessive, and a string may lack its end: otherwise a long broken string is scanned again from each of its quotes.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SLICE_BYTES = 1 << 20
_BRACKET = 4

_SYNTAX = {
    "Expecting value": "a value belongs here",
    "Expecting property name enclosed in double quotes": "a key in double quotes belongs here",
    "Expecting ':' delimiter": 'a ":" belongs here',
    "Expecting ',' delimiter": 'a "," or the closing bracket belongs here',
    "Extra data": "the value has ended, and something follows",
    "Illegal trailing comma before end of array": "a value belongs behind the comma",
    "Illegal trailing comma before end of object": "a key belongs behind the comma",
    "Invalid control character at": "a control character in a string must be escaped",
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": "a byte order mark stands before the value",
    "Unterminated string starting at": "a string starts here and never ends",
}


class BadJson(ValueError):
    """The bytes do not say what they should. The text names the place and what belongs there."""


class TooDeep(BadJson):
    """More levels of lists and objects than the reader was told to allow."""


def read_message(adapter: TypeAdapter[T], data: bytes, tag: str, max_depth: int) -> T:
    """Validate `data` against a union discriminated by the field `tag`, and refuse what pydantic lets through.

    Raises:
        BadJson: naming the field, or the line and column.
    """
    try:
        message: T = adapter.validator.validate_json(data)  # a third of a microsecond less than through the adapter
    except ValidationError as error:
        check_structure(data, max_depth)
        raise BadJson(_describe(error)) from None
    # Each key has a colon. As many colons as fields that were set leaves none for a duplicate, an extra or a nested object.
    assert isinstance(message, Message)
    if message.holds_any_json or _has_more_colons(data, len(message.model_fields_set)):
        check_structure(data, max_depth)
    return message


def _has_more_colons(data: bytes, most: int) -> bool:
    """Whether there are more than `most` colons. In long data `find` is ten times as quick as `count`, and stops early."""
    if len(data) < 1024:
        return data.count(b":") > most
    at = -1
    for _ in range(most + 1):
        at = data.find(b":", at + 1)
        if at < 0:
            return False
    return True


def parse_json(data: bytes, *, max_depth: int = 128) -> Any:
    """Read one JSON value of any form, with the same strictness as messages.

    Raises:
        BadJson: naming what is wrong and, where known, the line and column.
    """
    check_structure(data, max_depth)
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise BadJson(_what_only_pydantic_refuses(str(error))) from None


def check_structure(data: bytes, max_depth: int) -> None:
    """Refuse duplicate keys, NaN and infinities, and nesting deeper than `max_depth` (at most 200 levels). Time and memory grow
    with the size only.

    Raises:
        BadJson: the first of these that is found, or JSON that cannot be read at all.
    """
    max_depth = min(max_depth, MAX_JSON_DEPTH)
    if data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(data, max_depth)
    try:
        json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_short,
        )
    except json.JSONDecodeError as error:
        what = _SYNTAX.get(error.msg) or error.msg[0].lower() + error.msg[1:]
        raise BadJson(f"not valid JSON at line {error.lineno} column {error.colno}: {what}") from None
    except UnicodeDecodeError as error:
        raise BadJson(f"not valid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise TooDeep(f"nested deeper than {max_depth} levels") from None


def has_more_values(data: bytes, most: int) -> bool:
    """Whether JSON text holds more than `most` values, told before it is read.

    What is counted are commas outside texts, as one, and opening brackets, as four, for so much longer take a list or an object
    to read. Texts are told apart only where there are that many of these bytes. What is no JSON may be said to hold more.
    """
    if len(data) * _BRACKET <= most or not _counts_more(data, 0, len(data), most)[0]:
        return False
    left, at, texts = most, 0, 0
    for text in _STRING.finditer(data):
        more, left = _counts_more(data, at, text.start(), left)
        at, texts = text.end(), texts + 1
        if more or texts > 2 * most + 2:  # a key and a value for each comma
            return True
    return _counts_more(data, at, len(data), left)[0]


def _counts_more(data: bytes, start: int, end: int, most: int) -> tuple[bool, int]:
    """Whether commas and opening brackets between two places come to more than `most`, and how much is left of it.

    Slice by slice: counting keeps every other thread waiting.
    """
    for at in range(start, end, _SLICE_BYTES):
        upto = min(end, at + _SLICE_BYTES)
        most -= data.count(b",", at, upto) + _BRACKET * (data.count(b"[", at, upto) + data.count(b"{", at, upto))
        if most < 0:
            return True, 0
    return False, most


def _check_depth(data: bytes, max_depth: int) -> None:
    depth = 0
    for token in _STRUCTURE.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth > max_depth:
                raise TooDeep(f"nested deeper than {max_depth} levels")
        elif first in b"]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # `add` gives None: false
        raise BadJson(f"the key {show(twice)} stands twice in one object")
    return found


def _refuse_constant(name: str) -> None:
    raise BadJson(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise BadJson(f"the number {clip(digits, 40)} is too large")
    return number


def _short(digits: str) -> int:
    """Stands in for the number: nobody reads what `check_structure` builds."""
    if len(digits) - digits.startswith("-") > _MOST_DIGITS:
        raise BadJson(f"the number {clip(digits, 40)} has more than {_MOST_DIGITS} digits")
    return 0


def show(value: object, most: int = 60) -> str:
    """A value as JSON for an error message, cut short. No more of it is written than is shown, apart from a single text."""
    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value[:most] if isinstance(value, str) else value):
            text += piece
            if len(text) > most:
                break
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return clip(text.encode("utf-8", "backslashreplace").decode(), most)


def clip(text: str, most: int) -> str:
    """The text, cut to `most` characters with a "…" where something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint that ends an error about an unknown name. Both may come from a block: long ones and many are not compared."""
    names = list(islice(known, 100))
    near: list[str] = []
    if len(name) <= 60:  # difflib takes forty times a name's length in memory
        short = [n for n in names if len(n) <= 60]
        near = difflib.get_close_matches(name, short, 1, 0.6) or difflib.get_close_matches(name.lower(), short, 1, 0.6)
    return f"did you mean {show(near[0])}?" if near else f"known: {clip(', '.join(clip(show(n)[1:-1], 60) for n in names), 200)}"


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    kind, found, context = first["type"], first["input"], first.get("ctx", {})
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    match kind:
        case "missing":
            return f"{place} is missing"
        case "union_tag_invalid":
            tag = context["discriminator"].strip("'")
            where = f"{place}.{tag}".lstrip(".")
            value = found.get(tag)  # as it was sent; the context has it as text
            if not isinstance(value, str):
                return f"{where} must be text, found {show(value)}"
            known = re.findall(r"'([^']*)'", context["expected_tags"])
            return f"{where} {show(value)} is unknown; {suggest(value, known)}"
        case "union_tag_not_found":
            return f"{place or 'the object'} has no {show(context['discriminator'].strip(chr(39)))}"
        case "json_invalid":
            return _what_only_pydantic_refuses(context["error"])
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"{place or 'the message'} must be a JSON object, found {show(found)}"
        case "string_type":
            return f"{place} must be text, found {show(found)}"
        case "bool_type":
            return f"{place} must be true or false, found {show(found)}"
        case "list_type":
            return f"{place} must be a list, found {show(found)}"
        case "null":
            return f"{place} is null; leave it out instead"
        case "string_too_short":
            return f"{place} must not be empty"
        case "too_long":
            return f"{place} may have {context['max_length']} items at most, found {context['actual_length']}"
        case "float_type":
            return f"{place} must be a number, found {show(found)}"
        case "greater_than_equal" if isinstance(context["ge"], float):
            return f"{place} must be a number from {context['ge']:g}, found {show(found)}"
        case "less_than_equal":
            return f"{place} must be a number up to {context['le']:g}, found {show(found)}"
        case "int_type" | "int_from_float" | "greater_than_equal":
            return f"{place} must be a whole number from {context.get('ge', 0)}, found {show(found)}"
        case "less_than":
            return f"{place} must be less than {context['lt']}, found {show(found)}"
    return f"{place} is not what belongs there: {show(found)}"


def _what_only_pydantic_refuses(reason: str) -> str:
    """Say in our words why pydantic's parser refuses what `check_structure` has let through."""
    if reason.startswith("number out of range"):
        return f"a number has more than {_MOST_DIGITS} digits before its point"
    return "not valid JSON: an escaped half of a surrogate pair stands alone"
