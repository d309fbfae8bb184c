"""Every SDK through the same tests: the conformance block of abi/guests/CONFORMANCE.md, and word-count."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from sdks import CONFORMANCE as SOURCES
from sdks import ROOT, WORD_COUNT, Compiled, Guest, compiled, escaped, languages_there, live, load, spread, utf8

from benchmarks.blocks import SOURCES as BENCHMARKED
from benchmarks.blocks import TITLES, awkward_text, counts_of, measure
from benchmarks.scale import QUICK
from cuttlefish import BlockBytes, open_host
from cuttlefish.authoring.toolchains import LANGUAGES
from cuttlefish_abi import decode_command, decode_event

LANGUAGE_NAMES = languages_there()
MOST = 2**64 - 1
EVERYTHING = "".join(map(chr, range(0x20))) + '"\\/ é日😀\u2028\x7f \ud7ff\ue000\U0010ffff'
FRACTIONS = [0.1, 1 / 3, -2.5e-9, 0.01234567850708961, 1e300, 5e-324, 123456789.125, 0.0, -1.0, 2.0**53 + 2, 7.038531e-26]
WRITERS = {"utf8": utf8, "escaped": escaped, "spread": spread}

IMAGE_EVENT = {"event": "page_imaged", "handle": 4, "len": 2**53 + 1, "kind": {"kind": "image", "format": "png"}}
IMAGE_SEEN = {"event": "page_imaged", "handle": 4, "len": 2**53 + 1, "format": "png", "frames": None}


def infer_done(**more: object) -> dict[str, Any]:
    return {"event": "infer_done", "text": EVERYTHING, "tokens_out": 4_294_967_295, **more}


def opened(kind: object) -> dict[str, Any]:
    return {"event": "opened", "handle": 4_294_967_295, "len": MOST, "kind": kind}


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1.5, None, True, EVERYTHING, [], {}]}}}
SLICE = {"cmd": "slice", "handle": 4_294_967_295, "offset": 2**53 + 1, "len": MOST}
SLICED = {"event": "sliced", "text": EVERYTHING, "next_offset": 2**63 + 1}
TEXTED = {"event": "page_texted", "text": EVERYTHING, "images": 3, "coverage": 0.98}

EXCHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    # a request, the event that answers it, and what must be seen of that; None for the event as it is
    "infer": ({"cmd": "infer", "prompt": EVERYTHING, "max_tokens": 1}, infer_done(), infer_done(finish_reason=None)),
    "infer, with images": (
        {"cmd": "infer", "prompt": "", "max_tokens": 4_294_967_295, "images": [0, 4_294_967_295, 7]},
        infer_done(finish_reason="length"),
        None,
    ),
    "infer, no images": (
        {"cmd": "infer", "prompt": "a", "max_tokens": 64, "images": [], "options": {}},
        infer_done(finish_reason="stop"),
        None,
    ),
    "infer, all options": (
        {
            "cmd": "infer",
            "prompt": "a",
            "max_tokens": 64,
            "options": {"temperature": 0.7, "seed": 4_294_967_295, "stop": ["\n", EVERYTHING], "schema": SCHEMA},
        },
        infer_done(finish_reason="stopped_by_block"),
        None,
    ),
    "infer, a whole temperature": (
        {"cmd": "infer", "prompt": "a", "max_tokens": 64, "options": {"temperature": 2}},
        infer_done(finish_reason="stop"),
        None,
    ),
    "infer, a seed": (
        {"cmd": "infer", "prompt": "a", "max_tokens": 64, "options": {"seed": 0}},
        infer_done(finish_reason="stop"),
        None,
    ),
    "infer, a schema": (
        {"cmd": "infer", "prompt": "a", "max_tokens": 64, "options": {"schema": {}}},
        infer_done(finish_reason="stop"),
        None,
    ),
    "embed": (
        {"cmd": "embed", "texts": ["", EVERYTHING]},
        {"event": "embedded", "vectors": [FRACTIONS, [-f for f in FRACTIONS]]},
        None,
    ),
    "embed nothing": ({"cmd": "embed", "texts": []}, {"event": "embedded", "vectors": []}, None),
    "embed, empty vectors": ({"cmd": "embed", "texts": ["a", "b"]}, {"event": "embedded", "vectors": [[], []]}, None),
    "open a text": ({"cmd": "open", "path": EVERYTHING}, opened({"kind": "text"}), None),
    "open an image": ({"cmd": "open", "path": "a"}, opened({"kind": "image", "format": "png"}), None),
    "open a document": (
        {"cmd": "open", "path": "a"},
        opened({"kind": "document", "pages": 4_294_967_295, "has_text_layer": True}),
        None,
    ),
    "open a scan": ({"cmd": "open", "path": "a"}, opened({"kind": "document", "pages": 0, "has_text_layer": False}), None),
    "open anything": ({"cmd": "open", "path": ""}, opened({"kind": "binary"}), None),
    "open, an older host": (
        {"cmd": "open", "path": "a"},
        {"event": "opened", "handle": 0, "len": 0},
        {"event": "opened", "handle": 0, "len": 0, "kind": {"kind": "text"}},
    ),
    "open, a newer host": ({"cmd": "open", "path": "a"}, opened({"kind": "audio", "seconds": 3}), opened({"kind": "binary"})),
    "slice": (SLICE, SLICED, None),
    "slice_bytes": (
        {"cmd": "slice_bytes", "handle": 0, "offset": MOST, "len": 0},
        {"event": "sliced_bytes", "bytes_base64": "AAH+/w==", "next_offset": MOST},
        {"event": "sliced_bytes", "hex": "0001feff", "next_offset": MOST},
    ),
    "slice_bytes, one padding": (
        {"cmd": "slice_bytes", "handle": 0, "offset": 0, "len": 2},
        {"event": "sliced_bytes", "bytes_base64": "+/8=", "next_offset": 2},
        {"event": "sliced_bytes", "hex": "fbff", "next_offset": 2},
    ),
    "slice_bytes, none": (
        {"cmd": "slice_bytes", "handle": 0, "offset": 0, "len": 3},
        {"event": "sliced_bytes", "bytes_base64": "", "next_offset": 0},
        {"event": "sliced_bytes", "hex": "", "next_offset": 0},
    ),
    "page_text": ({"cmd": "page_text", "handle": 1, "page": 4_294_967_295}, TEXTED, None),
    "page_text, an older host": (
        {"cmd": "page_text", "handle": 1, "page": 0},
        {"event": "page_texted", "text": ""},
        {"event": "page_texted", "text": "", "images": None, "coverage": None},
    ),
    "page_text, whole coverage": (
        {"cmd": "page_text", "handle": 1, "page": 0},
        {"event": "page_texted", "text": "", "images": 0, "coverage": 1},
        None,
    ),
    "page_text_opt": (
        {"cmd": "page_text_opt", "handle": 1, "page": 2},
        {"event": "page_text_attempted", "text": EVERYTHING, "error": None},
        None,
    ),
    "page_text_opt, a bad page": (
        {"cmd": "page_text_opt", "handle": 1, "page": 2},
        {"event": "page_text_attempted", "text": None, "error": EVERYTHING},
        None,
    ),
    "document_text": (
        {"cmd": "document_text", "handle": 9},
        {"event": "page_texted", "text": "a"},
        {"event": "page_texted", "text": "a", "images": None, "coverage": None},
    ),
    "page_image": ({"cmd": "page_image", "handle": 1, "page": 0}, IMAGE_EVENT, IMAGE_SEEN),
    "page_image, an older host": (
        {"cmd": "page_image", "handle": 1, "page": 0},
        {"event": "page_imaged", "handle": 4, "len": 1},
        {"event": "page_imaged", "handle": 4, "len": 1, "format": None, "frames": None},
    ),
    "resize": (
        {"cmd": "image_op", "handle": 1, "op": {"op": "resize", "max_width": 640, "max_height": 4_294_967_295}},
        IMAGE_EVENT,
        IMAGE_SEEN,
    ),
    "crop": (
        {"cmd": "image_op", "handle": 1, "op": {"op": "crop", "x": 0, "y": 4_294_967_295, "width": 3, "height": 4}},
        IMAGE_EVENT,
        IMAGE_SEEN,
    ),
    "frame": (
        {"cmd": "image_op", "handle": 1, "op": {"op": "frame", "index": 4_294_967_295}},
        IMAGE_EVENT | {"frames": 4_294_967_295},
        IMAGE_SEEN | {"frames": 4_294_967_295},
    ),
    "frame, how many is not told": (
        {"cmd": "image_op", "handle": 1, "op": {"op": "frame", "index": 0}},
        IMAGE_EVENT,
        IMAGE_SEEN,
    ),
    "emit": ({"cmd": "emit", "progress": {"at": [1, 2.5, None, True, False, EVERYTHING, {}, []]}}, {"event": "emitted"}, None),
    "emit null": ({"cmd": "emit", "progress": None}, {"event": "emitted"}, None),
}

VALUES = {
    "null": None,
    "true": True,
    "false": False,
    "empty text": "",
    "all characters": EVERYTHING,
    "the largest number": MOST,
    "the smallest number": -(2**63),
    "fractions": FRACTIONS,
    "nothing in it": [[], {}, [[]], {"": {}}],
    "odd keys": {EVERYTHING: 1, "": 2, "cmd": 3, "result": 4},
    "deep": json.loads("[" * 100 + "]" * 100),
    "wide": list(range(5_000)),
}


def talk(guest: Guest, requests: list[Any], *, stop_at: str = "STOP", rounds: int = 1) -> bytes:
    return guest.init(utf8({"requests": requests, "stop_at": stop_at, "rounds": rounds}))


def code_of(command: bytes) -> str:
    """The code of a `fail`, which must say something as well."""
    read = decode_command(command)
    assert read.cmd == "fail", read
    assert read.message
    return read.code


@pytest.fixture(scope="module")
def blocks() -> Callable[[str], Compiled]:
    kept: dict[str, Compiled] = {}
    return lambda name: kept.setdefault(name, load(compiled(name, SOURCES[name])))


@pytest.fixture(scope="module")
def counters() -> Callable[[str], Compiled]:
    kept: dict[str, Compiled] = {}
    return lambda name: kept.setdefault(name, load(compiled(name, WORD_COUNT[name])))


@pytest.fixture(params=LANGUAGE_NAMES)
def guest(request: pytest.FixtureRequest, blocks: Callable[[str], Compiled]) -> Guest:
    """A fresh instance of a language's conformance block."""
    return Guest(blocks(request.param))


