"""The host: what jobs share, and where they start.

Everything that a job needs is made and ended here: compiled modules, document workers, models, threads. Leaving the host cancels
the jobs that still run and ends every process, thread and descriptor.
"""

import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack, cast

import platformdirs
import trio
from pydantic import JsonValue

from cuttlefish.background import background_tasks, first_error
from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.module import BlockBytes, CompiledModule
from cuttlefish.engine.python_block import PythonSource
from cuttlefish.errors import CuttlefishError, DocumentPassword, JobCancelled
from cuttlefish.jobs.execution import Costs, Request, check_pipeline, check_result, execute, time_limit
from cuttlefish.jobs.job import Job
from cuttlefish.jobs.resources import Resources
from cuttlefish.jobs.turns import Client, Turn, Turns
from cuttlefish.limits import Limits, limits_from_environment
from cuttlefish.loop import Transcript
from cuttlefish.media.documents import open_document_workers
from cuttlefish.pipeline.catalog import find_block
from cuttlefish.pipeline.graph import Graph
from cuttlefish.pipeline.inputs import check_examples
from cuttlefish.pipeline.places import Problem
from cuttlefish.pipeline.spec import LoadedPipeline, Pipeline, PipelineError, load_pipeline
from cuttlefish_abi import Envelope, ErrorCode, JobError, JobStatus, Signature

