"""Conversations: reading, replaying, updating and recording them. Real blocks, no model and no files."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from cuttlefish import BlockBytes, open_host
from cuttlefish.authoring.cases import CaseResult, CaseRunner
from cuttlefish.authoring.conversations import BadConversation, read_conversation
from cuttlefish.authoring.differences import first_difference
from cuttlefish.authoring.recording import Recording
from cuttlefish.limits import Limits
from cuttlefish_abi import JobStatus
from guests import SPIN, echo, scripted

OPEN = {"cmd": "open", "path": "a.txt"}
OPENED = {"event": "opened", "handle": 1, "len": 3, "kind": {"kind": "text"}}
SLICE = {"cmd": "slice", "handle": 1, "offset": 0, "len": 9}
SLICED = {"event": "sliced", "text": "abc", "next_offset": 3}
INFER = {"cmd": "infer", "prompt": "p", "max_tokens": 9}
INFERRED = {"event": "infer_done", "text": "a word", "tokens_out": 2}
DONE = {"cmd": "done", "result": {"text": "abc"}}
FAIL = {"cmd": "fail", "code": "bad", "message": "no"}

READER = [{"input": {}}, {"command": OPEN}, {"event": OPENED}, {"command": SLICE}, {"event": SLICED}, {"command": DONE}]


def write(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


async def judge(block: BlockBytes, path: Path, *, update: bool = False, limits: Limits | None = None) -> CaseResult:
    async with open_host() as host:
        runner = CaseRunner((await host.inspect(block)).module, limits or Limits(), trio.CapacityLimiter(1))
        return await (runner.update if update else runner.replay)(path, path.name)


# Reading

WRONG_FILES: dict[str, tuple[list[object], str]] = {
    "empty": ([], 'c.jsonl:1: the file is empty; it begins with a line such as {"input": {"path": "a.txt"}}'),
    "no json": (['{"input": }'], "c.jsonl:1: not valid JSON at column 11: a value belongs here"),
    "a key twice": (['{"input": {"a": 1, "a": 2}}'], 'c.jsonl:1: the key "a" stands twice in one object'),
    "no object": (["[1]"], 'c.jsonl:1: a line is an object such as {"event": …}, found [1]'),
    "no input first": (
        [{"command": DONE}],
        'c.jsonl:1: a conversation begins with a line {"input": …}, found a line with "command"',
    ),
    "two inputs": ([{"input": 1}, {"input": 2}], "c.jsonl:2: only the first line is an input"),
    "a misspelt line": (
        [{"input": 1}, "", {"evnt": OPENED}],
        'c.jsonl:3: a line holds one of input, command, event, token, found "evnt"; did you mean "event"?',
    ),
    "a bare command": (
        [{"input": 1}, DONE],
        "c.jsonl:2: a line holds one of input, command, event, token, found a command by itself; "
        'write {"command": {"cmd": "done", "result": {"text": "abc…}',
    ),
    "two in one line": (
        [{"input": 1}, {"command": OPEN, "event": OPENED}],
        "c.jsonl:2: a line holds one of input, command, event, token, found command and event",
    ),
    "something beside": ([{"input": 1, "note": "x"}], 'c.jsonl:1: a line with "input" holds nothing else, found "note"'),
    "an unknown command": (
        [{"input": 1}, {"command": {"cmd": "opn", "path": "a"}}],
        'c.jsonl:2: this is no command: cmd "opn" is unknown; did you mean "open"?',
    ),
    "a command without a field": (
        [{"input": 1}, {"command": {"cmd": "open"}}],
        "c.jsonl:2: this is no command: open.path is missing",
    ),
    "an event that is none": (
        [{"input": 1}, {"command": OPEN}, {"event": "opened"}],
        'c.jsonl:3: an event is an object such as {"event": "emitted"}, found "opened"',
    ),
    "two commands": (
        [{"input": 1}, {"command": OPEN}, {"command": DONE}],
        'c.jsonl:3: between two commands belongs the event that answers "open"',
    ),
    "a token without a prompt": (
        [{"input": 1}, {"command": OPEN}, {"token": "a"}],
        'c.jsonl:3: a token belongs behind the command "infer", before its event',
    ),
    "a token that is no text": ([{"input": 1}, {"command": INFER}, {"token": 3}], "c.jsonl:3: a token is a text, found 3"),
    "a stop that is no bool": (
        [{"input": 1}, {"command": INFER}, {"token": "a", "stop": 1}],
        "c.jsonl:3: stop must be true or false, found 1",
    ),
    "something after the end": (
        [{"input": 1}, {"command": DONE}, {"event": OPENED}],
        'c.jsonl:3: the block is over with "done", and something follows',
    ),
}


@pytest.mark.parametrize(("lines", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_file_that_is_no_conversation_is_told_by_its_first_wrong_line(tmp_path: Path, lines: list[object], message: str) -> None:
    with pytest.raises(BadConversation) as caught:
        read_conversation(write(tmp_path / "c.jsonl", *lines), "c.jsonl")
    assert caught.value.message == message


def test_a_conversation_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConversation, match=r'^there is no conversation "c"$'):
        read_conversation(tmp_path / "c.jsonl", "c")
    with pytest.raises(BadConversation, match=r'^the conversation "c" cannot be read: is a directory$'):
        read_conversation(tmp_path, "c")


@given(
    st.lists(
        st.binary(max_size=30)
        | st.sampled_from(
            [b'{"input":1}', b'{"event":{"event":"x"}}', b'{"command":{"cmd":"emit","progress":1}}', b'{"token":"a"}']
        )
    )
)
@settings(deadline=None)
def test_any_bytes_are_a_conversation_or_are_refused(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(b"\n".join(lines))
    try:
        first = read_conversation(path).lines[0].kind
    except BadConversation as error:
        first = "input" if error.message.startswith(f"{path}:") else error.message
    assert first == "input"


# Differences

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0]) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def told_apart(value: Any) -> Any:
    """A value of which Python's == tells true from 1."""
    match value:
        case bool():
            return ("bool", value)
        case list():
            return [told_apart(item) for item in value]
        case dict():
            return {key: told_apart(item) for key, item in value.items()}
    return value


