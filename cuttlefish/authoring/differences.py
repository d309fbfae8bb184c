"""Where two JSON values first differ, told so that a person sees it at once."""

import difflib
import json
import re
from dataclasses import dataclass
from itertools import groupby

from cuttlefish_abi.strict_json import show

__all__ = ["Difference", "first_difference"]

_SHOWN = 80  # characters of a value in a sentence
_LONG = 60  # a text from this length on, or of several lines, is shown as a diff too
_DIFF_LINES = 4  # of one kind in a row
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two values differ."""

    path: str
    """Where inside the value, such as `command.result.pages[2].text`."""
    expected: str
    """What belongs there, as JSON cut short, or `nothing`."""
    found: str
    diff: tuple[str, ...] = ()
    """For long texts: some lines of a unified diff."""

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.found}"


def first_difference(expected: object, found: object, path: str) -> Difference | None:
    """The first difference in the order of `expected`, or None. Keys may stand in any order, and 4 is 4.0, but true is not 1."""
    todo = [(path, expected, found)]
    while todo:
        path, one, other = todo.pop()
        match one, other:
            case dict(), dict():
                unknown = [key for key in other if key not in one]
                todo += [(_field(path, key), _ABSENT, other[key]) for key in reversed(unknown)]
                todo += [(_field(path, key), one[key], other.get(key, _ABSENT)) for key in reversed(one)]
            case list(), list():
                most = max(len(one), len(other))
                pairs = [(_item(one, index), _item(other, index)) for index in range(most)]
                todo += [(f"{path}[{index}]", *pair) for index, pair in reversed(list(enumerate(pairs)))]
            case str(), str():
                if one != other:
                    return _of_texts(path, one, other)
            case _:
                if not _same(one, other):
                    return Difference(path, _shown(one), _shown(other))
    return None


def _field(path: str, key: str) -> str:
    return f"{path}.{key}" if re.fullmatch(r"[\w-]+", key) else f"{path}[{show(key)}]"


def _item(values: list[object], index: int) -> object:
    return values[index] if index < len(values) else _ABSENT


def _same(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return numbers and one == other


def _shown(value: object) -> str:
    return "nothing" if value is _ABSENT else show(value, _SHOWN)


def _of_texts(path: str, expected: str, found: str) -> Difference:
    if "\n" not in expected + found and max(len(expected), len(found)) < _LONG:
        return Difference(path, _shown(expected), _shown(found))
    at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found)))
    told: tuple[str, ...]
    if "\n" not in expected + found:
        told = (f"-{_around(expected, at)}", f"+{_around(found, at)}")
    else:
        told = _unified(expected, found, at)
    return Difference(f"{path} (from character {at} on)", _around(expected, at), _around(found, at), told)


def _around(text: str, at: int) -> str:
    """A text as JSON, from a little before the place to a little behind it."""
    start, end = max(0, at - 20), at + 40
    said = json.dumps(text[start:end], ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return f"{'…' if start else ''}{said}{'…' if end < len(text) else ''}"


def _unified(expected: str, found: str, at: int) -> tuple[str, ...]:
    """A few lines of a diff, from the first line that differs on: a diff of all of a large text takes minutes."""
    first = expected.count("\n", 0, at)
    window = slice(max(0, first - 2), first + 40)
    before, after = expected.split("\n")[window], found.split("\n")[window]
    lines = list(difflib.unified_diff(before, after, n=2, lineterm=""))[3:]  # without its head, whose numbers are the window's
    shown: list[str] = []
    for sign, group in groupby(lines, key=lambda line: line[:1]):
        told = list(group)
        most = len(told) if sign == " " or len(told) <= _DIFF_LINES else _DIFF_LINES
        shown += [line if len(line) <= 2 * _SHOWN else line[: 2 * _SHOWN - 1] + "…" for line in told[:most]]
        shown += [f"{sign}… {len(told) - most} more"] if most < len(told) else []
    return (*shown[: 4 * _DIFF_LINES], *(["…"] if len(shown) > 4 * _DIFF_LINES else []))
