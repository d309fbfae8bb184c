"""The contract's Python models: the vectors, the JSON border, the type language, the Envelope, and what is generated from them."""

import importlib
import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # has no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

import cuttlefish_abi
from cuttlefish_abi import (
    FINAL_STATUSES,
    MAX_TYPE_CHARS,
    MAX_TYPE_DEPTH,
    BadJson,
    BinaryKind,
    Command,
    Crop,
    DocumentKind,
    DocumentText,
    Done,
    Embed,
    Embedded,
    Emit,
    Emitted,
    Envelope,
    ErrorCode,
    Event,
    Fail,
    Frame,
    ImageKind,
    ImageOp,
    Infer,
    InferDone,
    InferOptions,
    JobError,
    JobStatus,
    Open,
    Opened,
    PageImage,
    PageImaged,
    PageText,
    PageTextAttempted,
    PageTexted,
    PageTextOpt,
    Resize,
    Signature,
    Slice,
    SliceBytes,
    Sliced,
    SlicedBytes,
    TokenAction,
    Ty,
    TyError,
    Usage,
    decode_command,
    decode_event,
    decode_signature,
    encode_event,
    parse_json,
)

ROOT = Path(__file__).resolve().parent.parent
ABI = ROOT / "abi"
TEXT = Ty.parse("text")
PATIENT = settings(deadline=None)  # a busy machine is no failure