@given(JSON, JSON)
def test_there_is_a_difference_exactly_where_two_values_are_not_the_same(one: object, other: object) -> None:
    assert (first_difference(one, other, "v") is None) == (told_apart(one) == told_apart(other))
    assert first_difference(one, one, "v") is None


@pytest.mark.parametrize(
    ("expected", "found", "told"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "v.a[1].b: expected 2, got 3"),
        ({"a": 1, "b": 2}, {"b": 3}, "v.a: expected 1, got nothing"),
        ({"a": 1}, {"a": 1, "odd key": 2}, 'v["odd key"]: expected nothing, got 2'),
        ([1, 2], [1], "v[1]: expected 2, got nothing"),
        ([], [None], "v[0]: expected nothing, got null"),
        (1, True, "v: expected 1, got true"),
        ({"a": {}}, {"a": []}, "v.a: expected {}, got []"),
        ("short", "shirt", 'v: expected "short", got "shirt"'),
    ],
)
def test_the_first_difference_is_told_by_its_place(expected: object, found: object, told: str) -> None:
    assert str(first_difference(expected, found, "v")) == told


def test_a_long_text_is_shown_where_it_differs() -> None:
    text = "".join(f"line {number}\n" for number in range(2_000))
    difference = first_difference({"prompt": text}, {"prompt": text.replace("line 1000\n", "line ten\n")}, "command")
    assert difference is not None
    assert difference.path.startswith("command.prompt (from character 8895 on)")
    assert difference.diff == (" line 998", " line 999", "-line 1000", "+line ten", " line 1001", " line 1002")
    long = "x" * 5_000
    difference = first_difference(long + "a" + long, long + "b" + long, "v")
    assert difference is not None
    assert (difference.path, len(difference.expected)) == ("v (from character 5000 on)", 64)


# Replaying


@pytest.mark.parametrize("ascii", [True, False])
async def test_a_block_that_says_the_same_passes(tmp_path: Path, ascii: bool) -> None:
    case = write(tmp_path / "c.jsonl", *(json.dumps(line, ensure_ascii=ascii) for line in READER))
    assert await judge(scripted(OPEN, SLICE, DONE), case) == CaseResult("c.jsonl", "passed")


