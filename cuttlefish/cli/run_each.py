"""`cuttlefish run … --each FILE…`: one job for each file, and a line of JSON for each job as it ends."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import trio

from cuttlefish.background import one_error
from cuttlefish.cli.check import check_file, problem_line
from cuttlefish.cli.exits import CANCELLED, COMPLETED, FAILED, USAGE
from cuttlefish.cli.output import write
from cuttlefish.host import Host, JobOptions, Runnable, open_host
from cuttlefish.jobs.updates import LogLine
from cuttlefish.pipeline.draw import printable
from cuttlefish_abi import Envelope, JobStatus

__all__ = ["run_each"]


def run_each(options: argparse.Namespace, record: dict[str, object], job_options: JobOptions) -> int:
    """Run one job for each file, a few at a time, with `record` and the file as `path` for its input.

    What ends is written at once, so that nothing done is lost by what comes later. The first Ctrl-C starts no more jobs and ends
    those that run, of which no line is written; the second stops at once.
    """
    return trio.run(_run, options, record, job_options)


@dataclass(slots=True)
class _Progress:
    """How far it is, for the person who waits."""

    files: int
    shown: bool
    shows_log: bool
    done: int = 0
    failed: int = 0
    is_cancelled: bool = False
    writing: trio.Lock = field(default_factory=trio.Lock)

    def tell(self, path: str, envelope: Envelope) -> None:
        """Count what has just ended, and say so on standard error."""
        self.done += 1
        self.failed += envelope.status is not JobStatus.COMPLETED
        if not self.shown:
            return
        failed = f", {self.failed} failed" if self.failed else ""
        error = envelope.error
        why = "" if error is None else f"; {path} failed, {error.code}: {error.message}"
        print(printable(f"· {self.done} of {self.files} done{failed}{why}"), file=sys.stderr, flush=True)


async def _run(options: argparse.Namespace, record: dict[str, object], job_options: JobOptions) -> int:
    shown = options.progress == "always" or (options.progress == "auto" and sys.stderr.isatty())
    progress = _Progress(len(options.each), shown, shows_log=options.progress != "never")
    with one_error():
        async with open_host(max_jobs=options.jobs) as host, trio.open_nursery() as nursery:
            what: Runnable = options.what
            if Path(options.what).suffix == ".toml":
                graph, problems = await check_file(host, options.what)  # once, not for each file
                sys.stderr.write("".join(map(problem_line, problems)))
                if graph is None:
                    return USAGE
                what = graph.loaded
            await nursery.start(_cancel_on_signal, progress, nursery.cancel_scope)
            waiting = iter(options.each)
            async with trio.open_nursery() as workers:
                for _ in range(min(options.jobs, len(options.each))):
                    workers.start_soon(_work, host, what, waiting, record, job_options, progress)
            nursery.cancel_scope.cancel()
    if progress.is_cancelled:
        print(f"cuttlefish: cancelled; {progress.done} of {progress.files} are done", file=sys.stderr)
        return CANCELLED
    return FAILED if progress.failed else COMPLETED


async def _work(
    host: Host, what: Runnable, waiting: Iterator[str], record: dict[str, object], job_options: JobOptions, progress: _Progress
) -> None:
    """Take one file after another, as long as there are any."""
    for path in waiting:
        envelope = await _run_one(host, what, record | {"path": path}, job_options, path if progress.shows_log else None)
        # A name that is no Unicode text stands in the line as JSON's escapes.
        line = f'{{"path":{json.dumps(path, ensure_ascii=False)},{envelope.model_dump_json()[1:]}\n'
        with trio.CancelScope(shield=True):  # what is done is written, and no half line
            async with progress.writing:
                await trio.to_thread.run_sync(write, line)  # a reader may be slow
                progress.tell(path, envelope)


async def _run_one(host: Host, what: Runnable, value: object, job_options: JobOptions, told_as: str | None) -> Envelope:
    """One job, cancelled with the wait for it. What its blocks print goes to standard error, behind `told_as`."""
    job = host.start(what, value, **job_options)
    try:
        async for update in job:
            if told_as is not None and isinstance(update, LogLine):
                print(printable(f"{told_as}: {update.block}: {update.text}"), file=sys.stderr, flush=True)
        return await job.envelope()
    finally:
        job.cancel()


async def _cancel_on_signal(
    progress: _Progress, scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if progress.is_cancelled:
                os._exit(CANCELLED)  # the second time they mean it; workers end with this process
            progress.is_cancelled = True
            scope.cancel()
