"""Pipeline files: every mistake of form is told in the author's words and at its line; Python gives the same model."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from cuttlefish.pipeline.places import Places
from cuttlefish.pipeline.spec import LoadedPipeline, Node, Pipeline, PipelineError, Repeat, load_pipeline, read_pipeline

WHOLE = """\
name = "digest"
description = "Sums up every report"
model = "stub:hello"
embedding_model = "stub:v"
data_policy = "any"
read = ["reports", "extra.txt"]
timeout = 60
examples = [{ path = "reports/a.pdf" }]
use_cases = ["reading many reports"]

[limits]
guest.memory = "512MiB"
"text.window" = 4096

[nodes.pages]
block = "read-document"

[nodes.chunks]
block = "chunk"
input = { text = "pages.out.text", most = 500 }
model = "stub:other"
timeout = 2.5
branch = { long = "many", short = ["one", "two"], none = [] }

[nodes.many]
block = "./many.wasm"
repeat = { until = "state", max = 5 }

[nodes.one]
block = "one@1.2"
over = "inbox/*.pdf"
concurrency = 4
on_error = "keep"
retry = 2

[nodes.two]
block = "two"
input = "chunks.out"
"""


def read(text: str) -> LoadedPipeline:
    return read_pipeline(text, Path("folder"), "p.toml")


def problems(text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        read(text)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return list(map(str, caught.value.problems))


def test_a_file_gives_every_key_that_there_is() -> None:
    pipeline = read(WHOLE).pipeline
    assert pipeline.name == "digest"
    assert pipeline.description == "Sums up every report"
    assert (pipeline.model, pipeline.embedding_model, pipeline.data_policy) == ("stub:hello", "stub:v", "any")
    assert pipeline.read == ["reports", "extra.txt"]
    assert pipeline.examples == [{"path": "reports/a.pdf"}]
    assert pipeline.use_cases == ["reading many reports"]
    assert pipeline.limit_values() == {"guest.memory": "512MiB", "text.window": 4096, "job.time": 60.0}
    assert list(pipeline.graph()) == ["pages", "chunks", "many", "one", "two"]
    chunks, many, one = pipeline.nodes["chunks"], pipeline.nodes["many"], pipeline.nodes["one"]
    assert chunks.input == {"text": "pages.out.text", "most": 500}
    assert chunks.branch == {"long": ["many"], "short": ["one", "two"], "none": []}
    assert chunks.timeout == 2.5
    assert many.repeat == Repeat(until="state", max=5)
    assert (one.over, one.concurrency, one.on_error, one.retry) == ("inbox/*.pdf", 4, "keep", 2)
    assert (pipeline.nodes["two"].concurrency, pipeline.nodes["two"].on_error, pipeline.nodes["two"].retry) == (1, "stop", 0)


def test_a_pipeline_of_one_block_is_one_node_called_as_the_pipeline() -> None:
    assert read('name = "count"\nblock = "word-count"').pipeline.graph() == {"count": Node(block="word-count")}


def test_the_same_in_python_gives_the_same_model() -> None:
    made = Pipeline(
        name="digest",
        description="Sums up every report",
        model="stub:hello",
        embedding_model="stub:v",
        data_policy="any",
        read=["reports", "extra.txt"],
        timeout=60,
        examples=[{"path": "reports/a.pdf"}],
        use_cases=["reading many reports"],
        limits={"guest": {"memory": "512MiB"}, "text.window": 4096},
        nodes={
            "pages": Node(block="read-document"),
            "chunks": Node(
                block="chunk",
                input={"text": "pages.out.text", "most": 500},
                model="stub:other",
                timeout=2.5,
                branch={"long": "many", "short": ["one", "two"], "none": []},  # type: ignore[dict-item]  # one target may be bare
            ),
            "many": Node(block="./many.wasm", repeat=Repeat(until="state", max=5)),
            "one": Node(block="one@1.2", over="inbox/*.pdf", concurrency=4, on_error="keep", retry=2),
            "two": Node(block="two", input="chunks.out"),
        },
    )
    assert made == read(WHOLE).pipeline


def test_a_chain_in_python_gives_the_model_of_the_file_that_says_the_same() -> None:
    written = read("""\
