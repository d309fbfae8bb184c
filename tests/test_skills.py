"""Pipelines as skills: what an agent is told, what it may give, what it can never get, and what is refused at start."""

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from jsonschema import Draft202012Validator
from pipelines import Folder
from pydantic import JsonValue

from cuttlefish import Envelope, Host, open_host
from cuttlefish.mcp.checking import check_arguments
from cuttlefish.mcp.describe import describe_family, describe_skill
from cuttlefish.mcp.loading import open_skills
from cuttlefish.mcp.probes import Needs, probe_family, probe_needs, probe_skill
from cuttlefish.mcp.schemas import LARGE_RESULT, envelope_schema
from cuttlefish.mcp.skill import Family, Ready, Skill, SkillSet, Unavailable
from cuttlefish.pipeline.spec import PipelineError

FILE = """
name = "count"
description = "Counts the words of a letter."
read = ["letters"]
use_cases = ["To see how long a letter is"]
examples = [{ path = "letters/a.txt" }, { title = "Again", input = { path = "letters/b.txt" }, note = "The other one." }]
block = "word-count"

[input]
path = { description = "The letter", example = "letters/a.txt" }
size = { type = "number", default = 3, description = "Nothing" }

[[rules]]
rule = "regex"
field = "path"
pattern = "[.]txt$"
summary = "a path of a text"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    folder = Folder(tmp_path)
    folder.file("letters/a.txt", "one two")
    folder.file("secret.txt", "three")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with open_host() as host:
        yield host


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def load(stack: AsyncExitStack, host: Host, *sources: str, **options: Any) -> SkillSet:
    return await stack.enter_async_context(open_skills(host, [Path(source) for source in sources], **options))


async def only(stack: AsyncExitStack, host: Host, folder: Folder, text: str, **options: Any) -> Skill:
    folder.file("p.toml", text)
    (skill,) = (await load(stack, host, "p.toml", **options)).skills.values()
    return skill


async def refused(host: Host, *sources: str, **options: Any) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        async with open_skills(host, [Path(source) for source in sources], **options):
            raise AssertionError("not refused")
    return list(map(str, caught.value.problems))


def told(skill: Skill, arguments: dict[str, JsonValue]) -> list[dict[str, JsonValue]]:
    return [violation.as_json() for violation in check_arguments(skill, arguments).violations]


async def test_a_pipeline_says_what_an_agent_has_to_know(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    skill = await only(stack, host, folder, FILE)
    assert (skill.name, skill.use_cases) == ("count", ("To see how long a letter is",))
    assert skill.description == (
        "Counts the words of a letter.\nLocal only: nothing that it reads leaves this machine.\n"
        f"It may read {folder.path}/letters. Relative paths start at {folder.path}."
    )
    assert skill.input_schema == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The letter", "examples": ["letters/a.txt"]},
            "size": {"type": "number", "description": "Nothing", "default": 3},
        },
        "additionalProperties": False,
        "required": ["path"],
    }
    assert [(one.title, one.arguments, one.note) for one in skill.examples] == [
        ("Example 1", {"path": "letters/a.txt"}, None),
        ("Again", {"path": "letters/b.txt"}, "The other one."),
    ]
    hints = skill.annotations
    assert (hints.read_only, hints.destructive, hints.idempotent, hints.open_world) == (True, False, True, False)


async def test_a_pipeline_that_may_ask_other_machines_says_so(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    skill = await only(stack, host, folder, 'name = "p"\nblock = "join"\ndata_policy = "any"\n')
    assert skill.description.splitlines() == [
        "Runs the pipeline p: {items: [json]} → {count: number, items: [json], text: text}.",
        "What it reads may be sent to a model on another machine.",
    ]
    assert skill.annotations.open_world


@pytest.mark.parametrize(
    ("signature", "given", "schema", "arguments", "result"),
    [
        ("text -> text", "", {"input": {"type": "string"}}, {"input": "x"}, "x"),
        ("[number] -> [number]", "", {"input": {"type": "array", "items": {"type": "number"}}}, {"input": [1]}, [1]),
        ("text -> text", '[input]\ninput = { description = "A", default = "d" }', None, {}, "d"),
        ("json -> json", "", None, {"any": [1]}, {"any": [1]}),
        (
            "{a: {b: [bytes]}, c: bool, d: json} -> json",
            "",
            {
                "a": {
                    "type": "object",
                    "properties": {"b": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}}},
                    "required": ["b"],
                },
                "c": {"type": "boolean"},
                "d": {},
            },
            {"a": {"b": ["QUJD"], "more": 1}, "c": True, "d": None},
            {"a": {"b": ["QUJD"], "more": 1}, "c": True, "d": None},
        ),
    ],
    ids=["text", "list", "text with a default", "anything", "nested record"],
)
async def test_every_type_of_input_is_an_object_of_arguments(
    stack: AsyncExitStack,
    folder: Folder,
    host: Host,
    signature: str,
    given: str,
    schema: object,
    arguments: dict[str, JsonValue],
    result: object,
) -> None:
    folder.block("own", signature)
    skill = await only(stack, host, folder, f'name = "p"\nblock = "own.wasm"\n{given}\n')
    Draft202012Validator.check_schema(skill.input_schema)
    assert skill.input_schema["type"] == "object"
    if schema is not None:
        assert skill.input_schema["properties"] == schema
    assert told(skill, arguments) == []
    assert (await skill.start(arguments).envelope()).result == result


async def test_a_pipeline_that_takes_nothing_takes_no_arguments(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    skill = await only(
        stack, host, folder, 'name = "p"\nread = ["letters"]\n[nodes.all]\nblock = "word-count"\nover = "letters/*"\n'
    )
    assert skill.input_schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert told(skill, {"path": "x"}) == [
        {"field": "path", "rule": "unknown", "message": "there is no argument path; it takes none", "expected": {"one_of": []}}
    ]
    assert (await skill.start({}).envelope()).result["succeeded"] == 1  # type: ignore[index,call-overload]  # JSON


async def test_arguments_are_judged_by_the_schema_and_then_by_the_rules(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    skill = await only(stack, host, folder, FILE)
    assert told(skill, {"path": "a.txt"}) == []
    assert told(skill, {"pth": "a.pdf", "size": "2"}) == [
        {
            "field": "size",
            "rule": "type",
            "message": 'size must be a number, found "2"',
            "expected": {"type": "number"},
            "got": "2",
        },
        {
            "field": "pth",
            "rule": "unknown",
            "message": 'there is no argument pth; did you mean "path"?',
            "expected": {"one_of": ["path", "size"]},
        },
        {"field": "path", "rule": "required", "message": "path is missing", "expected": {"type": "string"}},
    ]
    assert [one["rule"] for one in told(skill, {"path": "a.pdf"})] == ["regex"]


def shaped(properties: dict[str, JsonValue], **more: JsonValue) -> Skill:
    schema: dict[str, JsonValue] = {"type": "object", "properties": properties, **more}
    nothing: Any = None
    return Skill("s", "d", schema, {}, nothing, (), (), (), None, nothing, nothing)


@pytest.mark.parametrize(
    ("schema", "value", "field", "message"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [1, 2.5], "x[1]", "x[1] must be a whole number, found 2.5"),
        (
            {"type": "object", "properties": {"y": {"enum": ["long", 2]}}},
            {"y": "lng"},
            "x.y",
            'x.y must be one of "long", 2 (did you mean "long"?), found "lng"',
        ),
        ({"type": ["string", "null"]}, 3, "x", "x must be text or null, found 3"),
        ({"type": "number"}, True, "x", "x must be a number, found true"),
        ({"minimum": 3}, 2, "x", "x must be at least 3, found 2"),
        ({"maxLength": 1}, "ab", "x", 'x may have 1 characters at most, found "ab"'),
        ({"maxItems": 1}, [1, 2], "x", "x may have 1 items at most, found [1, 2]"),
        ({"pattern": "^a$"}, "b", "x", 'x must match ^a$, found "b"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3, "x", "x has none of the forms that it may have, found 3"),
        ({"required": ["z"]}, {}, "x.z", "x.z is missing"),
        (
            {"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False},
            {"a1": 2},
            "x.a1",
            "x.a1 must be text, found 2",
        ),
        ({"const": 1}, True, "x", "x must be 1, found true"),
        ({"minProperties": 2}, {}, "x", "x does not keep to the schema (minProperties), found {}"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and value else "",
)
def test_each_mistake_has_its_path_and_a_sentence(schema: dict[str, JsonValue], value: JsonValue, field: str, message: str) -> None:
    (one,) = told(shaped({"x": schema}), {"x": value})
    assert (one["field"], one["message"]) == (field, message)


def test_hostile_arguments_are_answered_quickly_and_shortly() -> None:
    skill = shaped({"x": {"type": "string", "pattern": "^(a+)+$"}, "y": {"type": "array", "items": {"type": "string"}}})
    deep: JsonValue = 1
    for _ in range(100_000):
        deep = [deep]
    assert [one["rule"] for one in told(skill, {"z": deep})] == ["depth"]
    assert [one["message"] for one in told(skill, {"y": [[1] * 1000] * 300})] == [
        "the arguments hold more than 200000 values; give a file's path"
    ]
    assert [one["rule"] for one in told(skill, {"x": "a" * 16_000 + "b"})] == ["pattern"]
    assert told(skill, {"x": "a" * 1_000_000})[0]["message"].startswith(
        "x may have 16384 characters, because a pattern is tried on it"
    )  # type: ignore[union-attr]
    many = told(skill, {"y": [{"k" * 10_000: 1}] * 10_000})
    assert len(many) == 20
    assert len(json.dumps(many)) < 20_000
    unknown = told(shaped({}, additionalProperties=False), {"n" * 1_000_000: 1})
    assert len(json.dumps(unknown)) < 1_000


def test_a_schema_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        with pytest.raises(Exception, match=r"schema\.json"):
            told(shaped({"x": {"$ref": address}}), {"x": 1})
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_arguments_never_widen_what_a_skill_may_read(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    text = FILE.replace('pattern = "[.]txt$"', 'pattern = "t"')
    skill = await only(stack, host, folder, text)
    for path in ("secret.txt", "letters/../secret.txt", str(folder.path / "secret.txt"), "/etc/hosts"):
        envelope = await skill.start({"path": path, "read": ["/"], "base_dir": "/", "model": "stub:"}).envelope()
        assert envelope.error is not None
        assert envelope.error.code == "capability_denied", path
    assert [one["field"] for one in told(skill, {"path": "letters/a.txt", "read": ["/"]})] == ["read"]
    assert (await skill.start({"path": "letters/a.txt"}).envelope()).error is None


async def test_the_operators_options_hold_for_every_job(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    folder.file("q.toml", 'name = "q"\nblock = "summarize"\n')
    skills = await load(
        stack, host, "q.toml", model="stub:Well.", read=iter([folder.path / "letters"]), base_dir=folder.path / "letters"
    )
    skill = skills.skills["q"]
    for _ in range(2):  # what may be read was given as something that can be gone through once
        assert (await skill.start({"path": "a.txt"}).envelope()).result == {"path": "a.txt", "summary": "Well."}
    assert skill.description.endswith(f"It may read {folder.path}/letters. Relative paths start at {folder.path}/letters.")


async def test_a_pipeline_stays_as_it_was_when_it_was_loaded(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    skill = await only(stack, host, folder, FILE)
    folder.file("p.toml", FILE.replace('read = ["letters"]', 'read = ["/"]'))
    assert (await skill.start({"path": "secret.txt"}).envelope()).error is not None
    folder.path.joinpath("p.toml").unlink()
    assert (await skill.start({"path": "letters/a.txt"}).envelope()).error is None


async def test_an_envelope_fits_the_schema_of_its_skill(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    skill = await only(stack, host, folder, FILE)
    validator = Draft202012Validator(skill.output_schema)
    for path in ("letters/a.txt", "nowhere.txt"):
        validator.validate((await skill.start({"path": path}).envelope()).model_dump(mode="json"))
    job = skill.start({"path": "letters/a.txt"})
    job.cancel()
    validator.validate((await job.envelope()).model_dump(mode="json"))
    whole: dict[str, Any] = (await skill.start({"path": "letters/a.txt"}).envelope()).model_dump(mode="json")
    whole["result"]["chars"] = str(2**60)
    validator.validate(whole)
    validator.validate(whole | {"result": {"resource": "u:1", "size_bytes": 9, "preview": "{"}})
    assert not validator.is_valid(whole | {"result": {"path": "a"}})
    assert not validator.is_valid(whole | {"result": whole["result"] | {"chars": "many"}})


def test_every_field_of_an_envelope_is_in_the_schema() -> None:
    schema: Any = envelope_schema({"type": "string"})
    assert set(schema["properties"]) == set(Envelope.model_fields)
    assert schema["properties"]["result"]["anyOf"] == [{"type": "string"}, LARGE_RESULT]
    assert set(schema["properties"]["usage"]["properties"]) == {"tokens_in", "tokens_out", "duration_ms", "model"}


async def test_all_that_is_wrong_with_any_source_is_told_at_once(folder: Folder, host: Host) -> None:
    folder.block("image", "{image: image} -> text")
    folder.file("many/a.toml", FILE.replace('"letters"', '"../letters"'))
    folder.file("many/b.toml", 'name = "count"\nblock = "join"\n')
    folder.file("many/c.toml", 'name = "c"\nblock = "jion"\n')
    folder.file("many/d.toml", 'name = "describe_skill"\nblock = "join"\n')
    folder.file("many/e.toml", 'name = "e"\nblock = "../image.wasm"\n')
    folder.file("many/f.toml", f'name = "f"\ndescription = "{"x" * 4000}"\nblock = "join"\n')
    folder.file("many/family.toml", "")
    folder.path.joinpath("empty").mkdir()
    assert await refused(host, "many", "empty", "nowhere.toml", "a.txt", "none.py") == [
        'many/b.toml:1: the name "count" is taken by many/a.toml:2',
        'many/c.toml:2: there is no block "jion"; did you mean "join"? A file is written with its folder, .wasm or .py (not_found)',
        'many/d.toml:1: the name "describe_skill" is one of the server\'s own tools',
        "many/e.toml:1: takes {image: image}: an image or document that is open already, which nobody outside a job has; "
        "take its path",
        "many/f.toml:2: description may have 3500 characters where a pipeline is a skill, and has 4000",
        "empty: has no pipelines: no .toml files",
        "nowhere.toml: cannot be read: no such file or directory",
        "a.txt: is no source of skills: those are .toml files, folders of them, and .py files",
        "none.py: there is no such Python file",
    ]


async def test_a_folder_is_its_pipelines_by_name(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    folder.file("many/b.toml", 'name = "b"\nblock = "join"\n')
    folder.file("many/a.toml", 'name = "z"\nblock = "join"\n')
    folder.file("many/notes.txt", "no pipeline")
    assert list((await load(stack, host, "many")).skills) == ["z", "b"]


FAMILY = '[letters]\ndescription = "All about letters."\nprograms = ["no-such-program"]\n'


async def test_what_a_family_lacks_is_told_before_what_a_skill_lacks(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    folder.file("family.toml", FAMILY)
    skill = await only(stack, host, folder, FILE.replace("read =", 'family = "letters"\nmodel = "llama-cpp:no-such-model"\nread ='))
    assert skill.family is not None
    assert await probe_skill(skill) == Unavailable(
        'the program "no-such-program" is not installed', 'Install it so that "no-such-program" is found on the PATH'
    )
    folder.file("family.toml", FAMILY.replace("no-such-program", "sh"))
    async with open_skills(host, [Path("p.toml")]) as skills:
        (again,) = skills.skills.values()
        assert list(skills.families) == ["letters"]
        found = await probe_skill(again)
    assert isinstance(found, Unavailable)
    assert found.reason == 'there is no model named "no-such-model" on this machine'


async def test_one_family_is_described_in_one_place(folder: Folder, host: Host) -> None:
    for name in ("a", "b"):
        folder.file(f"{name}/family.toml", FAMILY)
        folder.file(f"{name}/{name}.toml", f'name = "{name}"\nblock = "join"\nfamily = "letters"\n')
    place = folder.path / "a" / "family.toml"
    assert await refused(host, "a", "b") == [f'b/b.toml:3: the family "letters" is described in {place} already']


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTTLEFISH_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own.gguf").write_bytes(b"GGUF")
    return tmp_path


@pytest.mark.parametrize(
    ("model", "reason", "hint"),
    [
        ("llama-cpp:own", None, None),
        ("stub:", None, None),
        ("llama-cpp:smollm2", 'the model "smollm2" is not on this machine yet', "Run: cuttlefish models pull smollm2"),
        ("llama-cpp:./none.gguf", 'there is no model file "./none.gguf"', "Put it there, or name another"),
        ("openai:http://127.0.0.1:1/v1#m", "no server answers at http://127.0.0.1:1", "Start it, or name another model"),
        (
            "openai:http://192.0.2.1/v1#m",
            '"192.0.2.1" is not on this machine, and the pipeline is local_only',
            "Use a model on this machine, or allow others",
        ),
        ("openai:http://models.invalid/v1#m", None, None),
        (
            "openai:http://127.0.0.1:1/v1?key=NO_SUCH_KEY#m",
            'the variable "NO_SUCH_KEY", which should hold the key for model "m", is not set',
            None,
        ),
        ("ollama:m", "no server answers at http://127.0.0.1:1", "Start it: ollama serve"),
    ],
)
async def test_what_a_model_lacks_is_told_without_opening_it(
    models: Path, monkeypatch: pytest.MonkeyPatch, model: str, reason: str | None, hint: str | None
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    found = await probe_needs(Needs(models=(model,)))
    assert found == (Ready() if reason is None else Unavailable(reason, hint))


class NoLookups(trio.abc.HostnameResolver):
    """Keeps the names that are looked up, and knows none."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def getaddrinfo(self, host: bytes | None, *rest: object) -> Any:
        self.asked.append(host)
        raise OSError

    async def getnameinfo(self, *rest: object) -> Any:
        raise AssertionError


