"""One live instance of a block.

Every address and length that comes out of a guest is unsigned, checked here against the memory's size of that moment, and only
then used. The instance has an engine of its own, so that `interrupt` stops this guest and no other.
"""

import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import wasmtime
from wasmtime import TrapCode

from cuttlefish.engine.calls import Calls, ExportCall, choose_calls
from cuttlefish.engine.module import CompiledModule
from cuttlefish.engine.settings import new_engine
from cuttlefish.errors import BadCommand, CuttlefishError, Unsupported, WasmTrap
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish_abi import BadJson, Signature, TyError, decode_signature

__all__ = ["JSON_TO_JSON", "Guest"]

JSON_TO_JSON = Signature.parse("json -> json")
"""The signature of a block that exports none."""

DESCRIPTOR = struct.Struct("<II")  # pointer, length
DESCRIPTOR_BYTES = DESCRIPTOR.size
MOST_SIGNATURE_BYTES = 64 << 10

_TRAPS = {
    TrapCode.STACK_OVERFLOW: "ran out of stack: it calls itself too deeply",
    TrapCode.UNREACHABLE: "stopped itself (unreachable code)",
    TrapCode.MEMORY_OUT_OF_BOUNDS: "used an address outside its memory",
    TrapCode.TABLE_OUT_OF_BOUNDS: "used an entry outside a table",
    TrapCode.INDIRECT_CALL_TO_NULL: "called a function that is not there",
    TrapCode.BAD_SIGNATURE: "called a function by the wrong type",
    TrapCode.INTEGER_DIVISION_BY_ZERO: "divided by zero",
    TrapCode.INTEGER_OVERFLOW: "overflowed an integer",
    TrapCode.BAD_CONVERSION_TO_INTEGER: "turned a number into an integer that cannot hold it",
    TrapCode.UNCAUGHT_EXCEPTION: "raised an exception that nobody caught",
}


