"""A run of a block, written down as a conversation while it happens."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Recording"]


class Recording:
    """Writes a conversation to a file; a `loop.Transcript`. Use it as a context manager around the job.

    What is written goes to a file beside `path` first, and takes its place at the end if the block said anything: a job that did
    not come that far leaves an older recording alone. It holds what the block saw: the text of documents, and the model's words. It
    never holds a password, which no block sees.

    A file that can be written no further (a full disk) does not disturb the job: `failure` says so at the end, and `path` is left
    alone.

    Raises:
        OSError: the file cannot be begun.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._file = self._draft.open("wb")
        self.lines = 0
        """How many lines were written so far."""
        self.failure: OSError | None = None
        """Why there is no recording, once the context is left."""

    def input(self, value_json: bytes) -> None:
        """See `loop.Transcript`."""
        self._write(b'{"input":', value_json)

    def command(self, payload: bytes) -> None:
        """See `loop.Transcript`."""
        self._write(b'{"command":', payload.replace(b"\n", b" "))  # it may stand between values, never inside one

    def event(self, event: bytes) -> None:
        """See `loop.Transcript`."""
        self._write(b'{"event":', event)

    def token(self, piece: str, *, stop: bool) -> None:
        """See `loop.Transcript`."""
        self._write(b'{"token":', json.dumps(piece, ensure_ascii=False).encode(), b',"stop":true}' if stop else b"}")

    def _write(self, head: bytes, body: bytes, end: bytes = b"}") -> None:
        if self.failure is not None:
            return
        try:
            self._file.write(b"%b%b%b\n" % (head, body, end))
            self.lines += 1
        except OSError as error:
            self.failure = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._file.close()
            if self.lines > 1 and self.failure is None:
                self._draft.replace(self._path)
        except OSError as failure:
            self.failure = failure
        finally:
            self._draft.unlink(missing_ok=True)
