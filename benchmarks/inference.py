"""Jobs that ask the embedded engine, beside that engine used by hand: tokens per second, what each costs, texts read twice."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import trio

from benchmarks.guests import scripted
from benchmarks.peers import OURS
from benchmarks.report import Part, Row, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import Times, times_of
from benchmarks.tokens import Heart
from cuttlefish import BlockBytes, Host, JobStatus, TokenPiece, open_host
from cuttlefish.background import background_tasks
from cuttlefish.inference import llama_cpp, registry
from cuttlefish.inference.backend import Backend, Prompt, Reply, ThreadSink, TokenMeter, TokenSink
from cuttlefish.inference.llama_server import BATCH_TOKENS, LlamaServer
from cuttlefish.inference.models import installed
from cuttlefish.inference.registry import Provider
from cuttlefish_abi import TokenAction

__all__ = ["measure_pieces", "measure_prefix", "measure_rate", "open_measured"]

MODEL = "smollm2"
ENGINE = "bare xllamacpp"
AT_ONCE = (1, 2, 4, 8)
CONTEXT = 2_048
THREADS = max(1, (os.cpu_count() or 1) - 1)
USUAL_SLOTS = llama_cpp.SLOTS

STORIES = tuple(
    f"Write a long story about {what}."
    for what in ("a whale", "a lighthouse", "two brothers", "a lost map", "the winter", "a train", "an old clock", "the first ship")
)
QUESTIONS = ("Which entry is the longest?", "What was seen most often?")


def measure_rate(scale: Scale) -> Part:
    """Let one, two, four and eight jobs write at once."""
    part = Part(
        "rate",
        f"Jobs at once, each a block that asks {MODEL} for {scale.reply_tokens} tokens and hears each of them, its updates read; "
        "from starting the first to the last Envelope. The bare engine: a thread for each prompt, a callback that joins the text. "
        f"Both have a slot for each job, {THREADS} thread(s) that compute, batches of {BATCH_TOKENS} tokens, and keep no prompt. "
        f"What a token costs more is the difference within each of {PAIRS_PER_ROUND * scale.reply_rounds} pairs of runs, one right "
        "after the other, of one job: by the clock, which is a small difference of two large times, and in processor time of the "
        "whole process.",
        rows=[],
        targets=[],
    )
    for count in AT_ONCE:
        per_token, added = trio.run(_write, count, scale)
        case = f"{count} job{'s' if count > 1 else ''} at once"
        part.rows.extend(Row(case, who, "1/s", 1 / t.lowest, 1 / t.median, repeats=t.repeats) for who, t in per_token.items())
        ratio = per_token[ENGINE].median / per_token[OURS].median
        part.targets.append(Target(f"tokens per second, {case}: cuttlefish / {ENGINE}, medians", 0.95, ratio, at_least=True))
        if count == 1:
            part.same_output.extend([OURS, ENGINE])
            for what, seconds in added.items():
                part.rows.extend(timed(what, {OURS: times_of(seconds)}))
                part.targets.append(Target(f"{what}, median", 250.0, times_of(seconds).median * 1e6, unit="µs"))
    return part


def measure_pieces(scale: Scale) -> Part:
    """Follow each piece from the engine's callback to the block's verdict, and watch the event loop."""
    moved, held, stalls = trio.run(_pieces, scale)
    return Part(
        "pieces",
        "A job as above, alone: the time from the engine handing a piece to us until the block's `cf_on_token` has answered and "
        "whoever reads the updates has been woken. All of it happens in the thread that asked the engine, which computes on "
        "meanwhile. For comparison the bare engine with the hops that this avoids, into an event loop and to a worker thread that "
        "does nothing; and the time for which we hold the asking thread. The stall is how late a task that "
        f"sleeps for 1 ms wakes up at worst while {USUAL_SLOTS} jobs write; for comparison beside the bare engine, with no job.",
        rows=[
            *timed("from the engine to the verdict", moved),
            *timed("the asking thread held, per message", {OURS: held}),
            *(Row("longest stall of the event loop", who, "s", stall) for who, stall in stalls.items()),
        ],
        targets=[
            Target("from the engine to the verdict, median", 250.0, moved[OURS].median * 1e6, unit="µs"),
            Target("longest stall of the event loop while generating", 20.0, stalls[OURS] * 1e3, unit="ms"),
        ],
    )


def measure_prefix(scale: Scale) -> Part:
    """Ask two questions about one long text, in two jobs."""
    times, tokens = trio.run(_prefix, scale)
    ratio = times[FIRST][OURS].median / times[SECOND][OURS].median
    return Part(
        "prefix",
        f"Two jobs, one after the other, whose prompts ({tokens} tokens) differ only in their last sentence; each round has a new "
        "text. From starting the job until its first piece is in its updates. The bare engine does the same with `cache_prompt`.",
        rows=[row for case, peers in times.items() for row in timed(case, peers)],
        targets=[Target("first piece: the first job / the second, medians", 20.0, ratio, at_least=True)],
    )


HOPS = f"{ENGINE}, hops alone"
LONGER, BUSIER = "longer by the clock, per token", "more processor time, per token"
PAIRS_PER_ROUND = 3
FIRST, SECOND = "first job", "second job, same beginning"


async def _write(count: int, scale: Scale) -> tuple[dict[str, Times], dict[str, list[float]]]:
    """Seconds per token of all jobs together, of each contestant, who take turns; and by how much ours needs more."""
    prompts = STORIES[:count]
    blocks = [_asking(prompt, scale.reply_tokens, seed=7) for prompt in prompts]
    per_token: dict[str, list[float]] = {OURS: [], ENGINE: []}
    busy: dict[str, list[float]] = {OURS: [], ENGINE: []}
    async with _contestants(count) as (host, engine):
        for block in blocks:
            await host.inspect(block)  # compiles

        async def ours() -> list[tuple[str, int]]:
            return await _jobs(host, blocks, count)

        async def bare() -> list[tuple[str, int]]:
            return await trio.to_thread.run_sync(engine.ask_all, prompts, scale.reply_tokens)

        contestants = {OURS: ours, ENGINE: bare}
        for number in range(scale.reply_rounds * (PAIRS_PER_ROUND if count == 1 else 1) + 1):
            replies = {}
            for name in [OURS, ENGINE] if number % 2 else [ENGINE, OURS]:
                began, busy_before = time.perf_counter(), time.process_time()
                replies[name] = await contestants[name]()
                taken, used = time.perf_counter() - began, time.process_time() - busy_before
                if number:  # the first round loads the model and fills caches
                    tokens = sum(made for _, made in replies[name])
                    per_token[name].append(taken / tokens)
                    busy[name].append(used / tokens)
            if count == 1 and replies[OURS] != replies[ENGINE]:  # side by side, the shapes of batches may tip a close choice
                raise AssertionError(f"{OURS} says {replies[OURS]}, and {ENGINE} {replies[ENGINE]}")
    added = {
        what: [mine - theirs for mine, theirs in zip(taken[OURS], taken[ENGINE], strict=True)]
        for what, taken in ((LONGER, per_token), (BUSIER, busy))
    }
    return {name: times_of(each) for name, each in per_token.items()}, added


async def _pieces(scale: Scale) -> tuple[dict[str, Times], Times, dict[str, float]]:
    blocks = [_asking(prompt, scale.reply_tokens, seed=7) for prompt in STORIES[:USUAL_SLOTS]]
    stalls: dict[str, float] = {}
    moved: list[float] = []
    held: list[float] = []
    hops: list[float] = []
    async with _contestants(USUAL_SLOTS) as (host, engine):
        for _ in range(2):
            await _jobs(host, blocks[:1], USUAL_SLOTS)  # loads the model, which stops everything, and fills caches
        watched = _watched[-1]
        for _ in range(scale.reply_rounds):
            watched.moved.clear()
            watched.held.clear()
            await _jobs(host, blocks[:1], USUAL_SLOTS)
            moved += watched.moved
            held += watched.held
            hops += await engine.hops(STORIES[0], scale.reply_tokens)
        async with _heartbeat(OURS, stalls):
            for _ in range(scale.reply_rounds):
                await _jobs(host, blocks, USUAL_SLOTS)
        async with _heartbeat(f"{ENGINE} on threads", stalls):
            for _ in range(scale.reply_rounds):
                await trio.to_thread.run_sync(engine.ask_all, STORIES[:USUAL_SLOTS], scale.reply_tokens)
    return {OURS: times_of(moved), HOPS: times_of(hops)}, times_of(held), stalls


async def _prefix(scale: Scale) -> tuple[dict[str, dict[str, Times]], int]:
    """Seconds to the first piece, and the tokens of a prompt."""
    seconds: dict[str, dict[str, list[float]]] = {FIRST: {OURS: [], ENGINE: []}, SECOND: {OURS: [], ENGINE: []}}
    tokens = 0
    async with _contestants(USUAL_SLOTS) as (host, engine):
        await _jobs(host, [_asking("Say hello.", 1)], USUAL_SLOTS)  # loads the model
        for number in range(scale.prefix_rounds):
            text = _log(number, scale.prefix_entries)
            for case, question in zip((FIRST, SECOND), QUESTIONS, strict=True):
                prompt = f"{text}\n{question}"
                block = _asking(prompt, 2)
                await host.inspect(block)
                began = time.perf_counter()
                job = host.start(block, {}, model=f"measured:{USUAL_SLOTS}")
                first = None
                async for update in job:
                    if first is None and isinstance(update, TokenPiece):
                        first = time.perf_counter() - began
                envelope = await job.envelope()
                assert envelope.status is JobStatus.COMPLETED, envelope
                assert first is not None, envelope
                tokens = envelope.usage.tokens_in
                seconds[case][OURS].append(first)
                seconds[case][ENGINE].append(await trio.to_thread.run_sync(engine.first_piece, prompt))
    return {case: {who: times_of(s) for who, s in peers.items()} for case, peers in seconds.items()}, tokens


def _log(number: int, entries: int) -> str:
    """A text whose beginning no other number's has, of some 17 tokens an entry."""
    seen = ("a grey whale", "two boats", "a flock of terns", "heavy rain", "nothing at all")
    return f"Log {number} of the coast.\n" + "\n".join(
        f"Entry {at}: the watch saw {seen[at * (number + 2) % 5]} near the pier." for at in range(entries)
    )


