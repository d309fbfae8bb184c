"""Models on this machine, by llama.cpp inside this process: the Trio side. `llama_server.py` is the engine's side.

Each running prompt has a thread of its own. Pieces come from it in order; the verdict goes back by a flag that the engine
reads at every token and every prompt batch.
"""

import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import trio

from cuttlefish.errors import InferenceFailed, ModelLoadFailed
from cuttlefish.inference import models
from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.llama_server import LlamaServer
from cuttlefish.inference.showing import Showing

__all__ = ["open_llama_cpp", "open_llama_cpp_embedder"]

GGUF_MAGIC = b"GGUF"


async def open_llama_cpp(
    target: str,
    *,
    local_only: bool = False,
    slots: int = 2,
    context: int = 4096,
    threads: int | None = None,
    folder: Path | None = None,
    metrics: bool = False,
) -> "LlamaCppBackend":
    """Load a model by its name in the models folder (`folder`, else the user's own) or by the path of a GGUF file.

    `slots` prompts run at once, each with `context` tokens for prompt and reply together (fewer if the model was made for
    fewer); more prompts wait their turn. `threads` compute; all cores but one unless given. A `*mmproj*.gguf` file beside
    the model lets it read images. `metrics` opens the engine's own counters at `LlamaCppBackend.listener`.

    Loading happens in a thread, **but the engine holds the GIL** while it reads the file: the whole process stands still,
    about 0.4 s for a model of 100 MB. It cannot be cut short: a cancel takes effect afterwards, at the next wait.

    Raises:
        ModelLoadFailed: an unknown name, a missing file, or one that is not a model the engine can load.
    """

    def load() -> tuple[LlamaServer, bool]:
        path = models.resolve(target, folder)
        _check_magic(path, target)
        projector = models.projector_beside(path)
        server = LlamaServer(path, projector, target, slots=slots, context=context, threads=threads or _threads(), metrics=metrics)
        return server, projector is not None

    server, accepts_images = await trio.to_thread.run_sync(load)
    return LlamaCppBackend(target, server, accepts_images, slots)


async def open_llama_cpp_embedder(
    target: str, *, local_only: bool = False, context: int = 1024, threads: int | None = None, folder: Path | None = None
) -> "LlamaCppEmbedder":
    """Load a model for vectors, an instance of its own; the mean of what it makes of each token. A text may have `context` tokens.

    Raises:
        ModelLoadFailed: as `open_llama_cpp` says, which also says how long loading stops everything.
    """

    def load() -> LlamaServer:
        path = models.resolve(target, folder)
        _check_magic(path, target)
        return LlamaServer(path, None, target, slots=1, context=context, threads=threads or _threads(), for_vectors=True)

    return LlamaCppEmbedder(target, await trio.to_thread.run_sync(load))


