"""What jobs share: compiled modules and their signatures, document workers, models, threads."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import trio

from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.guest_thread import open_guest
from cuttlefish.engine.module import BlockBytes, CompiledModule
from cuttlefish.engine.python_block import PythonSource, build_python_block
from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.backend import Backend, Embedder
from cuttlefish.inference.registry import open_backend, open_embedder, providers
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentWorkers
from cuttlefish_abi import Signature

__all__ = ["Resources"]

GUEST_THREADS = 256  # far more than can compute at once; a job holds one only while its guest computes


@dataclass(slots=True)
class Resources:
    """One per host. `close` it when no job runs any more."""

    compiler: Compiler
    documents: DocumentWorkers
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(GUEST_THREADS))
    _backends: dict[tuple[str, bool], Backend] = field(default_factory=dict)
    _embedders: dict[tuple[str, bool], Embedder] = field(default_factory=dict)
    _opening: dict[tuple[str, bool], trio.Lock] = field(default_factory=dict)
    _signatures: dict[str, Signature] = field(default_factory=dict)

    async def build(self, block: BlockBytes | PythonSource, limits: Limits) -> BlockBytes:
        """A block's module: as it is, or built from Python.

        Raises:
            CuttlefishError: see `build_python_block`.
        """
        return await build_python_block(block, self.compiler, self.threads, limits) if isinstance(block, PythonSource) else block

    async def compile(self, block: BlockBytes | PythonSource, limits: Limits) -> CompiledModule:
        """Compile and check a block.

        Raises:
            CuttlefishError: the block would be refused, or cannot be built.
        """
        return await self.compiler.compile(await self.build(block, limits), limits)

    async def load_block(self, block: BlockBytes | PythonSource, limits: Limits) -> tuple[CompiledModule, Signature]:
        """Compile and check a block, and ask for its signature once, under the limits of a run.

        Raises:
            CuttlefishError: the block would be refused, or its start function or signature fails.
        """
        module = await self.compile(block, limits)
        signature = self._signatures.get(module.sha256)
        if signature is None:
            async with open_guest(module, limits, self.threads) as guest_thread:
                await guest_thread(guest_thread.guest.start)
                signature = await guest_thread(guest_thread.guest.signature)
            self._signatures[module.sha256] = signature
        return module, signature

    async def backend(self, model: str | None, *, local_only: bool) -> Backend:
        """The open backend for a model; opened by the first job that needs it, then shared.

        With `local_only` a model that is not on this machine is refused.

        Raises:
            ModelLoadFailed: the job names no model, or it cannot be made ready.
        """
        if model is None:
            raise ModelLoadFailed('the block asks a model and the job names none; give one, such as "llama-cpp:smollm2"')
        key = (model, local_only and _may_leave(model))
        async with self._opening.setdefault(key, trio.Lock()):
            if key not in self._backends:
                self._backends[key] = await open_backend(model, local_only=local_only)
            return self._backends[key]

    async def embedder(self, model: str, *, local_only: bool) -> Embedder:
        """The open embedder for a model; otherwise as `backend`."""
        key = (model, local_only and _may_leave(model))
        async with self._opening.setdefault(key, trio.Lock()):
            if key not in self._embedders:
                self._embedders[key] = await open_embedder(model, local_only=local_only)
            return self._embedders[key]

    async def close(self) -> None:
        """Close every model."""
        async with AsyncExitStack() as closing:  # one that fails does not keep the others open
            for backend in self._backends.values():
                closing.push_async_callback(backend.aclose)
            for embedder in self._embedders.values():
                closing.push_async_callback(embedder.aclose)
            self._backends.clear()
            self._embedders.clear()


def _may_leave(model: str) -> bool:
    """Whether a model's provider calls a server. Others are never opened twice for the sake of `local_only`: models are large."""
    name = model.partition(":")[0]
    return any(provider.calls_a_server for provider in providers() if provider.name == name)
