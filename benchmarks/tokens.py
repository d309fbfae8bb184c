"""What a block and its host add to each token of a model's reply, and whether the event loop stays awake meanwhile."""

import time
from functools import partial
from tempfile import TemporaryDirectory
from unittest import mock

import trio

from benchmarks.guests import ECHO, scripted
from benchmarks.peers import BARE, FLOOR, OURS, QUICKEST, bare_guest, compiled, live_guests
from benchmarks.report import Part, Row, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import Times, interleave, times_of
from cuttlefish import BlockBytes, JobStatus, TokenPiece, open_host
from cuttlefish.background import background_tasks
from cuttlefish.engine.module import CompiledModule
from cuttlefish.inference import registry
from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.registry import Provider
from cuttlefish_abi import TokenAction

__all__ = ["measure", "open_paced"]

TOKENS_PER_S = 1_000
PIECE = " token"
HEARS, DEAF = f"{OURS}, block hears tokens", f"{OURS}, block does not"
BARE_HOP = f"{BARE} on a worker thread"
BEAT_S = 0.001


def measure(scale: Scale) -> Part:
    """Run prompts with a model that keeps a pace, and the guest's function by itself."""
    part = Part(
        "tokens",
        f"A model makes {TOKENS_PER_S:,} tokens per second; each goes to the job's updates, which a reader reads, and to the "
        "block's `cf_on_token` on its worker thread; the time is from token to verdict. A worker thread is what an async host "
        f"needs around the bare call too. The stall is how late a task that sleeps for {BEAT_S * 1e3:.0f} ms wakes up at worst; "
        "for comparison also with nothing else to do.",
        rows=[],
        targets=[],
    )
    stalls: dict[str, float] = {}
    taken: dict[str, Times] = {}
    replies: dict[str, str] = {}
    for name, hears in ((HEARS, True), (DEAF, False)):
        block = _prompting(scale.tokens, hears=hears)
        taken[name], stalls[name], replies[name] = trio.run(_infer, block, scale.tokens)
    stalls["nothing to do"] = trio.run(_idle, scale.tokens)
    with compiled(ECHO) as module:
        taken[BARE_HOP] = trio.run(_bare_on_a_thread, module, scale.tokens)
    if set(replies.values()) != {PIECE * scale.tokens}:
        raise AssertionError("the updates do not hold the whole reply")
    part.same_output.extend(replies)
    part.rows.extend(timed("token to verdict", taken))
    part.rows.extend(timed("the call by itself, no hop", _calls_alone(scale)))
    part.rows.extend(Row("longest stall of the event loop", name, "s", stall) for name, stall in stalls.items())
    part.targets.append(Target("per token, median", 250.0, taken[HEARS].median * 1e6, unit="µs"))
    part.targets.append(Target("longest stall of the event loop", 20.0, stalls[HEARS] * 1e3, unit="ms"))
    return part


class PacedModel:
    """A backend whose tokens come at a pace, and which takes the time that each spends in the sink."""

    name = "paced"
    accepts_images = False

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """See `Backend`."""
        began = trio.current_time()
        for number in range(prompt.max_tokens):
            await trio.sleep_until(began + number / TOKENS_PER_S)
            meter.tokens_out += 1
            shown = time.perf_counter()
            verdict = await sink(PIECE)
            self.seconds.append(time.perf_counter() - shown)
            assert verdict is TokenAction.CONTINUE
        return Reply(PIECE * prompt.max_tokens, "length")

    async def aclose(self) -> None:
        """Nothing to free."""
        await trio.lowlevel.checkpoint()


def _prompting(tokens: int, *, hears: bool) -> BlockBytes:
    infer = {"cmd": "infer", "prompt": "go", "max_tokens": tokens}
    return scripted(infer, {"cmd": "done", "result": 1}, name="prompting.wasm", hears_tokens=hears)


_opened: list[PacedModel] = []


async def open_paced(target: str, **options: object) -> PacedModel:
    """Open `paced:`, as `open_backend` does for the providers that it knows."""
    await trio.lowlevel.checkpoint()
    _opened.append(PacedModel())
    return _opened[-1]


PACED = Provider("paced", "paced:", "a model that keeps a pace", "benchmarks.tokens", "open_paced")


async def _infer(block: BlockBytes, tokens: int) -> tuple[Times, float, str]:
    """Time per token, longest stall, and what a reader of the updates has read."""
    heart, read = Heart(), ""
    with TemporaryDirectory() as folder, mock.patch.object(registry, "_PROVIDERS", (*registry.providers(), PACED)):
        async with open_host(cache_dir=folder) as host:
            await host.inspect(block)  # compiles
            async with background_tasks() as beside:
                beside.start_soon(heart.beat)
                job = host.start(block, {}, model="paced:")
                async for update in job:
                    if isinstance(update, TokenPiece):
                        read += update.text
            envelope = await job.envelope()
            assert envelope.status is JobStatus.COMPLETED, envelope
            assert envelope.usage.tokens_out == tokens, envelope
    return times_of(_opened.pop().seconds), heart.worst, read


class Heart:
    """A task that sleeps for a moment again and again; `worst` is how many seconds late it woke up at worst."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def beat(self) -> None:
        """Until cancelled."""
        while True:
            due = trio.current_time() + BEAT_S
            await trio.sleep_until(due)
            self.worst = max(self.worst, trio.current_time() - due)


async def _idle(tokens: int) -> float:
    heart = Heart()
    async with background_tasks() as beside:
        beside.start_soon(heart.beat)
        await trio.sleep(tokens / TOKENS_PER_S)
    return heart.worst


async def _bare_on_a_thread(module: CompiledModule, tokens: int) -> Times:
    with bare_guest(module) as guest:

        async def sink(piece: str) -> TokenAction:
            stop = await trio.to_thread.run_sync(guest.on_token, piece.encode())
            return TokenAction.STOP if stop else TokenAction.CONTINUE

        model = PacedModel()
        await model.infer(Prompt(text="go", max_tokens=tokens), sink, TokenMeter())
        return times_of(model.seconds)


def _calls_alone(scale: Scale) -> dict[str, Times]:
    piece = PIECE.encode()
    with compiled(ECHO) as module, live_guests(module, with_extism=True) as live:
        calls = {name: partial(each.on_token, piece) for name, each in live.items() if name not in (FLOOR, QUICKEST)}
        return interleave(calls, scale.rounds, scale.step_calls)
