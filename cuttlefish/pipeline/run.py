"""Carries a checked graph out: every node as soon as what feeds it is there, independent ones side by side."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from cuttlefish.background import one_error
from cuttlefish.errors import CuttlefishError, LimitExceeded, SchemaMismatch, TimedOut
from cuttlefish.inference.backend import TokenMeter
from cuttlefish.pipeline.expressions import ITEM, JOB, Expression, ListOf, Literal, RecordOf, Reference
from cuttlefish.pipeline.graph import Graph, GraphNode
from cuttlefish_abi import ErrorCode
from cuttlefish_abi.strict_json import show, suggest

__all__ = ["GetItems", "NodeRecord", "RunBlock", "run_graph"]


class Absent:
    """The output of a node that was skipped, or a field that is not there."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(slots=True)
class NodeRecord:
    """What became of a node, for whoever draws a job."""

    name: str
    status: str = "waiting"
    """`waiting`, `running`, `finished`, `skipped`, `failed`, or `stopped` when the job ended before it did."""
    began: float = 0.0
    """By `time.monotonic`."""
    duration_s: float = 0.0
    meters: list[TokenMeter] = field(default_factory=list)
    """What each prompt cost."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens in and out."""
        return sum(m.tokens_in for m in self.meters), sum(m.tokens_out for m in self.meters)


class RunBlock(Protocol):
    """Runs a node's block once on a value."""

    async def __call__(self, node: GraphNode, value: object, meters: list[TokenMeter], item: int | None) -> object:
        """The block's result, checked against its signature.

        `item` is the number of an item of a node that runs over many; what its run opens is closed at its end, all else at the
        job's.
        """


GetItems = Callable[[str], Awaitable[Sequence[object]]]
"""The items of a node that runs `over` many: parsed lines of a manifest, or `{path}` of each file that matches."""


async def run_graph(
    graph: Graph,
    value: object,
    *,
    run_block: RunBlock,
    get_items: GetItems,
    report: Callable[[object], None],
    records: dict[str, NodeRecord],
) -> object:
    """Run all nodes and return the job's result: the output of the one sink, or a record of the sinks that ran.

    `report` is told when a node of several starts and ends, and how far one is that runs over many. `records` is filled with what
    becomes of each node. Cancelling cancels every node that runs.

    Raises:
        CuttlefishError: of the first node that failed; the others are cancelled. The message names the node if there are several.
    """
    run = _GraphRun(graph, value, run_block, get_items, report, records)
    with one_error():
        async with trio.open_nursery() as nursery:
            for node in graph.nodes:
                nursery.start_soon(run.run_node, node)
    outputs = {name: run.outputs[name] for name in graph.sinks if run.outputs[name] is not ABSENT}
    if not outputs:
        raise SchemaMismatch("no node that gives a result ran: every one of them was left out by a branch")
    return outputs[graph.sinks[0]] if len(graph.sinks) == 1 else outputs


class _GraphRun:
    """The state of one job: what has come out of its nodes so far."""

    def __init__(
        self,
        graph: Graph,
        value: object,
        run_block: RunBlock,
        get_items: GetItems,
        report: Callable[[object], None],
        records: dict[str, NodeRecord],
    ) -> None:
        self.graph = graph
        self.value = value
        self.run_block = run_block
        self.get_items = get_items
        self.report = report
        self.records = records
        self.outputs: dict[str, object] = {}
        self.over: dict[str, trio.Event] = {node.name: trio.Event() for node in graph.nodes}
        for node in graph.nodes:
            records[node.name] = NodeRecord(node.name)

    async def run_node(self, node: GraphNode) -> None:
        """Wait for what the node waits for, run it or leave it out, and let those go on that wait for it."""
        for name in node.waits_for:
            await self.over[name].wait()
        record = self.records[node.name]
        if self._is_skipped(node):
            self.outputs[node.name] = ABSENT
            record.status = "skipped"
        else:
            self.outputs[node.name] = await self._run_recorded(node, record)
        self._tell(node, record.status)
        self.over[node.name].set()

    async def _run_recorded(self, node: GraphNode, record: NodeRecord) -> object:
        """Run a node and keep its record; its name stands before what goes wrong."""
        self._tell(node, "started")
        record.status, record.began = "running", time.monotonic()
        try:
            output = await self._output(node, record)
            record.status = "finished"
        except CuttlefishError as error:
            record.status = "failed"
            if len(self.graph.nodes) > 1:
                error.add_context(f'node "{node.name}": ')
            raise
        finally:
            record.duration_s = time.monotonic() - record.began
            if record.status == "running":
                record.status = "stopped"
        return output

    def _is_skipped(self, node: GraphNode) -> bool:
        for decider, labels in node.deciders:
            output = self.outputs[decider]
            if not isinstance(output, dict) or output["route"] not in labels:
                return True
        return any(self.outputs[feed] is ABSENT for feed in node.needs)

    async def _output(self, node: GraphNode, record: NodeRecord) -> object:
        if node.spec.over is not None:
            return await _OverMany(self, node, record).run(node.spec.over)
        output = await self.run_once(node, record, self.evaluate(node.input, ABSENT))
        if node.spec.repeat is not None:
            output = await self._repeat(node, record, output)
        if node.spec.branch is not None:
            assert isinstance(output, dict)  # the graph has checked that the output has the field `route`
            route = output["route"]
            if route not in node.spec.branch:
                raise SchemaMismatch(f"the route {show(route)} is none of its labels; {suggest(route, node.spec.branch)}")
        return output

    async def run_once(self, node: GraphNode, record: NodeRecord, value: object, item: int | None = None) -> object:
        """One run of a node's block, within the node's timeout."""
        limit = node.spec.timeout
        if limit is None:
            return await self.run_block(node, value, record.meters, item)
        with trio.move_on_after(limit):
            return await self.run_block(node, value, record.meters, item)
        raise TimedOut(f'"{node.module.name}" took longer than the node\'s timeout, {limit:g} seconds')

    async def _repeat(self, node: GraphNode, record: NodeRecord, output: object) -> object:
        """Run a node on its own output until that says that it is done. The first round is over."""
        repeat = node.spec.repeat
        assert repeat is not None
        rounds = 1
        while not (isinstance(output, dict) and output[repeat.until] in ("done", True)):
            if rounds == repeat.max:
                found = show(output[repeat.until]) if isinstance(output, dict) else show(output)
                raise LimitExceeded(f'repeat.max is {repeat.max}; after the last round "{repeat.until}" is {found}')
            rounds += 1
            output = await self.run_once(node, record, output)
        return output

    def evaluate(self, expression: Expression, item: object) -> object:
        """The value of an input; parts that are absent are left out."""
        match expression:
            case Literal():
                return expression.value
            case Reference():
                return self._refer(expression, item)
            case RecordOf(fields):
                values = {name: self.evaluate(part, item) for name, part in fields}
                return {name: value for name, value in values.items() if value is not ABSENT}
            case ListOf(items):
                return [value for part in items if (value := self.evaluate(part, item)) is not ABSENT]

    def _refer(self, reference: Reference, item: object) -> object:
        value = self.value if reference.source == JOB else item if reference.source == ITEM else self.outputs[reference.source]
        for name in reference.fields:
            if value is ABSENT:
                return ABSENT
            if not isinstance(value, dict) or name not in value:
                if reference.optional:
                    return ABSENT
                raise SchemaMismatch(f'"{reference}": there is no field {show(name)} in {show(value)}')
            value = value[name]
        return value

    def _tell(self, node: GraphNode, stage: str) -> None:
        if len(self.graph.nodes) > 1:
            self.report({"node": node.name, "of": len(self.graph.nodes), "stage": stage})


