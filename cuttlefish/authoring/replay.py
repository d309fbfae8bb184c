"""Conversations replayed against a block: no model, no files, nothing but what stands in the conversation.

All of it steps a guest, so it blocks: `replay` and `rewrite` belong on a guest's thread (`loop.open_guest`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from cuttlefish.authoring.conversations import ANSWERS, ENDS, Conversation, Line, command_name, encode, write_line
from cuttlefish.authoring.differences import Difference, first_difference
from cuttlefish.errors import BadCommand, CuttlefishError
from cuttlefish_abi import BadJson, Signature, decode_command, decode_event, parse_json

__all__ = ["Mismatch", "Rewritten", "Steps", "replay", "rewrite"]


class Steps(Protocol):
    """What is stepped: a started `engine.guest.Guest`, or a `cpython.PythonBlock`."""

    name: str

    @property
    def hears_tokens(self) -> bool: ...  # noqa: D102  # as `Guest` has them
    def signature(self) -> Signature: ...  # noqa: D102
    def init(self, value: bytes) -> bytes: ...  # noqa: D102
    def step(self, event: bytes) -> bytes: ...  # noqa: D102
    def on_token(self, piece: bytes) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where a block first left a conversation."""

    line: int
    message: str
    """One sentence, without the line."""
    difference: Difference | None = None
    """For a command that is another one than was expected."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A conversation with the commands that the block gives now."""

    text: str
    """The new file."""
    remark: str | None
    """What its author should know: where it was cut, or what is missing. None where it is whole."""
    fits: bool
    """False where an event stands that answers another command than the block gives now: then the file is best left alone."""


def replay(guest: Steps, conversation: Conversation) -> Mismatch | None:
    """Tell a started guest what the conversation says, and compare each command with the expected one; None when all are the same.

    A result must also have the type that the block's signature promises, as for a host. A guest that was used before may be used
    again: a block begins anew with its input.
    """
    block = _Block(guest)
    line = conversation.lines[0]
    try:
        said = block.begin(conversation.value)
        expected = False  # whether the command that stands in `said` has had its line
        for line in conversation.turns:
            match line.kind:
                case "command":
                    if (mismatch := block.compare(line, said)) is not None:
                        return mismatch
                    expected = True
                case "token":
                    if (stops := block.hear(line.value)) is not line.stop:
                        return Mismatch(line.number, _of_verdict(guest, stops=stops))
                case _:
                    if not expected:
                        return Mismatch(line.number, f"the command before this event is missing; the block says {_brief(said)}")
                    said, expected = block.step(line.value), False
    except CuttlefishError as error:
        return Mismatch(line.number, f"told this, the block fails: {error.code}: {error.message}")
    if not expected:
        return Mismatch(line.number, f"the conversation ends here, and the block answers {_brief(said)}")
    return None


def rewrite(guest: Steps, conversation: Conversation) -> Rewritten:
    """The same input, events and tokens, with the commands that a started guest gives.

    Where the block is over earlier than before, what follows is left out. Where it wants more, the conversation ends with the
    command that is still to be answered.

    Raises:
        CuttlefishError: the block broke down.
    """
    block = _Block(guest)
    said = block.begin(conversation.value)
    written = [write_line("input", conversation.value), write_line("command", said)]
    before: object = None  # the command that stood before the event
    lines = iter(conversation.turns)
    for line in lines:
        name = command_name(said)
        if line.kind == "command":
            before = line.value
            continue
        if name in ENDS:
            count = sum(1 for one in (line, *lines) if one.kind == "event")
            left_out = "1 event that followed is" if count == 1 else f"{count} events that followed are"
            told = f'the block is over with "{name}" on line {len(written)}; {left_out} left out'
            return Rewritten("".join(written), told, fits=True)
        event = line.value.get("event") if isinstance(line.value, dict) else "token"
        if (wrong := _why_it_no_longer_fits(line, event, name, before)) is not None:
            return Rewritten("".join(written), wrong, fits=False)
        if line.kind == "token":
            written.append(write_line("token", line.value, stop=block.hear(line.value)))
            continue
        said, before = block.step(line.value), None
        written += [write_line("event", line.value), write_line("command", said)]
    name = command_name(said)
    if name in ENDS:
        return Rewritten("".join(written), None, fits=True)
    told = f'line {len(written)}, "{name}", is not answered yet: add its event, {{"event": {{"event": "{ANSWERS[str(name)]}", …}}}}'
    return Rewritten("".join(written), f"{told}, and update again", fits=True)


