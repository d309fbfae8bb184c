"""What happens to a reply between a model and its sink: whole characters, stop texts, and the judgement by a schema."""

import io
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from servers.running import KEY, KEY_VARIABLE, RunningServer

from cuttlefish.errors import BadCommand, CuttlefishError, InferenceFailed, TimedOut
from cuttlefish.inference import checked
from cuttlefish.inference.backend import ImageInput, Prompt, Reply, TokenMeter
from cuttlefish.inference.engine_schema import ANY_JSON, engine_schema
from cuttlefish.inference.llama_cpp import open_llama_cpp
from cuttlefish.inference.registry import open_backend
from cuttlefish.inference.showing import Showing
from cuttlefish_abi import TokenAction

HIGH, LOW = "\ud83d", "\ude00"


async def ignore(text: str) -> TokenAction:
    return TokenAction.CONTINUE


# Showing


@given(st.lists(st.text("ab\n", max_size=4), max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_however_a_reply_is_cut_into_pieces_it_ends_before_the_first_stop_text(pieces: list[str], stops: list[str]) -> None:
    whole, shown = "".join(pieces), []

    async def sink(text: str) -> TokenAction:
        shown.append(text)
        seen = "".join(shown)
        assert whole.startswith(seen)
        assert not any(stop in seen for stop in stops)
        return TokenAction.CONTINUE

    async def run() -> Reply:
        showing = Showing(Prompt("", 9, stop=tuple(stops)), sink)
        for piece in pieces:
            if not await showing.add(piece):
                assert not await showing.add("more")
                break
        return await showing.end("length")

    reply = trio.run(run)
    # The stop text that is whole first ends the reply, where it begins.
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    upto = whole[: min(ends)] if ends else whole
    assert reply.finish == ("stop" if ends else "length")
    assert "".join(shown) == reply.text
    if not ends:
        assert reply.text == whole
    else:
        assert any(upto.startswith(reply.text + stop) or whole.startswith(reply.text + stop) for stop in stops)
    assert "" not in shown


@given(st.text(max_size=20), st.data())
def test_however_pairs_are_torn_apart_the_characters_come_whole(text: str, data: st.DataObject) -> None:
    units = text.encode("utf-16-le")
    halves = [units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)]
    shown: list[str] = []

    async def sink(piece: str) -> TokenAction:
        piece.encode()
        shown.append(piece)
        return TokenAction.CONTINUE

    async def run() -> Reply:
        showing = Showing(Prompt("", 9), sink)
        for half in halves:
            await showing.add(half)
        return await showing.end("stop")

    assert trio.run(run).text == text == "".join(shown)


@pytest.mark.parametrize(
    "pieces", [["a" + HIGH], ["a" + LOW], [LOW, "ab"], ["a" + HIGH, "b"]], ids=["high", "low", "low first", "between"]
)
async def test_half_a_character_that_never_gets_its_other_half_is_left_out(pieces: list[str]) -> None:
    showing = Showing(Prompt("", 9), ignore)
    for piece in pieces:
        await showing.add(piece)
    assert (await showing.end("stop")).text in ("a", "ab")


async def test_a_sink_that_stops_at_what_was_held_back_has_stopped_the_reply() -> None:
    async def sink(text: str) -> TokenAction:
        return TokenAction.STOP

    showing = Showing(Prompt("", 9, stop=("END",)), sink)
    assert await showing.add("E")
    assert await showing.end("stop") == Reply("E", "stopped_by_block")


# Schemas


async def judged(reply: str, schema: dict[str, Any], max_tokens: int = 1000) -> Reply:
    return await (await open_backend(f"stub:{reply}")).infer(Prompt("", max_tokens, schema=schema), ignore, TokenMeter())


async def test_a_reply_that_is_valid_passes_as_it_is() -> None:
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    assert await judged('{"n": 3}', schema) == Reply('{"n": 3}', "stop")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("none", 'the reply of model "stub" is no JSON: '),
        ("{} {}", 'the reply of model "stub" is no JSON: '),
        ('{"n": NaN}', 'the reply of model "stub" is no JSON: '),
        ('{"n": 1, "n": 2}', 'the reply of model "stub" is no JSON: '),
        ("[" * 200, 'the reply of model "stub" is no JSON: '),
        ('{"n": "3"}', "the reply of model \"stub\" does not fit the schema at /n: '3' is not of type 'integer'. Ask again"),
    ],
)
async def test_a_reply_that_is_not_valid_fails(reply: str, message: str) -> None:
    with pytest.raises(InferenceFailed) as caught:
        await judged(reply, {"properties": {"n": {"type": "integer"}}})
    assert caught.value.message.startswith(message)


async def test_a_reply_without_any_token_is_cut_too() -> None:
    with pytest.raises(InferenceFailed, match="was cut after 0 tokens"):
        await judged("{}", {"type": "object"}, max_tokens=0)


