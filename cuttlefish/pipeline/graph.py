"""A pipeline as a graph that may run: its blocks loaded, its order found, its seams checked. All problems are found at once."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import trio

from cuttlefish.engine.module import CompiledModule
from cuttlefish.errors import CuttlefishError
from cuttlefish.pipeline.expressions import ITEM, JOB, Expression, ListOf, RecordOf, Reference, parse, references
from cuttlefish.pipeline.forms import Node
from cuttlefish.pipeline.inputs import InputForm, find_form
from cuttlefish.pipeline.order import Conditions, find_conditions, find_order
from cuttlefish.pipeline.places import Problem
from cuttlefish.pipeline.seams import JSON, check_input, merge, select
from cuttlefish.pipeline.settings import check_node, check_pipeline_settings
from cuttlefish.pipeline.spec import LoadedPipeline, PipelineError
from cuttlefish_abi import ErrorCode, Signature, Ty
from cuttlefish_abi.strict_json import suggest

__all__ = ["Graph", "GraphNode", "LoadBlock", "build_graph"]

LoadBlock = Callable[[str], Awaitable[tuple[CompiledModule, Signature]]]
"""Finds a block by the name in the pipeline and loads it. Raises CuttlefishError where it would be refused."""

TEXT, NUMBER = Ty(kind="text"), Ty(kind="number")
PATH = Ty.record({"path": TEXT})
FAILURE = Ty.record({"item": NUMBER, "code": TEXT, "message": TEXT})


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node that may run."""

    name: str
    index: int
    """Its place in the order; its handles are numbered by it."""
    spec: Node
    module: CompiledModule
    signature: Signature
    input: Expression
    output: Ty
    """What it gives to others: the block's own output, or the summary of a node that runs `over` many."""
    feeds: tuple[str, ...]
    """The nodes whose outputs its input refers to."""
    needs: frozenset[str]
    """Those of `feeds` that it cannot do without: when one is left out, so is this."""
    deciders: tuple[tuple[str, tuple[str, ...]], ...]
    """For each node that decides whether this one runs: the labels with which it does."""

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Every node that must be over before this one starts."""
        return tuple(dict.fromkeys((*self.feeds, *(name for name, _ in self.deciders))))


@dataclass(frozen=True, slots=True)
class Graph:
    """A checked pipeline. `nodes` are in an order in which each follows all that it waits for."""

    loaded: LoadedPipeline
    nodes: tuple[GraphNode, ...]
    form: InputForm
    """What a job may be given."""
    result: Ty
    """What a job gives; where several nodes feed no other, a record of their outputs (of those that ran)."""
    sinks: tuple[str, ...]
    """The nodes whose outputs are the result."""
    maybe: frozenset[str]
    """The nodes that a decision may leave out."""
    warnings: tuple[Problem, ...] = field(default=())

    @property
    def input(self) -> Ty:
        """What a job takes."""
        return self.form.type


async def build_graph(loaded: LoadedPipeline, load_block: LoadBlock) -> Graph:
    """Load the blocks of a pipeline and check everything that can be checked before it runs.

    Raises:
        PipelineError: with every problem that there is.
    """
    builder = _Builder(loaded)
    await builder.load(load_block)
    await trio.to_thread.run_sync(builder.check_settings)
    builder.check_names()
    builder.find_order()
    builder.check_seams()
    return builder.finish()


class _Builder:
    """The steps of `build_graph`, in its order; each adds what is wrong to `problems`."""

    def __init__(self, loaded: LoadedPipeline) -> None:
        self.loaded = loaded
        self.problems: list[Problem] = []
        self.specs: dict[str, Node] = loaded.pipeline.graph()
        self.inputs: dict[str, Expression] = {}
        self.feeds: dict[str, list[str]] = {}
        """For each node: the nodes that there are among those it refers to."""
        self.needs: dict[str, list[str]] = {}
        self.blocks: dict[str, tuple[CompiledModule, Signature]] = {}
        self.deciders: dict[str, dict[str, list[str]]] = {name: {} for name in self.specs}
        self.order: list[str] = []
        self.conditions: dict[str, Conditions] = {}
        for name, spec in self.specs.items():
            if spec.input is None:
                self.inputs[name] = Reference(ITEM if spec.over else JOB)
            else:
                self.inputs[name] = parse(spec.input, has_item=spec.over is not None)

    def add(
        self,
        message: str,
        node: str,
        *keys: str | int,
        is_warning: bool = False,
        code: str = ErrorCode.SCHEMA_VALIDATION_FAILED,
    ) -> None:
        if self.loaded.pipeline.nodes:
            problem = self.loaded.problem(f'node "{node}": {message}', "nodes", node, *keys, is_warning=is_warning, code=code)
        else:
            problem = self.loaded.problem(message, "block", is_warning=is_warning, code=code)
        self.problems.append(problem)

    async def load(self, load_block: LoadBlock) -> None:
        loaded: dict[str, tuple[CompiledModule, Signature] | CuttlefishError] = {}
        for name, spec in self.specs.items():
            if spec.block not in loaded:
                try:
                    loaded[spec.block] = await load_block(spec.block)
                except CuttlefishError as error:
                    loaded[spec.block] = error
            found = loaded[spec.block]
            if isinstance(found, CuttlefishError):
                self.add(f"{found.message} ({found.code})", name, "block", code=found.code)
            else:
                self.blocks[name] = found

    def check_settings(self) -> None:
        """Check what each node and the pipeline say beside blocks and seams. Blocking."""
        for wrong in check_pipeline_settings(self.loaded):
            self.problems.append(self.loaded.problem(wrong.message, *wrong.keys, code=wrong.code))
        for name, spec in self.specs.items():
            for wrong in check_node(spec):
                self.add(wrong.message, name, *wrong.keys, code=wrong.code)

    def check_names(self) -> None:
        """Check what inputs and branches refer to."""
        for name, spec in self.specs.items():
            found = list(references(self.inputs[name]))
            for reference in dict.fromkeys(found):
                self._check_source(name, spec, reference)
            there = [r for r in found if r.source in self.specs and r.source not in (JOB, ITEM, name)]
            self.feeds[name] = list(dict.fromkeys(r.source for r in there))
            self.needs[name] = list(dict.fromkeys(r.source for r in there if not r.optional))
            for label, targets in (spec.branch or {}).items():
                for target in dict.fromkeys(targets):
                    self._check_target(name, label, target)

    def _check_source(self, name: str, spec: Node, reference: Reference) -> None:
        if reference.source == ITEM:
            if not spec.over:
                self.add(f'input reads "{reference}", and only a node with over has items', name, "input")
        elif reference.source == name:
            self.add(f'input reads "{reference}", its own output; use repeat to run a node on what it gave', name, "input")
        elif reference.source != JOB and reference.source not in self.specs:
            message = f'input reads "{reference}", and there is no node "{reference.source}"{self._near(reference.source, name)}'
            self.add(message, name, "input")

    def _check_target(self, name: str, label: str, target: str) -> None:
        if target == name:
            self.add(f'branch "{label}" leads back to the node itself; use repeat', name, "branch", label)
        elif target not in self.specs:
            message = f'branch "{label}" leads to "{target}", and there is no such node{self._near(target, name)}'
            self.add(message, name, "branch", label)
        else:
            self.deciders[target].setdefault(name, []).append(label)

    def _near(self, wrong: str, name: str) -> str:
        others = [other for other in self.specs if other != name]
        return f"; {suggest(wrong, others)}" if others else ""

    def find_order(self) -> None:
        """Put the nodes into an order, and find those that never run."""
        self.order, circles = find_order({name: [*self.feeds[name], *self.deciders[name]] for name in self.specs})
        for circle in circles:
            self.add(f"waits for itself: {' → '.join([*circle, circle[0]])}", circle[0], "input")
        self.conditions, never = find_conditions(self.order, self.deciders, self.needs)
        for name, decider in never.items():
            self.add(f'can never run: no one label of "{decider}" lets all run that it waits for', name, "input")

    def output(self, name: str) -> Ty | None:
        """What a node gives to others; None where its block could not be loaded."""
        if name not in self.blocks:
            return None
        own = self.blocks[name][1].output
        if not self.specs[name].over:
            return own
        result = Ty.record({"item": NUMBER, "value": own})
        return Ty.record({"results": Ty.list_of(result), "failures": Ty.list_of(FAILURE), "succeeded": NUMBER, "failed": NUMBER})

    def check_seams(self) -> None:
        for name, spec in self.specs.items():
            if name not in self.blocks:
                continue
            signature = self.blocks[name][1]
            self._check_input(name, spec, signature)
            if spec.branch is not None:
                self._check_field(name, "branch", "route", signature.output, ("text",))
            if spec.repeat is not None:
                self._check_field(name, "repeat", spec.repeat.until, signature.output, ("text", "bool"))
                if not signature.output.assignable_to(signature.input):
                    message = f"repeat feeds the output to the input, and {signature.output} does not fit {signature.input}"
                    self.add(message, name, "repeat")
            if spec.over and (handles := _first_handle(signature.output)):
                self.add(
                    f"over gives {signature.output} for each item, and {handles} is closed when its item is done", name, "over"
                )

    def _check_input(self, name: str, spec: Node, signature: Signature) -> None:
        def type_of(reference: Reference) -> Ty | None:
            if reference.source == JOB:
                return None  # what a job takes follows from what its nodes take
            if reference.source == ITEM:
                # What the lines of a manifest hold is seen when they are read; each is then checked by itself.
                ty = None if not spec.over or spec.over.endswith(".jsonl") else PATH
            else:
                ty = self.output(reference.source) if reference.source in self.specs and reference.source != name else None
            if ty is None:
                return None
            found, wrong = select(ty, reference.fields, str(reference))
            if wrong is not None:
                self.add(wrong, name, "input")
            return found

        for finding in check_input(self.inputs[name], signature.input, type_of):
            self.add(finding.message, name, *finding.place, is_warning=finding.is_warning)

    def _check_field(self, name: str, key: str, wanted: str, output: Ty, kinds: tuple[str, ...]) -> None:
        found = dict(output.fields).get(wanted)
        if found is None:
            hint = f"; {suggest(wanted, dict(output.fields))}" if output.fields else ""
            self.add(f'{key} reads the field "{wanted}", and {output} has none of that name{hint}', name, key)
        elif found.kind not in kinds:
            self.add(f'{key} reads the field "{wanted}", which must be {" or ".join(kinds)} and is {found}', name, key)

    def _job_input(self) -> Ty:
        """What a job must be given, so that every node gets what it takes."""
        whole, users = JSON, list[str]()
        for name in self.specs:
            if name not in self.blocks:
                continue
            for reference, wanted in _job_uses(self.inputs[name], self.blocks[name][1].input):
                ty = wanted
                for part in reversed(reference.fields):
                    ty = Ty.record({part: ty})
                merged = merge(whole, ty)
                if merged is None:
                    others = " and ".join(f'"{user}"' for user in dict.fromkeys(users[:3]))
                    self.add(f"takes {ty} from the job's input, and {others} {whole}: no input fits both", name, "input")
                else:
                    whole = merged
                    users.append(name)
        return whole

    def finish(self) -> Graph:
        """The graph, if nothing is wrong."""
        taken = self._job_input()
        form, wrong = find_form(taken, self.inputs.values(), self.loaded.pipeline)
        if len(self.blocks) == len(self.specs):  # else it is not known what the nodes take
            self.problems += [self.loaded.problem(message, *path) for message, path in wrong]
        if any(not problem.is_warning for problem in self.problems):
            raise PipelineError(self.problems)
        nodes = tuple(self._node(name, index) for index, name in enumerate(self.order))
        read = {feed for node in nodes for feed in node.feeds}
        unread = [node for node in nodes if node.name not in read]
        # A node that only decides is no result, unless there is no other.
        sinks = tuple(node.name for node in unread if not node.spec.branch) or tuple(node.name for node in unread)
        outputs = {node.name: node.output for node in nodes}
        return Graph(
            loaded=self.loaded,
            nodes=nodes,
            form=form,
            result=outputs[sinks[0]] if len(sinks) == 1 else Ty.record({name: outputs[name] for name in sinks}),
            sinks=sinks,
            maybe=frozenset(name for name, conditions in self.conditions.items() if conditions),
            warnings=tuple(sorted(self.problems, key=lambda problem: problem.line or 0)),
        )

    def _node(self, name: str, index: int) -> GraphNode:
        module, signature = self.blocks[name]
        output = self.output(name)
        assert output is not None
        return GraphNode(
            name=name,
            index=index,
            spec=self.specs[name],
            module=module,
            signature=signature,
            input=self.inputs[name],
            output=output,
            feeds=tuple(self.feeds[name]),
            needs=frozenset(self.needs[name]),
            deciders=tuple((decider, tuple(labels)) for decider, labels in self.deciders[name].items()),
        )


def _job_uses(expression: Expression, wanted: Ty) -> Iterable[tuple[Reference, Ty]]:
    """Which parts of the job's input an expression uses, and as what. Those that may be absent are not asked for."""
    match expression:
        case Reference(source="job", optional=False):
            yield expression, wanted
        case RecordOf(fields):
            types = dict(wanted.fields)
            for key, part in fields:
                yield from _job_uses(part, types.get(key, JSON))
        case ListOf(items):
            for part in items:
                yield from _job_uses(part, wanted.item or JSON)


def _first_handle(ty: Ty) -> str | None:
    """`an image` or `a document` if values of the type hold handles."""
    if ty.kind in ("image", "document"):
        return {"image": "an image", "document": "a document"}[ty.kind]
    inner = [ty.item] if ty.item is not None else [part for _, part in ty.fields]
    return next((found for part in inner if (found := _first_handle(part))), None)
