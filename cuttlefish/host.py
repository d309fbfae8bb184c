"""The host: what jobs share, and where they start.

Everything that a job needs is made and ended here: compiled modules, document workers, models, threads. Leaving the host cancels
the jobs that still run and ends every process, thread and descriptor.
"""

import json
import logging
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import platformdirs
import trio
from pydantic import JsonValue

from cuttlefish.background import background_tasks
from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.module import BlockBytes, CompiledModule
from cuttlefish.errors import CapabilityDenied, CuttlefishError, JobCancelled, ModelLoadFailed, NotFound, SchemaMismatch, TimedOut
from cuttlefish.inference.backend import Backend, TokenMeter
from cuttlefish.inference.registry import open_backend
from cuttlefish.jobs.job import Job
from cuttlefish.jobs.turns import Turn, Turns
from cuttlefish.limits import Limits, limit_exceeded, limits_from_environment
from cuttlefish.loop import BlockRun, open_guest, run_block
from cuttlefish.media.capabilities import Capabilities
from cuttlefish.media.documents import DocumentWorkers, open_document_workers
from cuttlefish.media.handles import HandleTable
from cuttlefish_abi import BadJson, Envelope, ErrorCode, JobError, JobStatus, Signature, Usage, parse_json

__all__ = ["BlockFacts", "Host", "open_host", "run"]

GUEST_THREADS = 256  # far more than can compute at once; a job holds one only while its guest computes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """What there is to know of a block that this host would run."""

    module: CompiledModule
    signature: Signature


@dataclass(frozen=True, slots=True)
class _Request:
    """What `Host.start` was asked for."""

    block: str | Path | BlockBytes
    value: object
    model: str | None
    read: tuple[str | Path, ...]
    base_dir: Path
    limits: Limits


@dataclass(slots=True)
class _Costs:
    """What a job has cost so far."""

    began: float = field(default_factory=time.monotonic)
    meters: list[TokenMeter] = field(default_factory=list)
    model: str | None = None

    def usage(self) -> Usage:
        return Usage(
            tokens_in=sum(meter.tokens_in for meter in self.meters),
            tokens_out=sum(meter.tokens_out for meter in self.meters),
            duration_ms=max(1, round((time.monotonic() - self.began) * 1000)),
            model=self.model,
        )


class Host:
    """Runs jobs. Made by `open_host`."""

    def __init__(
        self, nursery: trio.Nursery, compiler: Compiler, documents: DocumentWorkers, limits: Limits, max_jobs: int
    ) -> None:
        self._nursery = nursery
        self._compiler = compiler
        self._documents = documents
        self._limits = limits
        self._turns = Turns(max_jobs)
        self._threads = trio.CapacityLimiter(GUEST_THREADS)
        self._backends: dict[str, Backend] = {}
        self._opening: dict[str, trio.Lock] = {}

    def start(
        self,
        block: str | Path | BlockBytes,
        input: object,
        *,
        model: str | None = None,
        read: Iterable[str | Path] = (),
        base_dir: str | Path | None = None,
        limits: Mapping[str, object] | None = None,
    ) -> Job:
        """Start a job and return at once. Whatever goes wrong from here on is told by the job's Envelope.

        `block` is the path of a `.wasm` file, or its bytes; `input` any JSON value; `model` is `provider:target`. `read` names the
        folders and files that the block may open; without any, it can open none. Paths in the input are relative to
        `base_dir`, which is the current folder unless given. `limits` changes some limits by their dotted names.

        Jobs beyond the host's `max_jobs` wait their turn in the order of starting.

        Raises:
            ValueError: an unknown limit, or one with a value that is no positive number.
        """
        request = _Request(
            block=block,
            value=input,
            model=model or None,
            read=tuple(read),
            base_dir=Path(base_dir) if base_dir else Path.cwd(),
            limits=self._limits.with_values(limits or {}),
        )
        job = Job(secrets.token_hex(6), request.limits.job_updates)
        self._nursery.start_soon(self._run, job, request, self._turns.join())
        return job

    async def run(
        self,
        block: str | Path | BlockBytes,
        input: object,
        *,
        model: str | None = None,
        read: Iterable[str | Path] = (),
        base_dir: str | Path | None = None,
        limits: Mapping[str, object] | None = None,
    ) -> Envelope:
        """Start a job as `start` does, and wait for its Envelope. Cancelling the wait cancels the job."""
        job = self.start(block, input, model=model, read=read, base_dir=base_dir, limits=limits)
        try:
            return await job.envelope()
        finally:
            job.cancel()

    async def inspect(self, block: str | Path | BlockBytes) -> BlockFacts:
        """Load a block as a job would, without running it beyond its signature.

        Raises:
            CuttlefishError: the block would be refused; the message says why.
        """
        module = await self._compiler.compile(await _read_block(block, self._limits), self._limits)

        async with open_guest(module, self._limits, self._threads) as guest_thread:
            await guest_thread(guest_thread.guest.start)
            return BlockFacts(module, await guest_thread(guest_thread.guest.signature))

    async def _run(self, job: Job, request: _Request, turn: Turn) -> None:
        """One job, from its turn to its Envelope."""
        costs = _Costs()
        envelope: Envelope | None = None
        try:
            with job.scope:
                async with turn:
                    job.started()
                    costs.began = time.monotonic()
                    result = await self._carry_out(job, request, costs)
                    envelope = Envelope(status=JobStatus.COMPLETED, result=cast("JsonValue", result), usage=costs.usage())
        except* CuttlefishError as group:
            envelope = _failed(_first(group), costs)
        except* Exception as group:  # noqa: BLE001  # a bug of ours must end in an Envelope too
            reference = secrets.token_hex(4)
            _log.error("internal error %s in job %s", reference, job.id, exc_info=_first(group))
            message = f"a bug in cuttlefish, please report it with what the log says under {reference}"
            envelope = _failed(CuttlefishError(message, code=ErrorCode.INTERNAL), costs)
        finally:
            job.finished(envelope or _failed(JobCancelled("the job was cancelled"), costs))

    async def _carry_out(self, job: Job, request: _Request, costs: _Costs) -> object:
        limit = request.limits.job_time_s
        with trio.move_on_after(float("inf") if limit is None else limit):
            return await self._run_block(job, request, costs)
        raise TimedOut(f"the job took longer than it may (job.time is {limit:g} seconds)")

    async def _run_block(self, job: Job, request: _Request, costs: _Costs) -> object:
        limits = request.limits
        value_json = _encode(request.value, limits)
        module = await self._compiler.compile(await _read_block(request.block, limits), limits)

        async def backend() -> Backend:
            found = await self._backend(request.model)
            costs.model = found.name
            return found

        capabilities = await trio.to_thread.run_sync(_grant, request.read, request.base_dir)
        with capabilities, HandleTable(capabilities, limits) as handles:
            run = BlockRun(
                module=module,
                handles=handles,
                documents=self._documents,
                backend=backend,
                watcher=job,
                limits=limits,
                threads=self._threads,
                meters=costs.meters,
            )
            return await run_block(run, parse_json(value_json), value_json)

    async def _backend(self, model: str | None) -> Backend:
        """The open backend for a model; opened by the first job that needs it, then shared."""
        if model is None:
            raise ModelLoadFailed('the block asks a model and the job names none; give one, such as "llama-cpp:smollm2"')
        async with self._opening.setdefault(model, trio.Lock()):
            if model not in self._backends:
                self._backends[model] = await open_backend(model)
            return self._backends[model]

    async def close_backends(self) -> None:
        """Close every model. For `open_host`, when no job runs any more."""
        while self._backends:
            _, backend = self._backends.popitem()
            await backend.aclose()


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
    host: Host | None = None
    try:
        async with open_document_workers() as documents, background_tasks() as jobs:
            host = Host(jobs, compiler, documents, defaults, max_jobs or max(4, 2 * (os.cpu_count() or 1)))
            yield host
    finally:
        with trio.CancelScope(shield=True):
            if host is not None:
                await host.close_backends()
            await trio.to_thread.run_sync(compiler.close)