async def test_a_block_sees_the_events_as_they_stand_even_those_that_no_host_sends(tmp_path: Path) -> None:
    event = {"event": "exploded", "größe": [1.5, None, {"a": "😀\u0000"}]}
    said = {"cmd": "done", "result": [event]}
    case = write(tmp_path / "c.jsonl", {"input": [OPEN]}, {"command": OPEN}, {"event": event}, {"command": said})
    assert await judge(echo(), case) == CaseResult("c.jsonl", "passed")


Lines = list[dict[str, Any]]
MISMATCHES: dict[str, tuple[BlockBytes, Lines, int, str]] = {
    "another command": (
        scripted(OPEN, SLICE, DONE),
        [*READER[:5], {"command": FAIL}],
        6,
        'command.cmd: expected "fail", got "done"',
    ),
    "another field": (
        scripted(OPEN, SLICE | {"len": 10}, DONE),
        READER,
        4,
        "command.len: expected 9, got 10",
    ),
    "an event no host sends": (
        scripted(OPEN, FAIL),
        [*READER[:2], {"event": {"event": "opend"}}, *READER[3:]],
        4,
        'command.cmd: expected "slice", got "fail" '
        '(the event before it is none that a host sends: event "opend" is unknown; did you mean "opened"?)',
    ),
    "the case of another block": (
        scripted(FAIL, signature="{text: text} -> json"),
        READER,
        2,
        'command.cmd: expected "open", got "fail" '
        "(the input does not fit what the block takes, {text: text}: input.text is missing; it must be text)",
    ),
    "a missing command": (
        scripted(OPEN, SLICE, DONE),
        [READER[0], READER[2]],
        2,
        'the command before this event is missing; the block says {"cmd": "open", "path": "a.txt"}',
    ),
    "no end": (
        scripted(OPEN, SLICE, DONE),
        READER[:3],
        3,
        'the conversation ends here, and the block answers {"cmd": "slice", "handle": 1, "offset": 0, "len": 9}',
    ),
    "no command at all": (
        scripted(OPEN, b"{}"),
        READER,
        3,
        'told this, the block fails: bad_command: command 2 of "scripted.wasm": the object has no "cmd"',
    ),
    "a trap": (
        scripted(OPEN, SLICE, step="unreachable"),
        READER,
        3,
        'told this, the block fails: wasm_trap: "scripted.wasm" stopped itself (unreachable code) in cf_step',
    ),
    "a result of the wrong type": (
        scripted(OPEN, SLICE, DONE, signature="json -> {text: number}"),
        READER,
        6,
        'the result does not fit the block\'s own signature, {text: number}: result.text must be a number, found "abc"',
    ),
    "a token too many": (
        scripted(INFER, DONE, on_token="(i32.const 1)"),
        [{"input": {}}, {"command": INFER}, {"token": "a"}, {"event": INFERRED}, {"command": DONE}],
        3,
        "the block stops the model at this token, and is expected to go on",
    ),
    "a token too few": (
        scripted(INFER, DONE, on_token="(i32.const 0)"),
        [{"input": {}}, {"command": INFER}, {"token": "a", "stop": True}, {"event": INFERRED}, {"command": DONE}],
        3,
        "the block goes on at this token, and is expected to stop the model",
    ),
    "nobody listens": (
        scripted(INFER, DONE),
        [{"input": {}}, {"command": INFER}, {"token": "a", "stop": True}, {"event": INFERRED}, {"command": DONE}],
        3,
        "the block is expected to stop the model here, and it does not listen to tokens (it has no cf_on_token)",
    ),
}


@pytest.mark.parametrize(("block", "lines", "line", "message"), MISMATCHES.values(), ids=MISMATCHES)
async def test_the_first_place_where_a_block_leaves_its_case_is_told(
    tmp_path: Path, block: BlockBytes, lines: Lines, line: int, message: str
) -> None:
    result = await judge(block, write(tmp_path / "c.jsonl", *lines))
    assert (result.outcome, result.line, result.message) == ("differs", line, message)


async def test_a_block_that_spins_in_a_case_is_stopped(tmp_path: Path) -> None:
    limits = Limits().with_values({"guest.step_time": 0.1})
    result = await judge(scripted(OPEN, step=SPIN), write(tmp_path / "c.jsonl", *READER), limits=limits)
    assert result.message is not None
    assert (result.outcome, result.line, "guest.step_time is 0.1 seconds" in result.message) == ("differs", 3, True)


