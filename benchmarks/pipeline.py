"""Pipelines: how long a large graph takes to check, and what a node costs beyond its block's own run."""

import importlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import trio

from benchmarks.guests import scripted
from benchmarks.peers import OURS
from benchmarks.report import Part, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import interleave_awaited
from cuttlefish import Host, JobStatus, open_host
from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.module import CompiledModule
from cuttlefish.inference.backend import Backend, TokenMeter
from cuttlefish.limits import Limits
from cuttlefish.loop import BlockRun, run_block
from cuttlefish.media.capabilities import Capabilities
from cuttlefish.media.documents import open_document_workers
from cuttlefish.media.handles import HandleTable
from cuttlefish.pipeline.graph import Graph, GraphNode
from cuttlefish.pipeline.run import run_graph

hamilton: ModuleType | None
try:
    hamilton = importlib.import_module("hamilton.driver")
except ImportError:  # a peer that does not install on this machine; the report says so
    hamilton = None

__all__ = ["measure_check", "measure_nodes"]

ALONE, TRIO, HAMILTON = "the same blocks alone", "plain trio", "hamilton"

DONE = scripted({"cmd": "done", "result": "word"}, name="done.wasm", signature={"input": "json", "output": "text"})

Shape = list[list[int]]
"""For each node: the nodes that feed it."""

Run = Callable[[], Awaitable[object]]


def measure_check(scale: Scale) -> Part:
    """Check large graphs."""
    part = Part(
        "check",
        f"A pipeline file of {scale.graph_nodes} nodes is read, its block loaded, its order found and every seam checked. “Chain”: "
        "each node takes the output of the one before; “wide”: one node takes the outputs of all others. Hamilton builds its "
        "driver from as many functions of the same shape, which are compiled before.",
        rows=[],
        targets=[],
    )
    trio.run(_measure_check, part, scale)
    return part


def measure_nodes(scale: Scale) -> Part:
    """Run graphs."""
    part = Part(
        "nodes",
        f"{scale.run_nodes} nodes are run, one after the other or all at once. Blocks: a real one that is done at once, in a guest "
        "of its own each; the rows are the time per node of a whole job (checking included), of the same blocks run one after the "
        "other by hand, and of the same blocks in a plain Trio program with a task and an event for each. Nothing: the nodes "
        "do nothing, so that what is left is the cost of the graph; Hamilton's are functions that return their argument.",
        rows=[],
        targets=[],
    )
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 100 * scale.graph_nodes))  # Hamilton walks its graph by recursion
    trio.run(_measure_nodes, part, scale)
    return part


async def _measure_check(part: Part, scale: Scale) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "done.wasm").write_bytes(DONE.wasm)
        async with open_host(cache_dir=folder) as host:
            for shape, sources in (("chain", _chain(scale.graph_nodes)), ("wide", _wide(scale.graph_nodes))):
                file = Path(folder) / f"{shape}.toml"
                file.write_text(_as_file(sources), encoding="utf-8")
                contestants: dict[str, Run] = {OURS: partial(host.check, file)}
                if hamilton is not None:
                    contestants[HAMILTON] = partial(_in_async, partial(_hamilton_driver, _as_functions(sources)))
                times, _ = await interleave_awaited(contestants, scale.graph_rounds, 1)
                part.rows.extend(timed(shape, times))
                part.targets.append(Target(f"{shape}: check {scale.graph_nodes} nodes", 1.0, times[OURS].median, unit="s"))


async def _measure_nodes(part: Part, scale: Scale) -> None:
    count = scale.run_nodes
    with TemporaryDirectory() as folder:
        (Path(folder) / "done.wasm").write_bytes(DONE.wasm)
        async with open_host(cache_dir=folder) as host, open_document_workers() as documents:
            compiler = Compiler(Path(folder) / "modules")
            module = await compiler.compile(DONE, Limits())
            threads = trio.CapacityLimiter(256)
            with Capabilities.grant([], folder) as capabilities:
                for shape, sources in (("chain", _chain(count)), ("wide", _wide(count))):
                    file = Path(folder) / f"{shape}.toml"
                    file.write_text(_as_file(sources), encoding="utf-8")
                    one = partial(_run_alone, module, capabilities, documents, threads)
                    real: dict[str, Run] = {
                        OURS: partial(_run_pipeline, host, file),
                        ALONE: partial(_in_a_row, count, one),
                        TRIO: partial(_plain_trio, sources, one),
                    }
                    await _compare(part, real)
                    times, busy = await interleave_awaited(real, scale.graph_rounds, count)
                    part.rows.extend(timed(f"{shape}, blocks", times))
                    # Many guests at once cost more than one after the other, whoever starts them.
                    beside = ALONE if shape == "chain" else TRIO
                    over, text = 1e6 * (busy[OURS] - busy[beside]), f"{shape}: a node beyond {beside}, processor time"
                    part.targets.append(Target(text, 200.0, over, unit="µs"))
                    await _measure_nothing(part, shape, sources, await host.check(file), scale)
            await trio.to_thread.run_sync(compiler.close)


