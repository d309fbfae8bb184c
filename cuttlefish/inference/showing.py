"""Showing a reply to its sink piece by piece, whatever provider it comes from.

Here live the promises about pieces that no server can be trusted with: whole characters, and nothing of a stop text.
"""

from cuttlefish.inference.backend import Finish, Prompt, Reply, TokenSink
from cuttlefish_abi import TokenAction

__all__ = ["Showing"]


class Showing:
    """One reply on its way to the sink.

    What could be the beginning of a stop text is held back until what follows tells; so is half of a surrogate pair.
    """

    def __init__(self, prompt: Prompt, sink: TokenSink) -> None:
        self._stops = [stop for stop in prompt.stop if stop]
        self._sink = sink
        self._held = ""
        self._shown: list[str] = []
        self._over: Finish | None = None

    async def add(self, piece: str) -> bool:
        """Show what can be shown by now; False when the reply is over and the model may stop. Raises what the sink raises."""
        if self._over is not None:
            return False
        text = _joined_pairs(self._held + piece)
        end = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if end is not None:
            self._held, self._over = "", "stop"
            await self._show(text[:end])
            return False
        keep = self._hold_from(text)
        self._held = text[keep:]
        await self._show(text[:keep])
        return self._over is None

    async def end(self, finish: Finish) -> Reply:
        """The model is done: show what was held back, and give the whole reply."""
        if self._over is None:
            held, self._held = self._held, ""
            await self._show(_without_halves(held))
        return Reply("".join(self._shown), self._over or finish)

    async def _show(self, text: str) -> None:
        if text:
            self._shown.append(text)
            if await self._sink(text) is TokenAction.STOP:
                self._over = "stopped_by_block"

    def _hold_from(self, text: str) -> int:
        """Where the part begins that must wait: the longest end of `text` that begins a stop text, or half a character."""
        half = len(text) - 1 if text and "\ud800" <= text[-1] <= "\udbff" else len(text)
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return min(start, half)
        return half


def _joined_pairs(text: str) -> str:
    """Two pieces may each bring half of a character that JSON writes as a pair. A half without its other is dropped."""
    if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text):
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    last = whole[-1:] if "\ud800" <= whole[-1:] <= "\udbff" else ""
    return _without_halves(whole) + last


def _without_halves(text: str) -> str:
    return "".join(c for c in text if not "\ud800" <= c <= "\udfff")