async def test_a_reply_that_was_cut_after_its_json_is_valid() -> None:
    assert await judged("{} and more", {"type": "object"}, max_tokens=1) == Reply("{}", "length")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a+)+$"},
        {
            "$defs": {"d0": {}, **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 40)}},
            "$ref": "#/$defs/d39",
        },
    ],
    ids=["pattern", "references"],
)
async def test_a_schema_that_would_be_applied_for_ever_is_stopped(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "JUDGE_TIME_S", 2.0)
    with pytest.raises(TimedOut) as caught:
        await judged(f'"{"a" * 60}!"', schema)
    assert caught.value.message == (
        "the schema for the reply takes longer than 2 s to apply: simplify its patterns and references, "
        "or ask again when the machine is less busy"
    )


BREAKDOWNS = {
    "it dies": ((sys.executable, "-c", "import os; os.abort()"), f"ended with status {-signal.SIGABRT} before it had"),
    "it says nothing": ((sys.executable, "-c", ""), "gave no verdict that can be read"),
    "it is not there": (("/nowhere/judge",), "could not be started (No such file or directory)"),
}


@pytest.mark.parametrize(("judge", "how"), BREAKDOWNS.values(), ids=BREAKDOWNS.keys())
async def test_when_our_judge_breaks_down_neither_the_block_nor_the_model_is_blamed(
    judge: tuple[str, ...], how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checked, "JUDGE", judge)
    with pytest.raises(CuttlefishError) as caught:
        await judged("{}", {"type": "object"})
    assert caught.value.code == "internal"
    sentence, reference = caught.value.message.rsplit(" ", 1)
    assert sentence == (
        f"the process that judges JSON by its schema {how}. The block and the model are not to blame; ask again, "
        "and if it happens again, report it with what the log says under"
    )
    assert reference in caplog.text


async def test_a_schema_that_takes_all_memory_to_apply_is_the_blocks_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "JUDGE_MEMORY_BYTES", 60 << 20)
    with pytest.raises(BadCommand) as caught:
        await judged("[" + "[[[]]]," * 200_000 + "1]", {"uniqueItems": True})
    assert caught.value.message == (
        "the schema for the reply cannot be used: applying it takes more memory than there is. Simplify it"
    )


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"$ref": "#/$defs/none"}, "#/$defs/none"),
        ({"properties": {"a": {"anyOf": [{"$ref": "#none"}]}}}, "#none"),
        ({"$defs": {"never used": {"$dynamicRef": "#x"}}}, "#x"),
        ({"$id": "http://127.0.0.1:1/a.json", "not": {"$ref": "b.json"}}, "b.json"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "file:///etc/passwd"),
    ],
    ids=["definition", "anchor", "unused", "beside it", "file"],
)
async def test_a_schema_that_leads_nowhere_is_refused_before_the_model_is_asked(schema: dict[str, Any], where: str) -> None:
    meter = TokenMeter()
    with pytest.raises(BadCommand) as caught:
        await (await open_backend("stub:{}")).infer(Prompt("", 9, schema=schema), ignore, meter)
    assert caught.value.message == f'the schema for the reply is no JSON Schema: it points to "{where}", which is not in it'
    assert meter == TokenMeter()


async def test_a_schema_that_goes_round_in_circles_is_refused() -> None:
    with pytest.raises(BadCommand) as caught:
        await judged("{}", {"$ref": "#"})
    assert caught.value.message == "the schema for the reply cannot be used: it refers to itself without an end"


async def test_references_within_a_schema_are_followed_in_every_form() -> None:
    number = {"$anchor": "number", "type": "integer"}
    refs = [{"$ref": "#/$defs/n"}, {"$ref": "#number"}, {"$ref": "a.json#/$defs/n"}, {"$ref": "http://a.test/a.json#number"}]
    schema = {"$id": "http://a.test/a.json", "$defs": {"n": number}, "prefixItems": refs}
    assert (await judged("[1, 2, 3, 4]", schema)).finish == "stop"
    with pytest.raises(InferenceFailed, match="does not fit the schema at /3"):
        await judged('[1, 2, 3, "4"]', schema)


