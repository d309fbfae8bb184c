"""The part of a JSON Schema that the embedded engine can be trusted with.

The engine turns a schema into a grammar inside this process, where nothing can stop it: 2^29 alternatives made of 30 references
kept it for two minutes; an enumeration of 20,000 words, a pattern like `(a?){1000}` and a `minLength` above the `maxLength` for
longer than we waited. So it is given less than the whole where the whole could do that, or would be refused; the reply is judged by
the whole schema afterwards, in any case.
"""

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["ANY_JSON", "engine_schema"]

ANY_JSON: Mapping[str, Any] = {}
MOST_PARTS = 500  # a reply of 8 tokens took 0.7 s with 500 alternatives, 2.6 s with 1,000
MOST_REPEATS = 500
MOST_DEPTH = 64
SIMPLE_PATTERN = re.compile(r"\^[^()|]{1,100}\$")
MOST_NUMBER = 10**15
COUNTS = (("minLength", "maxLength"), ("minItems", "maxItems"))
AS_THEY_ARE = ("type", "required")


def engine_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What to give the engine: the schema, or a weaker one that every reply valid for the schema fits too.

    `schema` has passed as a JSON Schema.
    """
    try:
        weaker: Mapping[str, Any] = _weaker(schema, _Budget(MOST_PARTS, schema), ())
    except _TooMuch:
        return ANY_JSON
    return weaker


class _TooMuch(Exception):
    """The schema has more parts than the engine can be given."""


class _Budget:
    def __init__(self, parts: int, root: Mapping[str, Any]) -> None:
        self.left = parts
        self.root = root

    def spend(self, parts: int) -> None:
        self.left -= parts
        if self.left < 0:
            raise _TooMuch


def _weaker(schema: Any, budget: _Budget, inside: tuple[str, ...]) -> Any:
    """References are replaced by what they point to, which also counts what they multiply."""
    budget.spend(1)
    if isinstance(schema, bool):  # which the engine refuses
        return {}
    if len(inside) > MOST_DEPTH or not isinstance(schema, Mapping):
        raise _TooMuch
    if "$ref" in schema:
        pointer = str(schema["$ref"])
        if pointer in inside:  # a type within itself: from here on, anything
            return {}
        return _weaker(_target(budget.root, pointer), budget, (*inside, pointer))
    kept: dict[str, Any] = {key: schema[key] for key in AS_THEY_ARE if key in schema}
    kept |= _bounds(schema)
    for fewest, most in COUNTS:
        counts = {key: schema[key] for key in (fewest, most) if isinstance(schema.get(key), int) and schema[key] <= MOST_REPEATS}
        if counts.get(fewest, 0) <= counts.get(most, MOST_REPEATS):
            kept |= counts
    if schema.get("enum"):
        budget.spend(len(schema["enum"]))
        kept["enum"] = schema["enum"]
    if "const" in schema:
        kept["const"] = schema["const"]
    if isinstance(schema.get("pattern"), str) and _is_simple(schema["pattern"]):
        kept["pattern"] = schema["pattern"]
    deeper = (*inside, "")
    if "properties" in schema:
        optional = len(schema["properties"]) - len(schema.get("required", ()))
        budget.spend(max(0, optional) ** 2 // 50)  # each may be followed by any later one
        kept["properties"] = {
            name: _weaker(part, budget, deeper) for name, part in schema["properties"].items() if part is not False
        }
    if "additionalProperties" in schema:
        rest = schema["additionalProperties"]
        kept["additionalProperties"] = rest if isinstance(rest, bool) else _weaker(rest, budget, deeper)
    if "items" in schema and "prefixItems" not in schema:  # the engine takes one or the other
        kept["items"] = _weaker(schema["items"], budget, deeper)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kept[key] = [_weaker(part, budget, deeper) for part in schema[key] if part is not False] or [{}]
    if "prefixItems" in schema:  # so many items and no others, for the engine
        kept["prefixItems"] = [_weaker(part, budget, deeper) for part in schema["prefixItems"]]
        for key in ("minItems", "maxItems"):
            kept.pop(key, None)
    return kept


def _bounds(schema: Mapping[str, Any]) -> dict[str, int]:
    """Of a number. None where no whole number lies between them: the engine would find no next token."""
    keys = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    bounds = {key: schema[key] for key in keys if isinstance(schema.get(key), int) and abs(schema[key]) < MOST_NUMBER}
    lowest = max(bounds.get("minimum", -MOST_NUMBER), bounds.get("exclusiveMinimum", -MOST_NUMBER) + 1)
    highest = min(bounds.get("maximum", MOST_NUMBER), bounds.get("exclusiveMaximum", MOST_NUMBER) - 1)
    return bounds if lowest <= highest else {}


def _target(root: Any, pointer: str) -> Any:
    """What a reference within the schema points to; any other was refused by the judge, or is not for the engine."""
    if pointer != "#" and not pointer.startswith("#/"):
        raise _TooMuch
    found = root
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            raise _TooMuch
        found = found[name]
    return found


def _is_simple(pattern: str) -> bool:
    if re.search(r"\\[A-Za-z0-9/]", pattern):  # the engine knows few of these, and complains on standard error
        return False
    repeats = sum(int(n) for n in re.findall(r"\d+", " ".join(re.findall(r"\{[^}]*\}", pattern)))[:50])
    return SIMPLE_PATTERN.fullmatch(pattern) is not None and repeats <= 100 and len(re.findall(r"[*+?]", pattern)) <= 5
