"""What a person sees while a file is downloaded."""

import shutil
import time
from typing import TextIO

__all__ = ["DownloadBar"]

REDRAW_S = 0.1
TENTHS = 10
BAR_WIDTH = 40


class DownloadBar:
    """Lines of text, and below them a bar that is drawn over and over. Where `out` is no terminal: a line for each tenth."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._drawn = False
        self._drawn_at = 0.0
        self._began: tuple[float, int] | None = None
        self._tenth = 0

    def line(self, text: str) -> None:
        """Write a line; the bar, if there is one, stays above it, and what comes is measured anew."""
        self.close()
        self._out.write(f"{text}\n")
        self._out.flush()
        self._began = None

    def show(self, done: int, of: int) -> None:
        """Tell that `done` bytes of `of` are there."""
        now = time.monotonic()
        if self._began is None:
            self._began = (now, done)
            self._tenth = done * TENTHS // of
        if self._terminal:
            if now - self._drawn_at >= REDRAW_S or done == of:
                self._draw(now, done, of)
        elif done * TENTHS // of > self._tenth:
            self._tenth = done * TENTHS // of
            self._out.write(f"{_amount(done, of)}\n")
            self._out.flush()

    def close(self) -> None:
        """End the bar's line."""
        if self._drawn:
            self._out.write("\n")
            self._out.flush()
            self._drawn = False

    def _draw(self, now: float, done: int, of: int) -> None:
        assert self._began is not None
        since, already = self._began
        rate = (done - already) / (now - since) if now > since else 0.0
        text = f" {_amount(done, of)}"
        if rate > 0:
            text += f"  {rate / 1e6:.1f} MB/s"
        if rate > 0 and done < of:
            text += f"  {_time((of - done) / rate)} left"
        room = shutil.get_terminal_size().columns - 1
        width = min(BAR_WIDTH, room - len(text))
        bar = ("━" * (width * done // of)).ljust(width, "─") if width >= TENTHS else ""
        self._out.write(f"\r{(bar + text)[:room]}\x1b[K")
        self._out.flush()
        self._drawn, self._drawn_at = True, now


def _amount(done: int, of: int) -> str:
    return f"{done / 1e6:.0f} of {of / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
