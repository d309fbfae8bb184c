"""Compiles each module once, in a process that can be killed, and keeps the artefact on disk.

An artefact is native code that wasmtime loads unseen, so only files that we wrote are loaded: the folder must belong to this user
and be writable by nobody else, and each file's name holds the digest of its content, which is checked when a host first uses it.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from cuttlefish.engine.module import (
    BlockBytes,
    CompiledModule,
    artefact_digest,
    check_bytes,
    read_shape,
    refuse_compilation,
)
from cuttlefish.engine.settings import SETTINGS_KEY
from cuttlefish.errors import LimitExceeded, Unsupported
from cuttlefish.limits import Limits, limit_exceeded

__all__ = ["MOST_CACHE_BYTES", "Compiler"]

MOST_CACHE_BYTES = 1 << 30
"""Artefacts kept on disk; beyond it the ones unused for longest go."""

STALE_PART_S = 3_600
"""An artefact that has not got its name for so long was left by a host that was killed: it gets it as soon as it is written."""

_SUFFIX, _PART = ".cwasm", ".part"
_log = logging.getLogger(__name__)


class Compiler:
    """Turns block bytes into checked modules. One per host; `close` it, as it may hold a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._is_temporary = _usable_folder(folder)
        _remove_stale_parts(self._folder)
        self._known: dict[str, CompiledModule] = {}
        self._turns: dict[str, trio.Lock] = {}

    @property
    def folder(self) -> Path:
        """Where the artefacts are."""
        return self._folder

    async def compile(self, block: BlockBytes, limits: Limits) -> CompiledModule:
        """The checked module for a block. The same bytes are compiled once, however many jobs ask at the same time.

        Cancelling kills the compilation.

        Raises:
            Unsupported: the bytes are no block. The sentence says why.
            LimitExceeded: too large, too many exports, too much memory at the start, too long to compile, or no room on the disk.
        """
        check_bytes(block, limits)
        sha256 = await trio.to_thread.run_sync(lambda: block.sha256)
        async with self._turns.setdefault(sha256, trio.Lock()):
            known = self._known.get(sha256)
            # A known artefact may have gone: another host pruned it, or somebody emptied the cache.
            artefact = await trio.to_thread.run_sync(self._find, sha256) if known is None else _if_there(known.artefact)
            if artefact is None:
                artefact = await self._compile(block, sha256, limits)
            shape = await trio.to_thread.run_sync(read_shape, block.name, artefact, limits)
            module = CompiledModule(block.name, sha256, artefact, shape)
            self._known[sha256] = module
            return module

    def close(self) -> None:
        """Remove the temporary folder, where there is one, or the oldest artefacts beyond `MOST_CACHE_BYTES`. Blocking."""
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            _prune(self._folder, MOST_CACHE_BYTES)

    def _find(self, sha256: str) -> str | None:
        """The path of an intact artefact. A damaged one is removed, so that it is made anew."""
        for path in self._folder.glob(f"{sha256}.{SETTINGS_KEY}.*{_SUFFIX}"):
            try:
                if artefact_digest(path) == path.name.split(".")[2]:
                    os.utime(path)  # when it was last used, for pruning
                    return str(path)
                _log.warning("the compiled module %s was damaged; it is made anew", path.name)
                path.unlink()
            except OSError:
                continue  # another host pruned it just now
        return None

    async def _compile(self, block: BlockBytes, sha256: str, limits: Limits) -> str:
        part = self._folder / f"{secrets.token_hex(8)}{_PART}"  # a name of its own: two hosts may compile the same module
        try:
            with trio.move_on_after(limits.guest_compile_time_s) as scope:
                process = await trio.run_process(
                    [sys.executable, "-P", "-m", "cuttlefish.engine.compile_worker", str(part)],
                    stdin=block.wasm,
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                    deliver_cancel=_kill,
                )
            if scope.cancelled_caught:
                limit = limits.guest_compile_time_s
                raise limit_exceeded("guest_compile_time_s", limit, f'"{block.name}" took longer to compile')
            if process.returncode:
                _log.error("compiling %s ended with %s: %s", block.name, process.returncode, process.stderr[-2_000:])
                raise Unsupported(f'"{block.name}" broke the compiler, which ended with status {process.returncode}')
            refusal = json.loads(process.stdout)
            if isinstance(refusal, dict):
                why = refusal["unwritten"]
                raise LimitExceeded(
                    f'what "{block.name}" compiles to cannot be kept in {self._folder}: {why}. Make room there, or name another '
                    "folder with CUTTLEFISH_CACHE"
                )
            if refusal is not None:
                refuse_compilation(block.name, refusal)
            return await trio.to_thread.run_sync(self._keep, part, sha256)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(part.unlink, missing_ok=True))

    def _keep(self, part: Path, sha256: str) -> str:
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        return str(part.replace(self._folder / f"{sha256}.{SETTINGS_KEY}.{artefact_digest(part)}{_SUFFIX}"))


def _if_there(path: str) -> str | None:
    return path if Path(path).exists() else None


async def _kill(process: trio.Process) -> None:
    process.kill()


def _usable_folder(wanted: Path) -> tuple[Path, bool]:
    """The folder itself, or a temporary one when it cannot be made or others could write to it."""
    try:
        for parent in reversed([path for path in wanted.parents if not path.exists()]):
            parent.mkdir(exist_ok=True, mode=0o700)  # `parents=True` would leave these to the umask
        wanted.mkdir(exist_ok=True, mode=0o700)
        facts = wanted.stat()
        if facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(wanted, os.W_OK):
            return wanted, False
        _log.warning("%s may be written by others; compiled modules are not kept there", wanted)
    except OSError as error:
        _log.warning("%s cannot be used (%s); compiled modules are not kept", wanted, error.strerror)
    return Path(tempfile.mkdtemp(prefix="cuttlefish-modules-")), True


def _remove_stale_parts(folder: Path) -> None:
    for path in folder.glob(f"*{_PART}"):
        with contextlib.suppress(OSError):  # another host removes them too
            if path.stat().st_mtime < time.time() - STALE_PART_S:
                path.unlink()


def _prune(folder: Path, most_bytes: int) -> None:
    kept = 0
    found = []
    for path in (*folder.glob(f"*{_SUFFIX}"), *folder.glob("*.wasm")):  # the latter are built Python blocks
        with contextlib.suppress(OSError):  # another host prunes too
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    for _, size, path in sorted(found, reverse=True):
        kept += size
        if kept > most_bytes:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
