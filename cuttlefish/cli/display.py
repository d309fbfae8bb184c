"""What a person sees on the terminal while a job runs."""

import json
from typing import TextIO

from cuttlefish.jobs.updates import Dropped, Finished, LogLine, Progress, TokenPiece, Update

__all__ = ["Display"]

WIDTH = 100


class Display:
    """Shows a job's updates: each progress and each line that a block prints on a line of its own, the model's words as they come.
    With `only_log` it shows what blocks print and nothing else.

    Control characters in what a block or model says are shown as escapes: they must not steer the terminal.
    """

    def __init__(self, out: TextIO, *, only_log: bool = False) -> None:
        self._out = out
        self._only_log = only_log
        self._within_line = False

    def show(self, update: Update) -> None:
        """Write one update."""
        if self._only_log and not isinstance(update, LogLine):
            return
        match update:
            case TokenPiece(text):
                self._out.write(_harmless(text))
                self._within_line = not text.endswith("\n")
            case Progress(value):
                self._start_line()
                self._out.write(f"· {_sentence(value)}\n")
            case LogLine(block, text):
                self._start_line()
                self._out.write(f"{_harmless(block)}: {_harmless(text)}\n")
            case Dropped(count):
                self._start_line()
                self._out.write(f"· {count} updates were dropped: this terminal is slower than the job\n")
            case Finished():
                self._start_line()
        self._out.flush()

    def close(self) -> None:
        """End a line that was begun."""
        self._start_line()
        self._out.flush()

    def _start_line(self) -> None:
        if self._within_line:
            self._out.write("\n")
            self._within_line = False


def _sentence(value: object) -> str:
    """`{"stage": "reading", "done": 1, "of": 4}` as `reading 1/4`; anything else as JSON, cut short."""
    match value:
        case {"done": int() | float() as done, "of": int() | float() as of, **rest}:
            stage = rest.get("stage")
            return f"{_harmless(stage) + ' ' if isinstance(stage, str) else ''}{done}/{of}"
    text = _harmless(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _harmless(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)