class Guest:
    """A fresh instance. `start`, then `init`, then `step` until the run is over; `close` it in any case.

    Every method but `interrupt` and `running_since` blocks while guest code runs: call it from a worker thread, one at a time.
    After any error the instance is of no more use.

    Raises, from each method that runs guest code:
        WasmTrap: the guest's code broke down.
        BadCommand: it answered with bytes that lie outside its memory.
        LimitExceeded: memory, or the size of an answer.
        CuttlefishError: whatever `interrupt` was given.
    """

    def __init__(self, module: CompiledModule, limits: Limits) -> None:
        self.name = module.name
        self._module = module
        self._limits = limits
        self._engine = new_engine()
        self._stopped: CuttlefishError | None = None
        self._one_thread = threading.Lock()
        self._store: wasmtime.Store | None = None
        self._live: _Live | None = None
        self._running_since: float | None = None

    @property
    def running_since(self) -> float | None:
        """When the call that is under way began, by `time.monotonic`; None between calls. Any thread may ask."""
        return self._running_since

    def interrupt(self, reason: CuttlefishError) -> None:
        """Make the call that is under way, and every later one, raise `reason`. Takes effect within about 0.2 ms; any thread."""
        if self._stopped is None:
            self._stopped = reason  # first the flag, then the tick: a call sets its deadline, then reads the flag
        self._engine.increment_epoch()

    def start(self) -> None:
        """Instantiate. The module's start function and `_initialize` run here.

        Raises:
            Unsupported: the module cannot be instantiated: several memories, or data that does not fit.
        """
        with self._one_thread:
            limits = self._limits
            store = self._store = wasmtime.Store(self._engine)
            store.set_limits(
                memory_size=limits.guest_memory_bytes,
                table_elements=limits.guest_table_elements,
                instances=1,
                memories=1,
            )
            self._running_since = time.monotonic()
            try:
                store.set_epoch_deadline(1)
                self._check_stopped()
                with wasmtime.Module.deserialize_file(self._engine, self._module.artefact) as module:
                    exports = wasmtime.Instance(store, module, []).exports(store)
                memory = exports["memory"]
                assert isinstance(memory, wasmtime.Memory)  # `module.py` has checked each export's type
                self._live = _bind(store, memory, exports, {e.name: e.type for e in self._module.shape.exports})
                if "_initialize" in exports:
                    initialize = exports["_initialize"]
                    assert isinstance(initialize, wasmtime.Func)
                    store.set_epoch_deadline(1)
                    self._check_stopped()
                    initialize(store)
            except wasmtime.Trap as trap:
                self._raise_trap(trap, "its start function")
            except wasmtime.WasmtimeError as error:
                self._refuse_instance(str(error))
            finally:
                self._running_since = None

    @property
    def hears_tokens(self) -> bool:
        """Whether the block wants to see the model's reply as it comes."""
        return self._module.shape.has("cf_on_token")

    def signature(self) -> Signature:
        """What the block says it takes and gives; `json -> json` if it does not say.

        Raises:
            Unsupported: it says something that is no signature.
        """
        with self._one_thread:
            live = self._alive()
            if live.signature is None:
                return JSON_TO_JSON
            payload = self._payload(self._call(live, live.signature, "cf_signature"), "cf_signature")
        if len(payload) > MOST_SIGNATURE_BYTES:
            raise Unsupported(f'"{self.name}" has a signature of {len(payload)} bytes; {MOST_SIGNATURE_BYTES} at most can be read')
        try:
            return decode_signature(payload)
        except (BadJson, TyError) as error:
            raise Unsupported(f'"{self.name}" has a signature that cannot be read: {error}') from None

    def init(self, value: bytes) -> bytes:
        """Give the block its input, as JSON; get its first command, as JSON."""
        with self._one_thread:
            live = self._alive()
            return self._payload(self._write_and_call(live, live.init, "cf_init", value), "cf_init")

    def step(self, event: bytes) -> bytes:
        """Give the block the answer to its last command, as JSON; get the next command, as JSON."""
        with self._one_thread:
            live = self._alive()
            return self._payload(self._write_and_call(live, live.step, "cf_step", event), "cf_step")

    def on_token(self, piece: bytes) -> bool:
        """Show the block a piece of the model's reply, as UTF-8. True when it has seen enough, False too if it does not look."""
        with self._one_thread:
            live = self._alive()
            return live.on_token is not None and self._write_and_call(live, live.on_token, "cf_on_token", piece) != 0

    def take_log(self) -> str:
        """What the block has printed since the last time, if it has a log at all."""
        with self._one_thread:
            live = self._alive()
            if live.log is None:
                return ""
            return self._payload(self._call(live, live.log, "cf_log"), "cf_log").decode(errors="replace")

    def load(self, file: bytes) -> bytes:
        """Give an interpreter its program; get what it answers, as JSON. For modules that export `cf_load`."""
        with self._one_thread:
            live = self._alive()
            assert live.load is not None
            return self._payload(self._write_and_call(live, live.load, "cf_load", file), "cf_load")

    @property
    def memory_bytes(self) -> int:
        """How large its memory is now. A memory never shrinks."""
        with self._one_thread:
            return len(self._alive().calls.memory())

    def memory_image(self) -> bytes:
        """A copy of all of its memory."""
        with self._one_thread:
            return self._alive().calls.memory().tobytes()

    def close(self) -> None:
        """Free the instance and its memory. Idempotent."""
        with self._one_thread:
            self._live = None  # the low-level calls hold pointers into the store
            store, self._store = self._store, None
            if store is not None:
                store.close()

    def _alive(self) -> "_Live":
        if self._live is None:
            raise RuntimeError(f"the guest of {self.name} is not started, or closed")
        return self._live

    def _check_stopped(self) -> None:
        """Read the flag. To be called when the deadline is set: a tick that came before that set the flag before."""
        if self._stopped is not None:
            raise self._stopped

    def _call(self, live: "_Live", function: ExportCall, name: str, *arguments: int) -> int:
        self._running_since = time.monotonic()
        try:
            live.set_deadline()
            if self._stopped is not None:  # as in `_check_stopped`; a call of it would take longer than what it does
                raise self._stopped
            return function(*arguments)
        except wasmtime.Trap as trap:
            self._raise_trap(trap, name)
        finally:
            self._running_since = None

    def _write_and_call(self, live: "_Live", function: ExportCall, name: str, data: bytes) -> int:
        """Write `data` into the guest's memory and call `function` on it at once: a guest has one buffer for what comes in."""
        length = len(data)
        place = "cf_alloc"
        self._running_since = time.monotonic()
        try:
            live.set_deadline()
            if self._stopped is not None:
                raise self._stopped
            address = live.alloc(length)
            memory = live.calls.memory()
            if length and not address:
                limit = self._limits.guest_memory_bytes
                raise limit_exceeded("guest_memory_bytes", limit, f'"{self.name}" found no room for {length} more')
            if address + length > len(memory):
                raise BadCommand(f'"{self.name}" gave a buffer outside its memory: {length} bytes at {address} (cf_alloc)')
            memory[address : address + length] = data
            place = name
            live.set_deadline()
            if self._stopped is not None:
                raise self._stopped
            return function(address, length)
        except wasmtime.Trap as trap:
            self._raise_trap(trap, place)
        finally:
            self._running_since = None

    def _payload(self, descriptor: int, name: str) -> bytes:
        """Copy out what a descriptor names, once, after checking that all of it lies in memory."""
        memory = self._alive().calls.memory()
        size = len(memory)
        if descriptor + DESCRIPTOR_BYTES > size:
            raise BadCommand(f'"{self.name}" answered {name} with a descriptor outside its memory: {descriptor} of {size} bytes')
        address, length = DESCRIPTOR.unpack_from(memory, descriptor)
        if length > self._limits.guest_message_bytes:
            raise limit_exceeded("guest_message_bytes", self._limits.guest_message_bytes, f'"{self.name}" answered with {length}')
        if address + length > size:
            raise BadCommand(f'"{self.name}" answered {name} with {length} bytes at {address}, outside its memory of {size} bytes')
        return memory[address : address + length].tobytes()

    def _raise_trap(self, trap: wasmtime.Trap, place: str) -> NoReturn:
        """Turn a trap into plain data. The trap itself is a C object that must not travel."""
        code = trap.trap_code
        frames = [frame.func_name for frame in trap.frames[:3] if frame.func_name]
        trap.close()  # it holds the module's file, and errors stay alive for longer than one would think
        if code is TrapCode.INTERRUPT and self._stopped is not None:
            raise self._stopped from None
        what = _TRAPS[TrapCode.UNCAUGHT_EXCEPTION] if code is None else _TRAPS.get(code, "broke down")
        where = f"{place}, at {' < '.join(frames)}" if frames else place
        raise WasmTrap(f'"{self.name}" {what} in {where}{self._memory_hint()}') from None

    def _memory_hint(self) -> str:
        """A guest whose memory could not grow any further mostly traps by itself; the limit is then the thing to know."""
        limit = self._limits.guest_memory_bytes
        if self._live is not None and (size := len(self._live.calls.memory())) > limit // 2:
            return f" (its memory stood at {size} bytes; guest.memory is {limit} bytes)"
        return ""

    def _refuse_instance(self, reason: str) -> NoReturn:
        if "memories" in reason or "memory count" in reason:
            raise Unsupported(f'"{self.name}" has several memories; a block has one') from None
        if "table" in reason and "limit" in reason:
            raise limit_exceeded(
                "guest_table_elements", self._limits.guest_table_elements, f'"{self.name}" asked for more'
            ) from None
        raise Unsupported(f'"{self.name}" cannot be started: {reason.strip().splitlines()[-1].strip()}') from None