@pytest.fixture(params=LANGUAGE_NAMES)
def word_count(request: pytest.FixtureRequest, counters: Callable[[str], Compiled]) -> Compiled:
    """A language's word-count."""
    return counters(request.param)


# Commands and events


def test_the_cases_are_what_the_contract_allows() -> None:
    asked, answered = set(), set()
    for request, event, _ in EXCHANGES.values():
        asked.add(decode_command(utf8(request)).cmd)
        if event.get("kind", {}).get("kind") != "audio":
            answered.add(decode_event(utf8(event)).event)
    assert asked == names_in_schema("command", "cmd") - {"done", "fail"}
    assert answered == names_in_schema("event", "event")


def names_in_schema(file: str, tag: str) -> set[str]:
    schema = json.loads((ROOT / "abi" / "schema" / f"{file}.json").read_text(encoding="utf-8"))
    forms = [schema["$defs"][form["$ref"].rpartition("/")[2]] for form in schema["oneOf"]]
    return {form["properties"][tag]["const"] for form in forms}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_command_is_issued_and_every_event_is_read_whole(guest: Guest, writer: str) -> None:
    write = WRITERS[writer]
    requests = [request for request, _, _ in EXCHANGES.values()]
    command = guest.init(write({"requests": requests, "stop_at": "", "rounds": 1}))
    for name, (request, event, _) in EXCHANGES.items():
        assert decode_command(command) == decode_command(utf8(request)), name
        command = guest.step(write(event | {"from_later": [{"event": "opened", "text": 1}, "}]", None]}))
    result = json.loads(command)["result"]
    decode_command(command)
    assert result["tokens"] == []
    for (name, (_, event, seen)), found in zip(EXCHANGES.items(), result["seen"], strict=True):
        assert found == (event if seen is None else seen), name


