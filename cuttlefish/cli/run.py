"""`cuttlefish run`."""

import argparse
import json
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import trio

from cuttlefish.authoring.recording import Recording
from cuttlefish.cli.check import check_file
from cuttlefish.cli.display import Display
from cuttlefish.cli.exits import BUG, CANCELLED, COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import log_path, start_log
from cuttlefish.cli.run_each import run_each
from cuttlefish.cli.save_images import make_folder, save_images
from cuttlefish.errors import CuttlefishError, NotFound
from cuttlefish.host import JobOptions, open_host
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
    if options.input is None and options.each is None:
        raise UsageError("the following arguments are required: --input or --each (see cuttlefish run --help)")
    value = {} if options.input is None else read_input(options.input)
    limits = read_limits(options.limit)
    _check_what(options.what, limits, draws=options.graph)
    if options.password_env and options.password_env not in os.environ:
        raise UsageError(f"--password-env: the environment variable {options.password_env} is not set")
    if options.record and Path(options.what).suffix == ".toml":
        raise UsageError(
            f'--record writes down the run of one block; "{options.what}" is a pipeline: run one of its blocks by itself'
        )
    start_log()
    job_options: JobOptions = {
        "model": options.model,
        "embedding_model": options.embedding_model,
        "read": options.read,
        "base_dir": Path.cwd(),
        "password_env": options.password_env,
        "limits": limits,
        "keep_images": bool(options.save_images),
    }
    if options.each is not None:
        return run_each(options, _record_beside_files(options, value), job_options)
    if options.save_images:
        make_folder(Path(options.save_images))
    watches = options.progress == "always" or (options.progress == "auto" and sys.stderr.isatty())
    display = None if options.progress == "never" else Display(sys.stderr, only_log=not watches)
    with _start_recording(options.record) as recording:
        job_options["transcript"] = recording
        job, envelope, drawing = trio.run(_run, options, value, job_options, display)
    sys.stderr.write(drawing)
    sys.stdout.buffer.write(envelope.model_dump_json(indent=2).encode() + b"\n")
    sys.stdout.flush()
    if envelope.error is not None and envelope.error.code == ErrorCode.INTERNAL:
        print(f"cuttlefish: the log is {log_path()}", file=sys.stderr)
        return BUG
    if recording is not None and not _tell(recording, options.record, envelope):
        return FAILED
    if options.save_images and envelope.status == JobStatus.COMPLETED and not save_images(job.images, Path(options.save_images)):
        return FAILED
    return {JobStatus.COMPLETED: COMPLETED, JobStatus.CANCELLED: CANCELLED}.get(envelope.status, FAILED)


async def _run(
    options: argparse.Namespace,
    value: object,
    job_options: JobOptions,
    display: Display | None,
) -> tuple[Job, Envelope, str]:
    try:
        async with open_host() as host, trio.open_nursery() as nursery:
            # Before the job: what is drawn is what was run, whoever changes the file meanwhile.
            graph = (await check_file(host, options.what))[0] if options.graph else None
            job = host.start(options.what, value, **job_options)
            await nursery.start(_cancel_on_signal, job)
            if display is not None:
                async for update in job:
                    display.show(update)
            envelope = await job.envelope()
            nursery.cancel_scope.cancel()
            return job, envelope, draw_text(graph, job.nodes) if graph and job.nodes else ""
    finally:
        if display is not None:
            display.close()


def _record_beside_files(options: argparse.Namespace, value: object) -> dict[str, object]:
    """What `--input` gives every job of `--each`."""
    for option, given in (("--record", options.record), ("--save-images", options.save_images), ("--graph", options.graph)):
        if given:
            raise UsageError(f"{option} is for one job, and --each runs one for each file")
    if not isinstance(value, dict):
        raise UsageError('--each gives each job its file as "path", so --input must be a record')
    if "path" in value:
        raise UsageError('--input gives "path", and so does --each')
    return value


def _start_recording(file: str | None) -> AbstractContextManager[Recording | None]:
    if file is None:
        return nullcontext()
    if Path(file).is_dir():
        raise UsageError(f'--record: "{file}" is a folder; give a file in it, such as {Path(file, "NAME.jsonl")}')
    try:
        Path(file).parent.mkdir(exist_ok=True)  # `cases/` of a new block
        return Recording(Path(file))
    except OSError as error:
        raise UsageError(f'--record: "{file}" cannot be written: {(error.strerror or str(error)).lower()}') from None


def _tell(recording: Recording, file: str, envelope: Envelope) -> bool:
    """Say what became of a recording; whether there is one."""
    if recording.failure is not None:
        print(f'cuttlefish: "{file}" is not written: {(recording.failure.strerror or "no reason given").lower()}', file=sys.stderr)
        return False
    if recording.lines < 2:
        print(f'cuttlefish: "{file}" is not written: the job failed before the block said anything', file=sys.stderr)
        return False
    ends = "" if envelope.status == JobStatus.COMPLETED else ", up to where the job ended"
    print(f"cuttlefish: {recording.lines} lines are written to {file}{ends}; they hold what the block read", file=sys.stderr)
    return True


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
    if len(words) == 1 and words[0].lstrip()[:1] in ("{", "[", '"'):
        return _parse_json(os.fsencode(words[0]), "--input")
    if len(words) == 1 and "=" not in words[0]:
        with suppress(BadJson):  # a number, true, false or null; else it is told below what may stand here
            return parse_json(os.fsencode(words[0]))
    record: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.rstrip(":"):
            raise UsageError(f"--input takes JSON, -, or NAME=TEXT and NAME:=JSON; found {json.dumps(word)}")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if name in record:
            raise UsageError(f'--input gives "{name}" twice')
        record[name] = _parse_json(os.fsencode(text), f'--input "{name}"') if is_json else _unicode(text, name)
    return record


def _unicode(text: str, name: str) -> str:
    """A word of the command line, which may hold any bytes, as text."""
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError:
        raise UsageError(f'--input "{name}" is no UTF-8 text: {json.dumps(text)}; a file of such a name must be renamed') from None


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
