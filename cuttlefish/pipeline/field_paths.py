"""Paths of fields in what a job is given: `max_words`, `config.timeout`, `pages[2]`, `pages[*]` for each item."""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, JsonValue

from cuttlefish_abi.strict_json import show

__all__ = ["FieldPath", "values_at"]

_PATH = re.compile(r"[^\s.\[\]]+(?:\[(?:\d{1,9}|\*)\])*(?:\.[^\s.\[\]]+(?:\[(?:\d{1,9}|\*)\])*)*")
_STEP = re.compile(r"\.?([^\s.\[\]]+)|\[(\d+|\*)\]")


def _check_path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError(f"{show(path)} is no path of a field: write it as name, config.timeout, items[2] or items[*]")
    return path


FieldPath = Annotated[str, AfterValidator(_check_path)]


def values_at(path: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """What stands at a path, each with its own path; several where it has `[*]`. Null is as good as absent."""
    found: list[tuple[str, JsonValue]] = [("", value)]
    for name, index in _STEP.findall(path):
        inner: list[tuple[str, JsonValue]] = []
        for place, one in found:
            if name and isinstance(one, dict) and name in one:
                inner.append((f"{place}.{name}" if place else name, one[name]))
            elif index == "*" and isinstance(one, list):
                inner += [(f"{place}[{at}]", item) for at, item in enumerate(one)]
            elif index not in ("", "*") and isinstance(one, list) and int(index) < len(one):
                inner.append((f"{place}[{index}]", one[int(index)]))
        found = inner
    yield from ((place, one) for place, one in found if one is not None)
