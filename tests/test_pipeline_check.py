"""Checking a pipeline: each mistake is told before anything runs, whole, at its line, and all of them at once."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pipelines import Folder

from cuttlefish import BlockBytes, Host, open_host
from cuttlefish.pipeline.spec import Node, Pipeline, PipelineError
from guests import from_wat

PASSING = {
    "text": ("text -> text", "", ""),
    "wrap": ("text -> {text: text}", '{"text":', "}"),
    "list": ("[text] -> [text]", "", ""),
    "pair": ("{a: text, b: [text]} -> {a: text, b: [text]}", "", ""),
    "two": ("{one: text, two: text} -> text", '"', '"'),
    "number": ("number -> number", "", ""),
    "any": ("json -> json", "", ""),
    "decide": ("{route: text, text: text} -> {route: text, text: text}", "", ""),
    "loop": ("{done: bool, state: text, n: number} -> {done: bool, state: text, n: number}", "", ""),
    "open": ("{path: text} -> {doc: document}", "", ""),
    "show": ("{doc: document} -> text", "", ""),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("pipelines"))
    for name, (signature, before, after) in PASSING.items():
        folder.block(name, signature, before, after)
    folder.block("imports", from_wat('(module (import "env" "now" (func)) (memory (export "memory") 1))'))
    folder.block("broken", BlockBytes("broken.wasm", b"hello"))
    return folder


@pytest.fixture
def folder(made: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(made.path)
    return made


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with open_host() as host:
        yield host


def pipeline(*nodes: str, top: str = "") -> str:
    """A pipeline of nodes, each `NAME = BLOCK` and lines beneath. The first node is in line 3, each line counts."""
    text = f'name = "x"\n{top}\n'
    for node in nodes:
        head, _, rest = node.partition("\n")
        name, _, block = head.partition(" = ")
        text += f'[nodes.{name}]\nblock = "{block}.wasm"\n' + (rest + "\n" if rest else "")
    return text


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "an unknown node": (
        pipeline("first = text", 'second = text\ninput = "frist.out"'),
        ['p.toml:7: node "second": input reads "frist.out", and there is no node "frist"; did you mean "first"?'],
    ),
    "an unknown node in the only node": (
        pipeline('first = text\ninput = "other.out"'),
        ['p.toml:5: node "first": input reads "other.out", and there is no node "other"'],
    ),
    "its own output": (
        pipeline('first = text\ninput = "first.out"'),
        ['p.toml:5: node "first": input reads "first.out", its own output; use repeat to run a node on what it gave'],
    ),
    "a circle": (
        pipeline(
            'a = text\ninput = "c.out"', 'b = text\ninput = "a.out"', 'c = text\ninput = "b.out"', 'd = text\ninput = "c.out"'
        ),
        ['p.toml:5: node "a": waits for itself: a → b → c → a'],
    ),
    "two circles": (
        pipeline(
            'a = text\ninput = "b.out"', 'b = text\ninput = "a.out"', 'c = text\ninput = "d.out"', 'd = text\ninput = "c.out"'
        ),
        ['p.toml:5: node "a": waits for itself: a → b → a', 'p.toml:11: node "c": waits for itself: c → d → c'],
    ),
    "a circle through a branch": (
        pipeline('a = decide\nbranch = { yes = "b" }\ninput = { route = "b.out", text = "job.input" }', "b = text"),
        ['p.toml:6: node "a": waits for itself: a → b → a'],
    ),
    "a node that waits for both sides of a branch": (
        pipeline(
            'a = decide\nbranch = { yes = "b", no = "c" }',
            'b = text\ninput = "a.out.text"',
            'c = text\ninput = "a.out.text"',
            'd = two\ninput = { one = "b.out", two = "c.out" }',
            'e = text\ninput = "d.out"',
        ),
        ['p.toml:14: node "d": can never run: no one label of "a" lets all run that it waits for'],
    ),
    "a branch beneath the other side of the same branch": (
        pipeline(
            'a = decide\nbranch = { yes = "b", no = "c" }',
            'b = decide\ninput = "a.out"\nbranch = { more = "c" }',
            'c = text\ninput = "a.out.text"',
        ),
        ['p.toml:12: node "c": can never run: no one label of "a" lets all run that it waits for'],
    ),
    "a branch to no node": (
        pipeline(
            'a = decide\nbranch = { yes = ["b", "cc"], no = "d" }', 'b = text\ninput = "a.out.text"', 'c = text\ninput = "b.out"'
        ),
        [
            'p.toml:5: node "a": branch "yes" leads to "cc", and there is no such node; did you mean "c"?',
            'p.toml:5: node "a": branch "no" leads to "d", and there is no such node; known: b, c',
        ],
    ),
    "a branch to nearly a node": (
        pipeline('a = decide\nbranch = { yes = "sumary" }', 'summary = text\ninput = "a.out.text"'),
        ['p.toml:5: node "a": branch "yes" leads to "sumary", and there is no such node; did you mean "summary"?'],
    ),
    "a branch to itself": (
        pipeline('a = decide\n[nodes.a.branch]\nyes = "a"'),
        ['p.toml:6: node "a": branch "yes" leads back to the node itself; use repeat'],
    ),
    "a branch without a route": (
        pipeline('a = wrap\nbranch = { yes = "b" }', 'b = text\ninput = "a.out.text"'),
        ['p.toml:5: node "a": branch reads the field "route", and {text: text} has none of that name; known: text'],
    ),
    "a branch on json": (
        pipeline('a = any\nbranch = { yes = "b" }', "b = text"),
        ['p.toml:5: node "a": branch reads the field "route", and json has none of that name'],
    ),
    "a repeat without its field": (
        pipeline('a = loop\nrepeat = { until = "stat", max = 3 }'),
        [
            'p.toml:5: node "a": repeat reads the field "stat", and {done: bool, n: number, state: text} has none of that name; '
            'did you mean "state"?'
        ],
    ),
    "a repeat until a number": (
        pipeline('a = loop\nrepeat = { until = "n", max = 3 }'),
        ['p.toml:5: node "a": repeat reads the field "n", which must be text or bool and is number'],
    ),
    "a repeat whose output is no input": (
        pipeline('a = wrap\nrepeat = { until = "text", max = 3 }'),
        ['p.toml:5: node "a": repeat feeds the output to the input, and {text: text} does not fit text'],
    ),
    "over and repeat": (
        pipeline('a = loop\nover = "m.jsonl"\nrepeat = { until = "done", max = 3 }'),
        ['p.toml:6: node "a": a node has over or repeat, not both'],
    ),
    "over and branch": (
        pipeline('a = decide\nover = "m.jsonl"\nbranch = { yes = "b" }', "b = text"),
        ['p.toml:6: node "a": a node has over or branch, not both: each item would take another way'],
    ),
    "keys of over without over": (
        pipeline('a = text\nconcurrency = 2\non_error = "keep"\nretry = 1'),
        [
            'p.toml:5: node "a": concurrency only means something in a node with over',
            'p.toml:6: node "a": on_error only means something in a node with over',
            'p.toml:7: node "a": retry only means something in a node with over',
        ],
    ),
    "an item without over": (
        pipeline('a = text\ninput = "item.path"'),
        ['p.toml:5: node "a": input reads "item.path", and only a node with over has items'],
    ),
    "no pattern": (
        pipeline('a = any\nover = "inbox/a.pdf"'),
        ['p.toml:5: node "a": over is "inbox/a.pdf": it is neither a .jsonl file nor a pattern such as "inbox/*.pdf"'],
    ),
    "stars that stand for nothing": (
        pipeline('a = any\nover = "in**/*.pdf"', 'b = any\nover = "in/**"', 'c = any\nover = "in/[ab"', 'd = any\nover = "*/"'),
        [
            'p.toml:5: node "a": over is "in**/*.pdf": ** stands alone between two slashes, for any number of folders',
            'p.toml:8: node "b": over is "in/**": it must end with the files\' names, such as "*.pdf"',
            'p.toml:11: node "c": over is "in/[ab": a "[" is never closed, or closed with nothing in it',
            'p.toml:14: node "d": over is "*/": it must end with the files\' names, such as "*.pdf"',
        ],
    ),
    "a pattern with a NUL": (
        pipeline('a = any\nover = "in\\u0000/*.pdf"'),
        ['p.toml:5: node "a": over is "in\0/*.pdf": a path cannot hold a NUL character'],
    ),
    "handles that outlive an item": (
        pipeline('a = open\nover = "*.pdf"'),
        ['p.toml:5: node "a": over gives {doc: document} for each item, and a document is closed when its item is done'],
    ),
    "an item's field that files do not have": (
        pipeline('a = text\nover = "*.pdf"\ninput = "item.name"'),
        ['p.toml:6: node "a": "item.name" cannot be: {path: text} has no field "name"; known: path'],
    ),
    "a wrapped value that should be bare": (
        pipeline("a = wrap", 'b = text\ninput = "a.out"'),
        ['p.toml:7: node "b": input must be text, and "a.out" gives {text: text}: write "a.out.text" for the bare value'],
    ),
    "a wrapped value of several": (
        pipeline("a = pair", 'b = decide\ninput = { route = "a.out", text = "a.out.a" }', 'c = loop\ninput = "b.out"'),
        [
            'p.toml:7: node "b": input.route must be text, and "a.out" gives {a: text, b: [text]}: '
            'write "a.out.a" for the bare value',
            'p.toml:10: node "c": input must be {done: bool, n: number, state: text}, and "b.out" gives {route: text, text: text}: '
            '"done" is missing; known: route, text',
        ],
    ),
    "a bare value that should be wrapped": (
        pipeline("a = text", 'b = pair\ninput = "a.out"', 'c = show\ninput = "d.out.doc"', 'd = open\ninput = { path = "a.out" }'),
        [
            'p.toml:7: node "b": input must be {a: text, b: [text]}, and "a.out" gives text: '
            'write { a = "a.out", b = … } to wrap it',
            'p.toml:10: node "c": input must be {doc: document}, and "d.out.doc" gives document: '
            'write { doc = "d.out.doc" } to wrap it',
        ],
    ),
    "one value where a list is needed": (
        pipeline("a = text", 'b = list\ninput = "a.out"'),
        ['p.toml:7: node "b": input must be [text], and "a.out" gives text: write ["a.out"] for a list of one'],
    ),
    "a list where one value is needed": (
        pipeline("a = list", 'b = text\ninput = "a.out"'),
        ['p.toml:7: node "b": input must be text, and "a.out" gives [text]: a list, where one value is needed'],
    ),
    "a missing field": (
        pipeline("a = text", 'b = pair\ninput = { a = "a.out", c = ["a.out"] }'),
        ['p.toml:7: node "b": input.b is missing; it must be [text] (known: a, c)'],
    ),
    "a field that is not there": (
        pipeline("a = wrap", 'b = text\ninput = "a.out.txt"'),
        ['p.toml:7: node "b": "a.out.txt" cannot be: {text: text} has no field "txt"; did you mean "text"?'],
    ),
    "a field of what has none": (
        pipeline("a = text", 'b = text\ninput = "a.out.text"'),
        ['p.toml:7: node "b": "a.out.text" cannot be: text has no field "text"'],
    ),
    "a field of the wrong type": (
        pipeline("a = decide", 'b = loop\ninput = "a.out"', 'c = decide\ninput = "b.out"'),
        [
            'p.toml:7: node "b": input must be {done: bool, n: number, state: text}, and "a.out" gives {route: text, text: text}: '
            '"done" is missing; known: route, text',
            'p.toml:10: node "c": input must be {route: text, text: text}, and "b.out" gives {done: bool, n: number, state: text}: '
            '"route" is missing; known: done, n, state',
        ],
    ),
    "every element of a list": (
        pipeline(
            "a = text",
            "b = wrap",
            "c = number\ninput = 5",
            'd = list\ninput = [\n  "a.out",\n  "b.out",\n  "c.out",\n  4,\n  "words",\n]',
        ),
        [
            'p.toml:14: node "d": input[1] must be text, and "b.out" gives {text: text}: write "b.out.text" for the bare value',
            'p.toml:15: node "d": input[2] must be text, and "c.out" gives number',
            'p.toml:16: node "d": input[3] must be text, found 4',
        ],
    ),
    "a record for a list and a list for a text": (
        pipeline("a = text", 'b = list\ninput = { a = "a.out" }', 'c = text\ninput = ["a.out"]'),
        [
            'p.toml:7: node "b": input must be [text], and is written as a record',
            'p.toml:10: node "c": input must be text, and is written as a list',
        ],
    ),
    "literals of the wrong type": (
        pipeline('a = pair\ninput = { a = 1, b = ["x", 2] }', "b = number\ninput = true", "c = show\ninput = { doc = 0 }"),
        [
            'p.toml:5: node "a": input.a must be text, found 1',
            'p.toml:8: node "b": input must be a number, found true',
            'p.toml:11: node "c": input.doc must be a handle of a document, found 0',
        ],
    ),
    "what only looks like a reference": (
        pipeline("a = text", 'b = text\ninput = "a.output"', 'c = any\ninput = { x = ["a.out", { y = "a.in.text" }] }'),
        [
            'p.toml:7: node "b": input is "a.output", which refers to nothing: write "NODE.out", "NODE.out.field" or "job.input", '
            'or { literal = "…" } for the text itself',
            'p.toml:10: node "c": input.x[1].y is "a.in.text", which refers to nothing: '
            'write "NODE.out", "NODE.out.field" or "job.input", '
            'or { literal = "…" } for the text itself',
        ],
    ),
    "an output of the job": (
        pipeline('a = text\ninput = "job.out"'),
        [
            'p.toml:5: node "a": input is "job.out", which refers to nothing: write "NODE.out", "NODE.out.field" or "job.input", '
            'or { literal = "…" } for the text itself'
        ],
    ),
    "an input that may be absent": (
        pipeline("a = text", 'b = text\ninput = "a.out?"', 'c = two\ninput = { one = "a.out?", two = "a.out" }'),
        [
            'p.toml:7: node "b": input is "a.out?", which may be absent, and a block cannot run without an input',
            'p.toml:10: node "c": input.one is "a.out?", which may be absent, and must be there as text',
        ],
    ),
    "json where a type is needed": (
        pipeline("a = any", 'b = text\ninput = "a.out"', 'c = text\ninput = "a.out.x"'),
        [
            'p.toml:7: node "b": input must be text, and "a.out" gives json: json may be anything, so it cannot be relied on',
            'p.toml:10: node "c": input must be text, and "a.out.x" gives json: json may be anything, so it cannot be relied on',
        ],
    ),
    "json to json": (
        pipeline("a = any", 'b = any\ninput = "a.out"'),
        ['p.toml:7: warning: node "b": input takes json and "a.out" gives json: nothing is checked here'],
    ),
    "an input of the job that cannot be": (
        pipeline("a = text", "b = number", 'c = wrap\ninput = "job.input.name"'),
        [
            'p.toml:5: node "b": takes number from the job\'s input, and "a" text: no input fits both',
            'p.toml:9: node "c": takes {name: text} from the job\'s input, and "a" text: no input fits both',
        ],
    ),
    "a grant that does not exist": (
        pipeline("a = text", top='read = [".", "absent"]'),
        ['p.toml:2: read grants "absent", which does not exist'],
    ),
    "models that nobody gives": (
        pipeline('a = text\nmodel = "lama-cpp:smollm2"', 'b = text\nmodel = "llama-cpp"', top='model = "gpt"'),
        [
            'p.toml:2: model is "gpt", and there is no provider "gpt"; known: llama-cpp, openai, ollama, tesseract, stub',
            'p.toml:5: node "a": model is "lama-cpp:smollm2", and there is no provider "lama-cpp"; did you mean "llama-cpp"?',
            'p.toml:8: node "b": model is "llama-cpp"; write llama-cpp:NAME or llama-cpp:PATH.gguf',
        ],
    ),
    "a model without vectors": (
        pipeline("a = text", top='embedding_model = "tesseract:eng"'),
        [
            'p.toml:2: embedding_model is "tesseract:eng", and there is no provider "tesseract"; '
            "known: llama-cpp, openai, ollama, stub"
        ],
    ),
    "a block that is not there": (
        pipeline("a = txt"),
        ['p.toml:4: node "a": there is no block "txt.wasm" (not_found)'],
    ),
    "several at once": (
        pipeline('a = text\ninput = "b.uot"', 'b = wrap\ninput = "a.out"', 'c = text\ninput = "b.out"', top='read = ["absent"]'),
        [
            'p.toml:2: read grants "absent", which does not exist',
            'p.toml:11: node "c": input must be text, and "b.out" gives {text: text}: write "b.out.text" for the bare value',
        ],
    ),
}


@pytest.mark.parametrize(("text", "told"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_mistake_is_told_whole_with_its_line(folder: Folder, host: Host, text: str, told: list[str]) -> None:
    assert await folder.problems(host, text) == told


async def test_a_refused_block_is_told_with_its_reason_and_at_each_node_that_has_it(folder: Folder, host: Host) -> None:
    told = await folder.problems(host, pipeline("a = imports", "b = text", "c = broken\ninput = 3", "d = broken"))
    assert told == [
        'p.toml:4: node "a": "imports.wasm" imports env.now; a block imports nothing: it returns commands instead of calling out '
        "(unsupported)",
        'p.toml:8: node "c": "broken.wasm" is not a block: it is no WebAssembly module (unsupported)',
        'p.toml:11: node "d": "broken.wasm" is not a block: it is no WebAssembly module (unsupported)',
    ]


async def test_a_marked_literal_is_held_against_its_type(folder: Folder, host: Host) -> None:
    told = await folder.problems(
        host, pipeline("a = text", "b = pair\ninput = { a = { literal = 3 }, b = { literal = ['a.out'] } }")
    )
    assert told == ['p.toml:7: node "b": input.a must be text, found 3']


CODES = {
    "an absent block": (pipeline("a = absent"), "not_found"),
    "a refused block": (pipeline("a = imports", "b = text"), "unsupported"),
    "the same of two blocks": (pipeline("a = imports", "b = broken"), "unsupported"),
    "a block beyond a limit": (pipeline("a = text") + '[limits]\n"guest.module" = "8B"', "limit_exceeded"),
    "an absent folder": (pipeline("a = text", top='read = ["absent"]'), "capability_denied"),
    "an unknown provider": (pipeline("a = text", top='model = "oracle:x"'), "model_load_failed"),
    "an unknown provider of a node": (pipeline("a = text\nmodel = 'oracle:x'"), "model_load_failed"),
    "a seam": (pipeline("a = text", 'b = number\ninput = "a.out"'), "schema_validation_failed"),
    "a mistake in its form": (pipeline("a = text", top="modell = 3"), "schema_validation_failed"),
    "two of different kinds": (pipeline("a = absent", "b = imports"), "schema_validation_failed"),
    "a warning beside one": (pipeline("a = any", 'b = any\ninput = "a.out"', "c = absent"), "not_found"),
}


@pytest.mark.parametrize(("text", "code"), CODES.values(), ids=CODES.keys())
async def test_a_job_fails_with_the_code_of_what_is_wrong_with_its_pipeline_where_that_is_one(
    folder: Folder, host: Host, text: str, code: str
) -> None:
    folder.file("p.toml", text)
    envelope = await host.run("p.toml", "x")
    assert envelope.error is not None
    assert envelope.error.code == code, envelope.error.message


async def test_a_pipeline_file_that_is_not_there_is_not_found(folder: Folder, host: Host) -> None:
    for file in ("absent.toml", "p.toml/absent.toml"):
        folder.file("p.toml", "")
        envelope = await host.run(file, "x")
        assert envelope.error is not None
        assert envelope.error.code == "not_found"


async def test_a_pipeline_of_one_block_is_told_at_its_block(folder: Folder, host: Host) -> None:
    assert await folder.problems(host, 'name = "x"\nblock = "absent.wasm"') == [
        'p.toml:2: there is no block "absent.wasm" (not_found)'
    ]


async def test_problems_of_a_pipeline_in_python_name_their_node_and_no_line(folder: Folder, host: Host) -> None:
    wrap, text = Node(block="wrap.wasm"), Node(block="text.wasm")
    with pytest.raises(PipelineError) as caught:
        await host.check(Pipeline(name="x", read=["absent"], nodes=wrap >> text))  # type: ignore[arg-type]  # a chain becomes its nodes
    assert str(caught.value) == (
        'read grants "absent", which does not exist\n'
        'node "text": input must be text, and "wrap.out" gives {text: text}: write "wrap.out.text" for the bare value'
    )


async def test_a_checked_graph_knows_its_order_types_and_sinks_before_it_runs(folder: Folder, host: Host) -> None:
    folder.file(
        "p.toml",
        pipeline(
            'last = pair\ninput = { a = "decide.out.text", b = ["left.out?", "right.out?"] }',
            'left = text\ninput = "decide.out.text"',
            'right = text\ninput = "decide.out.text"',
            'decide = decide\ninput = { route = "job.input.way", text = "job.input.words" }\n'
            'branch = { l = "left", r = "right", both = ["left", "right"] }',
            'side = number\ninput = "job.input.count"',
        ),
    )
    graph = await host.check("p.toml")
    assert [node.name for node in graph.nodes] == ["decide", "side", "left", "right", "last"]
    assert [node.index for node in graph.nodes] == [0, 1, 2, 3, 4]
    assert str(graph.input) == "{count: number, way: text, words: text}"
    assert graph.sinks == ("side", "last")
    assert str(graph.result) == "{last: {a: text, b: [text]}, side: number}"
    assert graph.maybe == {"left", "right"}
    nodes = {node.name: node for node in graph.nodes}
    assert nodes["left"].deciders == (("decide", ("l", "both")),)
    assert nodes["last"].feeds == ("decide", "left", "right")
    assert nodes["last"].needs == {"decide"}
    assert nodes["left"].waits_for == ("decide",)


async def test_a_target_waits_for_its_decision_even_without_data_from_it(folder: Folder, host: Host) -> None:
    text = pipeline('a = text\ninput = "b.out"', 'b = text\ninput = "job.input.text"', 'z = decide\nbranch = { yes = "b" }')
    folder.file("p.toml", text)
    graph = await host.check("p.toml")
    assert [node.name for node in graph.nodes] == ["z", "b", "a"]


async def test_a_node_over_many_gives_its_summary(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline('a = decide\nover = "m.jsonl"', 'b = number\ninput = "a.out.succeeded"'))
    graph = await host.check("p.toml")
    assert str(graph.nodes[0].output) == (
        "{failed: number, failures: [{code: text, item: number, message: text}], "
        "results: [{item: number, value: {route: text, text: text}}], succeeded: number}"
    )
    assert str(graph.input) == "json"  # no node takes anything of the job


async def test_what_the_job_may_leave_out_is_not_asked_for(folder: Folder, host: Host) -> None:
    folder.file("p.toml", pipeline('a = list\ninput = ["job.input.title?", "job.input.text"]'))
    assert str((await host.check("p.toml")).input) == "{text: text}"


async def test_a_grant_that_is_no_path_at_all_is_told(folder: Folder, host: Host) -> None:
    told = await folder.problems(host, pipeline("a = text", top=f'read = ["n\\u0000", "{"y" * 5_000}"]'))
    assert told[0] == 'p.toml:2: read grants "n\0", which does not exist'
    assert told[1] == f'p.toml:2: read grants "{"y" * 5_000}", which cannot be read'


async def test_a_grant_that_may_not_be_read_is_told(folder: Folder, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.file("locked/a.txt", "")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")  # root may read everything
    assert await folder.problems(host, pipeline("a = text", top='read = ["locked"]')) == [
        'p.toml:2: read grants "locked", which cannot be read'
    ]


async def test_a_thousand_nodes_are_checked_in_a_moment_and_every_problem_of_them_is_told(folder: Folder, host: Host) -> None:
    chain = ["n0 = text", *(f'n{n} = text\ninput = "n{n - 1}.out"' for n in range(1, 1_000))]
    began = time.monotonic()
    assert await folder.problems(host, pipeline(*chain)) == []
    assert time.monotonic() - began < 20  # a guard against squares only: the benchmark has the time
    wrong = ["n0 = text", *(f'n{n} = text\ninput = ["n{n - 1}.out"]' for n in range(1, 1_000))]
    assert len(await folder.problems(host, pipeline(*wrong))) == 999


async def test_ten_thousand_nodes_in_circles_are_all_told(folder: Folder, host: Host) -> None:
    pairs = [f'a{n} = text\ninput = "b{n}.out"\n' for n in range(5_000)], [f'b{n} = text\ninput = "a{n}.out"' for n in range(5_000)]
    told = await folder.problems(host, pipeline(*pairs[0], *pairs[1]))
    assert len(told) == 5_000
    assert told[0] == 'p.toml:5: node "a0": waits for itself: a0 → b0 → a0'