async def test_a_handle_in_a_result_is_judged_by_the_event_that_brought_it(tmp_path: Path) -> None:
    image = {"event": "opened", "handle": 1, "len": 3, "kind": {"kind": "image", "format": "png"}}
    done = {"cmd": "done", "result": 1}
    block = scripted(OPEN, done, signature="json -> image")
    case = write(tmp_path / "c.jsonl", {"input": {}}, {"command": OPEN}, {"event": image}, {"command": done})
    assert (await judge(block, case)).outcome == "passed"
    case = write(tmp_path / "c.jsonl", {"input": {}}, {"command": OPEN}, {"event": OPENED}, {"command": done})
    assert (await judge(block, case)).outcome == "differs"


# Updating


async def test_an_update_writes_the_commands_of_now_and_keeps_the_events(tmp_path: Path) -> None:
    case = write(tmp_path / "c.jsonl", *READER)
    now = SLICE | {"len": 10}
    assert await judge(scripted(OPEN, now, DONE), case, update=True) == CaseResult("c.jsonl", "updated")
    written = [json.loads(line) for line in case.read_text().splitlines()]
    assert written == [*READER[:3], {"command": now}, *READER[4:]]
    before = case.read_bytes()
    assert await judge(scripted(OPEN, now, DONE), case, update=True) == CaseResult("c.jsonl", "unchanged")
    assert case.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


async def test_a_conversation_without_commands_is_filled_in(tmp_path: Path) -> None:
    case = write(tmp_path / "c.jsonl", *(line for line in READER if "command" not in line))
    assert (await judge(scripted(OPEN, SLICE, DONE), case, update=True)).outcome == "updated"
    assert [json.loads(line) for line in case.read_text().splitlines()] == READER


async def test_an_update_that_lacks_an_event_says_which(tmp_path: Path) -> None:
    case = write(tmp_path / "c.jsonl", *READER[:1])
    result = await judge(scripted(OPEN, SLICE, DONE), case, update=True)
    assert result.outcome == "updated"
    assert result.message == (
        'line 2, "open", is not answered yet: add its event, {"event": {"event": "opened", …}}, and update again'
    )
    assert [json.loads(line) for line in case.read_text().splitlines()] == READER[:2]
    assert (await judge(scripted(OPEN, SLICE, DONE), case)).message == "it ends before the block does"


async def test_an_update_of_a_block_that_ends_earlier_says_what_is_left_out(tmp_path: Path) -> None:
    case = write(tmp_path / "c.jsonl", *READER)
    result = await judge(scripted(OPEN, FAIL), case, update=True)
    assert (result.outcome, result.message) == (
        "updated",
        'the block is over with "fail" on line 4; 1 event that followed is left out',
    )
    assert [json.loads(line) for line in case.read_text().splitlines()] == [*READER[:3], {"command": FAIL}]


async def test_events_that_no_longer_fit_are_told_and_the_case_is_kept(tmp_path: Path) -> None:
    case = write(tmp_path / "c.jsonl", *READER)
    before = case.read_bytes()
    result = await judge(scripted(OPEN, INFER, DONE), case, update=True)
    assert (result.outcome, result.message, case.read_bytes()) == (
        "kept",
        'line 5: the event "sliced" does not answer "infer", which the block says now; '
        "change the events from here on by hand, or record the conversation anew (cuttlefish run --record)",
        before,
    )


async def test_an_event_that_never_fitted_is_kept_by_an_update(tmp_path: Path) -> None:
    """It tests what the block does with a host that breaks the contract."""
    case = write(tmp_path / "c.jsonl", {"input": {}}, {"command": OPEN}, {"event": SLICED}, {"command": DONE})
    assert (await judge(scripted(OPEN, FAIL), case, update=True)).outcome == "updated"
    assert json.loads(case.read_text().splitlines()[3]) == {"command": FAIL}


