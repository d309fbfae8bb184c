"""Draws a checked pipeline: as a text tree, Mermaid, or DOT (`draw_svg.py` has the fourth form). With what became of each node,
if a job has run.

Names and types come from authors and blocks. Each form escapes them by its own rules; control characters are shown as escapes in
all of them, as they must not steer a terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cuttlefish.pipeline.expressions import ITEM, JOB, references
from cuttlefish.pipeline.graph import Graph, GraphNode
from cuttlefish.pipeline.run import NodeRecord
from cuttlefish_abi import Ty
from cuttlefish_abi.strict_json import clip

__all__ = [
    "Arrow", "Box", "Drawing", "Records", "describe_marks", "describe_record", "draw_dot", "draw_mermaid", "draw_text", "outline",
    "printable",
]  # fmt: skip

Records = Mapping[str, NodeRecord]

LINE_CHARS = 60  # of a type in the text tree; `cuttlefish check` shows it whole
LABEL_CHARS = 36  # of a type beside an arrow; SVG and DOT have it whole in the tooltip
MOST_LEVELS = 24  # of the text tree; what is deeper starts again at the margin


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a drawing: the job's input, a node, or the job's result."""

    title: str
    lines: tuple[str, ...] = ()
    """The block, how it is run, and what became of it."""
    status: str = ""
    """`finished`, `skipped`, `failed` or `stopped` once a job has run; `end` for what is no node."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one box to another, by their places in the drawing. All texts are printable."""

    source: int
    target: int
    label: str
    is_order: bool = False
    """It carries no data: the target only runs by the source's decision."""

    @property
    def short_label(self) -> str:
        """The label as far as a drawing has room for it."""
        return clip(self.label, LABEL_CHARS)


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is drawn, in any form. Every arrow leads from an earlier box to a later one."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def outline(graph: Graph, records: Records | None = None) -> Drawing:
    """The boxes and arrows of a pipeline."""
    boxes = [Box("input", status="end")]
    places = {JOB: 0}
    for node in graph.nodes:
        places[node.name] = len(boxes)
        record = (records or {}).get(node.name)
        told = (describe_record(record),) if record else ()
        texts = (node.spec.block, *describe_marks(node), *told)
        boxes.append(Box(printable(node.name), tuple(map(printable, texts)), _status(record) if record else ""))
    boxes.append(Box("result", status="end"))
    outputs = {JOB: graph.input} | {node.name: node.output for node in graph.nodes}
    arrows = []
    for node in graph.nodes:
        data: dict[str, list[str]] = {}
        for reference in references(node.input):
            if reference.source != ITEM:
                ty = _part(outputs[reference.source], reference.fields)
                field = ".".join(reference.fields)
                text = f"{field}: {ty}" if field else str(ty)
                data.setdefault(reference.source, []).append(f"{text}?" if reference.optional else text)
        choices = dict(node.deciders)
        for source in dict.fromkeys((*data, *choices)):
            label = [f"if {' or '.join(choices[source])}"] if source in choices else []
            label += [", ".join(dict.fromkeys(data[source]))] if source in data else []
            arrows.append(Arrow(places[source], places[node.name], printable(": ".join(label)), is_order=source not in data))
    arrows += [Arrow(places[name], len(boxes) - 1, printable(str(outputs[name]))) for name in graph.sinks]
    return Drawing(printable(graph.loaded.pipeline.name), tuple(boxes), tuple(arrows))


def _part(ty: Ty, fields: tuple[str, ...]) -> Ty:
    """The type of a field within a type; what is not told is `json`."""
    for name in fields:
        ty = dict(ty.fields).get(name, Ty(kind="json"))
    return ty


def describe_marks(node: GraphNode) -> list[str]:
    """How a node is run, where that is not once."""
    spec, marks = node.spec, []
    if spec.over is not None:
        parts = [f"over {spec.over}"]
        parts += [f"{spec.concurrency} at a time"] if spec.concurrency > 1 else []
        parts += ["errors kept"] if spec.on_error == "keep" else []
        parts += [f"{spec.retry} more {'try' if spec.retry == 1 else 'tries'}"] if spec.retry else []
        marks.append(", ".join(parts))
    if spec.repeat is not None:
        marks.append(f"repeat until {spec.repeat.until}, {spec.repeat.max} rounds at most")
    return marks


def describe_record(record: NodeRecord) -> str:
    """What became of a node of a job that is over: `finished in 1.2 s, 1200 → 30 tokens`."""
    status = _status(record)
    if status in ("skipped", "not run"):
        return status
    tokens_in, tokens_out = record.tokens
    tokens = f", {tokens_in} → {tokens_out} tokens" if tokens_in or tokens_out else ""
    seconds = f"{record.duration_s:.1f} s" if record.duration_s >= 1 else f"{record.duration_s * 1000:.0f} ms"
    return f"{status} {'in' if status == 'finished' else 'after'} {seconds}{tokens}"


