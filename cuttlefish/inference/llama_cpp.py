"""Models on this machine, by llama.cpp inside this process: the Trio side. `llama_server.py` is the engine's side.

Each running prompt has a thread of its own, in which the sink hears the pieces. Whether to stop is asked at every token and at
every batch of the prompt.
"""

import math
import os
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import trio

from cuttlefish.errors import InferenceFailed, ModelLoadFailed
from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.llama_server import LlamaServer
from cuttlefish.inference.models import installed
from cuttlefish.inference.showing import ShowingInThread

__all__ = ["open_llama_cpp", "open_llama_cpp_embedder"]

GGUF_MAGIC = b"GGUF"
SLOTS = 4  # four jobs at once get a sixth more tokens per second than by two (SmolLM2, 2 cores); each takes memory for its context
QUICKEST_TOKEN_S = 0.001  # within such a time no second token comes


async def open_llama_cpp(
    target: str,
    *,
    local_only: bool = False,
    slots: int = SLOTS,
    context: int = 4096,
    threads: int | None = None,
    folder: Path | None = None,
    metrics: bool = False,
) -> "LlamaCppBackend":
    """Load a model by its name in the models folder (`folder`, else the user's own) or by the path of a GGUF file.

    `slots` prompts run at once, each with `context` tokens for prompt and reply together (fewer if the model was made for
    fewer); more prompts wait their turn. Each slot takes memory for its context, whether it is used or not: 90 MB for SmolLM2.
    `threads` compute; all cores but one unless given. A `*mmproj*.gguf` file beside the model lets it read images. `metrics`
    opens the engine's own counters at `LlamaCppBackend.listener`.

    Loading happens in a thread, **but the engine holds the GIL** while it reads the file: the whole process stands still,
    about 0.4 s for a model of 100 MB. It cannot be cut short: a cancel takes effect afterwards, at the next wait.

    Raises:
        ModelLoadFailed: an unknown name, a missing file, or one that is not a model the engine can load.
    """

    def load() -> tuple[LlamaServer, bool]:
        path = installed.resolve(target, folder)
        _check_magic(path, target)
        projector = installed.projector_beside(path)
        if projector is not None:
            _check_magic(projector, target)
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
        path = installed.resolve(target, folder)
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
        self._threads = trio.CapacityLimiter(slots)
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
        answer = _Answer(self.name, ShowingInThread(prompt, sink), meter, stop)

        def work() -> Reply:
            self._server.generate(prompt, answer.take, stop)
            return answer.reply("closed" if self._closing else "stopped")

        self._stops.add(stop)
        try:
            return await trio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._stops.discard(stop)
            await trio.lowlevel.checkpoint_if_cancelled()  # a sink that was interrupted has its own word for it

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
            meter.add(tokens_in=max(1, tokens))
            vectors.append(vector)
        return vectors

    async def aclose(self) -> None:
        """See `Embedder.aclose`."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._server.close)


class _Answer:
    """The engine's answer to one prompt, taken chunk by chunk in the thread that asked: counted, shown, and ended early if need be.

    The sink is heard here, while the engine goes on: two ways through Trio's thread took 600 µs a token, this takes 50.
    """

    def __init__(self, model: str, showing: ShowingInThread, meter: TokenMeter, stop: threading.Event) -> None:
        self._model = model
        self._showing = showing
        self._stop = stop
        self._tally = _Tally(meter)
        self._failure: BaseException | None = None
        self._over_since: float | None = None

    def take(self, chunk: Mapping[str, Any]) -> None:
        """Take one chunk."""
        try:
            piece = self._tally.add(chunk)
        except (AttributeError, KeyError, TypeError, ValueError):
            self._failure = InferenceFailed(f'model "{self._model}" broke off: its engine sent what is not understood')
            self._stop.set()
            return
        if self._over_since is not None:
            if self._tally.made_at >= self._over_since:
                self._stop.set()
            return
        try:
            trio.from_thread.check_cancelled()
            if not piece or self._showing.add(piece):
                return
        except BaseException as e:  # noqa: BLE001  # raised again by `reply`, when the engine has stopped
            self._failure = e
        self._over_since = time.perf_counter()
        if not self._tally.is_behind(self._over_since):
            self._stop.set()  # else the sink took its time: what the engine has made meanwhile is still to be counted

    def reply(self, ended_by: str) -> Reply:
        """The whole reply, when the engine is done.

        Raises:
            InferenceFailed: it was `ended_by` somebody else, or sent nonsense. And what the sink raised.
        """
        if self._failure is not None:
            raise self._failure
        finish = "stop" if self._over_since is not None else self._tally.finish
        if finish is None:
            raise InferenceFailed(f'model "{self._model}" was {ended_by} before its reply was whole')
        return self._showing.end(finish)


class _Tally:
    """Counts what the engine's chunks tell, and when they were made."""

    def __init__(self, meter: TokenMeter) -> None:
        self._meter = meter
        self._in = self._out = self._pieces = 0
        self._clocks_differ = math.inf
        self._answering_s = 0.0
        self.finish: Literal["stop", "length"] | None = None

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take one chunk, and give its text. Missing parts are normal: each chunk carries what there is to say."""
        text = ""
        for choice in chunk.get("choices", ()):
            piece = choice["delta"].get("content")
            if piece:
                self._pieces += 1
                text += piece
            if choice.get("finish_reason"):
                self.finish = "length" if choice["finish_reason"] == "length" else "stop"
        usage, timings = chunk.get("usage") or {}, chunk.get("timings") or {}
        progress = chunk.get("prompt_progress") or {}
        read = max(self._in, progress.get("processed", 0), timings.get("prompt_n", 0), usage.get("prompt_tokens", 0))
        made = max(self._out, self._pieces, timings.get("predicted_n", 0), usage.get("completion_tokens", 0))
        if read != self._in or made != self._out:
            self._meter.add(read - self._in, made - self._out)
        self._in, self._out = read, made
        if made and timings:
            self._answering_s = timings.get("predicted_ms", 0.0) / 1e3
            self._clocks_differ = min(self._clocks_differ, time.perf_counter() - self._answering_s)
        return text

    @property
    def made_at(self) -> float:
        """When the engine made the last chunk, by `time.perf_counter`; infinite where it does not tell."""
        return self._answering_s + self._clocks_differ

    def is_behind(self, now: float) -> bool:
        """Whether the engine has made more by `now` than it has told us."""
        per_token = self._answering_s / (self._out - 1) if self._out > 1 else 0.0
        return now - self.made_at > max(per_token, QUICKEST_TOKEN_S)


def _threads() -> int:
    return max(1, (os.cpu_count() or 1) - 1)


def _check_magic(path: Path, target: str) -> None:
    """Refuse what is no model before the engine sees it: it says nothing about why, and waits for ever at a pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise ModelLoadFailed(f'model "{target}": there is no such file') from None
    except OSError as e:
        raise ModelLoadFailed(f'model "{target}": the file cannot be read ({e.strerror})') from e
    try:
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "no file on a disk"
            raise ModelLoadFailed(f'model "{target}": "{path.name}" is {what}. Use a .gguf file')
        magic = os.read(fd, len(GGUF_MAGIC))
    finally:
        os.close(fd)
    if magic != GGUF_MAGIC:
        raise ModelLoadFailed(
            f'model "{target}": "{path.name}" is not a GGUF model. Use a .gguf file, or a name from: cuttlefish models list'
        )
