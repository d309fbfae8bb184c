"""The part of a JSON Schema that the embedded engine can be trusted with.

The engine turns a schema into a grammar inside this process, where nothing can stop it: 2^29 alternatives made of 30 references
kept it for two minutes, an enumeration of 20,000 words and a pattern like `(a?){1000}` for longer than we waited. So it is given
less than the whole where the whole could do that; the reply is judged by the whole schema afterwards, in any case.
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
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
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
    if len(inside) > MOST_DEPTH or not isinstance(schema, Mapping):
        if isinstance(schema, bool):
            return schema
        raise _TooMuch
    if "$ref" in schema:
        pointer = str(schema["$ref"])
        if pointer in inside:  # a type within itself: from here on, anything
            return {}
        return _weaker(_target(budget.root, pointer), budget, (*inside, pointer))
    kept: dict[str, Any] = {key: schema[key] for key in AS_THEY_ARE if key in schema}
    kept |= {key: schema[key] for key in NUMBERS if isinstance(schema.get(key), int) and abs(schema[key]) < 10**15}
    kept |= {key: int(schema[key]) for key in COUNTS if isinstance(schema.get(key), int) and schema[key] <= MOST_REPEATS}
    if "enum" in schema:
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
        kept["properties"] = {name: _weaker(part, budget, deeper) for name, part in schema["properties"].items()}
    for key in ("additionalProperties", "items"):
        if key in schema:
            kept[key] = _weaker(schema[key], budget, deeper)
    for key in ("prefixItems", "anyOf", "oneOf"):
        if key in schema:
            kept[key] = [_weaker(part, budget, deeper) for part in schema[key]]
    return kept


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
    repeats = sum(int(n) for n in re.findall(r"\d+", " ".join(re.findall(r"\{[^}]*\}", pattern)))[:50])
    return SIMPLE_PATTERN.fullmatch(pattern) is not None and repeats <= 100 and len(re.findall(r"[*+?]", pattern)) <= 5
