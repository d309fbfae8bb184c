"""Hostile blocks through the public face: each ends in an Envelope with the right code, while a good job runs beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import wasmtime

from cuttlefish import BlockBytes, Envelope, Host, JobStatus, Progress, open_host
from guests import PAGE, SPIN, from_wat, scripted

DONE = {"cmd": "done", "result": None}
EMIT = {"cmd": "emit", "progress": 1}
CANARY = b"CANARY" * 16


def answering(descriptor: int, *, memory: str = '(memory (export "memory") 2)', data: str = "", step: str = "") -> BlockBytes:
    """A block that answers every call with this descriptor's address."""
    return from_wat(
        f"""(module {memory} {data}
        (data (i32.const {2 * PAGE - len(CANARY)}) "{CANARY.decode()}")
        (func (export "cf_alloc") (param i32) (result i32) (i32.const 1024))
        (func (export "cf_init") (param i32 i32) (result i32) {step} (i32.const {descriptor}))
        (func (export "cf_step") (param i32 i32) (result i32) (i32.const {descriptor})))""",
        "hostile.wasm",
    )


def describing(address: int, length: int) -> BlockBytes:
    """A block whose descriptor, at address 16, names this range."""
    raw = (address % 2**32).to_bytes(4, "little") + (length % 2**32).to_bytes(4, "little")
    return answering(16, data=f'(data (i32.const 16) "{"".join(f"{chr(92)}{byte:02x}" for byte in raw)}")')


def moved_by_a_grow() -> BlockBytes:
    """The answer lies in memory that did not exist before the call: the host must ask for the memory's place anew."""
    payload = b'{"cmd":"done","result":7}'
    store = " ".join(f"(i32.store8 (i32.const {4 * PAGE + i}) (i32.const {byte}))" for i, byte in enumerate(payload))
    return answering(
        16,
        data=f'(data (i32.const 16) "\\00\\00\\04\\00\\{len(payload):02x}\\00\\00\\00")',
        step=f"(drop (memory.grow (i32.const 10))) {store}",
    )


def module(body: str) -> Callable[[], BlockBytes]:
    return lambda: from_wat(f"(module {body})", "hostile.wasm")


GROW_FOR_EVER = """(loop $more (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then (unreachable))) (br $more))"""
RECURSE = "(func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))"
BASIC = """(memory (export "memory") 1) (func (export "cf_alloc") (param i32) (result i32) (i32.const 8))
    (func (export "cf_init") (param i32 i32) (result i32) (i32.const 0))
    (func (export "cf_step") (param i32 i32) (result i32) (i32.const 0))"""