def _asking(prompt: str, tokens: int, seed: int | None = None) -> BlockBytes:
    infer: dict[str, object] = {"cmd": "infer", "prompt": prompt, "max_tokens": tokens}
    if seed is not None:
        infer["options"] = {"seed": seed}  # with it nothing is taken over from an earlier prompt
    return scripted(infer, {"cmd": "done", "result": 1}, name="asking.wasm", hears_tokens=True)


async def _jobs(host: Host, blocks: Sequence[BlockBytes], slots: int) -> list[tuple[str, int]]:
    """Run a job of each block at once, reading its updates; give each one's text and tokens."""
    replies: list[tuple[str, int]] = []

    async def follow(block: BlockBytes) -> None:
        job, text = host.start(block, {}, model=f"measured:{slots}"), ""
        async for update in job:
            if isinstance(update, TokenPiece):
                text += update.text
        envelope = await job.envelope()
        assert envelope.status is JobStatus.COMPLETED, envelope
        replies.append((text, envelope.usage.tokens_out))

    async with trio.open_nursery() as nursery:
        for block in blocks:
            nursery.start_soon(follow, block)
    return replies


class BareEngine:
    """The engine as one would use it by hand, set up as ours is."""

    def __init__(self, slots: int) -> None:
        import xllamacpp  # not above: `llama_server` first sets how the engine's threads wait

        params = xllamacpp.CommonParams()
        params.model.path = str(installed.resolve(MODEL))
        params.n_parallel, params.n_ctx = slots, CONTEXT * slots
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
        params.port, params.api_keys, params.ui = 0, [os.urandom(16).hex()], False
        params.cache_ram_mib, params.warmup, params.verbosity = 0, False, 0
        self._server: Any = xllamacpp.Server(params)  # Any: the package has no types
        self._ask("a", 1, lambda _: None)  # to close it before its loop has begun would hang

    def ask_all(self, prompts: Sequence[str], tokens: int) -> list[tuple[str, int]]:
        """Answer all at once; each one's text and tokens. Blocking."""
        replies: list[tuple[str, int]] = []

        def ask(prompt: str) -> None:
            pieces: list[str] = []
            made = self._ask(prompt, tokens, pieces.append, seed=7)
            replies.append(("".join(pieces), made))

        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(replies) == len(prompts)
        return replies

    def first_piece(self, prompt: str) -> float:
        """Seconds until the first piece of a reply, to a prompt whose beginning may have been read before. Blocking."""
        came: list[float] = []
        began = time.perf_counter()
        self._ask(prompt, 2, lambda _: came.append(time.perf_counter()))
        return came[0] - began

    async def hops(self, prompt: str, tokens: int) -> list[float]:
        """Seconds from each piece in the callback until a task has sent it to a worker thread and is back."""
        send, pieces = trio.open_memory_channel[tuple[str, float]](math.inf)
        into_trio = trio.lowlevel.current_trio_token().run_sync_soon
        seconds: list[float] = []

        def ask() -> None:
            self._ask(prompt, tokens, lambda piece: into_trio(send.send_nowait, (piece, time.perf_counter())), seed=7)
            into_trio(send.close)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, ask)
            async for piece, came in pieces:
                await trio.to_thread.run_sync(piece.encode)
                seconds.append(time.perf_counter() - came)
        return seconds

    def _ask(self, prompt: str, tokens: int, on_text: Callable[[str], object], seed: int | None = None) -> int:
        usage: dict[str, int] = {}

        def callback(chunk: Mapping[str, Any]) -> bool:
            usage.update(chunk.get("usage") or {})
            for choice in chunk["choices"]:
                if text := choice["delta"].get("content"):
                    on_text(text)
            return False

        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "cache_prompt": seed is None,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._server.handle_chat_completions(body if seed is None else body | {"seed": seed}, callback)
        return usage["completion_tokens"]

    def close(self) -> None:
        """Free the model."""
        self._server = None


