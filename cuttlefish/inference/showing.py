"""Showing a reply to its sink piece by piece, whatever provider it comes from.

Here live the promises about pieces that no server can be trusted with: whole characters, and nothing of a stop text.
"""

import trio

from cuttlefish.inference.backend import Finish, Prompt, Reply, ThreadSink, TokenSink
from cuttlefish_abi import TokenAction

__all__ = ["Showing", "ShowingInThread", "Shown"]


class Shown:
    """What of one reply may be shown, and what has been.

    What could be the beginning of a stop text is held back until what follows tells; so is half of a surrogate pair.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._stops = [stop for stop in prompt.stop if stop]
        self._held = ""
        self._shown: list[str] = []
        self._over: Finish | None = None

    @property
    def over(self) -> bool:
        """Whether the reply has ended before the model did."""
        return self._over is not None

    def add(self, piece: str) -> str:
        """What can be shown by now, the model having gone on by `piece`; nothing once the reply is over."""
        if self._over is not None:
            return ""
        text = _joined_pairs(self._held + piece)
        end = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if end is not None:
            self._held, self._over = "", "stop"
            return text[:end]
        keep = self._hold_from(text)
        self._held = text[keep:]
        return text[:keep]

    def rest(self) -> str:
        """What was held back, now that no more comes."""
        held, self._held = self._held, ""
        return "" if self._over is not None else _without_halves(held)

    def heard(self, text: str, verdict: TokenAction) -> None:
        """The sink was shown `text`."""
        self._shown.append(text)
        if verdict is TokenAction.STOP:
            self._over = "stopped_by_block"

    def reply(self, finish: Finish) -> Reply:
        """The whole reply, which the model ended by `finish` unless it was over before."""
        return Reply("".join(self._shown), self._over or finish)

    def _hold_from(self, text: str) -> int:
        """Where the part begins that must wait: the longest end of `text` that begins a stop text, or half a character."""
        half = len(text) - 1 if text and "\ud800" <= text[-1] <= "\udbff" else len(text)
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return min(start, half)
        return half


class Showing:
    """One reply on its way to the sink, from Trio's thread."""

    def __init__(self, prompt: Prompt, sink: TokenSink) -> None:
        self._shown = Shown(prompt)
        self._sink = sink

    async def add(self, piece: str) -> bool:
        """Show what can be shown by now; False when the reply is over and the model may stop. Raises what the sink raises."""
        await self._show(self._shown.add(piece))
        return not self._shown.over

    async def end(self, finish: Finish) -> Reply:
        """The model is done: show what was held back, and give the whole reply."""
        await self._show(self._shown.rest())
        return self._shown.reply(finish)

    async def _show(self, text: str) -> None:
        if text:
            self._shown.heard(text, await self._sink(text))


class ShowingInThread:
    """The same from a thread that `trio.to_thread.run_sync` has started."""

    def __init__(self, prompt: Prompt, sink: TokenSink) -> None:
        self._shown = Shown(prompt)

        def ask_trio(piece: str) -> TokenAction:
            return trio.from_thread.run(sink, piece)

        self._hear = sink.hear if isinstance(sink, ThreadSink) else ask_trio

    def add(self, piece: str) -> bool:
        """See `Showing.add`."""
        self._show(self._shown.add(piece))
        return not self._shown.over

    def end(self, finish: Finish) -> Reply:
        """See `Showing.end`."""
        self._show(self._shown.rest())
        return self._shown.reply(finish)

    def _show(self, text: str) -> None:
        if text:
            self._shown.heard(text, self._hear(text))


def _joined_pairs(text: str) -> str:
    """Two pieces may each bring half of a character that JSON writes as a pair. A half without its other is dropped."""
    if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text):
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    last = whole[-1:] if "\ud800" <= whole[-1:] <= "\udbff" else ""
    return _without_halves(whole) + last


def _without_halves(text: str) -> str:
    return "".join(c for c in text if not "\ud800" <= c <= "\udfff")
