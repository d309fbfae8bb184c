"""Pipelines drawn as text, Mermaid, DOT and SVG, before a job and after it."""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cuttlefish import open_host
from cuttlefish.engine.module import CompiledModule, ModuleShape
from cuttlefish.inference.backend import TokenMeter
from cuttlefish.pipeline.draw import Records, draw_dot, draw_mermaid, draw_text
from cuttlefish.pipeline.draw_svg import draw_svg
from cuttlefish.pipeline.graph import Graph, build_graph
from cuttlefish.pipeline.run import NodeRecord
from cuttlefish.pipeline.spec import LoadedPipeline, Node, Pipeline, Repeat
from cuttlefish_abi import Signature
from guests import scripted

FORMS: dict[str, Callable[[Graph, Records | None], str]] = {
    "text": draw_text,
    "mermaid": draw_mermaid,
    "dot": draw_dot,
    "svg": draw_svg,
}
SVG = "{http://www.w3.org/2000/svg}"


async def graph_of(name: str, **nodes: Node) -> Graph:
    """A checked pipeline. Its blocks are called as their signatures, `text -> text`, with a comment behind a `#` or none."""

    async def load(block: str) -> tuple[CompiledModule, Signature]:
        takes, _, gives = block.partition("#")[0].strip().partition(" -> ")
        module = CompiledModule(block, "0" * 64, "no artefact", ModuleShape((), 0))
        return module, Signature.model_validate({"input": takes, "output": gives})

    return await build_graph(LoadedPipeline(Pipeline(name=name, nodes=nodes), Path()), load)


async def every_shape() -> Graph:
    """Fan-out, fan-in by record and list, branches that join again, a loop, items, two sinks."""
    return await graph_of(
        "every-shape",
        read=Node(block="{path: text} -> {pages: [text], title: text}"),
        sort=Node(block="[text] -> {route: text}", input="read.out.pages", branch={"long": "short", "odd": ["short", "tell"]}),
        short=Node(
            block="{text: text} -> {done: bool, text: text}",
            input={"text": "read.out.title"},
            repeat=Repeat(until="done", max=5),
        ),
        tell=Node(block="json -> text", input={"why": "job.input.why", "route": "sort.out.route"}),
        end=Node(block="json -> text", input=["short.out.text?", "tell.out?", "read.out.title", "read.out.pages"]),
        each=Node(block="{path: text} -> number", over="in/*.pdf", concurrency=4, on_error="keep", retry=2),
    )  # fmt: skip


TEXT = """\
every-shape: {path: text, why: json} → {each: {failed: number, failures: [{code: text, item: number, message: text}], results: [{item: number, value: number}], succeeded: number}, end: text}
input
├─ {path: text, why: json} → read  [{path: text} -> {pages: [text], title: text}]
│  ├─ pages: [text] → sort  [[text] -> {route: text}]
│  │  ├─ if long or odd → short (below)
│  │  └─ if odd: route: text → tell (below)
│  ├─ title: text → short  [{text: text} -> {done: bool, text: text}, repeat until done, 5 rounds at most]
│  │  └─ text: text? → end (below)
│  └─ title: text, pages: [text] → end (below)
└─ why: json → tell  [json -> text]
   └─ text? → end  [json -> text]
      └─ text → result (below)
each  [{path: text} -> number, over in/*.pdf, 4 at a time, errors kept, 2 more tries]
└─ {failed: number, failures: [{code: text, item: number, mess… → result
"""  # noqa: E501


async def test_the_tree_has_each_node_once_and_types_labels_and_ways_of_running() -> None:
    assert draw_text(await every_shape(), None) == TEXT


