"""Carries out one job: a block by itself, or a pipeline."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from cuttlefish.engine.module import BlockBytes, CompiledModule
from cuttlefish.engine.python_block import PythonSource
from cuttlefish.errors import CapabilityDenied, CuttlefishError, SchemaMismatch, TimedOut
from cuttlefish.inference.backend import Backend, Embedder, TokenMeter
from cuttlefish.jobs.job import Job
from cuttlefish.jobs.resources import Resources
from cuttlefish.jobs.result_images import collect_images
from cuttlefish.jobs.updates import Origin
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.loop import LARGE_BYTES, BlockRun, Transcript, Watcher, no_embedder, run_block
from cuttlefish.media.capabilities import Capabilities
from cuttlefish.media.handles import HandleTable
from cuttlefish.media.job_handles import JobHandles
from cuttlefish.pipeline.catalog import find_block
from cuttlefish.pipeline.graph import Graph, GraphNode, build_graph
from cuttlefish.pipeline.inputs import prepare_input
from cuttlefish.pipeline.items import items_of_manifest, paths_of_pattern
from cuttlefish.pipeline.run import NodeRecord, run_graph
from cuttlefish.pipeline.spec import LoadedPipeline, PipelineError
from cuttlefish_abi import BadJson, Signature, Ty, Usage, parse_json

__all__ = ["Costs", "Request", "check_pipeline", "check_result", "execute", "time_limit"]

SMALL_PARTS = 1_000

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Request:
    """What a job was asked to do."""

    what: BlockBytes | PythonSource | Path | LoadedPipeline
    """A block's bytes, source or file, or a pipeline."""
    value: object
    model: str | None
    """The model for what names none itself."""
    embedding_model: str | None
    local_only: bool
    """Whether models must be on this machine."""
    read: tuple[str | Path, ...]
    """Folders and files that may be opened, beside those that the pipeline grants."""
    base_dir: Path
    """What paths in the input are relative to."""
    password: str | None = field(repr=False)
    limits: Limits
    keep_images: bool = False
    """Whether the caller wants to see the images in the result."""
    transcript: Transcript | None = None
    """Who writes down the run of a block."""


@dataclass(slots=True)
class Costs:
    """What a job has cost so far."""

    began: float = field(default_factory=time.monotonic)
    meters: list[TokenMeter] = field(default_factory=list)
    """Of a block by itself."""
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    """Of a pipeline: each node has meters of its own."""
    models: dict[str, None] = field(default_factory=dict)
    """The models that were asked, in the order of asking."""

    def usage(self) -> Usage:
        """As the Envelope tells it."""
        meters = [*self.meters, *(meter for node in self.nodes.values() for meter in node.meters)]
        return Usage(
            tokens_in=sum(meter.tokens_in for meter in meters),
            tokens_out=sum(meter.tokens_out for meter in meters),
            duration_ms=max(1, round((time.monotonic() - self.began) * 1000)),
            model=", ".join(self.models) or None,
        )


async def execute(job: Job, request: Request, resources: Resources, costs: Costs) -> object:
    """Run the job and return its result. Cancelling stops all of it.

    Raises:
        CuttlefishError: the job failed.
    """
    with time_limit(request.limits):
        execution = _Execution(job, request, resources, costs)
        value_json = await _encode(request.value, request.limits)
        value = await _aside_if(len(value_json) > LARGE_BYTES, _parse, value_json, request.limits)
        if isinstance(request.what, LoadedPipeline):
            return await _run_pipeline(execution, request.what, value)
        return await _run_one(execution, request.what, value, value_json)


@contextmanager
def time_limit(limits: Limits) -> Iterator[None]:
    """Around the work of a job: it is cancelled after `job.time`.

    Raises:
        TimedOut: it took longer.
    """
    limit = limits.job_time_s
    with trio.move_on_after(float("inf") if limit is None else limit) as scope:
        yield
        return
    assert scope.cancelled_caught
    raise TimedOut(f"the job took longer than it may (job.time is {limit:g} seconds)")


