"""A line for each call that an agent makes: who called what, and how it ended; never what was in it."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trio

__all__ = ["AuditLog", "digest_arguments"]

MOST_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class AuditLog:
    """A file of JSON lines; when it reaches 16 MiB it becomes `….1` and a new one begins."""

    path: Path
    _failed: bool = False

    def open(self) -> None:
        """Make sure that it can be written. Blocking.

        Raises:
            OSError: it cannot.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(self._descriptor())

    async def write(self, *, client: str, tool: str, arguments: Mapping[str, object], outcome: str, duration_s: float) -> None:
        """Add a line, also when the call was cancelled. A disk that fails is told once in the log and ends no call."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")

        def append() -> None:
            line = {
                "time": time,
                "client": client,
                "tool": tool,
                "arguments_sha256": digest_arguments(arguments),  # here, as it takes a while where there are 32 MiB of them
                "outcome": outcome,
                "duration_ms": round(1000 * duration_s, 1),
            }
            self._append(json.dumps(line, ensure_ascii=False).encode() + b"\n")

        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(append)

    def _append(self, line: bytes) -> None:
        try:
            fd = self._descriptor()
            try:
                if os.fstat(fd).st_size >= MOST_BYTES:
                    with suppress(FileNotFoundError):  # another server was first
                        self.path.replace(self.path.with_name(self.path.name + ".1"))
                    os.close(fd)
                    fd = self._descriptor()
                os.write(fd, line)  # one write: lines of several servers do not mix
            finally:
                os.close(fd)
        except OSError as error:
            if not self._failed:
                _log.error("the audit log %s cannot be written: %s", self.path, error.strerror)
            self._failed = True

    def _descriptor(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def digest_arguments(arguments: Mapping[str, object]) -> str:
    """The sha256 of the arguments as JSON with sorted keys: tells whether two calls were the same, not what they said."""
    text = json.dumps(arguments, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
