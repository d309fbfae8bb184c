"""What a pipeline's author writes: a TOML file, or the same in Python. Both give one model.

```toml
name = "digest"
model = "llama-cpp:smollm2"
read = ["reports"]

[nodes.pages]
block = "read-document"

[nodes.chunks]
block = "chunk"
input = { text = "pages.out.text" }
```
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, RootModel, model_validator
from pydantic_core import PydanticCustomError

from cuttlefish.limits import Limits
from cuttlefish.pipeline.rules import Rule
from cuttlefish_abi import MAX_TYPE_DEPTH, Ty
from cuttlefish_abi.strict_json import show

__all__ = ["NAME", "Chain", "Example", "Families", "FamilyForm", "InputField", "Node", "Pipeline", "Repeat"]

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
RESERVED = ("job", "item")

_FORM = ConfigDict(extra="forbid", frozen=True, strict=True)


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{show(name)} is no name: letters, digits, - and _, starting with a letter, 64 at most")
    return name


def _check_node_name(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f'a node cannot be called "{name}": in inputs the word means {_MEANS[name]}')
    return _check_name(name)


_MEANS = {"job": "the job's own input", "item": "the item of a node with over"}


def _check_value(value: Any) -> Any:
    """Refuse what JSON cannot say (TOML has dates and infinities), and what is nested too deeply to be walked."""
    level = [value]
    for _ in range(MAX_TYPE_DEPTH + 1):
        for part in level:
            if not isinstance(part, dict | list | tuple | str | int | float | None):
                raise ValueError(f"{part} is no JSON value; write it as text, in quotes")
            if isinstance(part, float) and not math.isfinite(part):
                raise ValueError(f"{part} is no JSON value")
        level = [p for part in level if isinstance(part, dict | list | tuple) for p in _parts(part)]
        if not level:
            return value
    raise ValueError(f"a value may be nested {MAX_TYPE_DEPTH} levels deep, not more")


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value


def _check_limits(table: dict[str, Any]) -> dict[str, Any]:
    """Every wrong limit is told, each at its place: `context["wrong"]` has keys and sentences."""
    wrong: list[tuple[tuple[str, ...], str]] = []
    for path, value in _flatten(table):
        try:
            Limits().with_values({".".join(path): value})
        except ValueError as error:
            wrong.append((path, str(error)))
    if wrong:
        raise PydanticCustomError("limits", "{told}", {"told": "; ".join(told for _, told in wrong), "wrong": wrong})
    return table


def _flatten(table: Mapping[str, Any], *before: str) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, *before, name)
        else:
            yield (*before, name), value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_field(value: object) -> object:
    return {"description": value} if isinstance(value, str) else value


def _check_type(text: str) -> str:
    Ty.parse(text)
    return text


Name = Annotated[str, AfterValidator(_check_name)]
NodeName = Annotated[str, AfterValidator(_check_node_name)]
Text = Annotated[str, Field(min_length=1)]
Value = Annotated[Any, AfterValidator(_check_value)]
"""Any JSON value; in a node's input also references."""
Targets = Annotated[list[Text], BeforeValidator(_as_list)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Repeat(BaseModel):
    """Run a node again, on its own output, until a field of it says so."""

    model_config = _FORM

    until: Text
    """The output's field; the node is done when it is `"done"`, or true."""
    max: Annotated[int, Field(ge=1, le=1_000_000)]
    """Rounds at most, counted from 1. When the last one is not done, the node fails."""


class Node(BaseModel):
    """One place in a pipeline at which a block runs."""

    model_config = _FORM

    block: Text
    """A file, a block that ships with Cuttlefish, or `name@version` from the catalogue."""
    input: Value = None
    """Where its input comes from (see `expressions.py`); the job's input unless given, the item for a node with `over`."""
    model: Text | None = None
    timeout: Seconds | None = None
    """Seconds for one run of its block; each round of `repeat`, and each attempt at an item of `over`, has them anew."""
    branch: Annotated[dict[str, Targets], Field(min_length=1)] | None = None
    """For each label that the output's field `route` may have: the nodes that then run, if any. The others do not."""
    repeat: Repeat | None = None
    over: Text | None = None
    """Run once per line of a `.jsonl` file, or once per file that a pattern such as `inbox/*.pdf` matches."""
    concurrency: Annotated[int, Field(ge=1, le=1_000)] = 1
    """How many items may run at the same time."""
    on_error: Literal["stop", "keep"] = "stop"
    """What an item that fails does: ends the job, or is recorded while the others go on."""
    retry: Annotated[int, Field(ge=0, le=100)] = 0
    """Further attempts for an item that fails."""

    def __rshift__(self, after: "Node | Chain") -> "Chain":
        """`a >> b`: the output of `a` is the input of `b`."""
        return Chain((self,)) >> after


@dataclass(frozen=True, slots=True)
class Chain:
    """Nodes in a row, each fed by the one before unless it has an input of its own."""

    nodes: tuple[Node, ...]

    def __rshift__(self, after: "Node | Chain") -> "Chain":
        """Add to the end of the row."""
        return Chain((*self.nodes, *(after.nodes if isinstance(after, Chain) else (after,))))

    def named(self) -> dict[str, Node]:
        """The nodes by name: a node is called as its block, the second of the same name with `-2` behind it."""
        named: dict[str, Node] = {}
        before: str | None = None
        for node in self.nodes:
            stem = _name_of(node.block)
            name, number = stem, 1
            while name in named:
                number += 1
                name = f"{stem}-{number}"
            fed = before is not None and node.input is None and node.over is None
            named[name] = node.model_copy(update={"input": f"{before}.out"}) if fed else node
            before = name
        return named


def _name_of(block: str) -> str:
    """A name for a node, made from its block's."""
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", Path(block.partition("@")[0]).name.removesuffix(".wasm"))[:50]
    return stem if NAME.fullmatch(stem) and stem not in RESERVED else f"node-{stem}"


class InputField(BaseModel):
    """What there is to say of one field of a job's input, beside the type that blocks give it."""

    model_config = _FORM

    description: str = ""
    type: Annotated[str, AfterValidator(_check_type)] | None = None
    """For a field that no node takes by its signature (blocks may read more than they must be given), or more exactly."""
    optional: bool = False
    default: Value = None
    """What a job is given where the field is absent; there is one if it was set, whatever it is."""
    example: Value = None

    @property
    def has_default(self) -> bool:
        """Whether there is a default."""
        return "default" in self.model_fields_set


@dataclass(frozen=True, slots=True)
class Example:
    """An input that makes sense."""

    input: Any  # Any: a JSON value
    title: str | None = None
    note: str | None = None


class FamilyForm(BaseModel):
    """What pipelines of one family have in common. None of them can be used where something of what it needs is missing."""

    model_config = _FORM

    description: Text
    """What the family is for."""
    model: Text | None = None
    """A model that must be here."""
    embedding_model: Text | None = None
    read: list[Text] = []
    """Folders and files that must be readable; relative to the file. Nothing is granted by it."""
    programs: list[Text] = []
    """Programs that must be installed."""


class Families(RootModel[dict[Name, FamilyForm]]):
    """The file `family.toml`: families by name."""


def _example(value: Any) -> Example:
    """Written as the input itself, or as a table of `title`, `input` and perhaps a `note`."""
    if isinstance(value, dict) and {"title", "input"} <= value.keys() <= {"title", "input", "note"}:
        title, note = value["title"], value.get("note")
        if isinstance(title, str) and isinstance(note, str | None):
            return Example(value["input"], title, note)
    return Example(value)


class Pipeline(BaseModel):
    """A pipeline: one block, or nodes that feed each other."""

    model_config = _FORM

    name: Name
    description: str = ""
    """When an agent should use it."""
    model: Text | None = None
    """The model of all nodes that name none."""
    embedding_model: Text | None = None
    data_policy: Literal["local_only", "any"] = "local_only"
    """`local_only` refuses models that are not on this machine."""
    read: list[Text] = []
    """Folders and files that its blocks may open; relative to the pipeline's file."""
    password_env: Text | None = None
    """The name of the environment variable that holds the password of locked documents."""
    timeout: Seconds | None = None
    """Seconds for a job."""
    limits: Annotated[dict[str, Any], AfterValidator(_check_limits)] = {}
    """Limits by their dotted names, or as tables: `guest.memory = "512MiB"`."""
    input: dict[str, Annotated[InputField, BeforeValidator(_as_field)]] = {}
    """What a job's input means, by field; a text is its description."""
    rules: list[Rule] = []
    """What a job's input must keep to beyond its types."""
    examples: list[Value] = []
    """Inputs, or tables of `title`, `input` and `note`."""
    use_cases: list[str] = []
    family: Name | None = None
    """The family of skills that it belongs to; `family.toml` beside the pipeline says what that is."""
    block: Text | None = None
    nodes: dict[NodeName, Node] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_the_nodes_of_a_chain(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("nodes"), Chain | Node):
            nodes = value["nodes"]
            return {**value, "nodes": (nodes if isinstance(nodes, Chain) else Chain((nodes,))).named()}
        return value

    @model_validator(mode="after")
    def _one_block_or_nodes(self) -> Self:
        if bool(self.block) == bool(self.nodes):
            raise ValueError("a pipeline has either block or nodes; this one has " + ("both" if self.block else "neither"))
        return self

    def graph(self) -> dict[str, Node]:
        """The nodes by name; a pipeline of one block is one node called as the pipeline."""
        return {self.name: Node(block=self.block)} if self.block else dict(self.nodes)

    def examples_told(self) -> list[Example]:
        """The examples, each with its title and note if it has them."""
        return [_example(value) for value in self.examples]

    def limit_values(self) -> dict[str, object]:
        """Its limits by dotted name, its timeout among them."""
        values = {".".join(path): value for path, value in _flatten(self.limits)}
        if self.timeout is not None:
            values.setdefault("job.time", self.timeout)
        return values