def check_result(result: object, name: str, limits: Limits) -> object:
    """The result of the function `name` as JSON has it.

    Raises:
        TypeError, ValueError: it is no JSON value, which is the function's fault.
        LimitExceeded: it is larger than a block's result may be.
    """
    result_json = json.dumps(result, ensure_ascii=False, allow_nan=False).encode()
    if len(result_json) > limits.guest_message_bytes:
        raise limit_exceeded("guest_message_bytes", limits.guest_message_bytes, f'the result of "{name}" has {len(result_json)}')
    return parse_json(result_json, max_depth=limits.guest_json_depth)


async def check_pipeline(loaded: LoadedPipeline, resources: Resources, limits: Limits) -> Graph:
    """Load a pipeline's blocks and check its seams.

    Raises:
        PipelineError: with every problem that there is.
    """

    async def load(name: str) -> tuple[CompiledModule, Signature]:
        block = await trio.to_thread.run_sync(find_block, name, loaded.folder, limits)
        return await resources.load_block(block, limits)

    return await build_graph(loaded, load)


@dataclass(frozen=True, slots=True)
class _Execution:
    """One job and what it may use."""

    job: Job
    request: Request
    resources: Resources
    costs: Costs

    def block_run(
        self, module: CompiledModule, handles: HandleTable, model: str | None, meters: list[TokenMeter], watcher: Watcher
    ) -> BlockRun:
        """A run of a block, which asks `model` if it asks one."""
        return BlockRun(
            module=module,
            handles=handles,
            documents=self.resources.documents,
            backend=partial(self._backend, model),
            embedder=self._embedder if self.request.embedding_model else no_embedder,
            watcher=watcher,
            password=self.request.password,
            limits=self.request.limits,
            threads=self.resources.threads,
            meters=meters,
            transcript=self.request.transcript,
        )

    async def keep_images(self, ty: Ty, result: object, handles: HandleTable) -> None:
        """Take along the images in the job's result, while their handles are open."""
        self.job.images = await collect_images(ty, result, handles, self.resources.documents, self.request.limits)

    async def _backend(self, model: str | None) -> Backend:
        found = await self.resources.backend(model, local_only=self.request.local_only)
        self.costs.models[found.name] = None
        return found

    async def _embedder(self) -> Embedder:
        assert self.request.embedding_model is not None
        found = await self.resources.embedder(self.request.embedding_model, local_only=self.request.local_only)
        self.costs.models[found.name] = None
        return found


async def _run_one(execution: _Execution, block: BlockBytes | PythonSource | Path, value: object, value_json: bytes) -> object:
    """Run a block by itself."""
    request, limits = execution.request, execution.request.limits
    if isinstance(block, Path):
        block = await trio.to_thread.run_sync(find_block, str(block), Path(), limits)
    module = await execution.resources.compile(block, limits)
    capabilities = await trio.to_thread.run_sync(_grant, request.read, request.base_dir)
    with capabilities, HandleTable(capabilities, limits) as handles:
        run = execution.block_run(module, handles, request.model, execution.costs.meters, execution.job)
        result = await run_block(run, value, value_json)
        if request.keep_images:
            _, signature = await execution.resources.load_block(block, limits)
            await execution.keep_images(signature.output, result, handles)
        return result


async def _run_pipeline(execution: _Execution, loaded: LoadedPipeline, value: object) -> object:
    """Check a pipeline and its input, and run it."""
    request = execution.request
    try:
        graph = await check_pipeline(loaded, execution.resources, request.limits)
    except PipelineError as error:
        raise CuttlefishError(str(error), code=error.code) from None
    value = await trio.to_thread.run_sync(prepare_input, graph.form, loaded.pipeline, value)
    roots = [*(loaded.folder / root for root in loaded.pipeline.read), *request.read]
    capabilities = await trio.to_thread.run_sync(_grant, roots, request.base_dir)
    execution.costs.nodes = execution.job.nodes
    with capabilities, JobHandles(capabilities, request.limits) as handles:
        nodes = _Nodes(execution, loaded, capabilities, handles)
        result = await run_graph(
            graph,
            value,
            run_block=nodes.run_block,
            get_items=nodes.get_items,
            report=execution.job.progress,
            records=execution.job.nodes,
        )
        if request.keep_images:
            await execution.keep_images(graph.result, result, handles.table(0))  # any table finds the handles of all
        return result


