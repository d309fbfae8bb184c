"""`[input]`, `[[rules]]`, examples and families of a pipeline's file: each mistake at its line, each promise kept by every job."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import Folder

from cuttlefish import Host, open_host
from cuttlefish.pipeline.expressions import Reference
from cuttlefish.pipeline.families import load_families
from cuttlefish.pipeline.inputs import check_examples, find_form
from cuttlefish.pipeline.spec import Node, Pipeline, PipelineError, read_pipeline
from cuttlefish_abi import Ty

WORDS = "range, one_of, regex, length, exactly_one, at_least_one, all_of, any_of, not, custom"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    folder = Folder(tmp_path)
    folder.block("path", "{path: text} -> {path: text}")
    folder.block("text", "text -> text")
    folder.block("any", "json -> json")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with open_host() as host:
        yield host


FORMS: dict[str, tuple[str, list[str]]] = {
    "an unknown key of a field": (
        '[input.path]\ndescripton = "x"',
        ['p.toml:4: unknown key "descripton"; did you mean "description"?'],
    ),
    "a field that is a number": ("[input]\npath = 3", ["p.toml:4: input.path must be text or a table, found 3"]),
    "a type that is none": ('[input.path]\ntype = "txt"', ['p.toml:4: "txt" is no type; did you mean "text"?']),
    "an optional that is text": (
        '[input.path]\noptional = "yes"',
        ['p.toml:4: input.path.optional must be true or false, found "yes"'],
    ),
    "an unknown rule": ('[[rules]]\nrule = "rnge"', ['p.toml:3: rules.0.rule is "rnge"; did you mean "range"?']),
    "a rule without a kind": (
        '[[rules]]\nfield = "path"',
        [f"p.toml:3: rules.0 has no rule; it says which one it is: {WORDS}"],
    ),
    "a bound that is text": (
        '[[rules]]\nrule = "range"\nfield = "path"\nmin = "3"',
        ['p.toml:6: rules.0.min must be a number, found "3"'],
    ),
    "an unknown key deep in a rule": (
        '[[rules]]\nrule = "not"\n\n[rules.of]\nrule = "any_of"\nof = [\n  { rule = "length", field = "path", min = 1 },\n'
        '  { rule = "length", field = "path", mni = 1 },\n]',
        ['p.toml:10: unknown key "mni"; did you mean "min"?'],
    ),
    "a rule that cannot be written in a file": (
        '[[rules]]\nrule = "custom"\nname = "x"\nsummary = "x"\ncheck = "x"',
        ['p.toml:7: unknown key "check"; known: message, rule, name, summary, field'],
    ),
    "one field alone": (
        '[[rules]]\nrule = "exactly_one"\nfields = ["path"]',
        ["p.toml:5: rules.0.fields must have 2 items at least, found 1"],
    ),
    "a pattern that cannot be": (
        '[[rules]]\nrule = "regex"\nfield = "path"\npattern = "(a"',
        ['p.toml:6: pattern "(a" cannot be used: unclosed group'],
    ),
}


@pytest.mark.parametrize(("text", "told"), FORMS.values(), ids=FORMS)
async def test_a_mistake_of_form_is_told_at_its_line(folder: Folder, host: Host, text: str, told: list[str]) -> None:
    assert await folder.problems(host, f'name = "p"\nblock = "path.wasm"\n{text}\n') == told


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "a field that nothing takes": (
        '[input]\npth = "The file"',
        ['p.toml:4: no node takes a field "pth", and what blocks read beside that needs its type here; did you mean "path"?'],
    ),
    "a type that does not fit": (
        '[input.path]\ntype = "number"',
        ['p.toml:4: type is number, and nodes take "path" as text'],
    ),
    "optional where it is needed": (
        "[input.path]\noptional = true",
        ['p.toml:4: "path" cannot be optional: a node needs it. Give it a default, or leave optional out'],
    ),
    "values of another type": (
        '[input.path]\ndefault = 3\nexample = ["a"]',
        [
            'p.toml:4: default must be text, found 3 (the type of "path")',
            'p.toml:5: example must be text, found ["a"] (the type of "path")',
        ],
    ),
    "a rule on no field": (
        '[[rules]]\nrule = "not"\nof = { rule = "length", field = "pth.x[2]", max = 1 }',
        ['p.toml:3: the rule reads "pth.x[2]", and the input has no field "pth"; did you mean "path"?'],
    ),
    "a custom rule that no package has": (
        '[[rules]]\nrule = "any_of"\nof = [\n  { rule = "length", field = "path", max = 1 },\n  { rule = "custom", name = "iban", '
        'summary = "s" },\n]',
        [
            'p.toml:7: there is no custom rule "iban"; no package that is installed offers any (entry points of the group '
            "cuttlefish.rules)"
        ],
    ),
    "a family without its file": (
        'family = "papers"',
        ['p.toml:3: family is "papers", and there is no family.toml beside the pipeline that describes it'],
    ),
    "examples that do not fit, which is a warning": (
        'examples = [\n  { path = "a" },\n  { path = 3 },\n  { title = "Long", input = { path = "abcd" } },\n]\n'
        '[[rules]]\nrule = "length"\nfield = "path"\nmax = 3',
        [
            "p.toml:5: warning: the example does not fit what the pipeline takes, {path: text}: "
            "the example.path must be text, found 3",
            "p.toml:6: warning: path must have at most 3 characters, found 4",
        ],
    ),
}


@pytest.mark.parametrize(("text", "told"), MISTAKES.values(), ids=MISTAKES)
async def test_what_does_not_fit_the_blocks_is_told_at_its_line(folder: Folder, host: Host, text: str, told: list[str]) -> None:
    assert await folder.problems(host, f'name = "p"\nblock = "path.wasm"\n{text}\n') == told


@pytest.mark.parametrize(
    ("block", "text", "told"),
    [
        (
            "text",
            '[input]\npath = "x"',
            'p.toml:4: "path" is described, and the input is no record but text; describe it as "input"',
        ),
        ("text", '[input]\ninput = "x"\n[[rules]]\nrule = "length"\nfield = "input"\nmax = 3', None),
        ("any", '[input]\npath = { type = "text" }', None),
        ("any", '[[rules]]\nrule = "length"\nfield = "whatever"\nmax = 3', None),
    ],
)
async def test_an_input_that_is_no_record_is_described_as_input(
    folder: Folder, host: Host, block: str, text: str, told: str | None
) -> None:
    assert await folder.problems(host, f'name = "p"\nblock = "{block}.wasm"\n{text}\n') == ([told] if told else [])


async def test_a_field_is_described_only_where_some_node_reads_the_input(folder: Folder, host: Host) -> None:
    text = 'name = "p"\n[nodes.one]\nblock = "text.wasm"\ninput = "fixed"\n[input]\nx = { type = "text" }\n'
    assert await folder.problems(host, text) == ['p.toml:6: "x" is described, and no node reads the job\'s input']


JOIN = """
name = "p"
[nodes.one]
block = "any.wasm"
input = { path = "job.input.path", size = "job.input.size?", more = "job.input.more?" }
[input]
path = { type = "text", default = "a.txt" }
size = { type = "number", default = 5 }
more = { type = "[text]" }
[[rules]]
rule = "range"
field = "size"
max = 9
"""


async def outcome(host: Host, value: object, **options: Any) -> object:
    envelope = await host.run("p.toml", value, **options)
    return envelope.error.message if envelope.error else envelope.result


async def test_defaults_types_and_rules_hold_for_every_job(folder: Folder, host: Host) -> None:
    folder.file("p.toml", JOIN)
    assert await outcome(host, {}) == {"path": "a.txt", "size": 5}
    assert await outcome(host, {"path": "b", "size": 2, "more": ["x"]}) == {"path": "b", "size": 2, "more": ["x"]}
    assert await outcome(host, {"size": "2"}) == 'input.size must be a number, found "2"'
    assert await outcome(host, {"more": [1]}) == "input.more[0] must be text, found 1"
    assert await outcome(host, {"size": 10}) == "size must be at most 9, found 10"
    assert await outcome(host, {"path": 1}) == (
        "the input does not fit what the pipeline takes, {path: text}: input.path must be text, found 1"
    )


KEYS = st.sampled_from(
    ["rule", "field", "fields", "min", "max", "of", "values", "pattern", "type", "default", "optional", "range", "x"]
)
WORDS_OR_NOT = st.sampled_from([*WORDS.split(", "), "path", "a[*].b", "(", "[text]", ""])
SCALARS = st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=True) | WORDS_OR_NOT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


def as_toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return str(value) if isinstance(value, float) else json.dumps(value)


@given(st.dictionaries(st.sampled_from(["input", "rules", "examples", "family", "use_cases"]), VALUES, min_size=1))
def test_whatever_stands_in_the_new_tables_is_read_or_told_with_its_line(tables: dict[str, object]) -> None:
    text = 'name = "p"\nblock = "path.wasm"\n' + "".join(f"{key} = {as_toml(value)}\n" for key, value in tables.items())
    try:
        loaded = read_pipeline(text, Path(), "p.toml")
    except PipelineError as error:
        problems, loaded = error.problems, None
    if loaded is None:
        assert all(problem.line is not None and problem.message and "\n" not in problem.message for problem in problems)
        return
    form, wrong = find_form(Ty.parse("{path: text}"), [Reference("job")], loaded.pipeline)
    lines = [loaded.problem(message, *path).line for message, path in wrong]
    assert all(line is not None and line > 2 for line in lines)
    check_examples(form, loaded.pipeline)


async def test_a_pipeline_made_in_python_has_the_same_tables(folder: Folder, host: Host) -> None:
    rules = [{"rule": "one_of", "field": "path", "values": ["a"]}]
    pipeline = Pipeline.model_validate(
        {"name": "p", "nodes": Node(block="path.wasm"), "input": {"path": "The file"}, "rules": rules}
    )
    envelope = await host.run(pipeline, {"path": "b"})
    assert envelope.error is not None
    assert (envelope.error.code, envelope.error.message) == ("schema_validation_failed", 'path must be one of "a", found "b"')


async def test_examples_are_inputs_or_tables_with_a_title(folder: Folder, host: Host) -> None:
    text = 'name = "p"\nblock = "any.wasm"\n'
    text += 'examples = [{ a = 1 }, { title = "T", input = 3, note = "N" }, { title = "T", inptu = 3 }]\n'
    folder.file("p.toml", text)
    told = (await host.check("p.toml")).loaded.pipeline.examples_told()
    assert [(one.title, one.input, one.note) for one in told] == [
        (None, {"a": 1}, None),
        ("T", 3, "N"),
        (None, {"title": "T", "inptu": 3}, None),
    ]


async def test_a_family_is_looked_up_beside_the_pipeline(folder: Folder, host: Host) -> None:
    text = 'name = "p"\nblock = "text.wasm"\nfamily = "paper"\n'
    folder.file("family.toml", '[papers]\ndescription = "All papers."\n')
    assert await folder.problems(host, text) == [
        'p.toml:3: family is "paper", and family.toml has none of that name; did you mean "papers"?'
    ]
    folder.file("family.toml", '[paper]\ndescription = "All papers."\nprograms = ["tesseract"]\n')
    assert await folder.problems(host, text) == []
    assert load_families(Path("family.toml")).families["paper"].programs == ["tesseract"]


def test_a_file_of_families_is_told_its_mistakes_at_their_lines(folder: Folder) -> None:
    folder.file("family.toml", '[papers]\ndescrption = "x"\n[b]\ndescription = "x"\nread = "x"\n["c d"]\ndescription = "x"\n')
    with pytest.raises(PipelineError) as caught:
        load_families(Path("family.toml"))
    assert list(map(str, caught.value.problems)) == [
        "family.toml:1: papers.description is missing",
        'family.toml:2: unknown key "descrption"; did you mean "description"?',
        'family.toml:5: b.read must be a list, found "x"',
        'family.toml:6: "c d" is no name: letters, digits, - and _, starting with a letter, 64 at most',
    ]


def test_a_custom_rule_comes_from_an_installed_package(folder: Folder) -> None:
    folder.file(
        "site/our_rules.py", 'def short(arguments):\n    return "path is too long" if len(arguments["path"]) > 3 else None\n'
    )
    folder.file("site/our_rules-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: our-rules\nVersion: 1\n")
    folder.file("site/our_rules-1.dist-info/entry_points.txt", "[cuttlefish.rules]\nshort = our_rules:short\n")
    rule = '[[rules]]\nrule = "custom"\nsummary = "a short path"\nfield = "path"\n'
    folder.file("p.toml", f'name = "p"\nblock = "path.wasm"\n{rule}name = "short"\n')
    folder.file("q.toml", f'name = "q"\nblock = "path.wasm"\n{rule}name = "shrt"\n')
    environment = os.environ | {"PYTHONPATH": str(folder.path / "site")}

    def cuttlefish(*words: str) -> str:
        command = [sys.executable, "-m", "cuttlefish", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stdout

    assert json.loads(cuttlefish("run", "p.toml", "--input", "path=abcd"))["error"]["message"] == "path is too long"
    assert json.loads(cuttlefish("run", "p.toml", "--input", "path=abc"))["result"] == {"path": "abc"}
    told = 'q.toml:7: there is no custom rule "shrt"; there are: short (entry points of the group cuttlefish.rules)\n'
    assert cuttlefish("check", "q.toml") == told