async def test_mermaid_has_boxes_by_number_and_dashed_lines_for_what_carries_no_data() -> None:
    graph = await graph_of(
        "small",
        a=Node(block="text -> {route: text}", branch={"yes": "b"}),
        b=Node(block="text -> text"),
    )
    assert draw_mermaid(graph, None) == (
        "flowchart TD\n"
        '  n0(["input"])\n'
        '  n1["a<br/>text -#62; {route: text}"]\n'
        '  n2["b<br/>text -#62; text"]\n'
        '  n3(["result"])\n'
        '  n0 -->|"text"| n1\n'
        '  n0 -->|"text"| n2\n'
        '  n1 -.->|"if yes"| n2\n'
        '  n2 -->|"text"| n3\n'
    )


async def test_dot_has_the_whole_type_in_the_tooltip() -> None:
    wide = "{" + ", ".join(f"field{number}: text" for number in range(9)) + "}"
    graph = await graph_of("wide", a=Node(block=f"text -> {wide}"))
    assert draw_dot(graph, None) == (
        'digraph "wide" {\n'
        '  node [shape=box, style=rounded, fontname="sans-serif"];\n'
        '  edge [fontname="monospace", fontsize=10];\n'
        '  n0 [label="input", shape=plaintext];\n'
        f'  n1 [label="a\\ntext -> {wide}"];\n'
        '  n2 [label="result", shape=plaintext];\n'
        '  n0 -> n1 [label="text", tooltip="text"];\n'
        f'  n1 -> n2 [label="{wide[:35]}…", tooltip="{wide}"];\n'
        "}\n"
    )