@asynccontextmanager
async def _contestants(slots: int) -> AsyncIterator[tuple[Host, BareEngine]]:
    """A host that knows the model `measured:SLOTS`, and the bare engine with as many slots."""
    with TemporaryDirectory() as folder, mock.patch.object(registry, "_PROVIDERS", (*registry.providers(), MEASURED)):
        engine = await trio.to_thread.run_sync(BareEngine, slots)
        try:
            async with open_host(cache_dir=folder, max_jobs=max(AT_ONCE)) as host:
                yield host, engine
        finally:
            engine.close()
            _watched.clear()


class _WatchedServer(LlamaServer):
    """Our engine's side, which takes the time at which each piece comes, and for which the engine is held."""

    came: deque[float]
    held: list[float]

    def generate(self, prompt: Prompt, on_chunk: Callable[[Mapping[str, Any]], None], stop: threading.Event) -> None:
        came, held = self.came, self.held

        def watch(chunk: Mapping[str, Any]) -> None:
            began = time.perf_counter()
            if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                came.append(began)
                began = time.perf_counter()
            on_chunk(chunk)
            held.append(time.perf_counter() - began)

        super().generate(prompt, watch, stop)


@dataclass(frozen=True, slots=True)
class TimedSink:
    """The host's sink, which takes the time from each piece to its verdict."""

    sink: ThreadSink
    came: deque[float]
    moved: list[float]

    def hear(self, piece: str) -> TokenAction:
        """See `ThreadSink`."""
        verdict = self.sink.hear(piece)
        self.moved.append(time.perf_counter() - self.came.popleft())
        return verdict

    async def __call__(self, piece: str) -> TokenAction:
        """Not how this engine shows its pieces."""
        raise NotImplementedError