async def _measure_nothing(part: Part, shape: str, sources: Shape, graph: Graph, scale: Scale) -> None:
    nothing: dict[str, Run] = {OURS: partial(_our_graph, graph), TRIO: partial(_plain_trio, sources, _nothing)}
    if hamilton is not None:
        driver = _hamilton_driver(_as_functions(sources))
        last = f"n{len(sources) - 1}"
        nothing[HAMILTON] = partial(_in_async, lambda: driver.execute([last], inputs={"job": "word"})[last])
    await _compare(part, nothing)
    times, _ = await interleave_awaited(nothing, scale.graph_rounds, len(sources))
    part.rows.extend(timed(f"{shape}, nothing", times))


def _chain(count: int) -> Shape:
    return [[n - 1] if n else [] for n in range(count)]


def _wide(count: int) -> Shape:
    return [*([] for _ in range(count - 1)), list(range(count - 1))]


def _as_file(sources: Shape) -> str:
    lines = ['name = "graph"']
    for number, feeds in enumerate(sources):
        lines += [f"[nodes.n{number}]", 'block = "done.wasm"']
        if len(feeds) == 1:
            lines.append(f'input = "n{feeds[0]}.out"')
        elif feeds:
            names = ", ".join(f'"n{n}.out"' for n in feeds)
            lines.append(f"input = [{names}]")
    return "\n".join(lines)


def _as_functions(sources: Shape) -> ModuleType:
    """Hamilton's way to say the same: each function is a node, its arguments are what feeds it."""
    lines = []
    for number, feeds in enumerate(sources):
        names = [f"n{n}" for n in feeds] or ["job"]
        lines += [f"def n{number}({', '.join(f'{name}: str' for name in names)}) -> str:", f"    return {names[0]}"]
    module = ModuleType(f"benchmark_functions_{len(sources)}_{len(sources[-1])}")
    sys.modules[module.__name__] = module
    exec(compile("\n".join(lines), module.__name__, "exec"), module.__dict__)
    return module


def _hamilton_driver(functions: ModuleType) -> Any:
    assert hamilton is not None
    return hamilton.Builder().with_modules(functions).build()


async def _compare(part: Part, contestants: Mapping[str, Run]) -> None:
    """See that all give the same.

    Raises:
        AssertionError: they do not.
    """
    found = {name: await run() for name, run in contestants.items()}
    if any(value != "word" for value in found.values()):
        raise AssertionError(f"the contestants give different results: {found}")
    part.same_output[:] = dict.fromkeys([*part.same_output, *found])


async def _in_async(function: Callable[[], object]) -> object:
    await trio.lowlevel.checkpoint()
    return function()


async def _run_pipeline(host: Host, file: Path) -> object:
    envelope = await host.run(file, "word")
    assert envelope.status is JobStatus.COMPLETED, envelope
    return envelope.result


async def _run_alone(module: CompiledModule, capabilities: Capabilities, documents: Any, threads: trio.CapacityLimiter) -> object:
    """A run of the block by hand. `Any`: the workers are not used."""
    with HandleTable(capabilities, Limits()) as handles:
        run = BlockRun(
            module=module,
            handles=handles,
            documents=documents,
            backend=_no_backend,
            watcher=_Nobody(),
            limits=Limits(),
            threads=threads,
        )
        return await run_block(run, "word", b'"word"')


async def _no_backend() -> Backend:
    raise AssertionError


class _Nobody:
    """Watches nothing."""

    def progress(self, value: object, size_bytes: int) -> None:
        """Nothing to do."""

    def token(self, piece: str) -> None:
        """Nothing to do."""

    def log(self, block: str, text: str) -> None:
        """Nothing to do."""


async def _in_a_row(count: int, one: Run) -> object:
    result: object = None
    for _ in range(count):
        result = await one()
    return result


async def _nothing() -> object:
    await trio.lowlevel.checkpoint()
    return "word"


async def _plain_trio(sources: Shape, one: Run) -> object:
    """What one would write by hand: a task for each node, which waits for the events of those that feed it."""
    over = [trio.Event() for _ in sources]
    outputs: list[object] = [None] * len(sources)

    async def node(number: int) -> None:
        for feed in sources[number]:
            await over[feed].wait()
        outputs[number] = await one()
        over[number].set()

    async with trio.open_nursery() as nursery:
        for number in range(len(sources)):
            nursery.start_soon(node, number)
    return outputs[-1]


async def _our_graph(graph: Graph) -> object:
    async def run(node: GraphNode, value: object, meters: list[TokenMeter], item: int | None) -> object:
        return await _nothing()

    async def no_items(over: str) -> list[object]:
        raise AssertionError

    return await run_graph(graph, "word", run_block=run, get_items=no_items, report=lambda _: None, records={})