@pytest.mark.parametrize("name", VALUES)
def test_any_json_passes_through_done_and_emit_unchanged(guest: Guest, name: str) -> None:
    value = VALUES[name]
    command = talk(guest, [{"cmd": "emit", "progress": value}, {"cmd": "done", "result": value}])
    assert same(json.loads(command), {"cmd": "emit", "progress": value})
    command = guest.step(b'{"event":"emitted"}')
    decode_command(command)
    assert same(json.loads(command), {"cmd": "done", "result": value})


def same(found: Any, wanted: Any) -> bool:
    """Equal, and no whole number has become true, nor a large one a fraction."""
    if isinstance(found, float) and isinstance(wanted, float | int):
        return found == wanted and not (isinstance(wanted, int) and abs(wanted) > 2**53)
    return json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True) or (
        type(found) is type(wanted)
        and (
            (isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted)))
            or (isinstance(found, dict) and found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in found))
        )
    )


def test_a_block_fails_in_its_own_words(guest: Guest) -> None:
    command = talk(guest, [{"cmd": "fail", "code": "no_text", "message": EVERYTHING}])
    assert json.loads(command) == {"cmd": "fail", "code": "no_text", "message": EVERYTHING}


def test_every_event_of_the_vectors_is_read(guest: Guest) -> None:
    lines = (ROOT / "abi" / "vectors" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    asking = {event["event"]: request for request, event, _ in EXCHANGES.values()}
    good = [case["json"] for case in map(json.loads, lines) if case["ok"]]
    assert good
    for message in good:
        talk(guest, [asking[json.loads(message)["event"]]])
        assert json.loads(guest.step(message.encode()))["cmd"] == "done", message


def test_every_command_of_the_vectors_can_be_written(guest: Guest) -> None:
    lines = (ROOT / "abi" / "vectors" / "commands.jsonl").read_text(encoding="utf-8").splitlines()
    good = [case["json"] for case in map(json.loads, lines) if case["ok"]]
    assert good
    for message in good:
        wanted = decode_command(message.encode())
        command = guest.init(b'{"stop_at":"","rounds":1,"requests":[' + message.encode() + b"]}")
        assert rounded(decode_command(command).model_dump()) == rounded(wanted.model_dump()), message


def rounded(value: Any) -> Any:
    """Whole numbers beyond 64 bits as fractions: an SDK may keep them so."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(value) if isinstance(value, int) and not -(2**63) <= value <= MOST else value


def test_lists_start_anew_in_every_round_and_only_the_last_is_told(guest: Guest) -> None:
    command = talk(guest, [SLICE, {"cmd": "emit", "progress": 1}], rounds=3)
    for round in range(3):
        assert json.loads(command) == SLICE
        assert json.loads(guest.step(utf8({"event": "sliced", "text": str(round), "next_offset": round})))["cmd"] == "emit"
        command = guest.step(b'{"event":"emitted"}')
    seen = [{"event": "sliced", "text": "2", "next_offset": 2}, {"event": "emitted"}]
    assert json.loads(command) == {"cmd": "done", "result": {"seen": seen, "tokens": []}}


def test_a_run_does_not_see_what_the_one_before_has_left(guest: Guest) -> None:
    for text in ("a long text that fills memory", "b"):
        talk(guest, [SLICE])
        command = guest.step(utf8({"event": "sliced", "text": text, "next_offset": 1}))
        assert [seen["text"] for seen in json.loads(command)["result"]["seen"]] == [text]


# Tokens


def test_tokens_are_raw_text_and_the_verdict_is_the_block_s(guest: Guest) -> None:
    talk(guest, [{"cmd": "infer", "prompt": "a", "max_tokens": 9}], stop_at='"é"')
    pieces = ["a", '{"event":', "é日😀", "", EVERYTHING, "x" * 100_000]
    assert not any(map(guest.hear, pieces))
    assert guest.hear('"é"')
    command = guest.step(utf8({"event": "infer_done", "text": "".join(pieces), "tokens_out": 7}))
    assert json.loads(command)["result"]["tokens"] == [*pieces, '"é"']


# What goes wrong

BAD_INPUTS: dict[str, bytes] = {
    "nothing": b"",
    "white space": b" \n",
    "no json": b"squid",
    "null": b"null",
    "a list": b'[["emit"],"a",1]',
    "text": b'"requests"',
    "an empty object": b"{}",
    "no rounds": b'{"requests":[],"stop_at":""}',
    "no requests": b'{"stop_at":"","rounds":1}',
    "requests that are no list": b'{"requests":{"cmd":"emit"},"stop_at":"","rounds":1}',
    "a number for text": b'{"requests":[],"stop_at":1,"rounds":1}',
    "a list for text": b'{"requests":[],"stop_at":[104],"rounds":1}',
    "null for text": b'{"requests":[],"stop_at":null,"rounds":1}',
    "text for a number": b'{"requests":[],"stop_at":"","rounds":"1"}',
    "a fraction": b'{"requests":[],"stop_at":"","rounds":1.5}',
    "written with a fraction": b'{"requests":[],"stop_at":"","rounds":1.0}',
    "no round": b'{"requests":[],"stop_at":"","rounds":0}',
    "less than none": b'{"requests":[],"stop_at":"","rounds":-1}',
    "cut short": b'{"requests":[],"stop_at":"","rounds":1',
    "cut in a text": b'{"requests":[],"stop_at":"a',
    "cut in an escape": b'{"requests":[],"rounds":1,"stop_at":"\\',
    "cut in a code": b'{"requests":[],"rounds":1,"stop_at":"\\u00',
    "no such escape": b'{"requests":[],"rounds":1,"stop_at":"\\x41"}',
    "a comma too many": b'{"requests":[],"stop_at":"","rounds":1,}',
    "a comma too few": b'{"requests":[]"stop_at":"","rounds":1}',
    "something behind it": b'{"requests":[],"stop_at":"","rounds":1} {}',
    "brackets that cross": b'{"requests":[{]},"stop_at":"","rounds":1}',
}

BAD_REQUESTS: dict[str, object] = {
    "null": None,
    "text": "emit",
    "a list": ["emit"],
    "empty": {},
    "an unknown command": {"cmd": "fetch_everything"},
    "another case": {"cmd": "Emit", "progress": 1},
    "a number for a command": {"cmd": 1},
    "open without a path": {"cmd": "open"},
    "open with a number": {"cmd": "open", "path": 1},
    "slice without a length": {"cmd": "slice", "handle": 1, "offset": 0},
    "slice with text": {"cmd": "slice", "handle": "1", "offset": 0, "len": 1},
    "slice from a fraction": {"cmd": "slice", "handle": 1, "offset": 0.5, "len": 1},
    "slice before the start": {"cmd": "slice", "handle": 1, "offset": -1, "len": 1},
    "slice beyond 64 bits": {"cmd": "slice", "handle": 1, "offset": 2**64, "len": 1},
    "a handle beyond 32 bits": {"cmd": "slice", "handle": 2**32, "offset": 0, "len": 1},
    "infer without a prompt": {"cmd": "infer", "max_tokens": 1},
    "infer with null images": {"cmd": "infer", "prompt": "", "max_tokens": 1, "images": None},
    "infer with images that are text": {"cmd": "infer", "prompt": "", "max_tokens": 1, "images": ["1"]},
    "embed a text": {"cmd": "embed", "texts": "a"},
    "embed a number": {"cmd": "embed", "texts": [1]},
    "an unknown operation": {"cmd": "image_op", "handle": 1, "op": {"op": "turn"}},
    "no operation": {"cmd": "image_op", "handle": 1},
    "emit without progress": {"cmd": "emit"},
    "done without a result": {"cmd": "done"},
    "fail without a message": {"cmd": "fail", "code": "a"},
}

BAD_EVENTS: dict[str, bytes] = {
    "nothing": b"",
    "no json": b"squid",
    "null": b"null",
    "a list": b'["sliced","a",1]',
    "an unknown event": b'{"event":"exploded"}',
    "no event": b'{"text":"a","next_offset":1}',
    "another case": b'{"event":"Sliced","text":"a","next_offset":1}',
    "no text": b'{"event":"sliced","next_offset":1}',
    "null for text": b'{"event":"sliced","text":null,"next_offset":1}',
    "a list for text": b'{"event":"sliced","text":[97],"next_offset":1}',
    "text for a number": b'{"event":"sliced","text":"a","next_offset":"1"}',
    "a fraction": b'{"event":"sliced","text":"a","next_offset":1.5}',
    "beyond 64 bits": b'{"event":"sliced","text":"a","next_offset":18446744073709551616}',
    "less than none": b'{"event":"sliced","text":"a","next_offset":-1}',
    "cut short": b'{"event":"sliced","text":"a","next_offset":1',
    "cut in a text": b'{"event":"sliced","next_offset":1,"text":"a',
    "cut in a pair": b'{"event":"sliced","next_offset":1,"text":"\\ud83d\\ud',
    "something behind it": b'{"event":"sliced","text":"a","next_offset":1}]',
    "another answer": b'{"event":"emitted"}',
    "an opened file": b'{"event":"opened","handle":1,"len":1}',
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_an_input_that_cannot_be_read_is_a_failure_and_no_trap(guest: Guest, name: str) -> None:
    assert code_of(guest.init(BAD_INPUTS[name])) == "bad_input"
    assert json.loads(talk(guest, [SLICE])) == SLICE  # and the block is none the worse for it


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_request_that_is_no_command_is_a_bad_input(guest: Guest, name: str) -> None:
    assert code_of(talk(guest, [BAD_REQUESTS[name]])) == "bad_input"


@pytest.mark.parametrize("name", BAD_EVENTS)
def test_an_event_that_does_not_answer_or_cannot_be_read_is_a_failure_and_no_trap(guest: Guest, name: str) -> None:
    talk(guest, [SLICE, SLICE])
    assert code_of(guest.step(BAD_EVENTS[name])) == "bad_event"


@pytest.mark.parametrize("kind", [b"null", b'"text"', b"{}", b'{"kind":"image"}', b'{"kind":"document","pages":1}', b'{"kind":1}'])
def test_a_kind_that_lacks_what_it_must_say_is_a_bad_event(guest: Guest, kind: bytes) -> None:
    talk(guest, [{"cmd": "open", "path": "a"}])
    assert code_of(guest.step(b'{"event":"opened","handle":0,"len":1,"kind":' + kind + b"}")) == "bad_event"


def test_json_nested_ever_deeper_is_read_or_refused_but_never_a_trap(guest: Guest) -> None:
    for depth in (200, 2_000, 200_000):
        deep = b"[" * depth + b"]" * depth
        command = guest.init(b'{"stop_at":"","rounds":1,"requests":[{"cmd":"done","result":' + deep + b"}]}")
        assert deep in command or code_of(command) == "bad_input"
        talk(guest, [SLICE])
        command = guest.step(b'{"event":"sliced","text":"a","next_offset":1,"later":' + deep + b"}")
        assert json.loads(command)["cmd"] == "done" or code_of(command) == "bad_event"


def test_messages_cut_at_every_byte_never_trap(guest: Guest) -> None:
    request = {"cmd": "infer", "prompt": "é\\", "max_tokens": 1, "options": {"temperature": 0.5, "stop": ["a"]}}
    whole = escaped({"requests": [request], "stop_at": "é😀", "rounds": 1})
    for end in range(len(whole)):
        assert code_of(guest.init(whole[:end])) == "bad_input"
    event = escaped({"event": "infer_done", "text": "é😀\n", "tokens_out": 12, "finish_reason": "stop"})
    for end in range(len(event)):
        guest.init(whole)
        assert code_of(guest.step(event[:end])) == "bad_event"


# Memory and the module


@pytest.mark.parametrize("name", LANGUAGE_NAMES)
def test_memory_stays_flat_over_two_hundred_thousand_steps(name: str) -> None:
    asked = [EXCHANGES[which] for which in ("infer, with images", "slice", "slice_bytes", "open a document", "emit")]
    dice = random.Random(11)
    events = [escaped(event) for _, event, _ in asked]
    texts = [utf8({"event": "sliced", "text": EVERYTHING * dice.randrange(1, 20), "next_offset": 1}) for _ in range(50)]
    rounds = 200_000 // len(asked)
    with live(compiled(name, SOURCES[name])) as guest:
        guest.init(utf8({"requests": [request for request, _, _ in asked], "stop_at": "", "rounds": rounds}))
        for round in range(rounds):
            events[1] = texts[round % len(texts)]
            guest.on_token(b"piece")
            for event in events:
                command = guest.step(event)
            if round == 200:
                settled = guest.memory_bytes()
        assert json.loads(command)["cmd"] == "done"
        assert guest.memory_bytes() == settled


@pytest.mark.parametrize("name", LANGUAGE_NAMES)
def test_the_module_is_what_the_contract_says(blocks: Callable[[str], Compiled], name: str) -> None:
    block = blocks(name)
    assert list(block.module.imports) == []
    assert len(block.wasm) <= 32 << 20
    exports = {export.name for export in block.module.exports}
    assert exports >= {"memory", "cf_alloc", "cf_init", "cf_step", "cf_on_token", "cf_signature"}
    assert str(ROOT).encode() not in block.wasm
    assert str(Path.home()).encode() + b"/" not in block.wasm


@pytest.mark.parametrize("name", LANGUAGE_NAMES)
def test_the_host_accepts_the_blocks_of_every_sdk(name: str, tmp_path: Path) -> None:
    conformance = BlockBytes("conformance.wasm", compiled(name, SOURCES[name]))
    word_count = BlockBytes("word-count.wasm", compiled(name, WORD_COUNT[name]))
    (tmp_path / "a.txt").write_text("one two\nthree é\n", encoding="utf-8")

    async def use() -> None:
        async with open_host(cache_dir=tmp_path) as host:
            facts = await host.inspect(conformance)
            assert facts.signature.describe() == "{requests: [json], rounds: number, stop_at: text} -> json"
            facts = await host.inspect(word_count)
            assert facts.signature.describe() == "{path: text} -> {chars: number, lines: number, path: text, words: number}"
            envelope = await host.run(word_count, {"path": "a.txt"}, read=[tmp_path], base_dir=tmp_path)
            assert envelope.result == {"path": "a.txt", "lines": 2, "words": 4, "chars": 16}

    trio.run(use)


def test_lengths_of_zero_and_large_buffers_are_fine(guest: Guest) -> None:
    assert guest.call("cf_alloc", 0) != 0
    text = "é" * (4 << 20)
    talk(guest, [SLICE])
    command = guest.step(utf8({"event": "sliced", "text": text, "next_offset": 1}))
    assert json.loads(command)["result"]["seen"][0]["text"] == text


def test_memory_that_cannot_be_had_is_told_by_cf_alloc(guest: Guest) -> None:
    assert guest.call("cf_alloc", 0x7FFFFFF0) == 0
    assert json.loads(talk(guest, [SLICE])) == SLICE


# word-count

CONVERSATIONS = sorted((ROOT / "blocks" / "word-count" / "cases").glob("*.jsonl"))


@pytest.mark.parametrize("case", CONVERSATIONS, ids=lambda path: path.stem)
def test_word_count_has_the_same_conversations_in_every_language(word_count: Compiled, case: Path) -> None:
    guest = Guest(word_count)
    first, *turns = map(json.loads, case.read_text(encoding="utf-8").splitlines())
    command = guest.init(utf8(first["input"]))
    for turn in turns:
        if "event" in turn:
            command = guest.step(utf8(turn["event"]))
        else:
            assert json.loads(command) == turn["command"]


@pytest.fixture(scope="module")
def long_text() -> str:
    return awkward_text(8 << 20)


@pytest.mark.parametrize(("write", "size"), [(utf8, 8 << 20), (escaped, 1 << 20)], ids=["utf8", "escaped"])
@pytest.mark.parametrize("name", LANGUAGE_NAMES)
def test_word_count_counts_what_python_counts(name: str, write: Callable[[object], bytes], size: int, long_text: str) -> None:
    text = long_text[:size]
    data = text.encode()
    with live(compiled(name, WORD_COUNT[name])) as guest:
        command = json.loads(guest.init(utf8({"path": "a"})))
        while command["cmd"] != "done":
            if command["cmd"] == "open":
                event: dict[str, Any] = {"event": "opened", "handle": 1, "len": len(data), "kind": {"kind": "text"}}
            elif command["cmd"] == "slice":
                end = min(len(data), command["offset"] + command["len"])
                while end < len(data) and data[end] & 0xC0 == 0x80:
                    end -= 1
                event = {"event": "sliced", "text": data[command["offset"] : end].decode(), "next_offset": end}
            else:
                event = {"event": "emitted"}
            command = json.loads(guest.step(write(event)))
    assert command["result"] == {"path": "a", **counts_of(data)}


def test_fractions_of_all_sizes_are_read_and_written_exactly(guest: Guest) -> None:
    dice = random.Random(5)
    numbers = [math.ldexp(dice.uniform(-1, 1), dice.randint(-300, 300)) for _ in range(2_000)]
    numbers += [dice.uniform(-1, 1) for _ in range(2_000)] + [float(dice.randint(0, 2**63)) for _ in range(200)]
    talk(guest, [{"cmd": "embed", "texts": ["a"]}])
    command = guest.step(utf8({"event": "embedded", "vectors": [numbers]}))
    assert json.loads(command)["result"]["seen"][0]["vectors"] == [numbers]


def test_every_language_has_a_title_and_its_files() -> None:
    for language in LANGUAGES.values():
        if language.name in LANGUAGE_NAMES:
            assert all(file.is_file() for file in language.sdk.values())


def test_the_benchmark_measures_every_language() -> None:
    assert BENCHMARKED == WORD_COUNT
    made = {TITLES[name]: BlockBytes(name, compiled(name, source)) for name, source in BENCHMARKED.items()}
    part = measure(QUICK, made)
    cases = ("module", "start", "step", "file", "throughput")
    assert [(row.case, row.peer) for row in part.rows] == [(case, title) for case in cases for title in made]
    assert part.same_output == list(made)