class WatchedModel:
    """The embedded backend, which takes the time from each piece to its verdict; true while one prompt runs at a time."""

    def __init__(self, inner: Backend, server: _WatchedServer) -> None:
        self.name, self.accepts_images = inner.name, inner.accepts_images
        self._inner = inner
        self._came, self.held = server.came, server.held
        self.moved: list[float] = []

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """See `Backend`."""
        assert isinstance(sink, ThreadSink), "the host's own sink is heard where the pieces come from"
        return await self._inner.infer(prompt, TimedSink(sink, self._came, self.moved), meter)

    async def aclose(self) -> None:
        """See `Backend`."""
        await self._inner.aclose()


_watched: list[WatchedModel] = []


async def open_measured(target: str, **options: object) -> WatchedModel:
    """Open `measured:SLOTS`, as `open_backend` does for the providers that it knows."""
    made: list[_WatchedServer] = []

    def make(*args: Any, **named: Any) -> _WatchedServer:  # Any: passed on as they are
        server = _WatchedServer(*args, **named)
        server.came, server.held = deque(), []
        made.append(server)
        return server

    with mock.patch.object(llama_cpp, "LlamaServer", make):
        inner = await llama_cpp.open_llama_cpp(MODEL, slots=int(target), context=CONTEXT, threads=THREADS)
    _watched.append(WatchedModel(inner, made[0]))
    return _watched[-1]


MEASURED = Provider("measured", "measured:SLOTS", "the embedded engine, watched", "benchmarks.inference", "open_measured")


@asynccontextmanager
async def _heartbeat(name: str, stalls: dict[str, float]) -> AsyncIterator[None]:
    """Meanwhile, see how long the event loop stands still at worst."""
    heart = Heart()
    async with background_tasks() as beside:
        beside.start_soon(heart.beat)
        yield
    stalls[name] = heart.worst
