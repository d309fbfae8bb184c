"""One file over HTTP into a part file that may have its beginning already: going on where it ends, however often it breaks off.

Who may be asked, and whether the bytes are the right ones, is the caller's business: it knows their sha256.
"""

import contextlib
import json
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cuttlefish.inference.models.folder import size_of

__all__ = ["BrokenOff", "Refused", "download"]

WORKER = Path(__file__).with_name("download_worker.py")
CHUNK_BYTES = 256 << 10
HEAD_BYTES_MAX = 4096
POLL_S = 0.1
SILENCE_S = 30.0  # a server that sends nothing for so long is taken for gone
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before asking again; one more failure in a row ends it
WAITS_UNANSWERED = 1  # of these for a server that never gave anything: it is likely not reached this way at all
GAIN_BYTES = 1 << 20  # what must have come for failures to be counted anew
TRY_LATER = {408, 425, 429, 500, 502, 503, 504}


class Refused(Exception):
    """The server did not give a byte of this file: the text says why."""


class BrokenOff(Exception):
    """The download broke off again and again: the text says how. What came is kept."""


class _Failed(Exception):
    """One attempt ended too early; the text says how."""


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    length: int | None
    first: int | None
    """Of a 206: which byte its content begins with."""
    total: int | None
    """Of a 206: how many bytes the whole file has."""


def download(
    url: str,
    part: Path,
    size_bytes: int,
    *,
    report: Callable[[str], None],
    on_progress: Callable[[int], None],
    check: Callable[[], None],
) -> bool:
    """Bring `part` to `size_bytes` from `url`; return whether bytes that it had before are still in it.

    What breaks off is asked for again after growing waits, from where it ended. A server that cannot start in the middle
    starts at the beginning again. Never writes more than `size_bytes`. `on_progress` gets how many bytes are there, often.

    `check` is called several times a second, whatever the network does; what it raises ends the download. Nothing of it is left
    running then, and the part stays as it is.

    Raises:
        Refused: nothing came, and asking again would not help.
        BrokenOff: it broke off too often.
        OSError: the part cannot be written.
    """
    kept = size_of(part)
    answered, failures, last_gain = False, 0, kept
    while (offset := size_of(part)) < size_bytes:
        try:
            with _asking(url, offset) as pipe:
                head = _read_head(pipe, check)
                answered = True
                place = _place(head, offset, size_bytes)
                if place != offset:
                    part.write_bytes(b"")
                    kept = last_gain = 0
                if place is not None:
                    _append(pipe, part, size_bytes, on_progress, check)
        except Refused as e:
            if offset > kept:  # it gave some a moment ago
                raise BrokenOff(str(e)) from None
            raise
        except _Failed as e:
            if size_of(part) - last_gain >= GAIN_BYTES:
                failures, last_gain = 0, size_of(part)
            if failures == (len(WAITS_S) if answered or kept else WAITS_UNANSWERED):
                raise (BrokenOff if answered else Refused)(str(e)) from None
            report(f"{e}; asking again in {WAITS_S[failures]:.0f} s")
            _pause(WAITS_S[failures], check)
            failures += 1
    return kept > 0


def _place(head: _Head, offset: int, size_bytes: int) -> int | None:
    """At which byte of the file the answer's content begins: `offset`, or 0; None: it is of no use, ask for all of the file.

    Raises:
        Refused: the answer is not this file.
        _Failed: a later answer may be better.
    """
    match head:
        case _Head(status=206, total=total) if offset and total in (None, size_bytes):
            return offset if head.first == offset else None
        case _Head(status=200, length=length) if length == size_bytes:  # a network's page for logging in often tells none
            return 0
        case _Head(status=416) if offset:
            return None
        case _Head(status=status) if status in TRY_LATER:
            raise _Failed(f"the server answered with status {status}")
        case _Head(status=200 | 206):
            raise Refused("the server has another file there, going by its size")
    raise Refused(f"the server answered with status {head.status}")


def _append(pipe: IO[bytes], part: Path, size_bytes: int, on_progress: Callable[[int], None], check: Callable[[], None]) -> None:
    """Add what comes to the part, until it is whole.

    Raises:
        _Failed: it ended before.
    """
    with part.open("ab", buffering=0) as file:
        size = file.tell()
        while size < size_bytes:
            chunk = _read(pipe, min(CHUNK_BYTES, size_bytes - size), check)
            if not chunk:
                raise _Failed(f"the connection broke off at {size / 1e6:.0f} of {size_bytes / 1e6:.0f} MB")
            rest = memoryview(chunk)
            while rest:  # a disk that gets full takes some of it first
                rest = rest[file.write(rest) :]
            size += len(chunk)
            on_progress(size)


@contextlib.contextmanager
def _asking(url: str, offset: int) -> Iterator[IO[bytes]]:
    """What the worker writes. It is gone when this ends."""
    worker = subprocess.Popen(
        [sys.executable, "-I", str(WORKER), url, str(offset)],
        stdin=subprocess.PIPE,  # it ends when this does
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C in a terminal goes to us alone, and we end it
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        with worker.stdin, worker.stdout:
            yield worker.stdout
    finally:
        worker.kill()
        worker.wait()


def _read_head(pipe: IO[bytes], check: Callable[[], None]) -> _Head:
    """The worker's first line.

    Raises:
        Refused: the server's certificate is not trusted.
        _Failed: there was no answer.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = _read(pipe, 1, check)  # not one more: what follows is the file's
        if not byte or len(line) == HEAD_BYTES_MAX:
            raise _Failed("the server did not answer")
        line += byte
    said = json.loads(line)
    if "error" in said:
        if said["error"] == "certificate":
            raise Refused("the server's certificate is not trusted")
        raise _Failed("the server was not reached")
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", said["range"] or "", re.ASCII)
    return _Head(
        status=said["status"],
        length=said["length"],
        first=int(found[1]) if found else None,
        total=int(found[2]) if found and found[2] != "*" else None,
    )


def _read(pipe: IO[bytes], most: int, check: Callable[[], None]) -> bytes:
    """What the worker has written, at most `most` bytes of it; nothing at its end.

    Raises:
        _Failed: the server is silent.
    """
    silent_since = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            check()
            if selector.select(POLL_S):
                return os.read(pipe.fileno(), most)
            if time.monotonic() - silent_since > SILENCE_S:
                raise _Failed(f"the server was silent for {SILENCE_S:.0f} s")


def _pause(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(POLL_S, left))
