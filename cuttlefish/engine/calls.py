"""The two ways into a guest: the library's low-level call, and its public one.

The public `Func.__call__` builds the function's type anew each time (24-50 µs); the low-level call takes about 1 µs. The binding
is private to wasmtime-py, so `PublicCalls` stands beside it, behaves the same and takes over when the binding is missing, or when
`CUTTLEFISH_GUEST_CALLS=public` is set. The test suite runs with both. No other module knows ctypes or the binding.

Nothing here checks a function's type or an address: `module.py` has checked the first, `guest.py` checks the second.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Protocol, TypeAlias

import wasmtime

try:
    from wasmtime import _bindings as raw

    _unchecked_call = raw.wasmtime_func_call_unchecked
    _set_deadline = raw.wasmtime_context_set_epoch_deadline
    _raw_value = raw.wasmtime_val_raw_t
    # Handles of our own, because the results' types differ: plain addresses are quicker than pointer objects.
    _library = raw.dll  # type: ignore[attr-defined]  # the binding does not list it as public
    _memory_size = _library["wasmtime_memory_data_size"]
    _memory_size.restype = ctypes.c_size_t
    _memory_size.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    _memory_base = _library["wasmtime_memory_data"]
    _memory_base.restype = ctypes.c_size_t
    _memory_base.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    _HAS_BINDING = True
except (ImportError, AttributeError):
    _HAS_BINDING = False

__all__ = ["Calls", "ExportCall", "PublicCalls", "RawCalls", "choose_calls"]

ExportCall: TypeAlias = Callable[..., int]
"""An export taking i32s and giving an i32, as unsigned integers. Raises `wasmtime.Trap`."""


class Calls(Protocol):
    """What a guest needs of its store. One thread at a time; not to be used once the store is closed."""

    def bind(self, func: wasmtime.Func, parameters: int) -> ExportCall:
        """A callable for an export of `parameters` i32s and one i32 as the result."""

    def set_deadline(self) -> None:
        """Let guest code run until the engine's epoch is next advanced."""

    def memory_size(self) -> int:
        """The memory's length in bytes now. It may have grown in any call."""

    def read(self, address: int, length: int) -> bytes:
        """Copy bytes out of memory. The caller has checked the range."""

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes into memory. The caller has checked the range."""


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

    def memory_size(self) -> int:
        """See `Calls`."""
        return self._memory.data_len(self._store)

    def read(self, address: int, length: int) -> bytes:
        """See `Calls`."""
        return bytes(self._memory.read(self._store, address, address + length))

    def write(self, address: int, data: bytes) -> None:
        """See `Calls`."""
        self._memory.write(self._store, data, address)


class RawCalls:
    """The way through the low-level binding. The pointers it keeps are valid only while the store is open."""

    def __init__(self, store: wasmtime.Store, memory: wasmtime.Memory) -> None:
        self._keep = (store, memory)
        self._context = store._context()
        self._context_address = ctypes.cast(self._context, ctypes.c_void_p)
        self._memory_address = ctypes.byref(memory._memory)

    def bind(self, func: wasmtime.Func, parameters: int) -> ExportCall:
        """See `Calls`."""
        size = max(1, parameters)  # one slot holds the result
        slots = (_raw_value * size)()
        first = slots[0]
        second = slots[1] if size > 1 else first
        trap = ctypes.POINTER(raw.wasm_trap_t)()
        trap_slot = ctypes.byref(trap)
        context, func_address, call_unchecked = self._context, ctypes.byref(func._func), _unchecked_call
        keep = (func, self._keep)

        def call(*arguments: int) -> int:
            if parameters:
                first.i32 = arguments[0]  # ctypes turns 2**31 and more into the negative twin, which is what wasm means
                if parameters > 1:
                    second.i32 = arguments[1]
            error = call_unchecked(context, func_address, slots, size, trap_slot)
            if error:
                raise wasmtime.WasmtimeError._from_ptr(error)
            if trap:
                # The exception takes the pointer over. A guest that trapped is never called again, so the slot may stay as it is.
                assert keep
                raise wasmtime.Trap._from_ptr(trap)
            return int(first.i32) & 0xFFFF_FFFF

        return call

    def set_deadline(self) -> None:
        """See `Calls`."""
        _set_deadline(self._context, 1)

    def memory_size(self) -> int:
        """See `Calls`."""
        return int(_memory_size(self._context_address, self._memory_address))

    def read(self, address: int, length: int) -> bytes:
        """See `Calls`."""
        return ctypes.string_at(_memory_base(self._context_address, self._memory_address) + address, length)

    def write(self, address: int, data: bytes) -> None:
        """See `Calls`."""
        ctypes.memmove(_memory_base(self._context_address, self._memory_address) + address, data, len(data))


def choose_calls() -> Callable[[wasmtime.Store, wasmtime.Memory], Calls]:
    """The quick way where the binding is as we know it, else the public one."""
    if _HAS_BINDING and os.environ.get("CUTTLEFISH_GUEST_CALLS") != "public":
        return RawCalls
    return PublicCalls
