"""What a person sees on the terminal while a job runs."""

import json
from typing import TextIO

from cuttlefish.jobs.updates import Dropped, Finished, LogLine, Origin, Progress, TokenPiece, Update

__all__ = ["Display"]

WIDTH = 100


class Display:
    """Shows a job's updates: each progress and each line that a block prints on a line of its own, the model's words as they come.
    With `only_log` it shows what blocks print and nothing else.

    Words are shown for one node at a time, the others' updates after its line: words of two that ask at once would stand mixed.
    They are not shown for the items of a node that runs over many, of which what counts is how many are done and what failed.
    """

    def __init__(self, out: TextIO, *, only_log: bool = False) -> None:
        self._out = out
        self._only_log = only_log
        self._within_line = False
        self._speaker: str | None = None
        """The node whose words are in the line that was begun."""
        self._waiting: list[Update] = []
        """What other nodes told meanwhile; empty when no line is begun."""

    def show(self, update: Update) -> None:
        """Write one update, or keep it until the line ends that another node has begun."""
        if self._only_log and not isinstance(update, LogLine):
            return
        node = _node(update)
        if self._within_line and node is not None and node != self._speaker:
            self._waiting.append(update)
            return
        self._write(update)
        if not self._within_line:
            self._show_waiting()
        self._out.flush()

    def close(self) -> None:
        """End a line that was begun, and show what waits for its end."""
        self._start_line()
        while self._waiting:
            self._show_waiting()
            self._start_line()
        self._out.flush()

    def _write(self, update: Update) -> None:
        match update:
            case TokenPiece(text, origin):
                if origin is None or origin.item is None:
                    self._say(origin, text)
            case Progress(value, origin):
                self._start_line()
                self._out.write(f"· {_from(origin)}{_sentence(value)}\n")
            case LogLine(block, text):
                self._start_line()
                self._out.write(f"{_harmless(block)}: {_harmless(text)}\n")
            case Dropped(count):
                self._start_line()
                self._out.write(f"· {count} updates were dropped: this terminal is slower than the job\n")
            case Finished():
                self._start_line()

    def _say(self, origin: Origin | None, text: str) -> None:
        if not self._within_line:
            self._out.write(_from(origin))
            self._speaker = None if origin is None else origin.node
        self._out.write(_harmless(text))
        self._within_line = not text.endswith("\n")

    def _start_line(self) -> None:
        if self._within_line:
            self._out.write("\n")
            self._within_line = False

    def _show_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for update in waiting:
            self.show(update)


def _node(update: Update) -> str | None:
    """The node that an update is from or about."""
    match update:
        case TokenPiece(_, Origin(node)) | Progress(_, Origin(node)) | Progress({"node": str(node)}, None):
            return node
    return None


def _from(origin: Origin | None) -> str:
    if origin is None:
        return ""
    return f"{_harmless(origin.node)}: " if origin.item is None else f"{_harmless(origin.node)}, item {origin.item}: "


def _sentence(value: object) -> str:
    """What the host tells about nodes, and `{"stage": "reading", "done": 1, "of": 4}`, in words; else JSON, cut short."""
    match value:
        case {"node": str() as node, "items": int() as items, "succeeded": int() as succeeded, "failed": int() as failed, **rest}:
            told = f"{node}: {succeeded + failed} of {items} done{f', {failed} failed' if failed else ''}"
            if "message" in rest:
                told += f"; item {rest.get('item')} failed, {rest.get('code')}: {rest['message']}"
            return _harmless(told)
        case {"node": str() as node, "of": int(), "stage": str() as step}:
            return _harmless(f"{node}: {step}")
        case {"done": int() | float() as done, "of": int() | float() as of, **rest}:
            stage = rest.get("stage")
            return f"{_harmless(stage) + ' ' if isinstance(stage, str) else ''}{done}/{of}"
    text = _harmless(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _harmless(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)
