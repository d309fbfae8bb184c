"""The process that judges JSON by a JSON Schema. Both come from a block, and a schema can make its judge work for ever.

Reads one JSON object from standard input: `schema`, and `value` to hold against it if there is one. Writes one: `schema_wrong`
or `value_wrong` with a sentence, or nothing in it.
"""

import json
import sys
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

OUT_OF_MEMORY = 3  # the status with which it ends when the memory that it may use is too small; `checked.py` has it too

MOST_WORDS = 200  # of a value or keyword that a message quotes


def main() -> None:
    """Judge, and say so."""
    sys.setrecursionlimit(5_000)
    try:
        asked = json.load(sys.stdin)
        verdict = judge(asked["schema"], asked)
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    json.dump(verdict, sys.stdout)


def judge(schema: Any, asked: dict[str, object]) -> dict[str, str]:
    """The verdict on `schema` (`Any`: nothing is known of it yet).

    The registry is empty on purpose: a schema that points to the network or a file is not followed there.
    """
    try:
        Draft202012Validator.check_schema(schema)
        if "value" not in asked:
            _follow_references(schema)
            return {}
        error = best_match(Draft202012Validator(schema, registry=Registry()).iter_errors(asked["value"]))
    except SchemaError as wrong:
        return {"schema_wrong": f"{_place(wrong.absolute_path)}: {_brief(wrong.message)}"}
    except Unresolvable as wrong:
        return {"schema_wrong": f'it points to "{_brief(wrong.ref)}", which is not in it'}
    except RecursionError:
        return {"schema_wrong": "it refers to itself without an end"}
    return {} if error is None else {"value_wrong": f"{_place(error.absolute_path)}: {_brief(error.message)}"}


def _follow_references(schema: Any) -> None:
    """Raises what `judge` knows if one of them, anywhere in the schema, leads nowhere."""
    resource = DRAFT202012.create_resource(schema)
    left = [(resource, Registry().with_resource("", resource).resolver())]
    while left:
        part, resolver = left.pop()
        resolver = resolver.in_subresource(part)
        if isinstance(part.contents, dict):
            for key in ("$ref", "$dynamicRef"):
                if key in part.contents:
                    try:
                        resolver.lookup(part.contents[key])
                    except Unresolvable:
                        raise Unresolvable(ref=part.contents[key]) from None  # the library's own word may be only a part of it
        left += [(inner, resolver) for inner in part.subresources()]


def _place(path: object) -> str:
    return "/".join(["", *(str(part) for part in path)]) or "/"  # type: ignore[attr-defined]  # a deque of keys and positions


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_WORDS else line[: MOST_WORDS - 1] + "…"


if __name__ == "__main__":
    main()
