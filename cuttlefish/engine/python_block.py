"""Python blocks: an author's file becomes a module like any other.

The interpreter, MicroPython compiled to WebAssembly, runs the file's top level once, in a guest under the limits of any guest. What
its memory holds then is written into the module (`snapshot.py`), so that each run starts where that ended, in well below a
millisecond. The author's code never runs outside of the sandbox. The same file gives the same bytes, wherever it is built.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import trio

from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.guest_thread import open_guest
from cuttlefish.engine.module import BlockBytes
from cuttlefish.engine.snapshot import with_memory
from cuttlefish.errors import BlockFailed, CapabilityDenied, LimitExceeded, Unsupported
from cuttlefish.limits import Limits, limit_exceeded

__all__ = ["MOST_SOURCE_BYTES", "PythonSource", "build_python_block", "interpreter_path"]

MOST_SOURCE_BYTES = 1 << 20
"""Of one file; far more than anybody writes by hand."""

_PACKAGE = Path(__file__).parent.parent
_FORMAT = 1  # of the files in the cache; another number for another way of building
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PythonSource:
    """A Python block as its author writes it: the name of the file, which tracebacks show, and its bytes."""

    name: str
    source: bytes


def interpreter_path() -> Path:
    """Where the interpreter is: in the package, or in a checkout where scripts/build-python-guest puts it. It need not be there."""
    packaged = _PACKAGE / "interpreters" / "python.wasm"
    return packaged if packaged.parent.is_dir() else _PACKAGE.parent / "build" / "python-guest" / "python.wasm"


async def build_python_block(block: PythonSource, compiler: Compiler, threads: trio.CapacityLimiter, limits: Limits) -> BlockBytes:
    """The module for a Python block, from the compiler's folder when it was built before.

    The author's top-level code runs here, in a guest: it ends as a run of the block would. Cancelling stops it.

    Raises:
        BlockFailed: `guest_error`: a syntax error, an exception at the top level, no function `run`, each with a traceback; or the
            file is not UTF-8.
        LimitExceeded: the file is longer than 1 MiB, its top level fills the guest's memory, or what it leaves there is larger
            than a module may be.
        TimedOut: the top level ran for longer than `guest.step_time`.
        Unsupported: SIGNATURE is none, or this installation has no interpreter.
    """
    if len(block.source) > MOST_SOURCE_BYTES:
        raise LimitExceeded(f'"{block.name}" has {len(block.source)} bytes; a Python block has {MOST_SOURCE_BYTES} at most')
    _check_encoding(block)
    interpreter = await trio.to_thread.run_sync(_read_interpreter, block.name)
    key = await trio.to_thread.run_sync(_key, block, interpreter)
    wasm = await trio.to_thread.run_sync(_find, compiler.folder, key)
    if wasm is None:
        wasm = await _build(block, interpreter, compiler, threads, limits)
        await trio.to_thread.run_sync(_keep, compiler.folder, key, wasm)
    return BlockBytes(block.name, wasm)


def _check_encoding(block: PythonSource) -> None:
    try:
        block.source.decode()
    except UnicodeDecodeError as problem:
        line = block.source.count(b"\n", 0, problem.start) + 1
        told = f'"{block.name}", line {line}: the file is not UTF-8; save it as UTF-8 (whatever its coding comment says)'
        raise BlockFailed("guest_error", told) from None


async def _build(
    block: PythonSource, interpreter: bytes, compiler: Compiler, threads: trio.CapacityLimiter, limits: Limits
) -> bytes:
    module = await compiler.compile(BlockBytes(block.name, interpreter), limits)
    async with open_guest(module, limits, threads) as guest_thread:
        guest = guest_thread.guest
        await guest_thread(guest.start)
        answer = json.loads(await guest_thread(guest.load, block.name.encode() + b"\0" + block.source))
        if answer.get("cmd") == "fail":
            raise BlockFailed(answer["code"], answer["message"])
        await guest_thread(guest.signature)  # one that cannot be read is told now
        memory = await guest_thread(guest.memory_image)
    without = {"_initialize", "cf_load"} | (set() if answer["on_token"] else {"cf_on_token"})
    wasm = await trio.to_thread.run_sync(lambda: with_memory(interpreter, memory, without=without))
    if len(wasm) > limits.guest_module_bytes:
        what = f'what the top level of "{block.name}" computed makes a module of {len(wasm)}'
        raise limit_exceeded("guest_module_bytes", limits.guest_module_bytes, what)
    return wasm


def _read_interpreter(name: str) -> bytes:
    path = interpreter_path()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Unsupported(
            f'"{name}" is a Python block, and its interpreter is not there. In a checkout build it: scripts/prepare dev '
            "&& scripts/build-python-guest; an installed cuttlefish has it, so install it anew"
        ) from None
    except OSError as error:
        raise CapabilityDenied(f"the Python interpreter for blocks cannot be read: {(error.strerror or '').lower()}") from None


def _key(block: PythonSource, interpreter: bytes) -> str:
    parts = (str(_FORMAT).encode(), hashlib.sha256(interpreter).digest(), block.name.encode(), block.source)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()


def _find(folder: Path, key: str) -> bytes | None:
    """A module built before. Its file's name tells its digest; a damaged one is removed."""
    for path in folder.glob(f"{key}.*.wasm"):
        with contextlib.suppress(OSError):  # another host pruned it just now
            wasm = path.read_bytes()
            if hashlib.sha256(wasm).hexdigest() == path.name.split(".")[1]:
                os.utime(path)  # when it was last used, for pruning
                return wasm
            _log.warning("the built block %s was damaged; it is made anew", path.name)
            path.unlink()
    return None


def _keep(folder: Path, key: str, wasm: bytes) -> None:
    part = folder / f"{secrets.token_hex(8)}.part"
    try:
        part.write_bytes(wasm)
        part.replace(folder / f"{key}.{hashlib.sha256(wasm).hexdigest()}.wasm")
    except OSError as error:
        _log.warning("a built block could not be kept (%s)", error.strerror)
    finally:
        part.unlink(missing_ok=True)
