"""The contestants, each with a live guest: ours, the floor below which nobody gets, wasmtime's public face, and Extism."""

import ctypes
import importlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import trio
import wasmtime
from pydantic import TypeAdapter
from wasmtime import _bindings as raw

from benchmarks.guests import ECHO_EXTISM
from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.guest import Guest
from cuttlefish.engine.module import BlockBytes, CompiledModule
from cuttlefish.engine.settings import new_engine
from cuttlefish.limits import Limits
from cuttlefish_abi import Command, decode_command

os.environ["EXTISM_CACHE_CONFIG"] = ""  # otherwise it keeps compiled plugins on disk, outside the folders that we use

extism: ModuleType | None
try:
    extism = importlib.import_module("extism.extism")  # its face leaves `CompiledPlugin` out
except ImportError:  # a peer that does not install on this machine; the report says so
    extism = None

__all__ = [
    "BARE",
    "EXTISM",
    "FLOOR",
    "LIMITS",
    "OURS",
    "Live",
    "bare_guest",
    "compiled",
    "extism",
    "extism_guest",
    "live_guests",
    "our_guest",
]

OURS, FLOOR, QUICKEST, BARE, EXTISM = "cuttlefish", "unchecked floor", "unchecked, quickest", "bare wasmtime", "extism"

LIMITS = Limits()
COMMAND: TypeAdapter[Command] = TypeAdapter(Command)
DESCRIPTOR = struct.Struct("<II")

Call = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Live:
    """A contestant's guest, ready to be stepped."""

    init: Call
    step: Call
    """Bytes of an event in, bytes of the next command out."""
    read: Callable[[bytes], Any]
    """The command's bytes as an object, in the way that is usual for this contestant."""
    on_token: Callable[[bytes], object]


@contextmanager
def compiled(block: BlockBytes) -> Iterator[CompiledModule]:
    """The block, compiled by us into a folder that is gone afterwards."""
    with TemporaryDirectory() as folder:
        yield trio.run(Compiler(Path(folder)).compile, block, LIMITS)


@contextmanager
def live_guests(module: CompiledModule, *, with_extism: bool) -> Iterator[dict[str, Live]]:
    """Every contestant with an instance of the same block, from the same artefact; Extism with a plugin that does the same."""
    with ExitStack() as stack:
        live = {
            OURS: stack.enter_context(our_guest(module)),
            FLOOR: stack.enter_context(_floor(module)),
            QUICKEST: stack.enter_context(_quickest(module)),
            BARE: stack.enter_context(bare_guest(module)),
        }
        if with_extism and extism is not None:
            live[EXTISM] = stack.enter_context(extism_guest(ECHO_EXTISM))
        yield live


@contextmanager
def our_guest(module: CompiledModule) -> Iterator[Live]:
    """The guest as the loop steps it: every check, the deadline, the stop flag, the lock; commands read strictly."""
    with closing(Guest(module, LIMITS)) as guest:
        guest.start()
        guest.signature()  # the loop asks for it before the input is given
        yield Live(guest.init, guest.step, lambda data: decode_command(data, max_depth=LIMITS.guest_json_depth), guest.on_token)


@contextmanager
def _instance(code: CompiledModule | bytes) -> Iterator[tuple[wasmtime.Store, Any]]:
    engine = new_engine()
    with wasmtime.Store(engine) as store, _load(engine, code) as loaded:
        store.set_epoch_deadline(1 << 40)
        yield store, wasmtime.Instance(store, loaded, []).exports(store)


def _load(engine: wasmtime.Engine, code: CompiledModule | bytes) -> wasmtime.Module:
    if isinstance(code, bytes):
        return wasmtime.Module(engine, code)
    return wasmtime.Module.deserialize_file(engine, code.artefact)