def vectors(name: str, label: Callable[[dict[str, Any]], str]) -> pytest.MarkDecorator:
    """Run a test for each line of a file in abi/vectors."""
    cases = [json.loads(line) for line in (ABI / "vectors" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return pytest.mark.parametrize("case", [pytest.param(case, id=ascii(label(case))[1:-1][:90] or "empty") for case in cases])


def accepts(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except BadJson:
        return False
    return True


# Vectors

KNOWN = "infer, embed, open, slice, slice_bytes, page_text, page_text_opt, document_text, page_image, image_op, emit, done, fail"


@vectors("ty_parse", lambda case: case["in"])
def test_a_type_reads_as_its_vector_says(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(TyError):
            Ty.parse(case["in"])
    else:
        assert Ty.parse(case["in"]).describe() == case["canonical"]


@vectors("signature", lambda case: case["in"])
def test_a_signature_reads_as_its_vector_says(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(TyError):
            Signature.parse(case["in"])
    else:
        assert Signature.parse(case["in"]).describe() == case["canonical"]


@vectors("assignable", lambda case: f"{case['from']} to {case['to']}")
def test_a_type_is_assignable_as_its_vector_says(case: dict[str, Any]) -> None:
    assert Ty.parse(case["from"]).assignable_to(Ty.parse(case["to"])) is case["ok"]


@vectors("matches", lambda case: f"{case['ty']} and {json.dumps(case['value'])}")
def test_a_value_matches_as_its_vector_says(case: dict[str, Any]) -> None:
    assert Ty.parse(case["ty"]).matches(case["value"]) is case["ok"]


@vectors("commands", lambda case: case["json"])
def test_a_command_is_accepted_as_its_vector_says(case: dict[str, Any]) -> None:
    assert accepts(decode_command, case["json"].encode()) is case["ok"]


@vectors("command_bytes", lambda case: case["what"])
def test_the_bytes_of_a_command_are_accepted_as_their_vector_says(case: dict[str, Any]) -> None:
    assert accepts(decode_command, bytes.fromhex(case["hex"])) is case["ok"]


@vectors("generated", lambda case: case["what"])
def test_a_long_or_deep_command_is_accepted_as_its_vector_says(case: dict[str, Any]) -> None:
    text = case["head"] + case["open"] * case["times"] + case["middle"] + case["close"] * case["times"] + case["tail"]
    assert accepts(decode_command, text.encode()) is case["ok"]


@vectors("events", lambda case: case["json"])
def test_an_event_is_accepted_as_its_vector_says(case: dict[str, Any]) -> None:
    assert accepts(decode_event, case["json"].encode()) is case["ok"]


# The JSON border


def done(result: str) -> bytes:
    return f'{{"cmd":"done","result":{result}}}'.encode()


def opened_later(later: str) -> bytes:
    """A command with a field that nobody knows."""
    return f'{{"cmd":"open","path":"a","later":{later}}}'.encode()


ONES = "1" * 5000
SHOWN_ONES = "1" * 39 + "…"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "not valid JSON at line 1 column 1: a value belongs here", id="nothing"),
        pytest.param(b'{"cmd":"open"}', "open.path is missing", id="missing"),
        pytest.param(b'{"path":"a"}', 'the object has no "cmd"', id="no cmd"),
        pytest.param(b'{"cmd":"opne","path":"a"}', 'cmd "opne" is unknown; did you mean "open"?', id="misspelt"),
        pytest.param(b'{"cmd":"OPEN","path":"a"}', 'cmd "OPEN" is unknown; did you mean "open"?', id="capitals"),
        pytest.param(
            b'{"cmd":"teleport"}',
            f'cmd "teleport" is unknown; known: {KNOWN}',
            id="unknown",
        ),
        pytest.param(b'{"cmd":null}', "cmd must be text, found null", id="cmd null"),
        pytest.param(b'{"cmd":1}', "cmd must be text, found 1", id="cmd number"),
        pytest.param(b'["open"]', 'the message must be a JSON object, found ["open"]', id="list"),
        pytest.param(b'{"cmd":"open","path":7}', "open.path must be text, found 7", id="number for text"),
        pytest.param(
            b'{"cmd":"slice","handle":"12","offset":0,"len":1}',
            'slice.handle must be a whole number from 0, found "12"',
            id="text for number",
        ),
        pytest.param(
            b'{"cmd":"slice","handle":true,"offset":0,"len":1}',
            "slice.handle must be a whole number from 0, found true",
            id="true for number",
        ),
        pytest.param(
            b'{"cmd":"slice","handle":0,"offset":-1,"len":1}', "slice.offset must be a whole number from 0, found -1", id="negative"
        ),
        pytest.param(
            b'{"cmd":"page_text","handle":0,"page":1.0}', "page_text.page must be a whole number from 0, found 1.0", id="fraction"
        ),
        pytest.param(
            b'{"cmd":"slice","handle":0,"offset":0,"len":18446744073709551616}',
            "slice.len must be less than 18446744073709551616, found 18446744073709551616",
            id="too large",
        ),
        pytest.param(
            b'{"cmd":"infer","prompt":"p","max_tokens":1,"images":null}', "infer.images must be a list, found null", id="no list"
        ),
        pytest.param(
            b'{"cmd":"infer","prompt":"p","max_tokens":1,"images":[0,"1"]}',
            'infer.images[1] must be a whole number from 0, found "1"',
            id="in a list",
        ),
        pytest.param(b'{"cmd":"open","path":"a","path":"b"}', 'the key "path" stands twice in one object', id="twice"),
        pytest.param(done('{"k\\n":1,"k\\n":1}'), 'the key "k\\n" stands twice in one object', id="twice inside"),
        pytest.param(done("NaN"), "NaN is not a JSON number", id="NaN"),
        pytest.param(opened_later("[-Infinity]"), "-Infinity is not a JSON number", id="infinity in an extra field"),
        pytest.param(done("1e999"), "the number 1e999 is too large", id="1e999"),
        pytest.param(done(ONES), f"the number {SHOWN_ONES} has more than 4300 digits", id="5,000 digits"),
        pytest.param(done(ONES + "e-4900"), "a number has more than 4300 digits before its point", id="5,000 digits, made small"),
        pytest.param(done('"\\ud800"'), "not valid JSON: an escaped half of a surrogate pair stands alone", id="lone surrogate"),
        pytest.param(
            b'\xef\xbb\xbf{"cmd":"open","path":"a"}',
            "not valid JSON at line 1 column 1: a byte order mark stands before the value",
            id="byte order mark",
        ),
        pytest.param(b'{"cmd":"open","path":"\xff"}', "not valid UTF-8 at byte 22", id="no UTF-8"),
        pytest.param(
            b'{"cmd":"open",\n"path":"a"} x',
            "not valid JSON at line 2 column 13: the value has ended, and something follows",
            id="trailing text",
        ),
        pytest.param(
            b'{"cmd":"open","path":"a\nb"}',
            "not valid JSON at line 1 column 24: a control character in a string must be escaped",
            id="control character",
        ),
        pytest.param(b'{"cmd":"open', "not valid JSON at line 1 column 8: a string starts here and never ends", id="cut short"),
        pytest.param(done("[" * 128 + "]" * 128), "nested deeper than 128 levels", id="deep"),
        pytest.param(
            b'{"cmd":"' + b"x" * 100_000 + b'"}',
            f'cmd "{"x" * 58}… is unknown; known: {KNOWN}',
            id="a long name is cut",
        ),
        pytest.param(
            b'{"cmd":"open","path":["' + b"x" * 100_000 + b'"]}',
            f'open.path must be text, found ["{"x" * 57}…',
            id="a long value is cut",
        ),
    ],
)
def test_a_bad_command_is_refused_with_a_message_that_names_the_place(data: bytes, message: str) -> None:
    with pytest.raises(BadJson) as caught:
        decode_command(data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b'{"event":"emited"}', 'event "emited" is unknown; did you mean "emitted"?', id="misspelt"),
        pytest.param(
            b'{"event":"opened","handle":0,"len":1,"kind":{"kind":"pic"}}',
            'opened.kind.kind "pic" is unknown; known: text, image, document, binary',
            id="unknown kind",
        ),
        pytest.param(b'{"event":"opened","handle":0,"len":1,"kind":{}}', 'opened.kind has no "kind"', id="no kind"),
        pytest.param(
            b'{"event":"opened","handle":0,"len":1,"kind":"text"}',
            'opened.kind must be a JSON object, found "text"',
            id="kind as text",
        ),
        pytest.param(
            b'{"event":"opened","handle":0,"len":1,"kind":{"kind":"document","pages":1,"has_text_layer":1}}',
            "opened.kind.document.has_text_layer must be true or false, found 1",
            id="number for bool",
        ),
    ],
)
def test_a_bad_event_is_refused_with_a_message_that_names_the_place(data: bytes, message: str) -> None:
    with pytest.raises(BadJson) as caught:
        decode_event(data)
    assert str(caught.value) == message


