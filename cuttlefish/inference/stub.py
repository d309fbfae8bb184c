"""A model that always gives the same reply: for tests, examples and pipelines that are being drawn up."""

import re

import trio

from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from cuttlefish_abi import TokenAction

__all__ = ["DEFAULT_REPLY", "open_stub"]

DEFAULT_REPLY = "a stub summary"


class StubBackend:
    """Replies with one text, word by word. A word is one token; images are only counted: `[2 image(s)] `."""

    name = "stub"
    accepts_images = True

    def __init__(self, reply: str) -> None:
        self._reply = reply

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """Keep the promises of `Backend.infer`, without a model; `tokens_in` is the number of words of the prompt, at least 1."""
        meter.tokens_in += max(1, len(prompt.text.split()))
        text = f"[{len(prompt.images)} image(s)] {self._reply}" if prompt.images else self._reply
        text = text[: min((text.find(end) for end in prompt.stop if end in text), default=len(text))]
        words = re.findall(r"\s*\S+(?:\s+\Z)?|\s+\Z", text)
        shown = ""
        for word in words[: prompt.max_tokens]:
            await trio.lowlevel.checkpoint()
            meter.tokens_out += 1
            shown += word
            if await sink(word) is TokenAction.STOP:
                return Reply(shown, "stopped_by_block")
        await trio.lowlevel.checkpoint()
        return Reply(shown, "length" if len(words) > prompt.max_tokens else "stop")

    async def aclose(self) -> None:
        """Nothing to free."""
        await trio.lowlevel.checkpoint()


async def open_stub(target: str) -> StubBackend:
    """Open `stub:REPLY`; without a reply it says "a stub summary"."""
    await trio.lowlevel.checkpoint()
    return StubBackend(target or DEFAULT_REPLY)