def run(
    block: str | Path | BlockBytes,
    input: object,
    *,
    model: str | None = None,
    read: Iterable[str | Path] = (),
    base_dir: str | Path | None = None,
    limits: Mapping[str, object] | None = None,
) -> Envelope:
    """Run one job without an event loop of one's own: see `Host.start` for what is given, `Envelope` for what comes back.

    Raises:
        ValueError: an unknown limit, or one whose value is no positive number.
        RuntimeError: called from within a Trio run; use `open_host` there.
    """

    async def once() -> Envelope:
        async with open_host() as host:
            return await host.run(block, input, model=model, read=read, base_dir=base_dir, limits=limits)

    return trio.run(once)


def _encode(value: object, limits: Limits) -> bytes:
    try:
        value_json = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        parse_json(value_json, max_depth=limits.guest_json_depth)
    except (TypeError, ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, BadJson | TypeError) else "it holds something that JSON cannot say"
        raise SchemaMismatch(f"the input is not a JSON value: {why}") from None
    if len(value_json) > limits.guest_message_bytes:
        raise limit_exceeded("guest_message_bytes", limits.guest_message_bytes, f"the input has {len(value_json)}")
    return value_json


def _grant(read: tuple[str | Path, ...], base_dir: Path) -> Capabilities:
    try:
        return Capabilities.grant(read, base_dir)
    except ValueError as error:
        raise CapabilityDenied(str(error)) from None


async def _read_block(block: str | Path | BlockBytes, limits: Limits) -> BlockBytes:
    if isinstance(block, BlockBytes):
        return block
    path = Path(block)

    def read() -> bytes:
        try:
            # Not blocking: opening a FIFO would wait for its other end.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise CapabilityDenied(f'the block "{path}" is no regular file')
                return file.read(limits.guest_module_bytes + 1)  # one more tells that it is too large
        except FileNotFoundError:
            raise NotFound(f'there is no block "{path}"') from None
        except IsADirectoryError:
            raise CapabilityDenied(f'the block "{path}" is a folder; give the .wasm file in it') from None
        except OSError as error:
            raise CapabilityDenied(f'the block "{path}" cannot be read: {(error.strerror or "no reason given").lower()}') from None

    return BlockBytes(path.name, await trio.to_thread.run_sync(read))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _failed(error: BaseException, costs: _Costs) -> Envelope:
    assert isinstance(error, CuttlefishError)
    status = JobStatus.CANCELLED if isinstance(error, JobCancelled) else JobStatus.FAILED
    return Envelope(status=status, error=JobError(code=error.code, message=error.message), usage=costs.usage())