class LlamaCppBackend:
    """Keeps the promises of `Backend` with a model in this process.

    A prompt that begins like one that its slot has read before is answered sooner, because that part is not read again. A
    prompt with a seed takes nothing over: it gets the same reply each time, as long as it runs alone; prompts side by side
    share batches, whose shape can tip a close choice. Cancelling takes one token while the model answers, and up to one
    batch (below a second for small models) while it reads the prompt. After a STOP the engine has made a token or two
    more, or as many as it could while the sink took its time.
    """

    def __init__(self, name: str, server: LlamaServer, accepts_images: bool, slots: int) -> None:
        self.name = name
        self.accepts_images = accepts_images
        self._server = server
        self._slots = slots
        self._free = trio.Semaphore(slots)
        self._stops: set[threading.Event] = set()
        self._closing = False
        self._closed = trio.Event()

    @property
    def listener(self) -> tuple[str, str]:
        """The address of the engine's own listener on this machine, and its key; for measurements."""
        return self._server.listener

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """See `Backend.infer`."""
        async with self._free:
            if self._closing:
                raise InferenceFailed(f'model "{self.name}" is closed')
            return await self._generate(prompt, sink, meter)

    async def _generate(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        stop = threading.Event()
        ended = trio.Event()
        send, pieces = trio.open_memory_channel[str](math.inf)
        tally = _Tally(meter, send)
        into_trio = trio.lowlevel.current_trio_token().run_sync_soon
        failures: list[BaseException] = []

        def take(chunk: Mapping[str, Any]) -> None:
            try:
                tally.add(chunk)
            except (AttributeError, KeyError, TypeError, ValueError):  # raised within Trio's core, it would end every job
                failures.append(InferenceFailed(f'model "{self.name}" broke off: its engine sent what is not understood'))
                stop.set()

        def work() -> None:
            try:
                self._server.generate(prompt, lambda chunk: into_trio(take, chunk), stop)
            except BaseException as e:  # noqa: BLE001  # carried to the task that waits for this thread, and raised there
                failures.append(e)

        def end() -> None:
            send.close()
            ended.set()

        # No nursery: it would wrap what the sink raises into a group. The `finally` gives the same promise: no thread is left.
        self._stops.add(stop)
        trio.lowlevel.start_thread_soon(work, lambda _: into_trio(end), f'model "{self.name}"')
        showing = Showing(prompt, sink)
        over = False
        try:
            async for piece in pieces:
                if not await showing.add(piece):
                    over = True
                    break
        finally:
            stop.set()
            with trio.CancelScope(shield=True):  # short: the engine reads the flag at the next token or batch
                await ended.wait()
            self._stops.discard(stop)
            pieces.close()
        if over:
            return await showing.end("stop")
        if failures:
            raise failures[0]
        if tally.finish is None:
            raise InferenceFailed(f'model "{self.name}" was {"closed" if self._closing else "stopped"} before its reply was whole')
        return await showing.end(tally.finish)

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        with trio.CancelScope(shield=True):  # short: running prompts end at their next token or batch
            if self._closing:
                await self._closed.wait()
                return
            self._closing = True
            for stop in self._stops:
                stop.set()
            for _ in range(self._slots):
                await self._free.acquire()
            try:
                await trio.to_thread.run_sync(self._server.close)
            finally:
                for _ in range(self._slots):  # whoever comes now is told that the model is closed
                    self._free.release()
                self._closed.set()


class LlamaCppEmbedder:
    """Keeps the promises of `Embedder` with a model in this process. One text after the other."""

    def __init__(self, name: str, server: LlamaServer) -> None:
        self.name = name
        self._server = server
        self._turn = trio.Lock()

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        """See `Embedder.embed`. Cancelling waits for the text that is being read: a second or two for 500 tokens."""
        vectors: list[list[float]] = []
        for text in texts:
            async with self._turn:
                vector, tokens = await trio.to_thread.run_sync(self._server.embed, text)
            meter.tokens_in += max(1, tokens)
            vectors.append(vector)
        return vectors

    async def aclose(self) -> None:
        """See `Embedder.aclose`."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._server.close)


class _Tally:
    """Reads the engine's chunks in Trio's thread: counts, and passes pieces on."""

    def __init__(self, meter: TokenMeter, send: trio.MemorySendChannel[str]) -> None:
        self._meter = meter
        self._send = send
        self._in = self._out = self._pieces = 0
        self.finish: Literal["stop", "length"] | None = None

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk. Missing parts are normal: each chunk carries what there is to say."""
        for choice in chunk.get("choices", ()):
            piece = choice["delta"].get("content")
            if piece:
                self._pieces += 1
                self._send.send_nowait(piece)
            if choice.get("finish_reason"):
                self.finish = "length" if choice["finish_reason"] == "length" else "stop"
        usage, timings = chunk.get("usage") or {}, chunk.get("timings") or {}
        progress = chunk.get("prompt_progress") or {}
        read = max(self._in, progress.get("processed", 0), timings.get("prompt_n", 0), usage.get("prompt_tokens", 0))
        made = max(self._out, self._pieces, timings.get("predicted_n", 0), usage.get("completion_tokens", 0))
        self._meter.tokens_in += read - self._in
        self._meter.tokens_out += made - self._out
        self._in, self._out = read, made


def _threads() -> int:
    return max(1, (os.cpu_count() or 1) - 1)


def _check_magic(path: Path, target: str) -> None:
    """Refuse what is no model before the engine sees it: it says nothing about why."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except FileNotFoundError:
        raise ModelLoadFailed(f'model "{target}": there is no such file') from None
    except OSError as e:
        raise ModelLoadFailed(f'model "{target}": the file cannot be read ({e.strerror})') from e
    if magic != GGUF_MAGIC:
        raise ModelLoadFailed(
            f'model "{target}": the file is not a GGUF model. Use a .gguf file, or a name from: cuttlefish models list'
        )
