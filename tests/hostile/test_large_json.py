"""Blocks that answer with JSON which takes long to read: what one job is told must not hold up the host, nor a cancellation."""

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from cuttlefish import BlockBytes, Envelope, open_host
from cuttlefish import loop as command_loop
from cuttlefish.jobs import execution
from cuttlefish_abi import Command
from cuttlefish_abi.strict_json import has_more_values
from guests import echo, from_wat, scripted

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[{,"\\ä', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("[,a", max_size=3), inner, max_size=4),
    max_leaves=20,
)


def error_of(envelope: Envelope) -> tuple[str, str]:
    assert envelope.error is not None
    return envelope.error.code, envelope.error.message


@asynccontextmanager
async def longest_stall() -> AsyncIterator[list[float]]:
    """Meanwhile, by how many seconds a task woke up too late at worst: the list's one item."""
    worst = [0.0]

    async def beat() -> None:
        while True:
            due = trio.current_time() + 0.005
            await trio.sleep_until(due)
            worst[0] = max(worst[0], trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        yield worst
        nursery.cancel_scope.cancel()


def flood(unit: bytes, times: int, *, tag: bytes = b'"done"', rest: bytes = b"1]}") -> BlockBytes:
    """A block whose one command is a list with `unit` in it so many times; it writes that itself, so its module is small."""
    begin = b'{"cmd":' + tag + b',"result":['
    size, pages = len(begin) + len(unit) * times + len(rest), 2 + (len(begin) + len(unit) * times + len(rest)) // 65_536
    parts = {8: size.to_bytes(4, "little"), 4: (65_536).to_bytes(4, "little"), 64: unit, 4096: rest, 65_536: begin}
    data = " ".join(f'(data (i32.const {at}) "{"".join(f"{chr(92)}{byte:02x}" for byte in part)}")' for at, part in parts.items())
    wat = f"""(module (memory (export "memory") {pages}) {data}
      (func (export "cf_alloc") (param i32) (result i32) (i32.const 8192))
      (func (export "cf_init") (param i32 i32) (result i32)
        (local $at i32) (local $left i32)
        (local.set $at (i32.const {65_536 + len(begin)}))
        (local.set $left (i32.const {times}))
        (loop $more
          (memory.copy (local.get $at) (i32.const 64) (i32.const {len(unit)}))
          (local.set $at (i32.add (local.get $at) (i32.const {len(unit)})))
          (local.set $left (i32.sub (local.get $left) (i32.const 1)))
          (br_if $more (local.get $left)))
        (memory.copy (local.get $at) (i32.const 4096) (i32.const {len(rest)}))
        (i32.const 4))
      (func (export "cf_step") (param i32 i32) (result i32) (i32.const 4)))"""
    return from_wat(wat, "flood.wasm")


FLOODS = {
    "empty lists": (flood(b"[],", 5_000_000), 15_000_027),
    "nested lists": (flood(b"[" * 60 + b"]" * 60 + b",", 120_000), 14_520_027),
    "empty texts": (flood(b'"",', 5_000_000), 15_000_027),
    "objects where nobody reads them": (flood(b'{"a":1},', 2_000_000, tag=b'"fail","code":"","message":""'), 16_000_050),
    "texts full of commas, side by side": (flood(b'","', 5_000_000), 15_000_027),
}


@pytest.mark.parametrize(("block", "size"), FLOODS.values(), ids=FLOODS.keys())
async def test_a_command_of_millions_of_values_is_refused_before_it_is_read(block: BlockBytes, size: int) -> None:
    """Reading one took 3 to 8 seconds and a gigabyte, all of it beyond the reach of a cancellation."""
    async with open_host() as host:
        await host.inspect(block)  # compiles
        async with longest_stall() as stall:
            envelope = await host.run(block, {})
    expected = f'guest.json_values is 1000000; command 1 of "flood.wasm" holds more, in {size} bytes'
    assert error_of(envelope) == ("limit_exceeded", expected)
    assert stall[0] < 1  # some 10 ms; the reading alone would be longer than this, with every other thread held up


async def test_a_cancellation_does_not_wait_until_a_large_command_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    began, over = trio.Event(), threading.Event()
    decode = command_loop.decode_command

    def read_for_ever(payload: bytes, *, max_depth: int) -> Command:
        trio.from_thread.run_sync(began.set)
        over.wait(60)
        return decode(payload, max_depth=max_depth)

    monkeypatch.setattr(command_loop, "decode_command", read_for_ever)
    block = scripted(b'{"cmd":"done","result":[' + b"[]," * 100_000 + b"1]}")
    async with open_host() as host:
        job = host.start(block, {})
        await began.wait()
        job.cancel()
        with trio.fail_after(20):
            envelope = await job.envelope()
        over.set()
    assert error_of(envelope)[0] == "cancelled"


async def test_a_large_result_within_the_limit_comes_out_whole_and_is_held_against_its_type() -> None:
    result = [[number, "a,b", {"x": []}] for number in range(10_000)]
    done = {"cmd": "done", "result": result}
    async with open_host() as host:
        envelope = await host.run(scripted(done, signature="json -> [[json]]"), {})
        wrong = await host.run(scripted(done, signature="json -> [text]", name="big.wasm"), {})
    assert envelope.result == result
    expected = (
        '"big.wasm" gave a result that does not fit its own signature, [text]: result[0] must be text, found [0, "a,b", {"x": []}]'
    )
    assert error_of(wrong) == ("schema_validation_failed", expected)


async def test_commas_and_brackets_within_texts_are_no_values() -> None:
    table = "a,[b],{c}" * 60_000
    async with open_host() as host:
        envelope = await host.run(scripted({"cmd": "done", "result": table}), {}, limits={"guest.json_values": 10})
    assert envelope.result == table


async def test_a_large_command_that_is_no_result_is_carried_out_too() -> None:
    commands: list[object] = [{"cmd": "open", "path": "none", "remark": "x" * 300_000}, {"cmd": "done", "result": 1}]
    async with open_host() as host:
        envelope = await host.run(scripted(*commands), {})
    assert error_of(envelope)[0] == "capability_denied"


async def test_the_limit_can_be_raised() -> None:
    block = scripted({"cmd": "done", "result": [[]] * 1_000}, name="list.wasm")
    async with open_host() as host:
        short = await host.run(block, {}, limits={"guest.json_values": 5_007})
        enough = await host.run(block, {}, limits={"guest.json_values": 5_008})
    assert error_of(short)[1] == 'guest.json_values is 5007; command 1 of "list.wasm" holds more, in 4027 bytes'
    assert enough.result == [[]] * 1_000


async def test_a_large_input_is_written_in_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    encode = execution._encode_now

    def watch(*arguments: Any) -> bytes:  # Any: passed on as they are
        threads.append(threading.get_ident())
        return encode(*arguments)

    monkeypatch.setattr(execution, "_encode_now", watch)
    many, long = [{"cmd": "emit", "progress": 1}] * 600, [{"cmd": "emit", "progress": 1}, "x" * 300_000]
    async with open_host() as host:
        for value in (many, long):
            assert (await host.run(echo(), value)).error is None
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_a_signature_of_megabytes_is_refused_before_it_is_read() -> None:
    block = scripted({"cmd": "done", "result": 1}, signature="[" * 100_000 + "text" + "]" * 100_000 + " -> json", name="wide.wasm")
    async with open_host() as host:
        envelope = await host.run(block, {})
    code, message = error_of(envelope)
    assert code == "unsupported"
    assert message == '"wide.wasm" has a signature of 200035 bytes; 65536 at most can be read'


@given(JSON_VALUES, st.integers(0, 90), st.booleans())
def test_values_are_counted_by_their_commas_and_brackets_outside_texts(value: object, most: int, escaped: bool) -> None:
    assert has_more_values(json.dumps(value, ensure_ascii=escaped).encode(), most) == (_count(value) > most)


def _count(value: object) -> int:
    if isinstance(value, dict | list):
        parts = list(value.values()) if isinstance(value, dict) else value
        return 4 + max(0, len(parts) - 1) + sum(map(_count, parts))
    return 0
