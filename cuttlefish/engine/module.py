"""What a block's bytes must be before they run here. Each refusal has its own sentence.

The order matters. Size and magic bytes come before compiling, which cannot be interrupted and would accept WebAssembly *text*;
the number of exports before instantiating, as wasmtime lists an instance's exports in quadratic time; the exact types before the
first call, as the low-level call trusts them.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import NoReturn

import wasmtime

from cuttlefish.engine.settings import new_engine
from cuttlefish.errors import Unsupported
from cuttlefish.limits import Limits, limit_exceeded

__all__ = ["BlockBytes", "CompiledModule", "Export", "ModuleShape", "check_bytes", "read_shape", "refuse_compilation"]

PAGE_BYTES = 65_536  # of a WebAssembly memory

I32 = "i32"
FUNCTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], bool]] = {
    "cf_alloc": ((I32,), (I32,), True),
    "cf_init": ((I32, I32), (I32,), True),
    "cf_step": ((I32, I32), (I32,), True),
    "cf_on_token": ((I32, I32), (I32,), False),
    "cf_signature": ((), (I32,), False),
    "_initialize": ((), (), False),
}
"""The contract's functions: parameters, results, and whether a block must export it."""


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """A block as its author ships it: the name people know it by, and its WebAssembly bytes."""

    name: str
    wasm: bytes

    @property
    def sha256(self) -> str:
        """The hex digest that names these bytes."""
        return hashlib.sha256(self.wasm).hexdigest()


@dataclass(frozen=True, slots=True)
class Export:
    """One export, with its type as text: `(i32, i32) -> i32`, `memory`, `table`, `global`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """What a compiled module shows of itself without running."""

    exports: tuple[Export, ...]
    memory_bytes: int
    """The memory that it asks for at the start."""

    def has(self, name: str) -> bool:
        """Whether it exports `name`."""
        return any(export.name == name for export in self.exports)


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """A module that passed every check, as an artefact on disk from which instances are made."""

    name: str
    sha256: str
    artefact: str
    shape: ModuleShape


def check_bytes(block: BlockBytes, limits: Limits) -> None:
    """Refuse what need not be compiled to be refused.

    Raises:
        LimitExceeded: larger than `guest.module`.
        Unsupported: not a core WebAssembly module in binary form.
    """
    wasm, name = block.wasm, block.name
    if len(wasm) > limits.guest_module_bytes:
        raise limit_exceeded("guest_module_bytes", limits.guest_module_bytes, f'"{name}" has {len(wasm)} bytes')
    if not wasm:
        raise Unsupported(f'"{name}" is not a block: the file is empty')
    if wasm[:4] != b"\0asm":
        if wasm.lstrip()[:1] in (b"(", b";"):
            raise Unsupported(f'"{name}" is WebAssembly text; a block is its binary form: translate it with wat2wasm')
        raise Unsupported(f'"{name}" is not a block: it is no WebAssembly module')
    if wasm[4:8] == b"\x0d\0\x01\0":
        raise Unsupported(f'"{name}" is a WebAssembly component; a block is a core module: build it without the component step')
    if wasm[4:8] != b"\x01\0\0\0":
        raise Unsupported(f'"{name}" is not a block: it is cut short, or of a WebAssembly version other than 1')


def refuse_compilation(name: str, reason: str) -> NoReturn:
    """Say in our words why the compiler refused a module. `reason` is the last line of what it said.

    Raises:
        Unsupported: always.
    """
    if "64-bit memories" in reason or "memory64" in reason:
        raise Unsupported(f'"{name}" uses a 64-bit memory; a block has a 32-bit one: build it for wasm32')
    if "threads must be enabled" in reason or "shared memor" in reason:
        raise Unsupported(f'"{name}" uses threads; a block runs on one: build it without shared memory and atomics')
    raise Unsupported(f'"{name}" is not a valid module, or uses a feature that is off here: {reason}')


def read_shape(name: str, artefact: str, limits: Limits) -> ModuleShape:
    """Check imports and exports against the contract. Runs no code of the block. Blocking, about 1 ms.

    Raises:
        Unsupported: naming the import, or the export that is missing or has another type.
        LimitExceeded: more exports, or more memory at the start, than the limits allow.
    """
    module = wasmtime.Module.deserialize_file(new_engine(), artefact)
    imports = [f"{i.module}.{i.name}" for i in module.imports]
    if imports:
        more = f" and {len(imports) - 5} more" if len(imports) > 5 else ""
        raise Unsupported(
            f'"{name}" imports {", ".join(imports[:5])}{more}; a block imports nothing: it returns commands instead of calling out'
        )
    found = module.exports
    if len(found) > limits.guest_exports:
        raise limit_exceeded("guest_exports", limits.guest_exports, f'"{name}" has {len(found)}')
    types = {export.name: export.type for export in found}
    memory = types.get("memory")
    if memory is None:
        raise Unsupported(f'"{name}" has no export "memory"; a block exports its memory under that name')
    if not isinstance(memory, wasmtime.MemoryType):
        raise Unsupported(f'"{name}" exports "memory" as a {_describe(memory)}; the contract says a memory')
    for function, (parameters, results, required) in FUNCTIONS.items():
        _check_function(name, function, types.get(function), parameters, results, required=required)
    memory_bytes = memory.limits.min * PAGE_BYTES
    if memory_bytes > limits.guest_memory_bytes:
        raise limit_exceeded("guest_memory_bytes", limits.guest_memory_bytes, f"the block asked for {memory_bytes}")
    return ModuleShape(tuple(Export(e.name, _describe(e.type)) for e in found), memory_bytes)


def _check_function(
    name: str, function: str, found: object, parameters: tuple[str, ...], results: tuple[str, ...], *, required: bool
) -> None:
    wanted = _write_type(parameters, results)
    if found is None:
        if required:
            raise Unsupported(f'"{name}" has no export "{function}"; a block exports it as {wanted}')
        return
    if (described := _describe(found)) != wanted:
        raise Unsupported(f'"{name}" exports "{function}" as {described}; the contract says {wanted}')


def _describe(kind: object) -> str:
    match kind:
        case wasmtime.FuncType():
            return _write_type(tuple(map(str, kind.params)), tuple(map(str, kind.results)))
        case wasmtime.MemoryType():
            return "memory"
        case wasmtime.TableType():
            return "table"
        case wasmtime.GlobalType():
            return "global"
    return "tag"


def _write_type(parameters: tuple[str, ...], results: tuple[str, ...]) -> str:
    gives = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"({', '.join(parameters)}) -> {gives}"


def artefact_digest(path: str | os.PathLike[str]) -> str:
    """The sha256 of an artefact, by which its own name is checked."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