__all__ = ["BlockFacts", "Host", "JobOptions", "Runnable", "Task", "open_host", "run"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """What there is to know of a block that this host would run."""

    module: CompiledModule
    signature: Signature


Runnable = str | Path | BlockBytes | PythonSource | Pipeline | LoadedPipeline
"""A block or a pipeline; see `Host.start`."""

Task = Callable[[Job, Costs], Awaitable[object]]
"""A function that is a job; see `Host.start_task`."""


class JobOptions(TypedDict, total=False):
    """What may be given for one job."""

    model: str | None
    """`provider:target`, for blocks and nodes that name no model themselves."""
    embedding_model: str | None
    """`provider:target`, for blocks that turn texts into vectors."""
    read: Iterable[str | Path]
    """Folders and files that may be opened, beside those that a pipeline grants. Without any, none can."""
    base_dir: str | Path | None
    """What paths in the input are relative to: the pipeline's folder, or the current one for a block, unless given."""
    password_env: str | None
    """The name of the environment variable with the password of locked documents."""
    limits: Mapping[str, object] | None
    """Some limits, by their dotted names."""
    keep_images: bool
    """Whether `Job.images` holds the images that the result names, whose handles end with the job."""
    transcript: Transcript | None
    """Who writes down what a block is told and says; for a block, not for a pipeline."""


class Host:
    """Runs jobs. Made by `open_host`."""

    def __init__(self, nursery: trio.Nursery, resources: Resources, limits: Limits, max_jobs: int) -> None:
        self._nursery = nursery
        self._resources = resources
        self._limits = limits
        self._turns = Turns(max_jobs)
        self._task_turns = Turns(max_jobs)

    def start(self, what: Runnable, input: object, *, client: Client = (), **options: Unpack[JobOptions]) -> Job:
        """Start a job and return at once. Whatever goes wrong from here on is told by the job's Envelope.

        `what` is a block (the path of a `.wasm` or `.py` file, the name of a built-in, or its bytes or source) or a pipeline (the
        path of a `.toml` file, one made in Python, or one loaded before); `input` is any JSON value. `JobOptions` says what else
        may be given.

        Jobs beyond the host's `max_jobs` wait their turn. Turns go round over the clients that wait, one each; the jobs of one
        `client` come in the order of starting. A client is any tuple, from the whole to its part, such as `(machine, program)`:
        turns go round over the machines, then over the programs of each. All who name none are one client.

        Raises:
            ValueError: an unknown limit, one with a value that is no positive number, a variable that is not set, a transcript of a
                pipeline.
        """
        if options.get("transcript") is not None and _is_pipeline(what):
            raise ValueError("transcript: it writes down the run of one block, and this is a pipeline")
        limits = self._limits.with_values(options.get("limits") or {})
        variable = options.get("password_env")
        if variable and variable not in os.environ:
            raise ValueError(f"password_env: the environment variable {variable} is not set")
        turn = self._turns.join(client)
        job = Job(secrets.token_hex(6), limits.job_updates, turn.ahead)
        self._nursery.start_soon(self._run, job, what, input, options, turn)
        return job

    def start_task(self, name: str, function: Task, *, client: Client = ()) -> Job:
        """Start a function of the caller's as a job and return at once: it has progress, can be cancelled, and ends in an Envelope.

        `function(job, costs)` gives the result, a JSON value; what it spends on models it adds to `costs`. It runs on Trio's thread
        and must not block. At most `max_jobs` tasks run at once, beside as many other jobs, which tasks may start and wait for.
        A task that waits for another task may wait for ever.

        A `CuttlefishError` that it raises is the job's error. Any other exception is a fault of the function: code `internal`, with
        a reference to the log. The limits `job.time` and `guest.message` hold, as for blocks.
        """
        turn = self._task_turns.join(client)
        job = Job(secrets.token_hex(6), self._limits.job_updates, turn.ahead)
        self._nursery.start_soon(self._run_task, job, name, function, turn)
        return job

    async def run(self, what: Runnable, input: object, *, client: Client = (), **options: Unpack[JobOptions]) -> Envelope:
        """Start a job as `start` does, and wait for its Envelope. Cancelling the wait cancels the job."""
        job = self.start(what, input, client=client, **options)
        try:
            return await job.envelope()
        finally:
            job.cancel()

    async def build(self, block: str | Path | PythonSource) -> BlockBytes:
        """The module of a block, for shipping: of a Python block what is built from it; the same file gives the same bytes.

        Raises:
            CuttlefishError: there is no such block, or it cannot be built; the message says why.
        """
        found = block if isinstance(block, PythonSource) else await self._find(block)
        return await self._resources.build(found, self._limits)

    async def inspect(self, block: str | Path | BlockBytes | PythonSource) -> BlockFacts:
        """Load a block as a job would, without running it beyond its signature.

        Raises:
            CuttlefishError: the block would be refused; the message says why.
        """
        found = block if isinstance(block, BlockBytes | PythonSource) else await self._find(block)
        return BlockFacts(*await self._resources.load_block(found, self._limits))

    async def _find(self, block: str | Path) -> BlockBytes | PythonSource:
        return await trio.to_thread.run_sync(find_block, str(block), Path(), self._limits)

    async def check(self, pipeline: str | Path | Pipeline | LoadedPipeline, *, base_dir: str | Path | None = None) -> Graph:
        """Load a pipeline and its blocks, and check everything that can be checked before it runs.

        `base_dir` is what the paths in a pipeline made in Python are relative to, the current folder unless given.

        Raises:
            PipelineError: with every problem that there is.
        """
        loaded = await _load(pipeline, Path(base_dir or Path.cwd()))
        if not isinstance(loaded, LoadedPipeline):
            raise PipelineError([Problem("is no pipeline: a pipeline is a .toml file", str(pipeline))])
        graph = await check_pipeline(loaded, self._resources, self._limits.with_values(loaded.pipeline.limit_values()))
        wrong = await trio.to_thread.run_sync(check_examples, graph.form, loaded.pipeline)
        examples = [loaded.problem(message, *path, is_warning=True) for message, path in wrong]
        return replace(graph, warnings=(*graph.warnings, *examples)) if examples else graph

    async def _request(self, what: Runnable, value: object, options: JobOptions) -> Request:
        """What a job is asked to do. What its caller gives wins over what the pipeline says."""
        base_dir = Path(options.get("base_dir") or Path.cwd())
        found = await _load(what, base_dir)
        limits, local_only = self._limits, False
        model, embedding_model = options.get("model") or None, options.get("embedding_model") or None
        if isinstance(found, LoadedPipeline):
            limits = limits.with_values(found.pipeline.limit_values())
            model = model or found.pipeline.model
            embedding_model = embedding_model or found.pipeline.embedding_model
            local_only = found.pipeline.data_policy == "local_only"
            base_dir = Path(options.get("base_dir") or found.folder)
        variable = options.get("password_env") or (found.pipeline.password_env if isinstance(found, LoadedPipeline) else None)
        if variable and variable not in os.environ:
            raise DocumentPassword(f"the documents' password is in the environment variable {variable}, which is not set")
        return Request(
            what=found,
            value=value,
            model=model,
            embedding_model=embedding_model,
            local_only=local_only,
            read=tuple(options.get("read") or ()),
            base_dir=base_dir,
            password=os.environ.get(variable) if variable else None,
            limits=limits.with_values(options.get("limits") or {}),
            keep_images=options.get("keep_images", False),
            transcript=options.get("transcript"),
        )

    async def _run(self, job: Job, what: Runnable, value: object, options: JobOptions, turn: Turn) -> None:
        """One job, from its turn to its Envelope."""

        async def work(costs: Costs) -> object:
            async with turn:
                job.started()
                costs.began = time.monotonic()
                request = await self._request(what, value, options)
                job.keep_updates(request.limits.job_updates)
                return await execute(job, request, self._resources, costs)

        await self._to_envelope(job, work, "a bug in cuttlefish, please report it with what the log says under {}")

    async def _run_task(self, job: Job, name: str, function: Task, turn: Turn) -> None:
        async def work(costs: Costs) -> object:
            async with turn:
                job.started()
                costs.began = time.monotonic()
                with time_limit(self._limits):
                    result = await function(job, costs)
                return await trio.to_thread.run_sync(check_result, result, name, self._limits)

        await self._to_envelope(job, work, f'"{name}" broke, which is a fault in its code; the log says more under {{}}')

    async def _to_envelope(self, job: Job, work: Callable[[Costs], Awaitable[object]], broken: str) -> None:
        """Do a job's work, and end the job with an Envelope, whatever happens."""
        costs = Costs()
        envelope: Envelope | None = None
        try:
            with job.scope:
                result = await work(costs)
                # Not validated: a result has been read as JSON, and a large one would hold up Trio's thread here.
                envelope = Envelope.model_construct(
                    status=JobStatus.COMPLETED, result=cast("JsonValue", result), usage=costs.usage()
                )
        except* CuttlefishError as group:
            envelope = _failed(first_error(group), costs)
        except* PipelineError as group:
            error = first_error(group)
            assert isinstance(error, PipelineError)
            envelope = _failed(CuttlefishError(str(error), code=error.code), costs)
        except* Exception as group:  # noqa: BLE001  # a bug of ours must end in an Envelope too
            reference = secrets.token_hex(4)
            _log.error("internal error %s in job %s", reference, job.id, exc_info=first_error(group))
            envelope = _failed(CuttlefishError(broken.format(reference), code=ErrorCode.INTERNAL), costs)
        finally:
            job.finished(envelope or _failed(JobCancelled("the job was cancelled"), costs))


@asynccontextmanager
async def open_host(
    *,
    limits: Mapping[str, object] | None = None,
    cache_dir: str | Path | None = None,
    max_jobs: int | None = None,
) -> AsyncIterator[Host]:
    """A host for as long as the block lasts. Leaving it cancels the jobs that still run and ends all that they used.

    `limits` changes defaults for all jobs, by dotted name; environment variables are read before (see `limits.py`). Compiled
    modules are kept in `cache_dir`, else the folder that `CUTTLEFISH_CACHE` names, else the user's cache folder. At most `max_jobs`
    jobs run at once, twice the number of cores (at least four) unless given.

    Raises:
        ValueError: an unknown limit, or one whose value is no positive number.
    """
    defaults = limits_from_environment(os.environ).with_values(limits or {})
    folder = Path(cache_dir or os.environ.get("CUTTLEFISH_CACHE") or platformdirs.user_cache_path("cuttlefish")) / "modules"
    compiler = await trio.to_thread.run_sync(Compiler, folder)
    try:
        async with open_document_workers() as documents:
            resources = Resources(compiler, documents)
            try:
                async with background_tasks() as jobs:
                    yield Host(jobs, resources, defaults, max_jobs or max(4, 2 * (os.cpu_count() or 1)))
            finally:
                with trio.CancelScope(shield=True):
                    await resources.close()
    finally:  # also where documents cannot be read on this system: the compiler may hold a temporary folder
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(compiler.close)


def run(what: Runnable, input: object, **options: Unpack[JobOptions]) -> Envelope:
    """Run one job without an event loop of one's own: see `Host.start` for what is given, `Envelope` for what comes back.

    Raises:
        ValueError: an unknown limit, one with a value that is no positive number, or a variable that is not set.
        RuntimeError: called from within a Trio run; use `open_host` there.
    """

    async def once() -> Envelope:
        async with open_host() as host:
            return await host.run(what, input, **options)

    return trio.run(once)


def _is_pipeline(what: Runnable) -> bool:
    return isinstance(what, Pipeline) or (isinstance(what, str | Path) and Path(what).suffix == ".toml")


async def _load(what: Runnable, folder: Path) -> BlockBytes | PythonSource | Path | LoadedPipeline:
    """Read a pipeline's file; leave a block to whoever runs it."""
    if isinstance(what, BlockBytes | PythonSource | LoadedPipeline):
        return what
    if isinstance(what, Pipeline):
        return LoadedPipeline(what, await trio.to_thread.run_sync(folder.absolute))
    return await trio.to_thread.run_sync(load_pipeline, what) if Path(what).suffix == ".toml" else Path(what)


def _failed(error: BaseException, costs: Costs) -> Envelope:
    assert isinstance(error, CuttlefishError)
    status = JobStatus.CANCELLED if isinstance(error, JobCancelled) else JobStatus.FAILED
    return Envelope(status=status, error=JobError(code=error.code, message=error.message), usage=costs.usage())