def rectangles(svg: str) -> tuple[list[tuple[float, float, float, float]], tuple[float, float]]:
    """Those of boxes and labels: left, top, right, bottom; and the picture's size."""
    root = ElementTree.fromstring(svg)
    found = [rect for group in root.iter(f"{SVG}g") for rect in group.iter(f"{SVG}rect")]
    sides = [tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height")) for rect in found]
    return [(x, y, x + w, y + h) for x, y, w, h in sides], (float(root.attrib["width"]), float(root.attrib["height"]))


@pytest.mark.parametrize("shape", ["every shape", "wide", "long edges"])
async def test_in_svg_nothing_lies_over_anything_else_and_all_is_within_the_picture(shape: str) -> None:
    if shape == "every shape":
        graph = await every_shape()
    elif shape == "wide":
        leaves = {f"a{number}": Node(block="text -> {a: text, b: number}") for number in range(30)}
        graph = await graph_of("wide", **leaves, end=Node(block="json -> text", input=[f"{name}.out" for name in leaves]))
    else:
        row = {f"a{number}": Node(block="text -> text", input=f"a{number - 1}.out") for number in range(1, 12)}
        first = Node(block="text -> text")
        graph = await graph_of("long", a0=first, **row, end=Node(block="json -> text", input=[f"a{n}.out" for n in range(12)]))
    found, (width, height) = rectangles(draw_svg(graph, None))
    assert len(found) > len(graph.nodes)
    for number, (left, top, right, bottom) in enumerate(found):
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height
        for other in found[:number]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


async def test_svg_says_what_the_tree_says() -> None:
    graph = await every_shape()
    root = ElementTree.fromstring(draw_svg(graph, None))
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {
        "every-shape",
        "input",
        "result",
        *(node.name for node in graph.nodes),
        *(node.spec.block for node in graph.nodes),
    } <= texts
    assert {
        "if long or odd",
        "over in/*.pdf, 4 at a time, errors kept, 2 more tries",
        "repeat until done, 5 rounds at most",
    } <= texts
    dashed = [path for path in root.iter(f"{SVG}path") if "order" in path.attrib.get("class", "")]
    assert len(dashed) == 1


RECORDS = {
    "a": NodeRecord("a", "finished", duration_s=1.25, meters=[TokenMeter(1000, 20), TokenMeter(211, 10)]),
    "b": NodeRecord("b", "failed", duration_s=0.0421),
    "c": NodeRecord("c", "skipped"),
    "d": NodeRecord("d"),
    "e": NodeRecord("e", "running", duration_s=61.04),
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_job_that_is_over_is_drawn_with_times_and_tokens(form: str) -> None:
    graph = await graph_of("job", **{name: Node(block="text -> text") for name in RECORDS})
    drawing = FORMS[form](graph, RECORDS)
    for told in ("finished in 1.2 s, 1211 → 30 tokens", "failed after 42 ms", "skipped", "not run", "stopped after 61.0 s"):
        assert drawing.count(told) >= 1
    assert "finished" not in FORMS[form](graph, None).partition("</style>")[2]
    red = {"text": "failed after", "mermaid": "  class n2 failed\n", "dot": 'color="#b00020"', "svg": 'class="box failed"'}
    assert drawing.count(red[form]) == 1


HOSTILE = 'text -> {route: text} # "></text><script>x</script> %%{init: {}}%% |]`\\N\\" \x1b[2J\u202e &amp; \n;\r --> n0'
LABEL = 'yes"|<b>\\n\x07%%{init}\n'


@pytest.mark.parametrize("form", FORMS)
async def test_names_and_labels_are_only_ever_shown(form: str) -> None:
    graph = await graph_of("hostile", a=Node(block=HOSTILE, branch={LABEL: "b"}), b=Node(block="text -> text"))
    plain = await graph_of("hostile", a=Node(block="text -> {route: text}", branch={"yes": "b"}), b=Node(block="text -> text"))
    drawing = FORMS[form](graph, None)
    assert all(char.isprintable() or char == "\n" for char in drawing)
    assert drawing.count("\n") == FORMS[form](plain, None).count("\n"), "no name begins a line"
    match form:
        case "mermaid":
            assert "%%" not in drawing
            for line in drawing.splitlines()[1:]:
                assert re.fullmatch(r'  n\d(\(\["[^"]*"\]\)|\["[^"]*"\]| -\.?->\|"[^"]*"\| n\d)', line)
                assert not re.search(r"[<>|`\\]", re.sub(r"<br/>|\|\"|\"\|", "", line).replace("-->", "").replace("-.->", ""))
        case "dot":
            for line in drawing.splitlines():
                outside = re.sub(r'"(?:[^"\\]|\\.)*"', "S", line)
                assert re.fullmatch(r"digraph S \{|  (node|edge) \[.*\];|  n\d( -> n\d)? \[[a-zA-Z0-9=, ]+\];|\}", outside)
            assert "\\\\N" in drawing, "an escape of Graphviz stands for itself"
        case "svg":
            root = ElementTree.fromstring(drawing)
            assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
                "svg", "title", "style", "defs", "marker", "path", "rect", "text", "g",
            }  # fmt: skip
            assert any("<script>x</script>" in (text.text or "") for text in root.iter(f"{SVG}text"))
        case "text":
            assert r"\x1b[2J\u202e" in drawing


@pytest.mark.parametrize("form", FORMS)
async def test_a_chain_of_two_thousand_nodes_is_drawn(form: str) -> None:
    """No form walks it recursively; the tree starts again at the margin before it leaves the screen."""
    row = {f"a{number}": Node(block="text -> text", input=f"a{number - 1}.out") for number in range(1, 2000)}
    graph = await graph_of("chain", a0=Node(block="text -> text"), **row)
    drawing = FORMS[form](graph, None)
    for name in ("a0", "a999", "a1999"):
        assert re.search(rf"\b{name}\b", drawing)
    if form == "text":
        assert max(map(len, drawing.splitlines())) < 160
        assert sorted(re.findall(r"\b(a\d+)  \[", drawing)) == sorted(["a0", *row])


async def test_a_pipeline_of_a_real_block_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "b.wasm").write_bytes(scripted({"cmd": "done", "result": "x"}, signature="{path: text} -> text").wasm)
    (tmp_path / "one.toml").write_text('name = "one"\nblock = "b.wasm"\n')
    async with open_host() as host:
        graph = await host.check(tmp_path / "one.toml")
    assert draw_text(graph) == (
        "one: {path: text} → text\n"
        "input\n"
        "└─ {path: text} → one  [b.wasm]\n"
        "   └─ text → result\n"
    )  # fmt: skip