@contextmanager
def _floor(module: CompiledModule) -> Iterator[Live]:
    """What ctypes costs as one writes it: wasmtime's low-level call with prepared pointers, and pydantic's own parser.

    No range, type or size check, no deadline, no way to stop it, and memory that must not move. Nobody should run a guest so.
    """
    with _instance(module) as (store, exports):
        context = store._context()
        slots = (raw.wasmtime_val_raw_t * 2)()
        first, second = slots[0], slots[1]
        trap = ctypes.POINTER(raw.wasm_trap_t)()
        trap_slot = ctypes.byref(trap)
        unchecked, move, copy, unpack = raw.wasmtime_func_call_unchecked, ctypes.memmove, ctypes.string_at, DESCRIPTOR.unpack
        base = ctypes.cast(exports["memory"].data_ptr(store), ctypes.c_void_p).value
        assert base is not None
        alloc = ctypes.byref(exports["cf_alloc"]._func)

        def caller(name: str) -> Call:
            function = ctypes.byref(exports[name]._func)

            def call(data: bytes) -> bytes:
                length = len(data)
                first.i32 = length
                unchecked(context, alloc, slots, 2, trap_slot)
                address = first.i32
                move(base + address, data, length)
                second.i32 = length
                unchecked(context, function, slots, 2, trap_slot)
                at, size = unpack(copy(base + first.i32, 8))
                return copy(base + at, size)

            return call

        yield Live(caller("cf_init"), caller("cf_step"), COMMAND.validate_json, lambda _: None)


@contextmanager
def _quickest(module: CompiledModule) -> Iterator[Live]:
    """The floor once more, with every trick that we know of: no conversion of arguments, a view of memory, no adapter.

    What we take beyond this is what checks, deadline, stop flag and lock cost.
    """
    with _instance(module) as (store, exports):
        unchecked = raw.dll["wasmtime_func_call_unchecked"]  # type: ignore[attr-defined]  # a handle of our own, without argtypes
        slots = (raw.wasmtime_val_raw_t * 2)()
        words = (ctypes.c_uint32 * 8).from_buffer(slots)
        trap, count = ctypes.POINTER(raw.wasm_trap_t)(), ctypes.c_size_t(2)
        context, slots_address, trap_slot = store._context(), ctypes.byref(slots), ctypes.byref(trap)
        memory = memoryview(exports["memory"].get_buffer_ptr(store)).cast("B")
        alloc = ctypes.byref(exports["cf_alloc"]._func)

        def caller(name: str) -> Call:
            function, unpack = ctypes.byref(exports[name]._func), DESCRIPTOR.unpack_from

            def call(data: bytes) -> bytes:
                words[0] = length = len(data)
                unchecked(context, alloc, slots_address, count, trap_slot)
                address = words[0]
                memory[address : address + length] = data
                words[4] = length
                unchecked(context, function, slots_address, count, trap_slot)
                at, size = unpack(memory, words[0])
                return memory[at : at + size].tobytes()

            return call

        yield Live(caller("cf_init"), caller("cf_step"), COMMAND.validator.validate_json, lambda _: None)


@contextmanager
def bare_guest(code: CompiledModule | bytes) -> Iterator[Live]:
    """What one writes with wasmtime's documentation at hand: its public calls, and `json`. Bytes of a module are compiled here."""
    with _instance(code) as (store, exports):
        memory, alloc = exports["memory"], exports["cf_alloc"]

        def write(data: bytes) -> int:
            address: int = alloc(store, len(data))
            memory.write(store, data, address)
            return address

        def caller(name: str) -> Call:
            function = exports[name]

            def call(data: bytes) -> bytes:
                descriptor = function(store, write(data), len(data))
                at, size = DESCRIPTOR.unpack(memory.read(store, descriptor, descriptor + 8))
                return bytes(memory.read(store, at, at + size))

            return call

        hears_tokens = exports.get("cf_on_token")

        def on_token(piece: bytes) -> bool:
            return hears_tokens is not None and hears_tokens(store, write(piece), len(piece)) != 0

        yield Live(caller("cf_init"), caller("cf_step"), json.loads, on_token)


@contextmanager
def extism_guest(code: Any) -> Iterator[Live]:
    """Extism's call, and `json`. `code` is a plugin's bytes, or one that is compiled."""
    assert extism is not None
    with extism.Plugin(code) as plugin:

        def step(event: bytes) -> bytes:
            answer: bytes = plugin.call("step", event)
            return answer

        yield Live(step, step, json.loads, lambda piece: plugin.call("on_token", piece))