PLACES = [pytest.param(done, id="in a result"), pytest.param(opened_later, id="in an extra field")]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1e999", "-1e999", ONES, "-" + ONES, ONES + ".5", '"\\ud800"', '"\\udc00 x"']
)
@pytest.mark.parametrize("around", ["%s", "[[%s]]", '{"a":[{"b":%s}]}'])
def test_what_is_no_json_value_is_refused_wherever_it_stands(place: Callable[[str], bytes], value: str, around: str) -> None:
    with pytest.raises(BadJson):
        decode_command(place(around % value))
    with pytest.raises(BadJson):
        parse_json((around % value).encode())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_exactly_as_many_levels_as_the_limit_are_read(place: Callable[[str], bytes], opening: str, closing: str) -> None:
    def nested(levels: int) -> bytes:
        inner = levels - 1  # the command itself is one
        return place(opening * inner + "0" + closing * inner)

    decode_command(nested(128))
    decode_command(nested(3), max_depth=3)
    for levels, limit in ((129, 128), (4, 3), (201, 1000), (5000, 1000)):
        with pytest.raises(BadJson, match=rf"^nested deeper than {min(limit, 200)} levels$"):
            decode_command(nested(levels), max_depth=limit)


def test_a_raised_limit_reads_two_hundred_levels() -> None:
    decode_command(done("[" * 199 + "]" * 199), max_depth=1000)
    assert parse_json(b"[" * 200 + b"]" * 200, max_depth=1000)


def test_brackets_in_strings_and_side_by_side_are_no_levels() -> None:
    text = '[{\\"' * 500
    decode_command(done(f'["{text}", {", ".join(["[]", "{}"] * 500)}]'))


def test_nul_and_other_escaped_control_characters_are_text() -> None:
    assert decode_command(b'{"cmd":"open","path":"a\\u0000\\n\\u001f"}') == Open(path="a\0\n\x1f")


def test_the_numbers_of_a_result_arrive_exactly() -> None:
    numbers = [2**53 + 1, -(2**80), int("1" * 4300), 0.1, 1e308, 5e-324, -0.0, 1.0, 1e-999]
    result = decode_command(done(json.dumps(numbers)))
    assert isinstance(result, Done)
    assert result.result == numbers
    assert [type(n) for n in result.result] == [type(n) for n in numbers]


def test_a_long_unknown_name_takes_memory_in_proportion_to_its_length() -> None:
    """Comparing it with the known names would take forty times as much."""
    data = b'{"cmd":"' + b"x" * 1_000_000 + b'"}'
    tracemalloc.start()
    try:
        assert not accepts(decode_command, data)
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


def test_an_unknown_field_is_dropped() -> None:
    assert decode_command(opened_later('{"a":[1]}')) == Open(path="a")


def test_images_may_be_left_out_and_are_then_none() -> None:
    first = decode_command(b'{"cmd":"infer","prompt":"p","max_tokens":1}')
    assert first == Infer(prompt="p", max_tokens=1, images=[])
    assert Infer(prompt="p", max_tokens=1).images is not Infer(prompt="p", max_tokens=1).images


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        setattr(Open(path="a"), "path", "b")  # noqa: B010  # mypy refuses the plain assignment, as it should


json_text = st.text(st.characters(codec="utf-8"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | json_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_text, inner, max_size=4),
    max_leaves=20,
)


@PATIENT
@given(st.binary(max_size=200))
def test_random_bytes_give_a_command_or_bad_json(data: bytes) -> None:
    accepts(decode_command, data)
    accepts(decode_event, data)
    accepts(parse_json, data)


NAMES = ["infer", "open", "slice", "slice_bytes", "page_text", "page_image", "emit", "done", "fail", "opened", "sliced", "Open", ""]
FIELDS = [
    "prompt",
    "max_tokens",
    "images",
    "path",
    "handle",
    "offset",
    "len",
    "page",
    "progress",
    "result",
    "code",
    "message",
    "kind",
]


@PATIENT
@given(
    st.dictionaries(st.sampled_from(["cmd", "event"]), st.sampled_from(NAMES) | json_values),
    st.dictionaries(st.sampled_from(FIELDS) | json_text, json_values, max_size=8),
)
def test_random_objects_give_a_command_or_bad_json(tags: dict[str, object], fields: dict[str, object]) -> None:
    data = json.dumps(fields | tags).encode()
    accepts(decode_command, data)
    accepts(decode_event, data)


@PATIENT
@given(
    st.lists(
        st.sampled_from(['"', "\\", "[", "]", "{", "}", ":", ",", "1", "a", "e", "\\u", "d800", "\n", "NaN", '{"cmd":"done",'])
    )
)
def test_random_pieces_of_json_give_a_command_or_bad_json(pieces: list[str]) -> None:
    data = "".join(pieces).encode()
    accepts(decode_command, data)
    accepts(lambda text: decode_command(text, max_depth=2), data)
    accepts(parse_json, data)


@PATIENT
@given(json_values, st.booleans())
def test_a_result_or_progress_of_any_json_arrives_as_it_was_sent(value: object, ascii_only: bool) -> None:
    sent = json.dumps(value, ensure_ascii=ascii_only)
    assert decode_command(done(sent)) == Done(result=value)
    assert decode_command(f'{{"progress":{sent},"cmd":"emit"}}'.encode()) == Emit(progress=value)
    assert parse_json(sent.encode()) == value


