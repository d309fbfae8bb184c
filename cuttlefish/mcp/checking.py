"""Whether a skill may be started with some arguments: their shape by its JSON Schema, then its rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from pydantic import JsonValue
from referencing import Registry

from cuttlefish.mcp.large_numbers import read_large_number
from cuttlefish.mcp.skill import Checked, Skill
from cuttlefish.pipeline.patterns import MOST_SUBJECT_CHARS, matches
from cuttlefish.pipeline.rules import evaluate
from cuttlefish.pipeline.violations import Violation, shorten
from cuttlefish_abi import MAX_JSON_DEPTH
from cuttlefish_abi.strict_json import clip, show, suggest

__all__ = ["MOST_VIOLATIONS", "Violation", "check_arguments", "check_shape", "place_of"]

MOST_VIOLATIONS = 20
MOST_VALUES = 200_000
"""Of all arguments together: checking one takes 20 µs, and cannot be interrupted."""

Found = Iterator[ValidationError]
Path = Sequence[str | int]


def check_arguments(skill: Skill, arguments: Mapping[str, JsonValue]) -> Checked:
    """Look at arguments by the skill's schema, then by what only the skill itself can say of them, then by its rules.

    What comes later is looked at when nothing was wrong before. Blocking, by the size of the arguments and where a rule blocks:
    call it in a thread. What an answer holds under `validation_failed` is `[violation.as_json() for violation in …]`; its `rule` is
    the word of a rule, or the keyword of JSON Schema, or `unknown` for an argument that the skill does not have, or `validator` for
    what the code of a Python skill says.

    Raises:
        CuttlefishError: a custom rule or a validator of the skill broke (code `internal`).
    """
    checked = check_shape(skill.input_schema, arguments)
    if checked.violations:
        return checked
    shaped = checked.values
    if skill.read is not None:
        checked = skill.read(shaped)
    return replace(checked, violations=checked.violations or evaluate(skill.rules, shaped)[:MOST_VIOLATIONS])


def check_shape(schema: Mapping[str, JsonValue], arguments: Mapping[str, JsonValue]) -> Checked:
    """Look at arguments by a schema. Where it wants a number, it is given one that came as a string because it is so large.

    Blocking, by the size of the arguments.
    """
    if (violation := _too_much(arguments)) is not None:
        return Checked(arguments, [violation])
    validator = _Validator(schema, registry=Registry())  # without a way to fetch what a $ref names
    values: Any = dict(arguments)
    errors, large = _errors(validator, values)
    if large:
        values = deepcopy(values)
        for path in large:
            *before, last = path
            place = reduce(getitem, before, values)
            place[last] = read_large_number(place[last])
        errors, _ = _errors(validator, values)
    return Checked(values, list(map(_told, errors)))


def _errors(validator: Any, values: Any) -> tuple[list[ValidationError], list[Path]]:
    """The first of what is wrong, and where numbers stand that came as strings. `Any`: the validator's own type, and JSON."""
    errors, large = list[ValidationError](), list[Path]()
    for error in validator.iter_errors(values):
        if numbers := list(_large_in(error)):
            large += numbers
        else:
            errors.append(error)
            if len(errors) == MOST_VIOLATIONS:
                break
    return errors, large


def _large_in(error: ValidationError) -> Iterator[Path]:
    if error.validator == "type" and {"integer", "number"} & set(_kinds(error)) and read_large_number(error.instance) is not None:
        yield list(error.absolute_path)
    for inner in error.context or ():
        yield from _large_in(inner)


def _kinds(error: ValidationError) -> list[str]:
    """The types that would have been right."""
    wanted: Any = error.validator_value
    return [wanted] if isinstance(wanted, str) else wanted


