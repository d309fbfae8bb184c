"""The two ways into a guest: the library's low-level call, and its public one.

The public `Func.__call__` builds the function's type anew each time (24-50 µs); the low-level call takes about 1 µs. The binding
is private to wasmtime-py, so `PublicCalls` stands beside it, behaves the same and takes over when the binding is missing, or when
`CUTTLEFISH_GUEST_CALLS=public` is set. The test suite runs with both. No other module knows ctypes or the binding.

Nothing here checks a function's type or an address: `module.py` has checked the first, `guest.py` checks the second.
"""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

import wasmtime

try:
    from wasmtime import _bindings as raw

    # Handles of our own, which declare no arguments: a call takes half the time where ctypes has nothing to convert. They are
    # only ever given ctypes objects of the right size.
    _library = raw.dll  # type: ignore[attr-defined]  # the binding does not list it as public
    _unchecked_call = _library["wasmtime_func_call_unchecked"]
    _unchecked_call.restype = ctypes.c_void_p
    _raw_value, _error, _trap = raw.wasmtime_val_raw_t, raw.wasmtime_error_t, raw.wasm_trap_t
    # These return at once, so they keep the GIL; giving it up and taking it back costs more than they do.
    _quick = ctypes.PyDLL(_library._name)
    _set_deadline = _quick["wasmtime_context_set_epoch_deadline"]
    _set_deadline.restype = None
    _memory_size = _quick["wasmtime_memory_data_size"]
    _memory_size.restype = ctypes.c_size_t
    _memory_base = _quick["wasmtime_memory_data"]
    _memory_base.restype = ctypes.c_size_t
    _HAS_BINDING = True
except (ImportError, AttributeError, OSError):
    _HAS_BINDING = False

__all__ = ["Calls", "ExportCall", "PublicCalls", "RawCalls", "choose_calls"]

ExportCall: TypeAlias = Callable[..., int]
"""An export taking i32s and giving an i32, as unsigned integers. Raises `wasmtime.Trap`."""


class Calls(Protocol):
    """What a guest needs of its store. One thread at a time; not to be used once the store is closed."""

    def bind(self, func: wasmtime.Func, parameters: int) -> ExportCall:
        """A callable for an export of `parameters` i32s and one i32 as the result."""

    @property
    def set_deadline(self) -> Callable[[], object]:
        """Let guest code run until the engine's epoch is next advanced."""

    def memory(self) -> memoryview:
        """All of the guest's memory, as long as it is now. Not to be used after the next call, in which it may grow and move."""


class PublicCalls:
    """The way through the library's public face."""

    def __init__(self, store: wasmtime.Store, memory: wasmtime.Memory) -> None:
        self._store = store
        self._memory = memory

    def bind(self, func: wasmtime.Func, parameters: int) -> ExportCall:  # the library looks the number up itself
        """See `Calls`."""
        store = self._store

        def call(*arguments: int) -> int:
            return int(func(store, *arguments)) & 0xFFFF_FFFF

        return call

    def set_deadline(self) -> None:
        """See `Calls`."""
        self._store.set_epoch_deadline(1)

    def memory(self) -> memoryview:
        """See `Calls`."""
        buffer = self._memory.get_buffer_ptr(self._store)
        return memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")  # an empty one cannot be cast


class RawCalls:
    """The way through the low-level binding. The pointers it keeps are valid only while the store is open."""

    def __init__(self, store: wasmtime.Store, memory: wasmtime.Memory) -> None:
        self._keep = (store, memory)
        self._context = ctypes.cast(store._context(), ctypes.c_void_p)
        self._memory_address = ctypes.byref(memory._memory)
        self._memory = memoryview(b"")
        self._memory_size = partial(_memory_size, self._context, self._memory_address)
        self.set_deadline = partial(_set_deadline, self._context, ctypes.c_uint64(1))
        """See `Calls`."""

    def bind(self, func: wasmtime.Func, parameters: int) -> ExportCall:  # two slots do for any number up to two
        """See `Calls`."""
        slots = (_raw_value * 2)()
        words = (ctypes.c_uint32 * (ctypes.sizeof(slots) // 4)).from_buffer(slots)
        second = len(words) // 2  # the place of the second slot's i32; the first holds the result too
        trap = ctypes.POINTER(_trap)()
        context, call_unchecked, slot_count = self._context, _unchecked_call, ctypes.c_size_t(2)
        func_address, slots_address, trap_address = ctypes.byref(func._func), ctypes.byref(slots), ctypes.byref(trap)
        keep = (func, self._keep)

        def call(argument: int = 0, another: int = 0) -> int:
            words[0] = argument
            words[second] = another
            error = call_unchecked(context, func_address, slots_address, slot_count, trap_address)
            if error:
                raise wasmtime.WasmtimeError._from_ptr(ctypes.cast(error, ctypes.POINTER(_error)))
            if trap:
                # The exception takes the pointer over. A guest that trapped is never called again, so the slot may stay as it is.
                assert keep
                raise wasmtime.Trap._from_ptr(trap)
            return words[0]

        return call

    def memory(self) -> memoryview:
        """See `Calls`."""
        size = self._memory_size()
        if size != len(self._memory):  # memory moves only when it grows
            base = _memory_base(self._context, self._memory_address)
            self._memory = memoryview((ctypes.c_ubyte * size).from_address(base)).cast("B")
        return self._memory


def choose_calls() -> Callable[[wasmtime.Store, wasmtime.Memory], Calls]:
    """The quick way where the binding is as we know it, else the public one."""
    if _HAS_BINDING and os.environ.get("CUTTLEFISH_GUEST_CALLS") != "public":
        return RawCalls
    return PublicCalls