def _why_it_no_longer_fits(line: Line, event: object, name: str | None, before: object) -> str | None:
    if line.kind == "token":
        return None if name == "infer" else f'line {line.number}: a token belongs to "infer", and the block now says "{name}"'
    if event == ANSWERS.get(str(name)) or (before is not None and event != ANSWERS.get(str(command_name(before)))):
        return None  # it answers, or never did: a test of what no host does
    return (
        f'line {line.number}: the event "{event}" does not answer "{name}", which the block says now; '
        f"change the events from here on by hand, or record the conversation anew (cuttlefish run --record)"
    )


class _Block:
    """A guest that speaks values in place of bytes."""

    def __init__(self, guest: Steps) -> None:
        self._guest = guest
        self._signature: Signature = guest.signature()
        self._commands = 0
        self._value: object = None
        self._last_event: object = None
        self._kinds: dict[int, str] = {}

    def begin(self, value: object) -> object:
        self._value = value
        return self._read(self._guest.init(encode(value)))

    def step(self, event: object) -> object:
        self._last_event = event
        self._kinds |= _handles_of(event)
        return self._read(self._guest.step(encode(event)))

    def hear(self, piece: object) -> bool:
        assert isinstance(piece, str)  # `read_conversation` has seen to it
        return self._guest.on_token(piece.encode())

    def compare(self, line: Line, said: object) -> Mismatch | None:
        difference = first_difference(line.value, said, "command")
        if difference is not None:
            return Mismatch(line.number, f"{difference}{self._remark(said)}", difference)
        if command_name(said) == "done":
            assert isinstance(said, dict)
            output = self._signature.output
            if (wrong := output.mismatch(said["result"], place="result", handle_kind=self._kinds.get)) is not None:
                return Mismatch(line.number, f"the result does not fit the block's own signature, {output}: {wrong}")
        return None

    def _read(self, payload: bytes) -> object:
        self._commands += 1
        try:
            decode_command(payload)
        except BadJson as error:
            raise BadCommand(f'command {self._commands} of "{self._guest.name}": {error}') from None
        return parse_json(payload)

    def _remark(self, said: object) -> str:
        """Whether the block was told what no host would: likely a slip of whoever wrote it, or the case of another block."""
        if command_name(said) != "fail":
            return ""
        if self._last_event is None:
            wrong = self._signature.input.mismatch(self._value, place="input")
            return f" (the input does not fit what the block takes, {self._signature.input}: {wrong})" if wrong else ""
        try:
            decode_event(encode(self._last_event))
        except BadJson as error:
            return f" (the event before it is none that a host sends: {error})"
        return ""


def _handles_of(event: object) -> Iterator[tuple[int, str]]:
    """The handle that an event brings, and what it names."""
    if isinstance(event, dict) and isinstance(event.get("handle"), int) and event.get("event") in ("opened", "page_imaged"):
        kind = event.get("kind")
        named = kind.get("kind") if isinstance(kind, dict) else "image" if event["event"] == "page_imaged" else "text"
        yield event["handle"], str(named)


def _of_verdict(guest: Steps, *, stops: bool) -> str:
    if not guest.hears_tokens:
        return "the block is expected to stop the model here, and it does not listen to tokens (it has no cf_on_token)"
    if stops:
        return "the block stops the model at this token, and is expected to go on"
    return "the block goes on at this token, and is expected to stop the model"


def _brief(said: object) -> str:
    text = json.dumps(said, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 120 else text[:119] + "…"