def _told(error: ValidationError) -> Violation:
    """An error of the validator in our words."""
    path, keyword = list(error.absolute_path), str(error.validator)
    schema: Any = error.schema  # these three are any JSON, and unset only in errors that have not been yielded yet
    value: Any = error.instance
    wanted: Any = error.validator_value
    if keyword == "required":  # the validator below says which field, and not a sentence
        field = place_of([*path, error.message])
        return Violation(field, keyword, f"{field} is missing", _wanted(schema.get("properties", {}).get(error.message, {})))
    if keyword == "additionalProperties":
        known = list(schema.get("properties", {}))
        hint = suggest(error.message, known) if known else "it takes none"
        name = place_of([*path, error.message])
        return Violation(name, "unknown", f"there is no argument {show(name)[1:-1]}; {hint}", {"one_of": list(known)})
    place = place_of(path) or "the arguments"
    sentence = _SENTENCES.get(keyword, "{place} does not keep to the schema ({keyword})")
    if keyword == "type":
        wanted = " or ".join(_TYPES.get(kind, kind) for kind in _kinds(error))
    elif keyword == "enum":
        near = suggest(value, [one for one in wanted if isinstance(one, str)]) if isinstance(value, str) else ""
        wanted = ", ".join(map(show, wanted)) + (f" ({near})" if near.startswith("did") else "")
    elif keyword == "pattern" and len(value) > MOST_SUBJECT_CHARS:
        sentence = f"{{place}} may have {MOST_SUBJECT_CHARS} characters, because a pattern is tried on it"
    elif keyword == "const":
        wanted = show(wanted)
    message = sentence.format(place=place, wanted=wanted, keyword=keyword) + f", found {show(value)}"
    return Violation(place_of(path), keyword, message, _wanted({keyword: error.validator_value}), shorten(value), has_got=True)


_TYPES = {
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_SENTENCES = {
    "type": "{place} must be {wanted}",
    "enum": "{place} must be one of {wanted}",
    "const": "{place} must be {wanted}",
    "minimum": "{place} must be at least {wanted}",
    "maximum": "{place} must be at most {wanted}",
    "exclusiveMinimum": "{place} must be more than {wanted}",
    "exclusiveMaximum": "{place} must be less than {wanted}",
    "multipleOf": "{place} must be a multiple of {wanted}",
    "minLength": "{place} must have {wanted} characters at least",
    "maxLength": "{place} may have {wanted} characters at most",
    "minItems": "{place} must have {wanted} items at least",
    "maxItems": "{place} may have {wanted} items at most",
    "uniqueItems": "{place} may have each item only once",
    "pattern": "{place} must match {wanted}",
    "anyOf": "{place} has none of the forms that it may have",
    "oneOf": "{place} must have one of the forms that it may have, and only one",
}


def _wanted(schema: Mapping[str, Any]) -> JsonValue:
    """What would be accepted, without what only people read; `Any`: any JSON Schema."""
    return {key: value for key, value in schema.items() if key not in ("description", "title", "examples")}


def place_of(path: Path) -> str:
    """`config.timeout`, `items[2]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{clip(part, 100)}" for part in path).removeprefix(".")


def _too_much(arguments: Mapping[str, JsonValue]) -> Violation | None:
    """What is wrong with the depth and number of all values together."""
    level: list[Any] = [arguments]
    count = 0
    for _ in range(MAX_JSON_DEPTH + 1):
        count += sum(map(len, level))
        if count > MOST_VALUES:
            return Violation(
                "", "size", f"the arguments hold more than {MOST_VALUES} values; give a file's path", {"max": MOST_VALUES}
            )
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, dict | list)]
        if not level:
            return None
    message = f"the arguments are nested deeper than {MAX_JSON_DEPTH} levels"
    return Violation("", "depth", message, {"max": MAX_JSON_DEPTH})


def _inside(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()


# The validator's own keywords come first with their schema's value, then the instance; `Any` is what jsonschema calls both.


def _required(validator: Any, names: list[str], value: Any, schema: Any) -> Found:
    yield from (ValidationError(name) for name in names if validator.is_type(value, "object") and name not in value)


def _additional(validator: Any, allowed: Any, value: Any, schema: Any) -> Found:
    if not validator.is_type(value, "object"):
        return
    patterns = schema.get("patternProperties", {})
    for name in value:
        if name not in schema.get("properties", {}) and not any(matches(pattern, name) for pattern in patterns):
            if allowed is False:
                yield ValidationError(name)
            elif allowed is not True:
                yield from validator.descend(value[name], allowed, path=name)


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Found:
    """With an engine that no text makes hang; jsonschema's own is Python's."""
    if validator.is_type(value, "string") and not matches(pattern, value):
        yield ValidationError(pattern)


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Found:
    if validator.is_type(value, "object"):
        for pattern, inner in patterns.items():
            for name in value:
                if matches(pattern, name):
                    yield from validator.descend(value[name], inner, path=name, schema_path=pattern)


_Validator: Any = extend(  # type: ignore[no-untyped-call]  # jsonschema's, which gives this function no types
    Draft202012Validator,
    {
        "required": _required,
        "additionalProperties": _additional,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
    },
)
