"""Where in a TOML file a value stands. `tomllib` reads values and forgets their lines.

The scanner knows TOML's form just well enough to follow it; whether a text is TOML is for `tomllib` to say. What it cannot follow
it passes over up to the next line.
"""

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from cuttlefish_abi import ErrorCode

__all__ = ["Places", "Problem"]

Path = tuple[str | int, ...]
"""The keys and list indexes that lead to a value."""

MOST_LEVELS = 200  # of lists and inline tables; below it the file's reader is lost as well

_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_TEXT = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_BARE = re.compile(r"[^,\]}\n#]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a pipeline, or (a warning) that is likely to be."""

    message: str
    file: str | None = None
    line: int | None = None
    is_warning: bool = False
    code: str = ErrorCode.SCHEMA_VALIDATION_FAILED
    """What a job fails with that has this one problem."""

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}: " if self.line is None else f"{self.file}:{self.line}: "
        return f"{where}{'warning: ' if self.is_warning else ''}{self.message}"


class Places:
    """The lines at which the keys and list items of a TOML text stand."""

    def __init__(self, text: str) -> None:
        self._text = text  # looked through when a line is first asked for: most pipelines are well

    @cached_property
    def _lines(self) -> dict[Path, list[int]]:
        return _Scanner(self._text).run()

    @cached_property
    def _first(self) -> dict[Path, int]:
        """The line of each key, and of each table that is only written as a part of longer names: that of its first key."""
        first = {path: lines[0] for path, lines in self._lines.items()}
        for path, lines in self._lines.items():
            for depth in range(len(path) - 1, 0, -1):
                first.setdefault(path[:depth], lines[0])
        return first

    def line(self, path: Path) -> int:
        """The line of a value; else of what holds it; else the first."""
        while path and path not in self._first:
            path = path[:-1]
        return self._first.get(path, 1)

    def twice(self) -> list[tuple[str, list[int]]]:
        """Every key that stands more than once, as it is written, with all of its lines."""
        return [(".".join(map(str, path)), lines) for path, lines in self._lines.items() if len(lines) > 1]


class _Lost(Exception):
    """The scanner does not know what it sees."""


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._at = 0
        self._levels = 0
        self._lines: dict[Path, list[int]] = {}
        self._many: dict[Path, int] = {}
        """How many tables each list of tables (`[[name]]`) has so far."""

    def run(self) -> dict[Path, list[int]]:
        table: Path = ()
        while self._next() is not None:
            try:
                if self._next() == "[":
                    table = self._header()
                else:
                    self._pair(table)
            except _Lost:
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
        return self._lines

    def _next(self) -> str | None:
        """The next character that means something, over as many lines as it takes."""
        self._skip(_GAP)
        return self._text[self._at] if self._at < len(self._text) else None

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _Lost
        self._at = found.end()
        return found[0]

    def _take(self, mark: str) -> None:
        self._skip(_SPACE)
        if not self._text.startswith(mark, self._at):
            raise _Lost
        self._at += len(mark)

    def _note(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, []).append(line)

    def _line(self) -> int:
        return bisect_right(self._ends, self._at - 1) + 1

    def _header(self) -> Path:
        line, is_list = self._line(), self._text.startswith("[[", self._at)
        self._at += 1 + is_list
        path: Path = ()
        keys = self._keys()
        for depth, key in enumerate(keys, 1):
            path = (*path, key)
            if depth < len(keys) and path in self._many:
                path = (*path, self._many[path] - 1)
        self._take("]]" if is_list else "]")
        if is_list:
            self._lines.setdefault(path, [line])
            self._many[path] = self._many.get(path, 0) + 1
            path = (*path, self._many[path] - 1)
        self._note(path, line)
        return path

    def _keys(self) -> list[str]:
        keys = [self._key()]
        while self._text.startswith(".", self._at):
            self._at += 1
            keys.append(self._key())
        return keys

    def _key(self) -> str:
        self._skip(_SPACE)
        text = self._skip(_KEY)
        self._skip(_SPACE)
        if text[0] not in "\"'":
            return text
        try:
            return str(tomllib.loads(f"key = {text}")["key"])
        except tomllib.TOMLDecodeError:
            raise _Lost from None

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._keys())
        self._note(path, line)
        self._take("=")
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        mark = self._text[self._at : self._at + 1]
        if mark in ("[", "{") and mark:
            self._levels += 1
            try:
                if self._levels > MOST_LEVELS:
                    raise _Lost
                self._inner(path, "]" if mark == "[" else "}")
            finally:
                self._levels -= 1
        else:
            self._skip(_TEXT if mark in ('"', "'") and mark else _BARE)

    def _inner(self, path: Path, closer: str) -> None:
        """The items of a list, or the pairs of an inline table, up to the bracket that closes it."""
        self._at += 1
        index = 0
        while (mark := self._next()) != closer:
            if mark is None:
                raise _Lost
            if mark == ",":
                self._at += 1
            elif closer == "}":
                self._pair(path)
            else:
                self._note((*path, index), self._line())
                self._value((*path, index))
                index += 1
        self._at += 1
