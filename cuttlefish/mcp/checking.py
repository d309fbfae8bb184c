"""Whether a skill may be started with some arguments: their shape by its JSON Schema, then its rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from pydantic import JsonValue
from referencing import Registry

from cuttlefish.mcp.skill import Skill
from cuttlefish.pipeline.patterns import MOST_SUBJECT_CHARS, matches
from cuttlefish.pipeline.rules import evaluate
from cuttlefish.pipeline.violations import Violation, shorten
from cuttlefish_abi import MAX_JSON_DEPTH
from cuttlefish_abi.strict_json import clip, show, suggest

__all__ = ["Violation", "check_arguments"]

MOST_VIOLATIONS = 20

Found = Iterator[ValidationError]


def check_arguments(skill: Skill, arguments: Mapping[str, JsonValue]) -> list[Violation]:
    """Everything that is wrong with the arguments, as far as the first 20 things; nothing if the skill may be started with them.

    Rules are looked at when the shape is right. Blocking, by the size of the arguments: call it in a thread. What an answer holds
    under `validation_failed` is `[violation.as_json() for violation in …]`; its `rule` is the word of a rule, or the keyword of
    JSON Schema, or `unknown` for an argument that the skill does not have.

    Raises:
        CuttlefishError: a custom rule broke (code `internal`).
    """
    if _is_too_deep(arguments):
        return [Violation("", "depth", f"the arguments are nested deeper than {MAX_JSON_DEPTH} levels", {"max": MAX_JSON_DEPTH})]
    validator = _Validator(skill.input_schema, registry=Registry())  # without a way to fetch what a $ref names
    errors = islice(validator.iter_errors(dict(arguments)), MOST_VIOLATIONS)
    return list(map(_told, errors)) or evaluate(skill.rules, arguments)[:MOST_VIOLATIONS]


def _told(error: ValidationError) -> Violation:
    """An error of the validator in our words."""
    path, keyword = list(error.absolute_path), str(error.validator)
    schema: Any = error.schema  # these three are any JSON, and unset only in errors that have not been yielded yet
    value: Any = error.instance
    wanted: Any = error.validator_value
    if keyword == "required":  # the validator below says which field, and not a sentence
        field = _place([*path, error.message])
        return Violation(field, keyword, f"{field} is missing", _wanted(schema.get("properties", {}).get(error.message, {})))
    if keyword == "additionalProperties":
        known = list(schema.get("properties", {}))
        hint = suggest(error.message, known) if known else "it takes none"
        name = _place([*path, error.message])
        return Violation(name, "unknown", f"there is no argument {show(name)[1:-1]}; {hint}", {"one_of": list(known)})
    place = _place(path) or "the arguments"
    sentence = _SENTENCES.get(keyword, "{place} does not keep to the schema ({keyword})")
    if keyword == "type":
        wanted = " or ".join(_TYPES.get(kind, kind) for kind in ([wanted] if isinstance(wanted, str) else wanted))
    elif keyword == "enum":
        near = suggest(value, [one for one in wanted if isinstance(one, str)]) if isinstance(value, str) else ""
        wanted = ", ".join(map(show, wanted)) + (f" ({near})" if near.startswith("did") else "")
    elif keyword == "pattern" and len(value) > MOST_SUBJECT_CHARS:
        sentence = f"{{place}} may have {MOST_SUBJECT_CHARS} characters, because a pattern is tried on it"
    elif keyword == "const":
        wanted = show(wanted)
    message = sentence.format(place=place, wanted=wanted, keyword=keyword) + f", found {show(value)}"
    return Violation(_place(path), keyword, message, _wanted({keyword: error.validator_value}), shorten(value), has_got=True)


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


def _place(path: Sequence[str | int]) -> str:
    """`config.timeout`, `items[2]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{clip(part, 100)}" for part in path).removeprefix(".")


def _is_too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


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
