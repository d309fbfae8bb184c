"""The engine room through its own face: compiling, refusing, stepping and interrupting."""

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import wasmtime

from cuttlefish.engine import calls
from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.guest import Guest
from cuttlefish.engine.module import BlockBytes, CompiledModule
from cuttlefish.errors import BadCommand, CuttlefishError, JobCancelled, LimitExceeded, Unsupported, WasmTrap
from cuttlefish.limits import Limits
from cuttlefish_abi import Signature
from guests import SPIN, from_wat, scripted

DONE = {"cmd": "done", "result": None}
ALLOC = '(func (export "cf_alloc") (param i32) (result i32) (i32.const 8))'
INIT = '(func (export "cf_init") (param i32 i32) (result i32) (i32.const 0))'
STEP = '(func (export "cf_step") (param i32 i32) (result i32) (i32.const 0))'
MEMORY = '(memory (export "memory") 1)'


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path / "modules")


async def module_of(compiler: Compiler, block: BlockBytes, **limits: object) -> CompiledModule:
    return await compiler.compile(block, Limits().with_values(limits))


async def started(compiler: Compiler, block: BlockBytes, limits: Limits | None = None) -> Guest:
    limits = limits or Limits()
    guest = Guest(await compiler.compile(block, limits), limits)
    guest.start()
    return guest


REFUSALS = {
    "empty": (b"", '"x.wasm" is not a block: the file is empty'),
    "text": (b"(module)", '"x.wasm" is WebAssembly text; a block is its binary form: translate it with wat2wasm'),
    "another file": (b"%PDF-1.7", '"x.wasm" is not a block: it is no WebAssembly module'),
    "component": (
        b"\0asm\x0d\0\x01\0",
        '"x.wasm" is a WebAssembly component; a block is a core module: build it without the component step',
    ),
    "another version": (b"\0asm\x02\0\0\0", '"x.wasm" is not a block: it is cut short, or of a WebAssembly version other than 1'),
    "cut in the header": (b"\0asm\x01", '"x.wasm" is not a block: it is cut short, or of a WebAssembly version other than 1'),
    "cut in the body": (
        b"\0asm\x01\0\0\0\x01",
        '"x.wasm" is not a valid module, or uses a feature that is off here: unexpected end-of-file (at offset 0x9)',
    ),
    "64-bit memory": (
        '(module (memory (export "memory") i64 1))',
        '"x.wasm" uses a 64-bit memory; a block has a 32-bit one: build it for wasm32',
    ),
    "shared memory": (
        '(module (memory (export "memory") 1 1 shared))',
        '"x.wasm" uses threads; a block runs on one: build it without shared memory and atomics',
    ),
    "an import": (
        '(module (import "env" "clock" (func)))',
        '"x.wasm" imports env.clock; a block imports nothing: it returns commands instead of calling out',
    ),
    "many imports": (
        "(module " + "".join(f'(import "e" "f{i}" (func))' for i in range(7)) + ")",
        '"x.wasm" imports e.f0, e.f1, e.f2, e.f3, e.f4 and 2 more; a block imports nothing: it returns commands instead of '
        "calling out",
    ),
    "no memory": ("(module)", '"x.wasm" has no export "memory"; a block exports its memory under that name'),
    "memory that is a function": (
        '(module (func (export "memory")))',
        '"x.wasm" exports "memory" as a () -> (); the contract says a memory',
    ),
    "no cf_step": (
        f"(module {MEMORY} {ALLOC} {INIT})",
        '"x.wasm" has no export "cf_step"; a block exports it as (i32, i32) -> i32',
    ),
    "cf_alloc of 64 bits": (
        f'(module {MEMORY} (func (export "cf_alloc") (param i64) (result i32) (i32.const 0)) {INIT} {STEP})',
        '"x.wasm" exports "cf_alloc" as (i64) -> i32; the contract says (i32) -> i32',
    ),
    "cf_on_token without a verdict": (
        f'(module {MEMORY} {ALLOC} {INIT} {STEP} (func (export "cf_on_token") (param i32 i32)))',
        '"x.wasm" exports "cf_on_token" as (i32, i32) -> (); the contract says (i32, i32) -> i32',
    ),
    "_initialize with a parameter": (
        f'(module {MEMORY} {ALLOC} {INIT} {STEP} (func (export "_initialize") (param i32)))',
        '"x.wasm" exports "_initialize" as (i32) -> (); the contract says () -> ()',
    ),
}