async def test_a_schema_that_points_to_the_network_is_not_followed() -> None:
    asked: list[object] = []

    async def serve(stream: trio.SocketStream) -> None:
        asked.append(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(BadCommand, match="which is not in it"):
            await judged("{}", {"$ref": f"http://127.0.0.1:{port}/schema.json"})
        nursery.cancel_scope.cancel()
    assert not asked


# What the embedded engine is given of a schema

RECURSIVE = {"type": "object", "properties": {"next": {"$ref": "#"}}}
HUGE: dict[str, dict[str, Any]] = {
    "references": {
        "$defs": {"d0": {"type": "null"}, **{f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n - 1}"}] * 2} for n in range(1, 30)}},
        "$ref": "#/$defs/d29",
    },
    "enumeration": {"enum": [f"v{n}" for n in range(4000)]},
    "properties": {"properties": {f"p{n}": {} for n in range(400)}},
}


@pytest.mark.parametrize("schema", HUGE.values(), ids=HUGE.keys())
def test_a_schema_that_would_keep_the_engine_busy_is_not_given_to_it(schema: dict[str, Any]) -> None:
    assert engine_schema(schema) == ANY_JSON


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}, {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"}),
        ({"type": "string", "pattern": "^(a?){1000}$"}, {"type": "string"}),
        ({"type": "string", "pattern": "^[0-9]{4000}$"}, {"type": "string"}),
        ({"type": "string", "minLength": 1000000, "maxLength": 20}, {"type": "string", "maxLength": 20}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, {"const": 1}),
        (RECURSIVE, {"type": "object", "properties": {"next": {"type": "object", "properties": {"next": {}}}}}),
        ({"anyOf": [{"type": "null"}, {"enum": [1, 2]}], "title": "x"}, {"anyOf": [{"type": "null"}, {"enum": [1, 2]}]}),
        ({"items": False, "prefixItems": [True], "minItems": 1}, {"prefixItems": [{}]}),
        ({"items": True, "additionalProperties": False}, {"items": {}, "additionalProperties": False}),
        ({"type": "string", "minLength": 5, "maxLength": 1}, {"type": "string"}),
        ({"minItems": 2, "maxItems": 1, "maxLength": 3}, {"maxLength": 3}),
        ({"type": "integer", "minimum": 5, "maximum": 1}, {"type": "integer"}),
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 4}, {}),
        ({"minimum": 3, "exclusiveMaximum": 5}, {"minimum": 3, "exclusiveMaximum": 5}),
        ({"enum": []}, {}),
        ({"anyOf": [False, {"type": "null"}], "oneOf": [False]}, {"anyOf": [{"type": "null"}], "oneOf": [{}]}),
        ({"properties": {"a": False, "b": True}}, {"properties": {"b": {}}}),
        ({"pattern": r"^[\d\-]{2}$"}, {}),
    ],
    ids=str,
)
def test_the_engine_is_given_what_it_can_be_trusted_with(schema: dict[str, Any], given: dict[str, Any]) -> None:
    assert engine_schema(schema) == given


@pytest.mark.parametrize(
    "schema",
    [
        *HUGE.values(),
        RECURSIVE,
        {},
        {"pattern": "^(a?){1000}a{1000}$"},
        {"required": ["a", "b"]},
        {"type": "string", "minLength": 5, "maxLength": 1},
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"enum": []},
        {"anyOf": [False, True]},
    ],
    ids=lambda s: str(s)[:20],
)
async def test_no_schema_keeps_the_engine_from_answering_or_from_being_cancelled(
    schema: dict[str, Any], models_folder: Path
) -> None:
    """Each of these kept it for a minute and more."""
    model = await open_llama_cpp("smollm2", folder=models_folder, context=512, slots=1)
    began = time.monotonic()
    await model.infer(Prompt("Say something.", 8, schema=schema), ignore, TokenMeter())
    assert time.monotonic() - began < 20
    await model.aclose()


# Images

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0), "black": (0, 0, 0)}


def plain(colour: tuple[int, int, int], format: str = "PNG") -> ImageInput:
    out = io.BytesIO()
    Image.new("RGB", (48, 32), colour).save(out, format)
    return ImageInput(out.getvalue(), f"image/{format.lower()}")


@pytest.mark.parametrize("provider", ["llama-cpp", "openai", "ollama"])
async def test_a_model_that_reads_images_names_the_colour_of_one(
    provider: str, colour_model: Path, colour_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the toy image reader of tests/servers/colour_projector.py: the whole way of an image, without trained weights."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("OLLAMA_HOST", colour_server.ollama)
    names = {"llama-cpp": f"llama-cpp:{colour_model}", "openai": colour_server.model, "ollama": "ollama:smollm2"}
    backend = await open_backend(names[provider], local_only=True)
    assert backend.accepts_images
    meter = TokenMeter()
    for name, colour in COLOURS.items():
        for format in ("PNG", "JPEG"):
            prompt = Prompt("Repeat the word above.", 12, (plain(colour, format),), seed=1)
            reply = await backend.infer(prompt, ignore, meter)
            assert name in reply.text.lower(), (name, format, reply)
    with pytest.raises(InferenceFailed):
        await backend.infer(Prompt("What?", 9, (ImageInput(b"no picture", "image/png"),)), ignore, meter)
    assert (await backend.infer(Prompt("Hello", 2), ignore, meter)).text
    await backend.aclose()
