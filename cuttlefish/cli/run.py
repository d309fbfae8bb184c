"""`cuttlefish run`."""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import trio

from cuttlefish.cli.display import Display
from cuttlefish.cli.exits import BUG, CANCELLED, COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import log_path, start_log
from cuttlefish.host import open_host
from cuttlefish.jobs.job import Job
from cuttlefish.limits import Limits
from cuttlefish_abi import BadJson, Envelope, ErrorCode, JobStatus, parse_json

__all__ = ["run_command"]


def run_command(options: argparse.Namespace) -> int:
    """Run one job; its Envelope goes to standard output.

    Raises:
        UsageError: an input that is no JSON, a block that is not there, an unknown limit.
    """
    value = read_input(options.input)
    limits = _read_limits(options.limit)
    if not Path(options.block).exists():
        raise UsageError(f'there is no block "{options.block}"')
    start_log()
    display = Display(sys.stderr) if options.progress == "always" or (options.progress == "auto" and sys.stderr.isatty()) else None
    envelope = trio.run(_run, options, value, limits, display)
    sys.stdout.buffer.write(envelope.model_dump_json(indent=2).encode() + b"\n")
    sys.stdout.flush()
    if envelope.error is not None and envelope.error.code == ErrorCode.INTERNAL:
        print(f"cuttlefish: the log is {log_path()}", file=sys.stderr)
        return BUG
    return {JobStatus.COMPLETED: COMPLETED, JobStatus.CANCELLED: CANCELLED}.get(envelope.status, FAILED)


async def _run(options: argparse.Namespace, value: object, limits: dict[str, object], display: Display | None) -> Envelope:
    try:
        async with open_host(limits=limits) as host, trio.open_nursery() as nursery:
            job = host.start(options.block, value, model=options.model, read=options.read)
            await nursery.start(_cancel_on_signal, job)
            if display is not None:
                async for update in job:
                    display.show(update)
            envelope = await job.envelope()
            nursery.cancel_scope.cancel()
            return envelope
    finally:
        if display is not None:
            display.close()


async def _cancel_on_signal(job: Job, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        asked = False
        async for _ in signals:
            if asked:
                os._exit(CANCELLED)  # the second time they mean it; workers end with this process
            asked = True
            job.cancel()
            if sys.stderr.isatty():
                print("\ncuttlefish: cancelling; once more stops at once", file=sys.stderr)


def read_input(words: list[str]) -> object:
    """The job's input from the command line: JSON, `-` for standard input, or NAME=TEXT and NAME:=JSON.

    Raises:
        UsageError: neither of these, or one that does not read.
    """
    if len(words) == 1 and words[0] == "-":
        return _parse_json(sys.stdin.buffer.read(), "standard input")
    if len(words) == 1 and (words[0].lstrip()[:1] in ("{", "[", '"') or "=" not in words[0]):
        return _parse_json(words[0].encode("utf-8", "surrogateescape"), "--input")
    record: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.rstrip(":"):
            raise UsageError(f"--input takes JSON, -, or NAME=TEXT and NAME:=JSON; found {json.dumps(word)}")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if name in record:
            raise UsageError(f'--input gives "{name}" twice')
        record[name] = _parse_json(text.encode("utf-8", "surrogateescape"), f'--input "{name}"') if is_json else text
    return record


def _parse_json(data: bytes, place: str) -> object:
    try:
        return parse_json(data)
    except BadJson as error:
        raise UsageError(f"{place} is {error}") from None


def _read_limits(words: list[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--limit takes NAME=VALUE, found {json.dumps(word)}")
        values[name] = value
    try:
        Limits().with_values(values)
    except ValueError as error:
        raise UsageError(f"--limit: {error}") from None
    return values