@st.composite
def objects_with_a_duplicate(draw: st.DrawFn) -> str:
    """JSON that holds, somewhere, an object with one key twice: written the same way or once with escapes."""
    key = draw(json_text)
    pairs = [
        (k, json.dumps(v)) for k, v in draw(st.dictionaries(json_text.filter(lambda k: k != key), json_values, max_size=3)).items()
    ]
    for _ in range(2):
        pairs.insert(draw(st.integers(0, len(pairs))), (key, json.dumps(draw(json_values))))
    escaped = "".join(f"\\u{unit:04x}" for unit in memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H"))
    forms = [json.dumps(key), f'"{escaped}"', json.dumps(key, ensure_ascii=False)]
    text = "{" + ", ".join(f"{draw(st.sampled_from(forms)) if k == key else json.dumps(k)}: {v}" for k, v in pairs) + "}"
    for _ in range(draw(st.integers(0, 5))):
        text = draw(st.sampled_from(["[%s]", "[1, %s, {}]", '{"x": %s}', '{"x": [], "y": %s, "z": 0}'])).replace("%s", text)
    return text


@PATIENT
@given(objects_with_a_duplicate(), st.sampled_from([done, opened_later]))
def test_a_key_that_stands_twice_is_refused_at_any_depth(text: str, place: Callable[[str], bytes]) -> None:
    with pytest.raises(BadJson, match=r"^the key .* stands twice in one object$"):
        decode_command(place(text))


@PATIENT
@given(st.sampled_from(["handle", "offset", "len", "cmd"]), st.permutations(["handle", "offset", "len", "cmd"]), st.integers(0, 4))
def test_a_field_that_stands_twice_is_refused_in_any_order(twice: str, order: list[str], at: int) -> None:
    names = [*order[:at], twice, *order[at:]]
    data = "{" + ",".join(f'"{name}":"slice"' if name == "cmd" else f'"{name}":0' for name in names) + "}"
    with pytest.raises(BadJson, match=rf'^the key "{twice}" stands twice in one object$'):
        decode_command(data.encode())


# Events


EVENTS: list[tuple[Event, str]] = [
    (InferDone(text='é "日"\n', tokens_out=3), '{"event":"infer_done","text":"é \\"日\\"\\n","tokens_out":3}'),
    (
        InferDone(text="a", tokens_out=1, finish_reason="length"),
        '{"event":"infer_done","text":"a","tokens_out":1,"finish_reason":"length"}',
    ),
    (Embedded(vectors=[[0.5, -1.0]]), '{"event":"embedded","vectors":[[0.5,-1.0]]}'),
    (Opened(handle=0, len=5), '{"event":"opened","handle":0,"len":5,"kind":{"kind":"text"}}'),
    (
        Opened(handle=1, len=2**64 - 1, kind=ImageKind(format="png")),
        '{"event":"opened","handle":1,"len":18446744073709551615,"kind":{"kind":"image","format":"png"}}',
    ),
    (
        Opened(handle=2, len=7, kind=DocumentKind(pages=3, has_text_layer=False)),
        '{"event":"opened","handle":2,"len":7,"kind":{"kind":"document","pages":3,"has_text_layer":false}}',
    ),
    (Opened(handle=2**32 - 1, len=0, kind=BinaryKind()), '{"event":"opened","handle":4294967295,"len":0,"kind":{"kind":"binary"}}'),
    (Sliced(text="😀\0\x7f/", next_offset=6), '{"event":"sliced","text":"😀\\u0000\x7f/","next_offset":6}'),
    (SlicedBytes(bytes_base64="+/8=", next_offset=2), '{"event":"sliced_bytes","bytes_base64":"+/8=","next_offset":2}'),
    (PageTexted(text=""), '{"event":"page_texted","text":""}'),
    (PageTexted(text="", images=1, coverage=0.5), '{"event":"page_texted","text":"","images":1,"coverage":0.5}'),
    (PageTextAttempted(text="a", error=None), '{"event":"page_text_attempted","text":"a","error":null}'),
    (PageTextAttempted(text=None, error="e"), '{"event":"page_text_attempted","text":null,"error":"e"}'),
    (
        PageImaged(handle=3, len=10, kind=ImageKind(format="jpeg")),
        '{"event":"page_imaged","handle":3,"len":10,"kind":{"kind":"image","format":"jpeg"}}',
    ),
    (PageImaged(handle=3, len=10), '{"event":"page_imaged","handle":3,"len":10}'),
    (Emitted(), '{"event":"emitted"}'),
]


@pytest.mark.parametrize(("event", "text"), EVENTS, ids=[text[:40] for _, text in EVENTS])
def test_an_event_is_written_in_the_order_of_the_contract_and_without_ascii_escapes(event: Event, text: str) -> None:
    assert encode_event(event) == text.encode()
    assert decode_event(text.encode()) == event


def test_an_opened_event_without_a_kind_is_of_a_text() -> None:
    assert decode_event(b'{"event":"opened","handle":0,"len":1}') == Opened(handle=0, len=1)


# Types


names = st.text(st.characters(codec="utf-8", exclude_characters="[]{},:"), min_size=1, max_size=6).filter(
    lambda name: name == name.strip()
)
types = st.recursive(
    st.sampled_from([Ty.parse(kind) for kind in ("text", "number", "bool", "bytes", "image", "document", "json")]),
    lambda inner: (
        st.builds(Ty.list_of, inner) | st.builds(Ty.record, st.dictionaries(names | st.sampled_from("abc"), inner, max_size=3))
    ),
    max_leaves=8,
)


def write_loosely(ty: Ty, space: str, reverse: bool) -> str:
    """The same type as other people write it."""
    if ty.item is not None:
        return f"{space}[{write_loosely(ty.item, space, reverse)}]{space}"
    if ty.kind == "record":
        fields = ty.fields[::-1] if reverse else ty.fields
        inner = [f"{space}{name}{space}:{write_loosely(part, space, reverse)}" for name, part in fields]
        return f"{space}{{{','.join(inner)}{',' if reverse and fields else ''}{space}}}{space}"
    return f"{space}{ty.kind}{space}"


@PATIENT
@given(types, st.sampled_from(["", " ", "\t\n", "\u00a0 "]), st.booleans())
def test_a_type_reads_back_from_its_text_however_loosely_it_is_written(ty: Ty, space: str, reverse: bool) -> None:
    assert Ty.parse(ty.describe()) == ty
    loose = Ty.parse(write_loosely(ty, space, reverse))
    assert loose == ty
    assert hash(loose) == hash(ty)
    assert loose.describe() == ty.describe() == str(ty)


@PATIENT
@given(st.text("[]{},: atextjson\n", max_size=40))
def test_the_text_of_every_type_that_can_be_read_is_canonical(text: str) -> None:
    try:
        ty = Ty.parse(text)
    except TyError:
        return
    assert Ty.parse(ty.describe()) == ty
    assert Ty.parse(ty.describe()).describe() == ty.describe()


@PATIENT
@given(types)
def test_every_type_may_be_fed_to_itself_and_to_json(ty: Ty) -> None:
    assert ty.assignable_to(ty)
    assert ty.assignable_to(Ty.parse("json"))
    assert Ty.parse("json").assignable_to(ty) is (ty.kind == "json")


Draw = Callable[[st.SearchStrategy[Any]], Any]


def loosen(draw: Draw, ty: Ty) -> Ty:
    """A type that `ty` may be fed to."""
    if draw(st.integers(0, 3)) == 0:
        return Ty.parse("json")
    if ty.item is not None:
        return Ty.list_of(loosen(draw, ty.item))
    if ty.kind == "record":
        return Ty.record({name: loosen(draw, part) for name, part in ty.fields if draw(st.booleans())})
    return ty


@PATIENT
@given(st.data())
def test_what_may_be_fed_to_a_second_type_may_be_fed_to_whatever_takes_the_second(data: st.DataObject) -> None:
    first = data.draw(types)
    second = loosen(data.draw, first)
    third = loosen(data.draw, second)
    assert first.assignable_to(second)
    assert second.assignable_to(third)
    assert first.assignable_to(third)


@PATIENT
@given(types, types, types)
def test_assignability_of_any_three_types_is_transitive(a: Ty, b: Ty, c: Ty) -> None:
    assert not (a.assignable_to(b) and b.assignable_to(c)) or a.assignable_to(c)


@st.composite
def values_of(draw: st.DrawFn, ty: Ty) -> object:
    if ty.item is not None:
        return draw(st.lists(values_of(ty.item), max_size=3))
    match ty.kind:
        case "record":
            more: dict[str, object] = draw(st.dictionaries(json_text, json_values, max_size=2))
            return more | {name: draw(values_of(part)) for name, part in ty.fields}
        case "number":
            return draw(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
        case "image" | "document":
            return draw(st.integers(0, 2**32 - 1))
        case "bytes":
            return draw(st.sampled_from(["", "AAEC", "AA==", "+/8="]))
    return draw({"text": json_text, "bool": st.booleans(), "json": json_values}[ty.kind])


@PATIENT
@given(st.data())
def test_a_value_of_a_type_matches_every_type_that_it_may_be_fed_to(data: st.DataObject) -> None:
    ty = data.draw(types)
    value = data.draw(values_of(ty))
    assert ty.mismatch(value) is None
    assert loosen(data.draw, ty).mismatch(value) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a type is missing"),
        ("[]", "a type is missing"),
        ("{a: }", "a type is missing"),
        ("Text", '"Text" is no type; did you mean "text"?'),
        ("[nubmer]", '"nubmer" is no type; did you mean "number"?'),
        ("int", '"int" is no type; known: text, number, bool, bytes, image, document, json, [TYPE], {NAME: TYPE}'),
        ("[text", 'unbalanced brackets in "[text"'),
        ("{a: [text}}", 'unbalanced brackets in "{a: [text}}"'),
        ("{a: text, a: json}", 'the field "a" stands twice in "{a: text, a: json}"'),
        ("{a text}", 'a field is NAME: TYPE, found "a text" in "{a text}"'),
        ("{: text}", 'a field is NAME: TYPE, found ": text" in "{: text}"'),
        ("{a: text,, b: text}", 'an empty piece between commas in "{a: text,, b: text}"'),
        ("[" * 50_000 + "text" + "]" * 50_000, "a type may be nested 64 levels deep, not more"),
        ("x" * 1_048_577, "a type may have 1048576 characters, not 1048577"),
        ("x" * 1_000, f'"{"x" * 58}… is no type; known: text, number, bool, bytes, image, document, json, [TYPE], {{NAME: TYPE}}'),
    ],
    ids=lambda text: text[:30] or "empty",
)
def test_a_bad_type_is_refused_with_a_message_that_names_the_piece(text: str, message: str) -> None:
    with pytest.raises(TyError) as caught:
        Ty.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("ty", "value", "message"),
    [
        ("text", 1, "value must be text, found 1"),
        ("number", True, "value must be a number, found true"),
        ("bool", 0, "value must be true or false, found 0"),
        ("bytes", "***", 'value must be bytes in base64, found "***"'),
        ("image", -1, "value must be a handle of an image, found -1"),
        ("document", None, "value must be a handle of a document, found null"),
        ("[text]", "a", 'value must be a list, [text], found "a"'),
        ("[text]", ["a", 1], "value[1] must be text, found 1"),
        ("{a: text}", [], "value must be a record, {a: text}, found []"),
        ("{a: {b: [bool]}}", {"a": {"b": [True, None]}}, "value.a.b[1] must be true or false, found null"),
        ("{path: text}", {"paht": "x"}, 'value.path is missing; it must be text (did you mean "paht"?)'),
        ("{path: text}", {"x\n": 1}, "value.path is missing; it must be text (known: x\\n)"),
        ("{path: text}", {}, "value.path is missing; it must be text"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(ty: str, value: object, message: str) -> None:
    assert Ty.parse(ty).mismatch(value) == message


def test_a_message_about_a_huge_value_stays_short() -> None:
    many = {f"key{i}" * 10: [i] * 100 for i in range(10_000)}
    wide = Ty.record({f"field{i}": TEXT for i in range(1_000)})
    for message in (wide.mismatch(many), wide.mismatch([many]), TEXT.mismatch(many), Ty.list_of(wide).mismatch("x" * 1_000_000)):
        assert message is not None
        assert len(message) < 600


def test_a_missing_field_is_compared_with_the_first_hundred_names_only() -> None:
    hundred = {f"k{i}": 0 for i in range(100)}
    record = Ty.parse("{path: text}")
    assert "did you mean" in str(record.mismatch({"paht": 0} | hundred))
    assert "did you mean" not in str(record.mismatch(hundred | {"paht": 0}))


def test_a_handle_must_name_what_its_type_says() -> None:
    kinds = {0: "image", 1: "document"}.get
    assert Ty.parse("[image]").mismatch([0], handle_kind=kinds) is None
    assert Ty.parse("[image]").mismatch([0, 1], handle_kind=kinds) == "value[1] must be a handle of an image, found 1"
    assert Ty.parse("document").mismatch(9, place="result", handle_kind=kinds) == "result must be a handle of a document, found 9"


def test_a_type_is_read_to_its_depth_and_no_deeper() -> None:
    deepest = Ty.parse("[" * MAX_TYPE_DEPTH + "text" + "]" * MAX_TYPE_DEPTH)
    assert deepest.assignable_to(deepest)
    builders: list[Callable[[], Ty]] = [lambda: Ty.list_of(deepest), lambda: Ty.record({"a": deepest})]
    for build in builders:
        with pytest.raises(TyError, match=r"^a type may be nested 64 levels deep, not more$"):
            build()


def test_a_type_as_long_as_may_be_is_read() -> None:
    text = "{" + ",".join(f"f{i:06}:text" for i in range(1_048_576 // 13)) + "}"
    assert len(text) <= MAX_TYPE_CHARS
    assert len(Ty.parse(text).fields) == 1_048_576 // 13


@pytest.mark.parametrize("name", ["", " a", "a ", "a:b", "a,b", "a]", "{a"])
def test_a_field_name_that_its_text_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(TyError) as caught:
        Ty.record({name: TEXT})
    assert str(caught.value) in (f'"{name}" cannot be the name of a field', f'unbalanced brackets in "{name}"')


@pytest.mark.parametrize(
    "parts",
    [
        {"kind": "list"},
        {"kind": "text", "item": TEXT},
        {"kind": "json", "fields": (("a", TEXT),)},
        {"kind": "record", "item": TEXT},
        {"kind": "record", "fields": (("b", TEXT), ("a", TEXT))},
        {"kind": "record", "fields": (("a", TEXT), ("a", TEXT))},
    ],
    ids=str,
)
def test_a_type_cannot_be_put_together_from_parts_that_do_not_fit(parts: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Ty(**parts)


class Seam(BaseModel):
    ty: Ty
    many: list[Ty] = []


def test_a_type_is_its_text_in_the_json_of_a_model() -> None:
    seam = Seam.model_validate_json('{"ty":"{b:text,a:[json]}","many":[" text "]}')
    assert seam == Seam(ty=Ty.parse("{a: [json], b: text}"), many=[TEXT])
    assert seam.model_dump_json() == '{"ty":"{a: [json], b: text}","many":["text"]}'
    assert Seam.model_json_schema()["properties"]["ty"]["type"] == "string"


@pytest.mark.parametrize("ty", ["Text", 1, None, {"kind": "text"}], ids=str)
def test_what_is_no_text_of_a_type_is_refused_in_the_json_of_a_model(ty: object) -> None:
    with pytest.raises(ValidationError):
        Seam.model_validate_json(json.dumps({"ty": ty}))


def test_a_signature_is_two_texts_in_json() -> None:
    signature = decode_signature(b'{"input":" {b:text , a:text}","output":"json","later":1}')
    assert signature == Signature.parse("{a: text, b: text} -> json")
    assert signature.model_dump_json() == '{"input":"{a: text, b: text}","output":"json"}'
    assert Signature.model_validate_json(signature.model_dump_json()) == signature
    assert Signature.model_validate({"input": "{a: text, b: text}", "output": "json"}) == signature
    assert str(signature) == "{a: text, b: text} -> json"


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"[]", BadJson, "a signature must be a JSON object, found []"),
        (b'{"input":"text"}', BadJson, "output is missing"),
        (b'{"input":"text","output":null}', BadJson, "output must be text, found null"),
        (b'{"input":"Text","output":"text"}', TyError, 'input: "Text" is no type; did you mean "text"?'),
        (b'{"input":"text","input":"text","output":"text"}', BadJson, 'the key "input" stands twice in one object'),
        (b"", BadJson, "not valid JSON at line 1 column 1: a value belongs here"),
    ],
)
def test_a_bad_signature_is_refused_with_a_message_that_names_the_field(data: bytes, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        decode_signature(data)
    assert str(caught.value) == message


def test_a_line_without_an_arrow_is_no_signature() -> None:
    with pytest.raises(TyError) as caught:
        Signature.parse("text->text")
    assert str(caught.value) == 'a signature is IN -> OUT, found "text->text"'


# Envelope


ERROR = JobError(code="timeout", message="m")
ENVELOPES: list[tuple[Envelope, dict[str, object]]] = [
    (Envelope(status=JobStatus.COMPLETED, result={"a": ["é"]}, usage=Usage()), {"result": {"a": ["é"]}}),
    (Envelope(status=JobStatus.COMPLETED, result=None, usage=Usage()), {"result": None}),
    (Envelope(status=JobStatus.FAILED, error=ERROR, usage=Usage()), {"error": {"code": "timeout", "message": "m"}}),
    (Envelope(status=JobStatus.CANCELLED, error=ERROR, usage=Usage()), {"error": {"code": "timeout", "message": "m"}}),
    (Envelope(status=JobStatus.QUEUED, usage=Usage()), {}),
    (Envelope(status=JobStatus.RUNNING, usage=Usage()), {}),
    (Envelope(status=JobStatus.INTERRUPTED, usage=Usage()), {}),
]


@pytest.mark.parametrize(("envelope", "parts"), ENVELOPES, ids=[f"{e.status} {list(p)}" for e, p in ENVELOPES])
def test_an_envelope_holds_what_its_status_calls_for_and_nothing_else(envelope: Envelope, parts: dict[str, object]) -> None:
    usage = {"tokens_in": 0, "tokens_out": 0, "duration_ms": 0, "model": None}
    written = envelope.model_dump_json()
    assert json.loads(written) == {"status": str(envelope.status), **parts, "usage": usage}
    assert list(json.loads(written)) == ["status", *parts, "usage"]
    assert envelope.model_dump(mode="json") == json.loads(written)
    assert Envelope.model_validate_json(written) == envelope


def test_an_envelope_can_be_written_without_its_defaults() -> None:
    failed = Envelope(status=JobStatus.FAILED, error=ERROR, usage=Usage(tokens_in=1))
    expected = {"status": "failed", "error": {"code": "timeout", "message": "m"}, "usage": {"tokens_in": 1}}
    assert failed.model_dump(mode="json", exclude_defaults=True) == expected
    assert failed.model_dump(mode="json", exclude_unset=True) == expected
    assert "result" not in failed.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    "parts",
    [
        {"status": "failed"},
        {"status": "cancelled"},
        {"status": "completed", "error": {"code": "c", "message": "m"}},
        {"status": "failed", "result": 1, "error": {"code": "c", "message": "m"}},
        {"status": "running", "result": 1},
        {"status": "queued", "error": {"code": "c", "message": "m"}},
        {"status": "done", "result": 1},
    ],
    ids=json.dumps,
)
def test_an_envelope_whose_parts_do_not_fit_its_status_is_refused(parts: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Envelope.model_validate_json(json.dumps(parts | {"usage": {}}))


def test_an_envelope_without_usage_is_refused() -> None:
    with pytest.raises(ValidationError):
        Envelope.model_validate_json('{"status":"completed","result":1}')


def test_a_result_as_deep_as_a_command_may_be_fits_into_an_envelope() -> None:
    command = decode_command(done("[" * 199 + "]" * 199), max_depth=200)
    assert isinstance(command, Done)
    assert json.loads(Envelope(status=JobStatus.COMPLETED, result=command.result, usage=Usage()).model_dump_json())["result"]


def test_three_statuses_are_final() -> None:
    assert {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED} == FINAL_STATUSES


def test_zero_lets_the_model_go_on() -> None:
    assert {action: action.value for action in TokenAction} == {TokenAction.CONTINUE: 0, TokenAction.STOP: 1}


def test_every_code_is_its_own_text_and_has_a_meaning() -> None:
    for code in ErrorCode:
        assert ErrorCode(str(code)) is code
        assert code == code.value == code.name.lower()
        assert re.fullmatch(r"[A-Z].*\.", code.meaning)


# Public names


@pytest.mark.parametrize("name", ["base", "codes", "commands", "envelope", "events", "media", "strict_json", "tokens", "types"])
def test_all_of_a_module_is_sorted_and_there(name: str) -> None:
    module = importlib.import_module(f"cuttlefish_abi.{name}")
    assert module.__all__ == sorted(module.__all__, key=by_kind)
    assert all(hasattr(module, name) for name in module.__all__)


def by_kind(name: str) -> tuple[int, str]:
    """The order of ruff: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_all_of_the_package_is_sorted_and_complete() -> None:
    assert cuttlefish_abi.__all__ == sorted(cuttlefish_abi.__all__, key=by_kind)
    modules = {
        name: value for name, value in vars(cuttlefish_abi).items() if not name.startswith("_") and not isinstance(value, type(sys))
    }
    assert sorted(modules) == sorted(cuttlefish_abi.__all__)


# What is generated, and the README


def schema(name: str) -> Any:  # a validator; jsonschema has no types
    form = json.loads((ABI / "schema" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(form)
    return jsonschema.Draft202012Validator(form)


COMMANDS: list[Command] = [
    Infer(prompt="p", max_tokens=1, images=[0]),
    Infer(prompt="p", max_tokens=1, options=InferOptions(temperature=1.5, seed=3, stop=["a"], schema={"type": "object"})),
    Embed(texts=["a"]),
    Open(path="a"),
    Slice(handle=0, offset=0, len=2**64 - 1),
    SliceBytes(handle=2**32 - 1, offset=0, len=1),
    PageText(handle=0, page=0),
    PageTextOpt(handle=0, page=0),
    DocumentText(handle=0),
    PageImage(handle=0, page=0),
    ImageOp(handle=0, op=Resize(max_width=1, max_height=2)),
    ImageOp(handle=0, op=Crop(x=0, y=0, width=1, height=2)),
    ImageOp(handle=0, op=Frame(index=7)),
    Emit(progress=None),
    Done(result={"a": [1, 2.5]}),
    Fail(code="c", message="m"),
]


def test_the_schemas_accept_every_real_message() -> None:
    for command in COMMANDS:
        schema("command").validate(json.loads(command.model_dump_json()))
    for event, text in EVENTS:
        schema("event").validate(json.loads(encode_event(event)))
        schema("event").validate(json.loads(text))
    for envelope, _ in ENVELOPES:
        schema("envelope").validate(json.loads(envelope.model_dump_json()))
    schema("signature").validate({"input": "text", "output": "json"})


@vectors("commands", lambda case: case["json"])
def test_the_schema_of_commands_agrees_with_its_vector(case: dict[str, Any]) -> None:
    """Of what is JSON: a schema sees values, so it cannot see keys that stand twice, or how a number was written."""
    try:
        value = parse_json(case["json"].encode())
    except BadJson:
        assert not case["ok"]
        return
    whole_as_float = re.search(r":\[?(1\.0|4\.0|1e2)\b", case["json"])
    assert schema("command").is_valid(value) is (case["ok"] or whole_as_float is not None)


@vectors("events", lambda case: case["json"])
def test_the_schema_of_events_agrees_with_its_vector(case: dict[str, Any]) -> None:
    try:
        value = parse_json(case["json"].encode())
    except BadJson:
        assert not case["ok"]
        return
    assert schema("event").is_valid(value) is (case["ok"] or "1.0" in case["json"])


USAGE = {"tokens_in": 0, "tokens_out": 0, "duration_ms": 0, "model": None}


@pytest.mark.parametrize(
    "envelope",
    [
        {"status": "completed", "usage": USAGE},
        {"status": "completed", "result": 1, "error": None, "usage": USAGE},
        {"status": "failed", "error": None, "usage": USAGE},
        {"status": "failed", "result": None, "error": {"code": "c", "message": "m"}, "usage": USAGE},
        {"status": "failed", "error": {"code": "c"}, "usage": USAGE},
        {"status": "cancelled", "usage": USAGE},
        {"status": "running", "result": None, "usage": USAGE},
        {"status": "queued", "error": {"code": "c", "message": "m"}, "usage": USAGE},
        {"status": "done", "result": 1, "usage": USAGE},
        {"status": "completed", "result": 1, "usage": {}},
        {"status": "completed", "result": 1, "usage": {**USAGE, "tokens_in": -1}},
        {"status": "completed", "result": 1},
        {"result": 1, "usage": USAGE},
        [],
    ],
    ids=json.dumps,
)
def test_the_schema_of_the_envelope_refuses_what_is_never_written(envelope: object) -> None:
    assert not schema("envelope").is_valid(envelope)


@pytest.mark.parametrize("signature", [{}, {"input": "text"}, {"input": 1, "output": "text"}, "text -> text"], ids=json.dumps)
def test_the_schema_of_signatures_refuses_what_is_none(signature: object) -> None:
    assert not schema("signature").is_valid(signature)


def test_the_schema_of_commands_lets_results_and_progress_be_anything() -> None:
    forms = json.loads((ABI / "schema" / "command.json").read_text(encoding="utf-8"))["$defs"]
    assert forms["Done"]["properties"]["result"] == {}
    assert forms["Emit"]["properties"]["progress"] == {}


def test_generated_files_are_fresh() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "generate", "--check"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


README = (ABI / "README.md").read_text(encoding="utf-8")
README_LINES = [
    line for block in re.findall(r"^```json\n(.*?)^```$", README, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]


@pytest.mark.parametrize("line", README_LINES)
def test_every_message_in_the_readme_is_real(line: str) -> None:
    keys = json.loads(line).keys()
    if "cmd" in keys:
        decode_command(line.encode())
    elif "event" in keys:
        assert encode_event(decode_event(line.encode())) == line.encode()
    elif "status" in keys:
        assert Envelope.model_validate_json(line).model_dump_json() == line
    else:
        decode_signature(line.encode())


def test_the_readme_shows_every_command_event_and_kind() -> None:
    shown = [json.loads(line) for line in README_LINES]
    assert {line["cmd"] for line in shown if "cmd" in line} == {command.cmd for command in COMMANDS}
    assert {line["event"] for line in shown if "event" in line} == {event.event for event, _ in EVENTS}
    assert {line["kind"]["kind"] for line in shown if "kind" in line} == {"text", "image", "document", "binary"}


def table_rows(text: str) -> dict[str, list[str]]:
    """The rows of all tables in a page whose first cell is a name in backticks."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_the_readme_lists_every_code_with_its_meaning() -> None:
    section = README.split("## Error codes")[1].split("\n## ")[0]
    assert table_rows(section) == {str(code): [code.meaning] for code in ErrorCode}


def test_the_limits_in_the_readme_are_those_of_the_host() -> None:
    section = table_rows(README.split("## Limits")[1].split("\n## ")[0])
    host = table_rows((ROOT / "docs" / "limits.md").read_text(encoding="utf-8"))
    assert section.keys() <= host.keys()
    for name, (default, _) in section.items():
        amount, unit = host[name][:2]
        assert default in (amount, f"{amount} {unit}")
