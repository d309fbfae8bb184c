"""A model that always gives the same reply: for tests, examples and pipelines that are being drawn up."""

import hashlib
import math
import re
from collections.abc import Sequence

import trio

from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.running import Running
from cuttlefish.inference.showing import Showing

__all__ = ["DEFAULT_REPLY", "open_stub", "open_stub_embedder"]

DEFAULT_REPLY = "a stub summary"
VECTOR_LENGTH = 32


class StubBackend:
    """Replies with one text, word by word. A word is one token; images are only counted: `[2 image(s)] `."""

    name = "stub"
    accepts_images = True

    def __init__(self, reply: str) -> None:
        self._reply = reply
        self._running = Running(self.name)

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """Keep the promises of `Backend.infer`, without a model; `tokens_in` is the number of words of the prompt, at least 1."""
        with self._running.until_closed():
            return await self._say(prompt, sink, meter)

    async def _say(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        meter.add(tokens_in=max(1, len(prompt.text.split())))
        text = f"[{len(prompt.images)} image(s)] {self._reply}" if prompt.images else self._reply
        words = re.findall(r"\s*\S+(?:\s+\Z)?|\s+\Z", text)
        showing = Showing(prompt, sink)
        for word in words[: prompt.max_tokens]:
            await trio.lowlevel.checkpoint()
            meter.add(tokens_out=1)
            if not await showing.add(word):
                return await showing.end("stop")
        await trio.lowlevel.checkpoint()
        return await showing.end("length" if len(words) > prompt.max_tokens else "stop")

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._running.close()


class StubEmbedder:
    """Gives a text always the same vector of length 1. Texts that share words have vectors that are closer."""

    name = "stub"

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        """Keep the promises of `Embedder.embed`, without a model; a word is one token."""
        await trio.lowlevel.checkpoint()
        meter.add(tokens_in=sum(max(1, len(text.split())) for text in texts))
        return [_vector(text) for text in texts]

    async def aclose(self) -> None:
        """Nothing to free."""
        await trio.lowlevel.checkpoint()


async def open_stub(target: str, *, local_only: bool = False) -> StubBackend:
    """Open `stub:REPLY`; without a reply it says "a stub summary"."""
    await trio.lowlevel.checkpoint()
    return StubBackend(target or DEFAULT_REPLY)


async def open_stub_embedder(target: str, *, local_only: bool = False) -> StubEmbedder:
    """Open `stub:` for vectors. The reply says nothing here."""
    await trio.lowlevel.checkpoint()
    return StubEmbedder()


def _vector(text: str) -> list[float]:
    sums = [0.0] * VECTOR_LENGTH
    for word in text.lower().split() or [text]:
        for at, byte in enumerate(hashlib.sha256(word.encode()).digest()[:VECTOR_LENGTH]):
            sums[at] += (byte - 127.5) / 127.5
    length = math.sqrt(sum(x * x for x in sums))
    return [x / length for x in sums]