def _status(record: NodeRecord) -> str:
    return {"running": "stopped", "waiting": "not run"}.get(record.status, record.status)


def printable(text: str) -> str:
    """The text with every character that is no plain sign written as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def draw_text(graph: Graph, records: Records | None = None) -> str:
    """The pipeline as a tree of lines. A node stands behind the last arrow that leads to it; the others point there."""
    drawing = outline(graph, records)
    leading: list[list[Arrow]] = [[] for _ in drawing.boxes]
    missing = [0] * len(drawing.boxes)
    for arrow in sorted(drawing.arrows, key=lambda arrow: arrow.target):
        leading[arrow.source].append(arrow)
        missing[arrow.target] += 1
    lines = [f"{drawing.title}: {graph.input} → {graph.result}"]
    roots = [place for place in range(len(drawing.boxes)) if not missing[place] and leading[place]]
    while roots:
        root = roots.pop(0)
        lines.append(_box_line(drawing.boxes[root]))
        # Not recursive: a chain of thousands of nodes is a tree as deep.
        open_levels = [("", iter(leading[root]), len(leading[root]))]
        while open_levels:
            before, arrows, left = open_levels.pop()
            if not left:
                continue
            arrow = next(arrows)
            open_levels.append((before, arrows, left - 1))
            sign, below = ("├─ ", "│  ") if left > 1 else ("└─ ", "   ")
            missing[arrow.target] -= 1
            box = drawing.boxes[arrow.target]
            if missing[arrow.target]:
                text = f"{box.title} (below)"
            elif len(open_levels) >= MOST_LEVELS and leading[arrow.target]:
                text = f"{box.title} (below)"
                roots.append(arrow.target)
            else:
                text = _box_line(box)
                open_levels.append((before + below, iter(leading[arrow.target]), len(leading[arrow.target])))
            lines.append(f"{before}{sign}{clip(arrow.label, LINE_CHARS)} → {text}")
    return "\n".join(lines) + "\n"


def _box_line(box: Box) -> str:
    return f"{box.title}  [{', '.join(box.lines)}]" if box.lines else box.title


def draw_mermaid(graph: Graph, records: Records | None = None) -> str:
    """The pipeline as a Mermaid flowchart."""
    drawing = outline(graph, records)
    lines = ["flowchart TD"]
    for place, box in enumerate(drawing.boxes):
        if _is_used(drawing, place):
            text = "<br/>".join(map(_in_mermaid, (box.title, *box.lines)))
            lines.append(f'  n{place}(["{text}"])' if box.status == "end" else f'  n{place}["{text}"]')
    for arrow in drawing.arrows:
        line = "-.->" if arrow.is_order else "-->"
        lines.append(f'  n{arrow.source} {line}|"{_in_mermaid(arrow.short_label)}"| n{arrow.target}')
    for status, style in (("failed", "stroke:#b00020,stroke-width:3px"), ("skipped", "stroke-dasharray:4")):
        places = [f"n{place}" for place, box in enumerate(drawing.boxes) if box.status == status]
        lines += [f"  classDef {status} {style}", f"  class {','.join(places)} {status}"] if places else []
    return "\n".join(lines) + "\n"


def _in_mermaid(text: str) -> str:
    # By code, not only the quote: `%%{` is a directive wherever it stands, `#` begins a code, a backtick begins Markdown.
    return "".join(f"#{ord(char)};" if char in '"#&<>`|%\\;' else char for char in text)


def draw_dot(graph: Graph, records: Records | None = None) -> str:
    """The pipeline in the language of Graphviz."""
    drawing = outline(graph, records)
    lines = [
        f"digraph {_in_dot(drawing.title)} {{",
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
        '  edge [fontname="monospace", fontsize=10];',
    ]
    styles = {"end": ", shape=plaintext", "failed": ', color="#b00020", penwidth=3', "skipped": ', style="rounded,dashed"'}
    for place, box in enumerate(drawing.boxes):
        if _is_used(drawing, place):
            lines.append(f"  n{place} [label={_in_dot(box.title, *box.lines)}{styles.get(box.status, '')}];")
    for arrow in drawing.arrows:
        style = ", style=dashed" if arrow.is_order else ""
        lines.append(
            f"  n{arrow.source} -> n{arrow.target} [label={_in_dot(arrow.short_label)}, tooltip={_in_dot(arrow.label)}{style}];"
        )
    return "\n".join([*lines, "}"]) + "\n"


def _in_dot(*texts: str) -> str:
    # A backslash begins an escape such as \N, the node's name; `&` begins an entity.
    escaped = (text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for text in texts)
    return '"' + "\\n".join(escaped) + '"'


def _is_used(drawing: Drawing, place: int) -> bool:
    """Whether a box is drawn: the job's input only where a node takes it."""
    return place > 0 or any(arrow.source == 0 for arrow in drawing.arrows)
