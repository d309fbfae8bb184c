"""Conversations: what a block was told and what it said, line by line, as JSON. They are a block's tests (docs/writing-blocks.md).

    {"input": …}                     what the job gives; once, first
    {"command": …}                   what the block says next
    {"token": "…"}                   a piece of the model's reply, for a block that listens
    {"token": "…", "stop": true}     the same, where the block has then seen enough
    {"event": …}                     what the host answers

A line that holds an event need not hold one that a real host sends: a test may try what no host does. A command must be one.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cuttlefish.errors import CuttlefishError
from cuttlefish_abi import MAX_JSON_DEPTH, BadJson, decode_command, parse_json
from cuttlefish_abi.strict_json import show, suggest

__all__ = [
    "ANSWERS",
    "ENDS",
    "BadConversation",
    "Conversation",
    "Kind",
    "Line",
    "case_files",
    "command_name",
    "encode",
    "read_conversation",
    "write_line",
]

MOST_BYTES = 256 << 20
"""A larger file is refused before it is read."""

Kind = Literal["input", "command", "event", "token"]

ANSWERS = {
    "infer": "infer_done",
    "embed": "embedded",
    "open": "opened",
    "slice": "sliced",
    "slice_bytes": "sliced_bytes",
    "page_text": "page_texted",
    "page_text_opt": "page_text_attempted",
    "document_text": "page_texted",
    "page_image": "page_imaged",
    "image_op": "page_imaged",
    "emit": "emitted",
}
"""The event that answers each command."""
ENDS = ("done", "fail")
"""The commands that end a run."""


class BadConversation(CuttlefishError):
    """The author's file: it is not there, or is no conversation. The message begins with file and line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a conversation."""

    number: int
    """Counted from 1."""
    kind: Kind
    value: object
    stop: bool = False
    """For a token: whether the block has seen enough."""

    @property
    def value_json(self) -> bytes:
        """The value as a host would write it."""
        return encode(self.value)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation, of which each line can be read and stands where it may."""

    name: str
    """The file, as its reader named it."""
    lines: tuple[Line, ...]

    @property
    def value(self) -> object:
        """The input."""
        return self.lines[0].value

    @property
    def value_json(self) -> bytes:
        """The input as a host would write it."""
        return self.lines[0].value_json

    @property
    def turns(self) -> Sequence[Line]:
        """All but the input."""
        return self.lines[1:]

    @property
    def is_over(self) -> bool:
        """Whether the block comes to its end in it."""
        last = self.lines[-1]
        return last.kind == "command" and command_name(last.value) in ENDS


def command_name(command: object) -> str | None:
    """The name of a command given as JSON."""
    name = command.get("cmd") if isinstance(command, dict) else None
    return name if isinstance(name, str) else None


def encode(value: object) -> bytes:
    """JSON as it crosses the border: UTF-8, nothing escaped that need not be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def write_line(kind: Kind, value: object, *, stop: bool = False) -> str:
    """A line of a conversation's file, with its end."""
    record = {kind: value} | ({"stop": True} if stop else {})
    return encode(record).decode() + "\n"


def case_files(folder: Path) -> list[Path]:
    """The conversations in a block's folder: `cases/*.jsonl`, in the order of their names. Blocking."""
    return sorted((folder / "cases").glob("*.jsonl"))


def read_conversation(path: Path, shown: str | None = None) -> Conversation:
    """Read a conversation and check each line; whether commands stand between the events is for whoever uses it. Blocking.

    `shown` is the name that messages use, the path unless given.

    Raises:
        BadConversation: no such file, or one that is no conversation: the first line that is wrong, and what belongs there.
    """
    name = str(path) if shown is None else shown
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise BadConversation(f'there is no conversation "{name}"') from None
    except OSError as error:
        raise BadConversation(
            f'the conversation "{name}" cannot be read: {(error.strerror or "no reason given").lower()}'
        ) from None
    if len(data) > MOST_BYTES:
        raise BadConversation(f'the conversation "{name}" is larger than {MOST_BYTES >> 20} MiB')
    lines = tuple(_read_lines(data, name))
    if not lines:
        raise BadConversation(f'{name}:1: the file is empty; it begins with a line such as {{"input": {{"path": "a.txt"}}}}')
    return Conversation(name, lines)


def _read_lines(data: bytes, name: str) -> Iterator[Line]:
    before: Line | None = None
    asked: str | None = None  # the command that is not answered yet
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = _read_line(text, number)
            _check_place(line, before, asked)
        except BadJson as error:
            raise BadConversation(f"{name}:{number}: {error}") from None
        if line.kind == "command":
            asked = command_name(line.value)
        elif line.kind == "event":
            asked = None
        before = line
        yield line


def _read_line(text: bytes, number: int) -> Line:
    try:
        record = parse_json(text, max_depth=MAX_JSON_DEPTH)
    except BadJson as error:
        # One line is one value: its line number, always 1, would only mislead.
        raise BadJson(str(error).replace(" at line 1 column ", " at column ")) from None
    if not isinstance(record, dict):
        raise BadJson(f'a line is an object such as {{"event": …}}, found {show(record)}')
    kinds: list[Kind] = ["input", "command", "event", "token"]
    found = [kind for kind in kinds if kind in record]
    if len(found) > 1:
        raise BadJson(f"a line holds one of {', '.join(kinds)}, found {' and '.join(found)}")
    if not found:
        raise BadJson(f"a line holds one of {', '.join(kinds)}, found {_found_instead(record, kinds)}")
    kind = found[0]
    for key in record:
        if key != kind and not (kind == "token" and key == "stop"):
            raise BadJson(f'a line with "{kind}" holds nothing else, found {show(key)}')
    value = record[kind]
    match kind:
        case "command":
            try:
                decode_command(json.dumps(value).encode(), max_depth=MAX_JSON_DEPTH)
            except BadJson as error:
                raise BadJson(f"this is no command: {error}") from None
        case "event" if not isinstance(value, dict) or not isinstance(value.get("event"), str):
            raise BadJson(f'an event is an object such as {{"event": "emitted"}}, found {show(value)}')
        case "token" if not isinstance(value, str):
            raise BadJson(f"a token is a text, found {show(value)}")
    stop = record.get("stop", False)
    if not isinstance(stop, bool):
        raise BadJson(f"stop must be true or false, found {show(stop)}")
    return Line(number, kind, value, stop)


def _found_instead(record: dict[str, object], kinds: Sequence[str]) -> str:
    if not record:
        return "an empty object"
    name = next(iter(record))
    if name == "cmd":
        return f'a command by itself; write {{"command": {show(record, 40)}}}'
    return f"{show(name)}; {suggest(name, kinds)}"


def _check_place(line: Line, before: Line | None, asked: str | None) -> None:
    """Refuse a line that cannot stand behind the one before it."""
    if before is None:
        if line.kind != "input":
            raise BadJson(f'a conversation begins with a line {{"input": …}}, found a line with "{line.kind}"')
        return
    match line.kind:
        case "input":
            raise BadJson("only the first line is an input")
        case "command" if before.kind in ("command", "token"):
            raise BadJson(f'between two commands belongs the event that answers "{asked}"')
        case "token" if asked != "infer":
            raise BadJson('a token belongs behind the command "infer", before its event')
    if asked in ENDS:
        raise BadJson(f'the block is over with "{asked}", and something follows')