@pytest.mark.parametrize(("module", "sentence"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_what_is_no_block_is_refused_in_a_sentence_of_its_own(compiler: Compiler, module: str | bytes, sentence: str) -> None:
    wasm = module if isinstance(module, bytes) else bytes(wasmtime.wat2wasm(module))
    with pytest.raises(Unsupported) as caught:
        await compiler.compile(BlockBytes("x.wasm", wasm), Limits())
    assert caught.value.message == sentence


async def test_a_module_over_the_size_limit_is_refused_before_it_is_compiled(compiler: Compiler) -> None:
    block = scripted(DONE)
    with pytest.raises(LimitExceeded) as caught:
        await compiler.compile(block, Limits().with_values({"guest.module": 100}))
    assert caught.value.message == f'guest.module is 100 bytes; "scripted.wasm" has {len(block.wasm)} bytes'
    assert list(compiler.folder.iterdir()) == []


async def test_more_exports_than_the_limit_are_refused_before_they_are_listed(compiler: Compiler) -> None:
    crowd = " ".join(f'(export "e{i}" (func $f))' for i in range(2_000))
    with pytest.raises(LimitExceeded) as caught:
        await compiler.compile(from_wat(f"(module (func $f) {crowd})", "x.wasm"), Limits())
    assert caught.value.message == 'guest.exports is 1000; "x.wasm" has 2000'


async def test_memory_asked_for_at_the_start_is_held_against_the_limit(compiler: Compiler) -> None:
    with pytest.raises(LimitExceeded) as caught:
        await compiler.compile(scripted(DONE, pages=9_000), Limits())
    assert caught.value.message == "guest.memory is 268435456 bytes; the block asked for 589824000"


async def test_a_compilation_that_takes_too_long_is_killed(compiler: Compiler) -> None:
    with pytest.raises(LimitExceeded) as caught:
        await compiler.compile(scripted(DONE), Limits().with_values({"guest.compile_time": 0.001}))
    assert caught.value.message == 'guest.compile_time is 0.001 seconds; "scripted.wasm" took longer to compile'
    assert list(compiler.folder.iterdir()) == []


async def test_a_compiled_module_that_cannot_be_written_down_is_not_the_blocks_fault(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuttlefish.engine.compiler.secrets.token_hex", lambda _: "full")
    (compiler.folder / "full.part").symlink_to(tmp_path)  # a folder takes no bytes, as a disk without room takes none
    with pytest.raises(LimitExceeded) as caught:
        await compiler.compile(scripted({"cmd": "done"}), Limits())
    assert caught.value.message == (
        f'what "scripted.wasm" compiles to cannot be kept in {compiler.folder}: is a directory. Make room there, or name another '
        "folder with CUTTLEFISH_CACHE"
    )
    assert list(compiler.folder.iterdir()) == []


async def test_many_tasks_with_the_same_bytes_compile_once(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compilations = []
    real = trio.run_process

    async def counting(*arguments: object, **options: object) -> object:
        compilations.append(arguments)
        return await real(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(trio, "run_process", counting)
    modules = []

    async def compile() -> None:
        modules.append(await compiler.compile(scripted(DONE), Limits()))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(compile)
    assert len(compilations) == 1
    assert len({module.artefact for module in modules}) == 1


async def test_a_new_host_finds_what_another_has_compiled(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await compiler.compile(scripted(DONE), Limits())
    monkeypatch.delattr(trio, "run_process")
    second = await Compiler(compiler.folder).compile(scripted(DONE), Limits())
    assert second.artefact == first.artefact


async def test_a_damaged_artefact_is_made_anew_and_never_loaded(compiler: Compiler) -> None:
    first = await compiler.compile(scripted(DONE), Limits())
    artefact = Path(first.artefact)
    intact = artefact.read_bytes()
    artefact.write_bytes(intact[:-100] + bytes(100))
    second = await Compiler(compiler.folder).compile(scripted(DONE), Limits())
    assert Path(second.artefact).read_bytes() == intact


async def test_what_killed_compilations_left_is_removed_and_what_is_being_made_stays(tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    folder.mkdir(mode=0o700)
    for name, age_s in (("old.part", 7_200), ("new.part", 60), ("old.cwasm", 7_200)):
        (folder / name).write_bytes(b"x")
        then = time.time() - age_s
        os.utime(folder / name, (then, then))
    Compiler(folder)
    assert {path.name for path in folder.iterdir()} == {"new.part", "old.cwasm"}


async def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    folder.chmod(stat.S_IRWXU | stat.S_IWOTH)
    compiler = Compiler(folder)
    assert compiler.folder != folder
    await compiler.compile(scripted(DONE), Limits())
    assert list(folder.iterdir()) == []
    used = compiler.folder
    compiler.close()
    assert not used.exists()


async def test_a_guest_gives_its_commands_one_after_another(compiler: Compiler) -> None:
    guest = await started(compiler, scripted({"n": 1}, {"n": 2}, signature="text -> number"))
    assert guest.signature() == Signature.parse("text -> number")
    assert [guest.init(b"1"), guest.step(b"{}"), guest.step(b"{}")] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 2}']
    guest.close()


async def test_without_a_signature_a_block_takes_and_gives_json(compiler: Compiler) -> None:
    guest = await started(compiler, scripted(DONE))
    assert guest.signature() == Signature.parse("json -> json")
    guest.close()


@pytest.mark.parametrize("payload", [b'{"input":"int","output":"text"}', b"text -> text", b'{"input":"text"}', b"", b"[]"])
async def test_a_signature_that_cannot_be_read_is_an_error(compiler: Compiler, payload: bytes) -> None:
    block = scripted(payload, extra='(func (export "cf_signature") (result i32) (i32.const 1024))', name="x.wasm")
    guest = await started(compiler, block)
    with pytest.raises(Unsupported, match=r'^"x\.wasm" has a signature that cannot be read'):
        guest.signature()
    guest.close()


async def test_initialize_runs_once_before_anything_else(compiler: Compiler) -> None:
    initialize = (
        '(func (export "_initialize") (i32.store8 (i32.const 65536) (i32.add (i32.load8_u (i32.const 65536)) (i32.const 1))))'
    )
    guest = await started(compiler, scripted(b"0", extra=initialize))
    assert guest.init(b"") == b"1"
    guest.close()


PLACES = {
    "start function": lambda: scripted(DONE, start=SPIN),
    "_initialize": lambda: scripted(DONE, extra=f'(func (export "_initialize") {SPIN})'),
    "cf_signature": lambda: scripted(DONE, extra=f'(func (export "cf_signature") (result i32) {SPIN} (i32.const 0))'),
    "cf_alloc": lambda: scripted(DONE, alloc=f"{SPIN} (i32.const 0)"),
    "cf_init": lambda: scripted(DONE, init=SPIN),
    "cf_step": lambda: scripted(DONE, step=SPIN),
    "cf_on_token": lambda: scripted(DONE, on_token=f"{SPIN} (i32.const 0)"),
}


@pytest.mark.parametrize("block", PLACES.values(), ids=PLACES.keys())
async def test_a_guest_that_spins_is_interrupted_wherever_it_does(compiler: Compiler, block: Callable[[], BlockBytes]) -> None:
    limits = Limits()
    guest = Guest(await compiler.compile(block(), limits), limits)
    ended: list[CuttlefishError] = []

    def use_all_of_it() -> None:
        try:
            guest.start()
            guest.signature()
            guest.init(b"1")
            guest.step(b"{}")
            if guest.hears_tokens:
                guest.on_token(b"x")
        except CuttlefishError as error:
            ended.append(error)

    reason = JobCancelled("enough")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, use_all_of_it)
        with trio.fail_after(30):
            while guest.running_since is None:
                await trio.lowlevel.checkpoint()
        guest.interrupt(reason)
    assert ended == [reason]
    guest.close()


async def test_an_interrupt_before_a_call_is_not_lost(compiler: Compiler) -> None:
    guest = await started(compiler, scripted(DONE, step=SPIN))
    guest.interrupt(JobCancelled("early"))
    with pytest.raises(JobCancelled, match="early"):
        guest.step(b"{}")
    guest.close()


async def test_interrupting_one_guest_leaves_another_alone(compiler: Compiler) -> None:
    one, other = await started(compiler, scripted(DONE)), await started(compiler, scripted(DONE))
    one.interrupt(JobCancelled("this one"))
    assert other.step(b"{}") == b'{"cmd": "done", "result": null}'
    one.close()
    other.close()


async def test_two_threads_take_turns_in_one_guest(compiler: Compiler) -> None:
    guest = await started(compiler, scripted(DONE))
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.extend(guest.step(b"{}") for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b'{"cmd": "done", "result": null}'] * 2_000
    guest.close()


async def test_a_closed_guest_refuses_and_may_be_closed_again(compiler: Compiler) -> None:
    guest = await started(compiler, scripted(DONE, on_token="(i32.const 0)"))
    guest.close()
    guest.close()
    for use in (lambda: guest.init(b""), lambda: guest.step(b""), lambda: guest.on_token(b"")):
        with pytest.raises(RuntimeError, match="closed"):
            use()


@pytest.mark.parametrize(("verdict", "stops"), [(0, False), (1, True), (-1, True), (2, True)])
async def test_any_verdict_but_zero_stops_the_model(compiler: Compiler, verdict: int, stops: bool) -> None:
    guest = await started(compiler, scripted(DONE, on_token=f"(i32.const {verdict})"))
    assert guest.on_token(b"x") is stops
    guest.close()


async def test_an_event_larger_than_memory_is_a_refusal_and_not_a_stray_write(compiler: Compiler) -> None:
    guest = await started(compiler, scripted(DONE, alloc="(i32.const 65536)"))
    with pytest.raises(BadCommand, match="gave a buffer outside its memory: 300000 bytes at 65536"):
        guest.step(bytes(300_000))
    guest.close()


async def test_an_allocation_of_zero_means_that_there_is_no_room(compiler: Compiler) -> None:
    guest = await started(compiler, scripted(DONE, alloc="(i32.const 0)"))
    with pytest.raises(LimitExceeded) as caught:
        guest.step(b"{}")
    assert caught.value.message == 'guest.memory is 268435456 bytes; "scripted.wasm" found no room for 2 more'
    guest.close()


async def test_a_trap_says_where_in_the_block(compiler: Compiler) -> None:
    guest = await started(compiler, from_wat(
        f"""(module {MEMORY} {ALLOC} {STEP} (func $count_words (unreachable))
        (func $init (export "cf_init") (param i32 i32) (result i32) (call $count_words) (i32.const 0)))""",
        "words.wasm",
    ))  # fmt: skip
    with pytest.raises(WasmTrap) as caught:
        guest.init(b"{}")
    assert caught.value.message == '"words.wasm" stopped itself (unreachable code) in cf_init, at count_words < init'
    guest.close()


def test_the_quick_calls_are_in_use_unless_the_public_ones_were_asked_for() -> None:
    """Guards against a wasmtime whose binding changed: everything would still work, ten times slower."""
    wanted = calls.PublicCalls if os.environ.get("CUTTLEFISH_GUEST_CALLS") == "public" else calls.RawCalls
    assert calls.choose_calls() is wanted
