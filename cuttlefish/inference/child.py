"""Running a program of our own choice in a child process: its input given, its output capped, its time limited."""

import resource
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

__all__ = ["ChildResult", "TooMuchOutput", "run_child"]

CHUNK_BYTES = 64 << 10
CORE_BYTES = 0


class TooMuchOutput(Exception):
    """The child wrote more than it may; it was killed."""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a child ended and what it wrote to standard output; standard error cut after the same number of bytes."""

    code: int
    out: bytes
    err: bytes


async def run_child(
    command: Sequence[str], data: bytes, *, time_s: float, out_bytes: int, memory_bytes: int, env: Mapping[str, str] | None = None
) -> ChildResult:
    """Run a program with `data` as its standard input and wait for its end.

    However this ends, the child is killed and gone; a cancel takes some milliseconds. Standard error is read and kept, not shown.

    Raises:
        FileNotFoundError: there is no such program.
        TooMuchOutput: more than `out_bytes` on standard output.
        trio.TooSlowError: not done after `time_s` seconds.
    """
    process = await trio.lowlevel.open_process(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=None if env is None else dict(env)
    )
    out, err = bytearray(), bytearray()
    over = False
    try:
        if hasattr(resource, "prlimit"):  # Linux; elsewhere the time limit alone must do
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
                resource.prlimit(process.pid, resource.RLIMIT_CORE, (CORE_BYTES, CORE_BYTES))

        async def feed(stdin: trio.abc.SendStream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # a child need not read all of it
                async with stdin:
                    await stdin.send_all(data)

        async def read(stream: trio.abc.ReceiveStream, into: bytearray) -> None:
            nonlocal over
            while chunk := await stream.receive_some(CHUNK_BYTES):
                if len(into) + len(chunk) <= out_bytes:
                    into += chunk
                elif into is out:
                    over = True
                    nursery.cancel_scope.cancel()

        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with trio.fail_after(time_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed, process.stdin)
                nursery.start_soon(read, process.stdout, out)
                nursery.start_soon(read, process.stderr, err)
            if not over:
                await process.wait()
    finally:
        with trio.CancelScope(shield=True):  # short: a killed process ends at once
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()
    if over:
        raise TooMuchOutput
    assert process.returncode is not None
    return ChildResult(process.returncode, bytes(out), bytes(err))