name = "digest"
[nodes.read-document]
block = "read-document"
[nodes.chunk]
block = "chunk@1.0"
input = "read-document.out"
[nodes.mine]
block = "blocks/mine.wasm"
input = { text = "chunk.out.text" }
[nodes.chunk-2]
block = "chunk"
input = "mine.out"
""").pipeline
    a, b = Node(block="read-document"), Node(block="chunk@1.0")
    c, d = Node(block="blocks/mine.wasm", input={"text": "chunk.out.text"}), Node(block="chunk")
    for chain in (a >> b >> c >> d, (a >> b) >> (c >> d), a >> (b >> c) >> d):
        assert Pipeline(name="digest", nodes=chain) == written  # type: ignore[arg-type]  # a chain becomes its nodes


def test_a_node_of_a_chain_has_a_good_name_whatever_its_block_is_called() -> None:
    chain = Node(block="job.wasm") >> Node(block="./3 parts.wasm") >> Node(block="é") >> Node(block="x" * 100)
    assert list(chain.named()) == ["node-job", "node-3-parts", "node--", "x" * 50]


def test_a_mistake_in_python_is_refused_like_one_in_a_file() -> None:
    for wrong in (
        {"nam": "x"},
        {"limits": {"guest.memroy": 1}},
        {"nodes": {"job": Node(block="b")}},
        {"nodes": {"a b": Node(block="b")}},
    ):
        with pytest.raises(ValidationError):
            Pipeline.model_validate({"name": "x", "nodes": {"a": Node(block="b")}} | wrong)


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "unknown key at the top": (
        'name = "x"\nblock = "b"\ndescripton = "y"',
        ['p.toml:3: unknown key "descripton"; did you mean "description"?'],
    ),
    "unknown table at the top": (
        'name = "x"\nblock = "b"\n\n[node.a]\nblock = "b"',
        ['p.toml:4: unknown key "node"; did you mean "nodes"?'],
    ),
    "unknown key of a node": (
        'name = "x"\n[nodes.a]\nblock = "b"\nimput = "job.input"',
        ['p.toml:4: unknown key "imput"; did you mean "input"?'],
    ),
    "unknown key of a node that is called like a key": (
        'name = "x"\n[nodes.repeat]\nblock = "b"\nretri = 1',
        ['p.toml:4: unknown key "retri"; did you mean "retry"?'],
    ),
    "unknown key of repeat": (
        'name = "x"\n[nodes.a]\nblock = "b"\n[nodes.a.repeat]\nuntil = "f"\nmax = 3\nmaximum = 3',
        ['p.toml:7: unknown key "maximum"; did you mean "max"?'],
    ),
    "unknown key within one line": (
        'name = "x"\n[nodes.a]\nblock = "b"\nrepeat = { until = "f", max = 3, untl = 2 }',
        ['p.toml:4: unknown key "untl"; did you mean "until"?'],
    ),
    "unknown limit": (
        'name = "x"\nblock = "b"\n[limits]\nguest.memroy = 1\njob.time = 5\njob.handels = 3',
        [
            'p.toml:4: there is no limit named "guest.memroy". Did you mean "guest.memory"?',
            'p.toml:6: there is no limit named "job.handels". Did you mean "job.handles"?',
        ],
    ),
    "wrong limit": (
        'name = "x"\nblock = "b"\n[limits]\n"guest.memory" = "plenty"',
        ['p.toml:4: guest.memory needs a number of bytes, found "plenty"'],
    ),
    "nothing at all": (
        "",
        ["p.toml:1: name is missing"],
    ),
    "neither block nor nodes": (
        'name = "x"',
        ["p.toml:1: a pipeline has either block or nodes; this one has neither"],
    ),
    "both block and nodes": (
        'name = "x"\n\nblock = "b"\n[nodes.a]\nblock = "b"\n',
        ["p.toml:3: a pipeline has either block or nodes; this one has both"],
    ),
    "a node without a block": (
        'name = "x"\n[nodes.a]\ninput = "job.input"',
        ["p.toml:2: nodes.a.block is missing"],
    ),
    "a node that only has a table": (
        'name = "x"\n\n[nodes.a.repeat]\nuntil = "f"\nmax = 2',
        ["p.toml:3: nodes.a.block is missing"],
    ),
    "text for a list": (
        'name = "x"\nblock = "b"\nread = "reports"',
        ['p.toml:3: read must be a list, found "reports"'],
    ),
    "a number for text": (
        'name = "x"\nblock = "b"\nmodel = 5',
        ["p.toml:3: model must be text, found 5"],
    ),
    "a number within a list over several lines": (
        'name = "x"\nblock = "b"\nread = [\n  "a", # the first\n  7,\n]',
        ["p.toml:5: read.1 must be text, found 7"],
    ),
    "text for a table": (
        'name = "x"\n[nodes]\na = "b"',
        ['p.toml:3: nodes.a must be a table, found "b"'],
    ),
    "a truth for seconds": (
        'name = "x"\nblock = "b"\ntimeout = true',
        ["p.toml:3: timeout must be a number of seconds above 0, found true"],
    ),
    "no seconds": (
        'name = "x"\n[nodes.a]\nblock = "b"\ntimeout = 0',
        ["p.toml:4: nodes.a.timeout must be a number of seconds above 0, found 0"],
    ),
    "endless seconds": (
        'name = "x"\n[nodes.a]\nblock = "b"\ntimeout = inf',
        ["p.toml:4: nodes.a.timeout must be a number of seconds above 0, found Infinity"],
    ),
    "counts out of range": (
        'name = "x"\n[nodes.a]\nblock = "b"\nconcurrency = 0\nretry = -1\n[nodes.b]\nblock = "b"\nconcurrency = 1.5\n'
        'repeat = { until = "f", max = 0 }',
        [
            "p.toml:4: nodes.a.concurrency must be a whole number from 1 to 1000, found 0",
            "p.toml:5: nodes.a.retry must be a whole number from 0 to 100, found -1",
            "p.toml:8: nodes.b.concurrency must be a whole number from 1 to 1000, found 1.5",
            "p.toml:9: nodes.b.repeat.max must be a whole number from 1 to 1000000, found 0",
        ],
    ),
    "a word that is none of those": (
        'name = "x"\nblock = "b"\ndata_policy = "local"',
        ['p.toml:3: data_policy must be "local_only" or "any", found "local"'],
    ),
    "an empty text": (
        'name = "x"\nread = [""]\n[nodes.a]\nblock = ""\nover = ""',
        ["p.toml:2: read.0 is empty", "p.toml:4: nodes.a.block is empty", "p.toml:5: nodes.a.over is empty"],
    ),
    "a branch that leads to a number": (
        'name = "x"\n[nodes.a]\nblock = "b"\n[nodes.a.branch]\nyes = 3\nno = ["a", 4]',
        [
            "p.toml:5: nodes.a.branch.yes must be the name of a node or a list of names, found 3",
            "p.toml:6: nodes.a.branch.no.1 must be text, found 4",
        ],
    ),
    "a branch without labels": (
        'name = "x"\n[nodes.a]\nblock = "b"\nbranch = {}',
        ["p.toml:4: nodes.a.branch is empty"],
    ),
    "bad names": (
        'name = "../x"\n[nodes."my node"]\nblock = "b"\n[nodes.7up]\nblock = "b"\n[nodes."a.b"]\nblock = "b"',
        [
            'p.toml:1: "../x" is no name: letters, digits, - and _, starting with a letter, 64 at most',
            'p.toml:2: "my node" is no name: letters, digits, - and _, starting with a letter, 64 at most',
            'p.toml:4: "7up" is no name: letters, digits, - and _, starting with a letter, 64 at most',
            'p.toml:6: "a.b" is no name: letters, digits, - and _, starting with a letter, 64 at most',
        ],
    ),
    "names that are taken": (
        'name = "x"\n[nodes.job]\nblock = "b"\n[nodes.item]\nblock = "b"',
        [
            'p.toml:2: a node cannot be called "job": in inputs the word means the job\'s own input',
            'p.toml:4: a node cannot be called "item": in inputs the word means the item of a node with over',
        ],
    ),
    "a date": (
        'name = "x"\n[nodes.a]\nblock = "b"\ninput = { day = 2026-01-31 }',
        ["p.toml:4: 2026-01-31 is no JSON value; write it as text, in quotes"],
    ),
    "a number that JSON does not have": (
        'name = "x"\n[nodes.a]\nblock = "b"\ninput = [1, nan]',
        ["p.toml:4: nan is no JSON value"],
    ),
    "deep nesting": (
        f'name = "x"\n[nodes.a]\nblock = "b"\ninput = {"[" * 66 + "]" * 66}',
        ["p.toml:4: a value may be nested 64 levels deep, not more"],
    ),
    "a key twice": (
        'name = "x"\nblock = "b"\nname = "y"\nmodel = "stub:"\nblock = "c"',
        ['p.toml:3: "name" stands here and already in line 1', 'p.toml:5: "block" stands here and already in line 2'],
    ),
    "a node's name twice": (
        'name = "x"\n[nodes.a]\nblock = "b"\n\n[nodes.b]\nblock = "b"\n[nodes.a]\nblock = "c"',
        [
            'p.toml:7: "nodes.a" stands here and already in line 2',
            'p.toml:8: "nodes.a.block" stands here and already in line 3',
        ],
    ),
    "a key twice within one line": (
        'name = "x"\n[nodes.a]\nblock = "b"\ninput = { a = 1, a = 2 }',
        ['p.toml:4: "nodes.a.input.a" stands here and already in line 4'],
    ),
    "a name in two forms": (
        'name = "x"\n[nodes]\na.block = "b"\n[nodes.a]\nblock = "c"',
        ['p.toml:5: "nodes.a.block" stands here and already in line 3'],
    ),
    "an unfinished key": ('name = "x"\nblock\n', ["p.toml:2: is not TOML: expected '=' after a key in a key/value pair"]),
    "an unfinished value": ('name = "x"\nblock =', ["p.toml:2: is not TOML: invalid value"]),
    "an unfinished text": ('name = "x\nblock = "b"', ["p.toml:1: is not TOML: a text is not closed where its line ends"]),
    "several at once, in the file's order": (
        'nmae = "x"\nmodel = 1\n[nodes.b]\nblok = "b"\n[nodes.a]\nblock = "b"\nretry = "often"',
        [
            "p.toml:1: name is missing",
            'p.toml:1: unknown key "nmae"; did you mean "name"?',
            "p.toml:2: model must be text, found 1",
            "p.toml:3: nodes.b.block is missing",
            'p.toml:4: unknown key "blok"; did you mean "block"?',
            'p.toml:7: nodes.a.retry must be a whole number from 0 to 100, found "often"',
        ],
    ),
}


@pytest.mark.parametrize(("text", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_of_form_is_told_with_its_line(text: str, told: list[str]) -> None:
    assert problems(text) == told


def test_nesting_without_end_is_a_problem_and_no_crash() -> None:
    assert problems(f'name = "x"\nexamples = {"[" * 100_000}') in (
        ["p.toml: is nested too deeply"],
        ["p.toml:2: is not TOML: unclosed array"],
    )


FILES = {
    "absent": (lambda path: None, "{}: cannot be read: no such file or directory"),
    "a folder": (lambda path: path.mkdir(), "{}: cannot be read: is a directory"),
    "a FIFO": (os.mkfifo, "{}: is no regular file"),
    "no text": (lambda path: path.write_bytes(b'name = "x"\n\xff'), "{}:2: is not UTF-8 text"),
    "huge": (lambda path: path.write_bytes(b"#" * (16 << 20) + b"#"), "{}: is larger than a pipeline may be, 16 MiB"),
}


@pytest.mark.parametrize(("make", "told"), FILES.values(), ids=FILES.keys())
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, make: object, told: str) -> None:
    path = tmp_path / "p.toml"
    make(path)  # type: ignore[operator]  # each makes the path into something
    with pytest.raises(PipelineError) as caught:
        load_pipeline(path)
    assert str(caught.value) == told.format(path)


def test_the_mark_that_some_editors_put_before_a_text_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_bytes(b'\xef\xbb\xbfname = "x"\r\nblock = "b"\r\n')
    assert load_pipeline(tmp_path / "p.toml").pipeline.name == "x"


def test_a_files_folder_is_absolute_so_that_paths_mean_one_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "p.toml").write_text('name = "x"\nblock = "b"')
    monkeypatch.chdir(tmp_path)
    assert load_pipeline("sub/p.toml").folder == tmp_path / "sub"


PLACES = '''\
# a = 1
a = "x = 1" # b = 2
text = """
fake = 1
[fake]
\\""" still
"""
"quo.ted" . 'in' = [
  1, # one
  { x = 1, y = [ 2,
    3 ] },
]
[t . "u v"]
k = {
  inner = 1,
}
[[many]]
k = 1
[[many]]
k = 2
[many.sub]
z = 1
'''


def test_every_key_and_item_has_its_own_line_however_it_is_written() -> None:
    places = Places(PLACES)
    lines = {
        ("a",): 2,
        ("text",): 3,
        ("quo.ted", "in"): 8,
        ("quo.ted", "in", 0): 9,
        ("quo.ted", "in", 1): 10,
        ("quo.ted", "in", 1, "y"): 10,
        ("quo.ted", "in", 1, "y", 1): 11,
        ("t", "u v"): 13,
        ("t",): 13,
        ("t", "u v", "k", "inner"): 15,
        ("many",): 17,
        ("many", 0, "k"): 18,
        ("many", 1): 19,
        ("many", 1, "k"): 20,
        ("many", 1, "sub", "z"): 22,
        ("many", 1, "absent"): 19,
        ("absent",): 1,
    }
    assert {path: places.line(path) for path in lines} == lines
    assert places.twice() == []


@pytest.mark.parametrize(
    "text", ["[", "[[", "a", "a=", 'a="', "a=[", "a={", "a={b", "=", "]", "a.=1", "\x00", 'a="""', "[a\nb=1", "a=[{]}"]
)
def test_what_is_no_toml_never_stops_the_search_for_lines(text: str) -> None:
    assert Places(f"{text}\nlast = 1\n").line(("none",)) == 1