async def test_an_update_writes_where_a_block_stops_the_model(tmp_path: Path) -> None:
    lines: Lines = [{"input": {}}, {"command": INFER}, {"token": "a"}, {"event": INFERRED}, {"command": DONE}]
    case = write(tmp_path / "c.jsonl", *lines)
    assert (await judge(scripted(INFER, DONE, on_token="(i32.const 1)"), case, update=True)).outcome == "updated"
    assert json.loads(case.read_text().splitlines()[2]) == {"token": "a", "stop": True}


async def test_a_block_that_breaks_down_leaves_its_case_as_it_is(tmp_path: Path) -> None:
    case = write(tmp_path / "c.jsonl", *READER)
    before = case.read_bytes()
    result = await judge(scripted(OPEN, step="unreachable"), case, update=True)
    assert (result.outcome, case.read_bytes()) == ("kept", before)


# Recording


async def test_a_recorded_run_passes_as_a_case_without_files_and_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("blå\n")
    commands = [OPEN, {"cmd": "slice", "handle": 0, "offset": 0, "len": 9}, INFER, {"cmd": "emit", "progress": "größe"}]
    listening = scripted(*commands, {"cmd": "done", "result": "ende"}, on_token="(i32.gt_u (local.get $len) (i32.const 3))")
    path = tmp_path / "cases.jsonl"
    async with open_host() as host:
        with Recording(path) as recording:
            options: dict[str, Any] = {"read": [tmp_path], "base_dir": tmp_path, "model": "stub:It is one", "transcript": recording}
            envelope = await host.run(listening, {"n": [1, 2.5]}, **options)
    assert envelope.status == JobStatus.COMPLETED
    (tmp_path / "a.txt").unlink()
    assert await judge(listening, path) == CaseResult("cases.jsonl", "passed")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == recording.lines
    assert lines[0] == {"input": {"n": [1, 2.5]}}
    assert lines[4]["event"] == {"event": "sliced", "text": "blå\n", "next_offset": 5}
    tokens = [line for line in lines if "token" in line]
    assert "".join(line["token"] for line in tokens) == "It is one"[: len("".join(line["token"] for line in tokens))]
    assert tokens
    assert [path.name for path in tmp_path.iterdir()] == ["cases.jsonl"]


async def test_a_recording_of_a_run_that_fails_shows_how_far_it_came(tmp_path: Path) -> None:
    async with open_host() as host:
        with Recording(tmp_path / "denied.jsonl") as recording:
            await host.run(scripted(OPEN, DONE), {}, transcript=recording)
        with Recording(tmp_path / "trap.jsonl") as recording:
            await host.run(scripted({"cmd": "emit", "progress": 1}, DONE, step="unreachable"), {}, transcript=recording)
    assert (tmp_path / "denied.jsonl").read_text() == '{"input":{}}\n{"command":{"cmd": "open", "path": "a.txt"}}\n'
    assert (tmp_path / "trap.jsonl").read_text().splitlines()[-1] == '{"event":{"event":"emitted"}}'
    trapped = await judge(scripted({"cmd": "emit", "progress": 1}, DONE, step="unreachable"), tmp_path / "trap.jsonl")
    assert (trapped.outcome, trapped.line) == ("differs", 3)


async def test_a_job_that_never_reaches_its_block_leaves_an_older_recording_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", *READER)
    before = path.read_bytes()
    async with open_host() as host:
        with Recording(path) as recording:
            envelope = await host.run(scripted(DONE, signature="{path: text} -> json"), 3, transcript=recording)
    assert (envelope.status, recording.lines, path.read_bytes()) == (JobStatus.FAILED, 0, before)
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def test_a_full_disk_is_told_at_the_end_and_leaves_the_older_recording(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", *READER)
    before = path.read_bytes()
    with Recording(path) as recording:
        recording._file.close()
        recording._file = open("/dev/full", "wb")  # noqa: SIM115  # the recording closes it
        recording.input(b"1")
        recording.command(b'{"cmd":"done","result":1}')
    assert recording.failure is not None
    assert (recording.failure.strerror, path.read_bytes()) == ("No space left on device", before)


async def test_a_pipeline_has_no_transcript(tmp_path: Path) -> None:
    async with open_host() as host:
        with Recording(tmp_path / "c.jsonl") as recording, pytest.raises(ValueError, match=r"^transcript: .* this is a pipeline$"):
            host.start(tmp_path / "x.toml", {}, transcript=recording)
