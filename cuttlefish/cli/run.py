"""`cuttlefish run`."""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import trio

from cuttlefish.cli.check import check_file
from cuttlefish.cli.display import Display
from cuttlefish.cli.exits import BUG, CANCELLED, COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import log_path, start_log
from cuttlefish.errors import CuttlefishError, NotFound
from cuttlefish.host import open_host
from cuttlefish.jobs.job import Job
from cuttlefish.limits import Limits, limits_from_environment
from cuttlefish.pipeline.catalog import find_block
from cuttlefish.pipeline.draw import draw_text
from cuttlefish_abi import BadJson, Envelope, ErrorCode, JobStatus, parse_json

__all__ = ["read_limits", "run_command"]


def run_command(options: argparse.Namespace) -> int:
    """Run one job; its Envelope goes to standard output.

    Raises:
        UsageError: an input that is no JSON, a block or pipeline that is not there, an unknown limit.
    """
    value = read_input(options.input)
    limits = read_limits(options.limit)
    _check_what(options.what, limits, draws=options.graph)
    if options.password_env and options.password_env not in os.environ:
        raise UsageError(f"--password-env: the environment variable {options.password_env} is not set")
    start_log()
    display = Display(sys.stderr) if options.progress == "always" or (options.progress == "auto" and sys.stderr.isatty()) else None
    envelope, drawing = trio.run(_run, options, value, limits, display)
    sys.stderr.write(drawing)
    sys.stdout.buffer.write(envelope.model_dump_json(indent=2).encode() + b"\n")
    sys.stdout.flush()
    if envelope.error is not None and envelope.error.code == ErrorCode.INTERNAL:
        print(f"cuttlefish: the log is {log_path()}", file=sys.stderr)
        return BUG
    return {JobStatus.COMPLETED: COMPLETED, JobStatus.CANCELLED: CANCELLED}.get(envelope.status, FAILED)


async def _run(
    options: argparse.Namespace, value: object, limits: dict[str, object], display: Display | None
) -> tuple[Envelope, str]:
    try:
        async with open_host() as host, trio.open_nursery() as nursery:
            # Before the job: what is drawn is what was run, whoever changes the file meanwhile.
            graph = (await check_file(host, options.what))[0] if options.graph else None
            job = host.start(
                options.what,
                value,
                model=options.model,
                embedding_model=options.embedding_model,
                read=options.read,
                base_dir=Path.cwd(),
                password_env=options.password_env,
                limits=limits,
            )
            await nursery.start(_cancel_on_signal, job)
            if display is not None:
                async for update in job:
                    display.show(update)
            envelope = await job.envelope()
            nursery.cancel_scope.cancel()
            return envelope, draw_text(graph, job.nodes) if graph and job.nodes else ""
    finally:
        if display is not None:
            display.close()


def _check_what(what: str, limits: dict[str, object], *, draws: bool) -> None:
    is_pipeline = Path(what).suffix == ".toml"
    if draws and not is_pipeline:
        raise UsageError(f'--graph draws pipelines, and "{what}" is none')
    if is_pipeline and not Path(what).exists():
        raise UsageError(f'there is no pipeline "{what}"')
    if not is_pipeline:
        try:
            find_block(what, Path(), limits_from_environment(os.environ).with_values(limits))
        except NotFound as error:
            raise UsageError(error.message) from None
        except CuttlefishError:
            pass  # the job's Envelope says what is wrong with it


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


def read_limits(words: list[str]) -> dict[str, object]:
    """Limits from the command line, NAME=VALUE each.

    Raises:
        UsageError: a word that is none, or an unknown limit.
    """
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