async def test_no_name_service_is_asked_for_a_server_elsewhere() -> None:
    resolver = NoLookups()
    before = trio.socket.set_custom_hostname_resolver(resolver)
    try:
        assert await probe_needs(Needs(models=("openai:http://models.example/v1#m",))) == Ready()
    finally:
        trio.socket.set_custom_hostname_resolver(before)
    assert resolver.asked == []


async def test_a_server_on_this_machine_that_takes_connections_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert await probe_needs(Needs(models=(f"openai:http://localhost:{port}/v1#m",))) == Ready()


async def test_an_engine_that_is_not_installed_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "xllamacpp" else real(name, *more))
    assert await probe_needs(Needs(models=("llama-cpp:smollm2",))) == Unavailable(
        "llama-cpp needs a package that is not installed", "Run: pip install 'cuttlefish[local]'"
    )


async def test_tesseract_is_looked_for_with_its_languages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "tesseract"
    program.write_text("#!/bin/sh\nprintf 'List:\\neng\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert await probe_needs(Needs(models=("tesseract:",))) == Ready()
    missing = await probe_needs(Needs(models=("tesseract:eng+deu",)))
    assert missing == Unavailable(
        'Tesseract does not know the language "deu", only eng', "Install it, e.g. on Debian: apt-get install tesseract-ocr-deu"
    )
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    gone = await probe_needs(Needs(models=("tesseract:",)))
    assert isinstance(gone, Unavailable)
    assert gone.reason == 'there is no program "tesseract" on this machine'


async def test_a_folder_that_is_gone_and_a_variable_that_is_not_set_are_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert await probe_needs(Needs(read=(gone,))) == Unavailable(f'"{gone}" does not exist', "Make it readable for the server")
    assert await probe_needs(Needs(variables=("NO_SUCH_VARIABLE",))) == Unavailable(
        "the environment variable NO_SUCH_VARIABLE is not set", "Set it where the server is started"
    )


async def test_a_probe_that_hangs_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async def hang() -> Ready:
        await trio.sleep_forever()

    found = await probe_family(Family("disks", "What is on them.", hang))
    assert found == Unavailable('the probe of family "disks" has not answered within 30 seconds')


async def test_a_skill_is_described_in_plain_text(stack: AsyncExitStack, folder: Folder, host: Host) -> None:
    folder.file("family.toml", FAMILY)
    skill = await only(stack, host, folder, FILE.replace("read =", 'family = "letters"\nread ='))
    missing = Unavailable("the moon is missing", "Look again")
    assert describe_skill(skill, missing).partition("Arguments (JSON Schema):")[0] == (
        "count\nCounts the words of a letter.\nLocal only: nothing that it reads leaves this machine.\n"
        f"It may read {folder.path}/letters. Relative paths start at {folder.path}.\n\n"
        "Unavailable: the moon is missing. Look again.\n\n"
        "Family: letters\n\n"
        "Use it:\n- To see how long a letter is\n\n"
        'Examples:\n- Example 1: {"path": "letters/a.txt"}\n- Again: {"path": "letters/b.txt"}\n  The other one.\n\n'
        "Rules, looked at before it runs:\n- path is a path of a text ([.]txt$)\n\n"
    )
    assert skill.family is not None
    assert describe_family(skill.family, [(skill, Ready()), (skill, missing)], Ready()) == (
        "letters\nAll about letters.\n\nReady.\n\nSkills:\n- count: Counts the words of a letter.\n"
        "- count: Counts the words of a letter. (Unavailable: the moon is missing. Look again.)\n"
    )