@dataclass(frozen=True, slots=True)
class _Live:
    """An instance's memory and functions. Of no use once the store is closed."""

    calls: Calls
    set_deadline: Callable[[], object]
    alloc: ExportCall
    init: ExportCall
    step: ExportCall
    on_token: ExportCall | None
    signature: ExportCall | None
    log: ExportCall | None
    load: ExportCall | None


def _bind(store: wasmtime.Store, memory: wasmtime.Memory, exports: Mapping[str, object], types: Mapping[str, str]) -> _Live:
    calls = choose_calls()(store, memory)

    def bound(name: str, parameters: int) -> ExportCall:
        function = exports[name]
        assert isinstance(function, wasmtime.Func)
        return calls.bind(function, parameters)

    return _Live(
        calls=calls,
        set_deadline=calls.set_deadline,
        alloc=bound("cf_alloc", 1),
        init=bound("cf_init", 2),
        step=bound("cf_step", 2),
        on_token=bound("cf_on_token", 2) if "cf_on_token" in exports else None,
        signature=bound("cf_signature", 0) if "cf_signature" in exports else None,
        # Not of the contract: an export of this name may be something else, and is left alone then.
        log=bound("cf_log", 0) if types.get("cf_log") == "() -> i32" else None,
        load=bound("cf_load", 2) if types.get("cf_load") == "(i32, i32) -> i32" else None,
    )