@dataclass(frozen=True, slots=True)
class _NodeWatcher:
    """Tells a job what one run of a node's block says, and which run it was."""

    job: Job
    origin: Origin

    def progress(self, value: object, size_bytes: int) -> None:
        self.job.progress(value, size_bytes, self.origin)

    def token(self, piece: str) -> None:
        self.job.token(piece, self.origin)

    def log(self, block: str, text: str) -> None:
        self.job.log(block, text)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """How the nodes of one job run their blocks."""

    execution: _Execution
    loaded: LoadedPipeline
    capabilities: Capabilities
    handles: JobHandles

    async def run_block(self, node: GraphNode, value: object, meters: list[TokenMeter], item: int | None) -> object:
        """See `pipeline.run.RunBlock`."""
        execution = self.execution
        table = self.handles.table(node.index) if item is None else self.handles.item_table(node.index)
        watcher = _NodeWatcher(execution.job, Origin(node.name, item))
        try:
            run = execution.block_run(node.module, table, node.spec.model or execution.request.model, meters, watcher)
            return await run_block(run, value, await _encode(value, execution.request.limits))
        finally:
            if item is not None:
                table.close()

    async def get_items(self, over: str) -> Sequence[object]:
        """See `pipeline.run.GetItems`."""
        folder, limits = self.loaded.folder, self.execution.request.limits
        if over.endswith(".jsonl"):
            return await trio.to_thread.run_sync(items_of_manifest, over, folder, self.capabilities, limits)
        base_dir = self.execution.request.base_dir
        return await trio.to_thread.run_sync(paths_of_pattern, over, folder, base_dir, self.capabilities, limits)


async def _encode(value: object, limits: Limits) -> bytes:
    """An input as JSON."""
    return await _aside_if(_is_large(value), _encode_now, value, limits)


async def _aside_if(large: bool, function: Callable[[V, Limits], T], value: V, limits: Limits) -> T:
    """What is large is read and written in a thread, for which a cancellation does not wait; the rest takes less than the hop."""
    if large:
        return await trio.to_thread.run_sync(function, value, limits, abandon_on_cancel=True)
    return function(value, limits)


def _is_large(value: object) -> bool:
    """Whether a value may take long to write. Looks at no more of it than a small one has."""
    level, parts, characters = [value], 0, 0
    while level:
        part = level.pop()
        parts += 1
        if isinstance(part, str):
            characters += len(part)
        elif isinstance(part, dict | list | tuple):
            if len(part) > SMALL_PARTS:
                return True
            level.extend([*part, *part.values()] if isinstance(part, dict) else part)
        if parts > SMALL_PARTS or characters > LARGE_BYTES:
            return True
    return False


def _encode_now(value: object, limits: Limits) -> bytes:
    try:
        value_json = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 40) : error.end + 20].encode("utf-8", "backslashreplace").decode()
        raise SchemaMismatch(
            f"the input holds what is no Unicode text, near {around}; a file of such a name must be renamed"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, TypeError) else "it holds something that JSON cannot say"
        raise SchemaMismatch(f"the input is not a JSON value: {why}") from None
    if len(value_json) > limits.guest_message_bytes:
        raise limit_exceeded("guest_message_bytes", limits.guest_message_bytes, f"the input has {len(value_json)}")
    return value_json


def _parse(value_json: bytes, limits: Limits) -> object:
    """A job's input as blocks will see it: what Python knows beside JSON (tuples, keys that are numbers) is gone."""
    try:
        return parse_json(value_json, max_depth=limits.guest_json_depth)
    except BadJson as error:
        raise SchemaMismatch(f"the input is not a JSON value: {error}") from None


def _grant(read: Sequence[str | Path], base_dir: Path) -> Capabilities:
    try:
        return Capabilities.grant(read, base_dir)
    except ValueError as error:
        raise CapabilityDenied(str(error)) from None