class _OverMany:
    """One node's runs over its items. Results and failures keep the items' order, whichever is done first."""

    def __init__(self, graph_run: _GraphRun, node: GraphNode, record: NodeRecord) -> None:
        self.graph_run = graph_run
        self.node = node
        self.record = record
        self.items: Sequence[object] = ()
        self.results: dict[int, object] = {}
        self.failures: dict[int, tuple[str, str]] = {}
        """Code and message. Not the errors themselves: their tracebacks hold on to everything that a run had."""

    async def run(self, over: str) -> object:
        self.items = await self.graph_run.get_items(over)
        waiting = iter(range(len(self.items)))
        with one_error():
            async with trio.open_nursery() as nursery:
                for _ in range(min(self.node.spec.concurrency, len(self.items))):
                    nursery.start_soon(self._work, waiting)
        if self.failures and not self.results:
            code, message = self.failures[0]
            raise CuttlefishError(f"all items failed ({len(self.items)}); the first: {message}", code=code)
        return {
            "results": [{"item": index, "value": value} for index, value in sorted(self.results.items())],
            "failures": [{"item": i, "code": code, "message": message} for i, (code, message) in sorted(self.failures.items())],
            "succeeded": len(self.results),
            "failed": len(self.failures),
        }

    async def _work(self, waiting: Iterator[int]) -> None:
        """Take one item after another, as long as there are any."""
        for index in waiting:
            item = self.items[index]
            failed: dict[str, object] = {}
            try:
                self.results[index] = await self._attempt(index, item)
            except CuttlefishError as error:
                message = _named(item, error.message)
                if self.node.spec.on_error == "stop":
                    raise CuttlefishError(f"item {index}: {message}", code=error.code) from None
                self.failures[index] = error.code, message
                failed = {"code": error.code, "message": message}
            self.graph_run.report(
                {
                    "node": self.node.name,
                    "item": index,
                    "items": len(self.items),
                    "succeeded": len(self.results),
                    "failed": len(self.failures),
                    **failed,
                }
            )

    async def _attempt(self, index: int, item: object) -> object:
        """An item's result, after as many attempts as it takes and may have."""
        value = self.graph_run.evaluate(self.node.input, item)
        for _ in range(self.node.spec.retry):
            try:
                return await self.graph_run.run_once(self.node, self.record, value, index)
            except CuttlefishError as error:
                if error.code in _SAME_AGAIN:
                    raise
        return await self.graph_run.run_once(self.node, self.record, value, index)


_SAME_AGAIN = frozenset(
    {
        ErrorCode.BAD_COMMAND,
        ErrorCode.CAPABILITY_DENIED,
        ErrorCode.DOCUMENT_INVALID,
        ErrorCode.DOCUMENT_PASSWORD,
        ErrorCode.LIMIT_EXCEEDED,
        ErrorCode.NOT_FOUND,
        ErrorCode.SCHEMA_VALIDATION_FAILED,
        ErrorCode.UNSUPPORTED,
    }
)
"""Failures that another attempt would only repeat, and pay for."""


def _named(item: object, message: str) -> str:
    """A message that says which file it is about, if its item names one."""
    path = item.get("path") if isinstance(item, dict) else None
    return message if not isinstance(path, str) or path in message else f"{show(path)}: {message}"
