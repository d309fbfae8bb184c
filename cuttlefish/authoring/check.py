"""What a host, and whoever waits for a job, would find wrong with a block."""

import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import trio

from cuttlefish.authoring.cases import CaseRunner
from cuttlefish.authoring.conversations import BadConversation, Conversation, case_files, read_conversation
from cuttlefish.authoring.sources import Source, load_source
from cuttlefish.engine.guest import Guest
from cuttlefish.engine.guest_thread import open_guest
from cuttlefish.engine.module import CompiledModule
from cuttlefish.errors import CuttlefishError
from cuttlefish.host import Host
from cuttlefish.limits import Limits
from cuttlefish_abi import Signature

__all__ = ["Finding", "check_block"]

LARGE_BYTES = 8 << 20
"""A module from this size on takes a noticeable time to compile: about 0.5 s for each MiB."""
ENOUGH_STEPS = 5_000
"""For telling whether memory grows: some thousand steps, or what fits into `ENOUGH_TIME_S`."""
ENOUGH_TIME_S = 3.0
FEW_STEPS = 300
"""With fewer, a memory that still settles looks like one that grows."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: Literal["load", "signature", "cases", "determinism", "memory", "step time"]
    verdict: Literal["well", "warning", "wrong"]
    message: str
    advice: str | None = None
    """What to do about it."""


async def check_block(host: Host, source: Source, limits: Limits) -> AsyncIterator[Finding]:
    """Look at everything, one finding after the other; after a block that does not load there is nothing more to say.

    Takes as long as the block's cases, three times, and up to three seconds more. Cancelling stops it at once.
    """
    try:
        block = await load_source(host, source)
        facts = await host.inspect(block)
    except CuttlefishError as error:
        yield Finding("load", "wrong", f"{error.code}: {error.message}")
        return
    module, size = facts.module, len(block.wasm)
    told = f"{size:,} bytes of module; {_size(module.shape.memory_bytes)} of memory at the start; imports nothing"
    if size >= LARGE_BYTES:
        yield Finding("load", "warning", told, "the module is large and takes a while to compile: leave out what it does not use")
    else:
        yield Finding("load", "well", told)
    yield _of_signature(facts.signature, module)

    files = await trio.to_thread.run_sync(case_files, source.folder)
    runner = CaseRunner(module, limits, trio.CapacityLimiter(1))
    yield await _of_cases(runner, files, source)
    conversations = await trio.to_thread.run_sync(_read_all, files)
    if not conversations:
        return
    first = [await _speak_afresh(runner, one) for one in conversations]
    again = [await _speak_afresh(runner, one) for one in conversations]
    async with open_guest(module, limits, runner.threads) as guest_thread:
        await guest_thread(guest_thread.guest.start)
        repeated = await guest_thread(_repeat, guest_thread.guest, conversations)
    yield _of_determinism(conversations, first, again, repeated)
    yield _of_memory(repeated)
    yield _of_step_time([duration for one in [*first, *again] for duration in one.durations_s], limits)


@dataclass(slots=True)
class _Spoken:
    """What a block said in one conversation."""

    said: list[bytes | bool | str] = field(default_factory=list)
    """Its commands, its answers to tokens, and how it broke down if it did."""
    durations_s: list[float] = field(default_factory=list)

    @property
    def broke_down(self) -> bool:
        """Whether the guest is of no more use."""
        return bool(self.said) and isinstance(self.said[-1], str)


@dataclass(slots=True)
class _Repeated:
    """What came of the same conversations, again and again in one instance."""

    spoken: list[_Spoken] = field(default_factory=list)
    """Of the first round."""
    second: list[_Spoken] = field(default_factory=list)
    """Of the second round."""
    steps: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)
    """After so many steps, so many bytes."""


def _speak(guest: Guest, conversation: Conversation) -> _Spoken:
    """Tell a started guest what the conversation says, whatever it answers, until it is over or breaks down."""
    spoken = _Spoken()

    def timed(call: Callable[[bytes], bytes | bool], data: bytes) -> None:
        began = time.perf_counter()
        try:
            spoken.said.append(call(data))
        finally:  # a call that was stopped for its time is the longest of all
            spoken.durations_s.append(time.perf_counter() - began)

    try:
        timed(guest.init, conversation.value_json)
        for line in conversation.turns:
            if line.kind == "event":
                timed(guest.step, line.value_json)
            elif line.kind == "token":
                timed(guest.on_token, str(line.value).encode())
    except CuttlefishError as error:
        spoken.said.append(f"{error.code}: {error.message}")
    return spoken


async def _speak_afresh(runner: CaseRunner, conversation: Conversation) -> _Spoken:
    async with open_guest(runner.module, runner.limits, runner.threads) as guest_thread:
        await guest_thread(guest_thread.guest.start)
        return await guest_thread(_speak, guest_thread.guest, conversation)


def _repeat(guest: Guest, conversations: list[Conversation]) -> _Repeated:
    repeated = _Repeated()
    ends = time.monotonic() + ENOUGH_TIME_S
    for turn in range(ENOUGH_STEPS):
        for conversation in conversations:
            spoken = _speak(guest, conversation)
            if turn < 2:
                (repeated.second if turn else repeated.spoken).append(spoken)
            if spoken.broke_down:
                return repeated
            repeated.steps += len(spoken.durations_s)
        repeated.memory.append((repeated.steps, guest.memory_bytes))
        if turn and (repeated.steps >= ENOUGH_STEPS or time.monotonic() > ends):
            break
    return repeated


def _of_signature(signature: Signature, module: CompiledModule) -> Finding:
    described = signature.describe()
    if not module.shape.has("cf_signature"):
        advice = "say what the block takes and gives, so that pipelines can be checked before they run (SIGNATURE in Python)"
        return Finding("signature", "warning", f"it exports none, which means {described}", advice)
    if described == "json -> json":
        return Finding("signature", "warning", described, "name the fields it needs and gives, so that pipelines can check them")
    return Finding("signature", "well", described)


async def _of_cases(runner: CaseRunner, files: list[Path], source: Source) -> Finding:
    if not files:
        advice = f"record one: cuttlefish run {source.file} --input … --record {source.folder / 'cases' / 'NAME.jsonl'}"
        return Finding("cases", "warning", "there are none, so nothing that the block does is looked at", advice)
    results = [await runner.replay(file, str(file)) for file in files]
    wrong = [result.file for result in results if not result.is_well]
    if not wrong:
        return Finding("cases", "well", f"{_count(len(files), 'case passes', 'cases pass')}")
    listed = ", ".join(Path(file).stem for file in wrong[:5]) + (" …" if len(wrong) > 5 else "")
    advice = f"cuttlefish block test {source.folder} shows where"
    return Finding("cases", "wrong", f"{len(wrong)} of {_count(len(files), 'case does', 'cases do')} not pass: {listed}", advice)


def _read_all(files: list[Path]) -> list[Conversation]:
    """Those that can be read; of the others `_of_cases` has told."""
    found = []
    for file in files:
        try:
            found.append(read_conversation(file))
        except BadConversation:
            continue
    return found


def _of_determinism(conversations: list[Conversation], first: list[_Spoken], again: list[_Spoken], repeated: _Repeated) -> Finding:
    for conversation, one, other in zip(conversations, first, again, strict=True):
        if one.said != other.said:
            at = next((i for i, (a, b) in enumerate(zip(one.said, other.said, strict=False)) if a != b), 0)
            advice = "a block must not use what differs between instances, such as memory that it never wrote"
            message = f"{Path(conversation.name).stem}: two fresh instances answer differently from answer {at + 1} on"
            return Finding("determinism", "wrong", message, advice)
    for conversation, fresh, one, two in zip(conversations, first, repeated.spoken, repeated.second, strict=False):
        if not (fresh.said == one.said == two.said):
            advice = "set all state anew in cf_init (in Python: in run); a host starts every run afresh, so this is no error there"
            message = f"{Path(conversation.name).stem}: an instance that ran before answers otherwise than a fresh one"
            return Finding("determinism", "warning", message, advice)
    told = _count(len(conversations), "conversation", "conversations")
    return Finding("determinism", "well", f"{told}, twice each: the same events give the same commands")


def _of_memory(repeated: _Repeated) -> Finding:
    broken = next((spoken.said[-1] for spoken in [*repeated.spoken, *repeated.second] if spoken.broke_down), None)
    if broken is not None:
        return Finding("memory", "warning", f"cannot be told: the block breaks down in its cases: {broken!s}", "mend that first")
    if repeated.steps < FEW_STEPS:
        return Finding("memory", "warning", f"cannot be told from {repeated.steps} steps: they take too long")
    halfway = next(size for steps, size in repeated.memory if steps * 2 >= repeated.steps)
    last = repeated.memory[-1][1]
    if last > halfway:
        message = f"grows: {_size(halfway)} after half of {repeated.steps:,} steps, {_size(last)} at the end"
        return Finding("memory", "warning", message, "free what a step no longer needs, and set state anew in cf_init")
    return Finding("memory", "well", f"stays at {_size(last)} over {repeated.steps:,} steps in one instance")


def _of_step_time(durations_s: list[float], limits: Limits) -> Finding:
    median, longest = statistics.median(durations_s), max(durations_s)
    told = (
        f"median {_duration(median)}, longest {_duration(longest)}; a host allows {limits.guest_step_time_s:g} s (guest.step_time)"
    )
    if longest > limits.guest_step_time_s / 10:
        return Finding("step time", "warning", told, "do less in one step: a slower machine may stop the block there")
    return Finding("step time", "well", told)


def _count(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number} {many}"


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
