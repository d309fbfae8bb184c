"""Blocks by name: a file, a block of the catalogue, or one that ships with Cuttlefish."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from cuttlefish.engine.module import BlockBytes
from cuttlefish.engine.python_block import PythonSource
from cuttlefish.errors import CapabilityDenied, NotFound
from cuttlefish.limits import Limits
from cuttlefish.pipeline.block_store import BlockStore, blocks_folder, split_name
from cuttlefish_abi.strict_json import show, suggest

__all__ = ["builtin_blocks", "find_block", "read_block_file"]

_PACKAGE = Path(__file__).parent.parent


def builtin_blocks() -> dict[str, Path]:
    """The blocks that ship with Cuttlefish, by name. In a checkout they are where they are built. Blocking."""
    packaged = {path.stem: path for path in sorted((_PACKAGE / "builtin").glob("*.wasm"))}
    return packaged or {path.stem: path for path in sorted((_PACKAGE.parent / "blocks").glob("*/*.wasm"))}


def find_block(name: str, folder: Path, limits: Limits) -> BlockBytes | PythonSource:
    """The bytes of a block, or its source if it is written in Python. Blocking. The first of these that there is:

    1. a file: what holds a `/`, ends in `.wasm` or `.py`, or is the name of a file in `folder`; relative to `folder`
    2. a block of the catalogue: `NAME@VERSION`, or `NAME` for its newest version
    3. a block that ships with Cuttlefish

    Raises:
        NotFound: there is none; the nearest name is suggested.
        CapabilityDenied: the file or the catalogue cannot be read, or the file is no regular one.
        SchemaMismatch: the catalogue is broken.
    """
    if "/" in name or name.endswith((".wasm", ".py")) or _is_there(Path.is_file, folder / name):
        block = read_block_file(folder / name, limits, name)
        return PythonSource(block.name, block.wasm) if block.name.endswith(".py") else block
    store = BlockStore(blocks_folder())
    entry = store.find(name)
    if entry is not None:
        return store.read(entry)
    path = _PACKAGE / "builtin" / f"{name}.wasm"
    path = path if path.parent.is_dir() else _PACKAGE.parent / "blocks" / name / f"{name}.wasm"
    if _is_there(Path.is_file, path):  # looked for by itself: listing all takes longer than reading one
        return read_block_file(path, limits, name)
    builtin = builtin_blocks()
    own, version = split_name(name)
    if own in builtin and version is not None:
        raise NotFound(f'there is no block "{name}": "{own}" comes with cuttlefish and has no versions. Leave the "@{version}" out')
    if _is_there(Path.is_dir, folder / name):
        raise NotFound(f"there is no block {show(name)}; that is a folder: give the .wasm or .py file in it")
    known = dict.fromkeys((*(entry.name for entry in store.entries()), *builtin))
    hint = suggest(own, known)
    stop = "" if hint.endswith("?") else "."
    raise NotFound(f"there is no block {show(name)}; {hint}{stop} A file is written with its folder, .wasm or .py")


def _is_there(question: Callable[[Path], bool], path: Path) -> bool:
    try:
        return question(path)
    except OSError:  # a name that is too long for any file
        return False


def read_block_file(path: Path, limits: Limits, shown: str) -> BlockBytes:
    """Read a block's file. Blocking, but never for a FIFO.

    Raises:
        NotFound: there is no such file.
        CapabilityDenied: it cannot be read, or is no regular file.
    """
    try:
        # Not blocking: opening a FIFO would wait for its other end.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CapabilityDenied(f'the block "{shown}" is no regular file')
            return BlockBytes(path.name, file.read(limits.guest_module_bytes + 1))  # one more tells that it is too large
    except FileNotFoundError:
        raise NotFound(f'there is no block "{shown}"') from None
    except IsADirectoryError:
        raise CapabilityDenied(f'the block "{shown}" is a folder; give the .wasm or .py file in it') from None
    except ValueError:
        raise NotFound(f"there is no block {show(shown)}: no file can be called that") from None
    except OSError as error:
        raise CapabilityDenied(f'the block "{shown}" cannot be read: {(error.strerror or "no reason given").lower()}') from None