ATTACKS: dict[str, tuple[Callable[[], BlockBytes], str, str]] = {
    "loop in the start function": (lambda: scripted(DONE, start=SPIN), "timeout", "guest.step_time is 0.2 seconds"),
    "loop in cf_init": (lambda: scripted(DONE, init=SPIN), "timeout", "guest.step_time is 0.2 seconds"),
    "loop in cf_step": (lambda: scripted(EMIT, DONE, step=SPIN), "timeout", "guest.step_time is 0.2 seconds"),
    "loop in cf_alloc": (lambda: scripted(DONE, alloc=f"{SPIN} (i32.const 0)"), "timeout", "guest.step_time is 0.2 seconds"),
    "loop in cf_signature": (
        lambda: scripted(DONE, extra=f'(func (export "cf_signature") (result i32) {SPIN} (i32.const 0))'),
        "timeout",
        "guest.step_time is 0.2 seconds",
    ),
    "loop in cf_on_token": (
        lambda: scripted({"cmd": "infer", "prompt": "", "max_tokens": 9}, DONE, on_token=f"{SPIN} (i32.const 0)"),
        "timeout",
        "guest.step_time is 0.2 seconds",
    ),
    "memory bomb": (
        lambda: scripted(DONE, init=GROW_FOR_EVER),
        "wasm_trap",
        "(its memory stood at 15925248 bytes; guest.memory is 16777216 bytes)",
    ),
    "table bomb": (
        module(f"{BASIC} (table 2000000 funcref)"),
        "limit_exceeded",
        'guest.table is 1000000; "hostile.wasm" asked for more',
    ),
    "recursion bomb": (
        lambda: scripted(DONE, init="(drop (call $deep (i32.const 1)))", extra=RECURSE),
        "wasm_trap",
        "ran out of stack: it calls itself too deeply",
    ),
    "unreachable": (lambda: scripted(DONE, init="(unreachable)"), "wasm_trap", "stopped itself (unreachable code)"),
    "division by zero": (
        lambda: scripted(DONE, init="(drop (i32.div_u (i32.const 1) (i32.const 0)))"),
        "wasm_trap",
        "divided by zero",
    ),
    "uncaught exception": (
        lambda: scripted(DONE, init="(throw $oops)", extra="(tag $oops)"),
        "wasm_trap",
        "raised an exception that nobody caught",
    ),
    "trap in the start function": (lambda: scripted(DONE, start="(unreachable)"), "wasm_trap", "in its start function"),
    "descriptor past the end": (lambda: answering(2 * PAGE), "bad_command", "a descriptor outside its memory: 131072 of 131072"),
    "descriptor over the edge": (lambda: answering(2 * PAGE - 4), "bad_command", "a descriptor outside its memory"),
    "descriptor negative": (lambda: answering(-16), "bad_command", "a descriptor outside its memory: 4294967280 of 131072"),
    "descriptor at 2^31": (lambda: answering(-(2**31)), "bad_command", "a descriptor outside its memory: 2147483648 of"),
    "descriptor null": (lambda: answering(0), "bad_command", 'command 1 of "hostile.wasm": not valid JSON'),
    "payload negative": (lambda: describing(-96, 96), "bad_command", "96 bytes at 4294967200, outside its memory of 131072 bytes"),
    "payload past the end": (lambda: describing(2 * PAGE - 8, 9), "bad_command", "9 bytes at 131064, outside its memory"),
    "payload at 2^32-1": (lambda: describing(2**32 - 1, 1), "bad_command", "1 bytes at 4294967295, outside its memory"),
    "payload of length 2^32-1": (lambda: describing(16, 2**32 - 1), "limit_exceeded", "guest.message is 67108864 bytes"),
    "payload of length 2^31": (lambda: describing(16, 2**31), "limit_exceeded", "answered with 2147483648"),
    "payload of length 0": (lambda: describing(16, 0), "bad_command", "not valid JSON at line 1 column 1: a value belongs here"),
    "payload that is its own descriptor": (lambda: describing(16, 8), "bad_command", 'command 1 of "hostile.wasm": not valid JSON'),
    "command of invalid UTF-8": (lambda: scripted(b'{"cmd":"open","path":"\xff"}'), "bad_command", "not valid UTF-8 at byte 22"),
    "command nested 100,000 deep": (
        lambda: scripted(b'{"cmd":"done","result":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "bad_command",
        "nested deeper than 128 levels",
    ),
    "command with a duplicate key": (
        lambda: scripted(b'{"cmd":"done","result":{"a":1,"a":2}}'),
        "bad_command",
        'the key "a" stands twice in one object',
    ),
    "command with NaN": (lambda: scripted(b'{"cmd":"emit","progress":NaN}'), "bad_command", "NaN is not a JSON number"),
    "command with an infinity": (
        lambda: scripted(b'{"cmd":"emit","progress":1e999}'),
        "bad_command",
        "the number 1e999 is too large",
    ),
    "command of wrong types": (
        lambda: scripted({"cmd": "slice", "handle": True, "offset": "0", "len": 1.0}),
        "bad_command",
        "slice.handle must be a whole number from 0, found true",
    ),
    "a number of 5,000 digits": (
        lambda: scripted(b'{"cmd":"done","result":' + b"9" * 5_000 + b"}"),
        "bad_command",
        "has more than 4300 digits",
    ),
    "an unknown handle": (
        lambda: scripted({"cmd": "slice", "handle": 4_294_967_295, "offset": 0, "len": 1}),
        "bad_command",
        "there is no handle 4294967295; nothing is open",
    ),
    "a million commands": (lambda: scripted(EMIT), "limit_exceeded", "guest.commands is 20000"),
    "more tokens than allowed": (
        lambda: scripted({"cmd": "infer", "prompt": "", "max_tokens": 2**32 - 1}),
        "limit_exceeded",
        "infer.tokens is 32768 tokens; the block asked for 4294967295",
    ),
    "import": (module('(import "env" "x" (func))'), "unsupported", "imports env.x; a block imports nothing"),
    "wrong type": (
        module(BASIC.replace("(param i32) (result i32) (i32.const 8)", "(param i64) (result i32) (i32.const 8)")),
        "unsupported",
        'exports "cf_alloc" as (i64) -> i32',
    ),
    "several memories": (module(f"(memory 1) {BASIC}"), "unsupported", "has several memories; a block has one"),
    "64-bit memory": (module('(memory (export "memory") i64 1)'), "unsupported", "uses a 64-bit memory"),
    "component": (lambda: BlockBytes("hostile.wasm", b"\0asm\x0d\0\x01\0"), "unsupported", "is a WebAssembly component"),
    "cut short": (
        lambda: BlockBytes("hostile.wasm", scripted(DONE).wasm[:-5]),
        "unsupported",
        "is not a valid module, or uses a feature that is off here",
    ),
    "20,000 exports": (
        module('(func $f) (memory (export "memory") 1)' + "".join(f'(export "e{i}" (func $f))' for i in range(20_000))),
        "limit_exceeded",
        'guest.exports is 1000; "hostile.wasm" has 20001',
    ),
}  # fmt: skip

LIMITS = {"guest.step_time": 0.2, "guest.memory": "16MiB", "guest.commands": 20_000}


async def good_job(host: Host, envelopes: list[Envelope]) -> None:
    """Steps for as long as any attack lasts."""
    commands = [EMIT] * 500
    envelopes.append(await host.run(scripted(*commands, {"cmd": "done", "result": "undisturbed"}), None))


@pytest.mark.parametrize(("block", "code", "words"), ATTACKS.values(), ids=ATTACKS.keys())
async def test_an_attack_ends_in_its_code_and_disturbs_nobody(block: Callable[[], BlockBytes], code: str, words: str) -> None:
    beside: list[Envelope] = []
    async with open_host() as host, trio.open_nursery() as nursery:
        nursery.start_soon(good_job, host, beside)
        envelope = await host.run(block(), None, limits=LIMITS, model="stub:one two three")
        after = await host.run(scripted(DONE), None)
    assert envelope.error is not None
    assert (envelope.status, envelope.error.code) == (JobStatus.FAILED, code)
    assert words in envelope.error.message
    assert CANARY.decode() not in envelope.error.message
    assert beside[0].result == "undisturbed"
    assert after.status is JobStatus.COMPLETED


async def test_an_answer_in_memory_that_grew_during_the_call_is_read_from_its_new_place() -> None:
    async with open_host() as host:
        envelope = await host.run(moved_by_a_grow(), None)
    assert envelope.result == 7


async def test_after_done_the_instance_is_gone() -> None:
    """A second `done` would have to come from a second step; there is none."""
    async with open_host() as host:
        job = host.start(scripted({"cmd": "done", "result": 1}, {"cmd": "done", "result": 2}), None)
        assert (await job.envelope()).result == 1


async def test_a_handle_of_another_job_is_none_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    read = {"cmd": "slice", "handle": 0, "offset": 0, "len": 6}
    async with open_host() as host:
        owner = host.start(
            scripted({"cmd": "open", "path": "secret.txt"}, EMIT, read, DONE, signature="json -> json"),
            None,
            read=[tmp_path],
            base_dir=tmp_path,
        )
        async for update in owner:
            if isinstance(update, Progress):
                break
        envelope = await host.run(scripted(read, DONE), None, read=[tmp_path], base_dir=tmp_path)
        assert (await owner.envelope()).status is JobStatus.COMPLETED
    assert envelope.error is not None
    assert (envelope.error.code, envelope.error.message) == ("bad_command", "slice: there is no handle 0; nothing is open")


async def test_a_result_of_exactly_the_limit_is_taken_whole() -> None:
    """64 MiB are checked as strictly as a small command, and leave the block once."""
    head, tail, length = b'{"cmd":"done","result":"', b'"}', 64 * 1024 * 1024
    at = PAGE
    fill = f"""(memory.fill (i32.const {at + len(head)}) (i32.const 120) (i32.const {length - len(head) - len(tail)}))
        (i32.store16 (i32.const {at + length - 2}) (i32.const {int.from_bytes(tail, "little")}))"""
    raw = at.to_bytes(4, "little") + length.to_bytes(4, "little")
    block = answering(
        16,
        memory='(memory (export "memory") 1100)',
        data=f'(data (i32.const 16) "{"".join(f"{chr(92)}{byte:02x}" for byte in raw)}")'
        f'(data (i32.const {at}) "{"".join(f"{chr(92)}{byte:02x}" for byte in head)}")',
        step=fill,
    )
    async with open_host() as host:
        envelope = await host.run(block, None)
    assert envelope.status is JobStatus.COMPLETED
    assert envelope.result == "x" * (length - len(head) - len(tail))


async def test_a_result_of_sixty_four_mebibytes_and_one_byte_is_over_the_limit() -> None:
    raw = (64 * 1024 * 1024 + 1).to_bytes(4, "little")
    block = from_wat(
        f"""(module (memory (export "memory") 1200)
        (data (i32.const 16) "\\00\\00\\01\\00{"".join(f"{chr(92)}{byte:02x}" for byte in raw)}")
        (func (export "cf_alloc") (param i32) (result i32) (i32.const 1024))
        (func (export "cf_init") (param i32 i32) (result i32) (i32.const 16))
        (func (export "cf_step") (param i32 i32) (result i32) (i32.const 16)))""",
        "hostile.wasm",
    )
    async with open_host() as host:
        envelope = await host.run(block, None)
    assert envelope.error is not None
    assert envelope.error.message == 'guest.message is 67108864 bytes; "hostile.wasm" answered with 67108865'


async def test_a_module_that_compiles_for_too_long_is_killed_and_the_next_one_is_not() -> None:
    many = " ".join("(func (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))" for _ in range(100_000))
    bomb = BlockBytes("bomb.wasm", bytes(wasmtime.wat2wasm(f"(module {BASIC} {many})")))
    async with open_host() as host:
        envelope = await host.run(bomb, None, limits={"guest.compile_time": 0.3})
        after = await host.run(scripted(DONE), None)
    assert envelope.error is not None
    assert envelope.error.message == 'guest.compile_time is 0.3 seconds; "bomb.wasm" took longer to compile'
    assert after.status is JobStatus.COMPLETED
