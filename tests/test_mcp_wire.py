"""The protocol on standard input and output as raw bytes: what any client, or no client at all, may write."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuttlefish.mcp.stdio_wire import MOST_LINE_BYTES, Refused, read_message, write_in_pieces

SERVER = str(Path(__file__).parent / "servers" / "agent_server.py")
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
TASKS = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "init",
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw\x1b", "version": "1"}},
}


class RawClient:
    """A client that writes bytes and reads lines. A server that says nothing for a minute is ended, and the test with it."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SERVER, "stdio", str(folder), *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def write(self, *messages: object) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def call(self, id: object, name: str, arguments: dict[str, Any] | None = None, **meta: Any) -> None:
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}, "_meta": {**META, **meta}}
        self.write({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        watchdog = Timer(60, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, "the server wrote no more"
        return json.loads(line)  # type: ignore[no-any-return]  # a message of the protocol is an object

    def answer(self, id: object) -> dict[str, Any]:
        """The next answer to this call, whatever else is told before."""
        while (message := self.read()).get("id") != id:
            pass
        return message

    def end(self) -> list[dict[str, Any]]:
        """Close the input; what is still answered."""
        out, _ = self.process.communicate(timeout=60)
        return [json.loads(line) for line in out.splitlines()]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


Start = Callable[..., RawClient]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """A server that several tests ask: starting one takes a second."""
    client = RawClient(tmp_path_factory.mktemp("shared"))
    client.call("first", "quick")  # its first request says which revision the client speaks
    client.answer("first")
    yield client
    client.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    clients: list[RawClient] = []

    def start(*settings: str) -> RawClient:
        clients.append(RawClient(tmp_path, *settings))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def test_answers_to_calls_under_way_at_the_end_of_input_are_not_lost(start: Start) -> None:
    client = start("jobs=1")
    for number in range(20):
        client.call(number, "quick")
    answers = client.end()
    assert sorted(answer["id"] for answer in answers) == list(range(20))
    assert all(answer["result"]["structuredContent"]["status"] == "completed" for answer in answers)
    assert client.process.returncode == 0


def test_a_call_that_takes_long_gets_its_outcome_and_no_promise_when_input_has_ended(start: Start) -> None:
    client = start("within=0.01")
    client.call(1, "quick")
    assert [answer["result"]["structuredContent"]["status"] for answer in client.end()] == ["completed"]


def test_a_call_that_never_ends_is_given_up_some_time_after_the_end_of_input(start: Start) -> None:
    client = start("drain=0.5")
    client.call(1, "spin")
    client.end()
    assert client.process.returncode == 0


def test_nothing_but_the_protocol_is_on_standard_output(start: Start) -> None:
    client = start()
    client.call(1, "quick")
    out, err = client.process.communicate(timeout=60)
    assert [json.loads(line)["id"] for line in out.splitlines()] == [1]
    assert sorted(err.splitlines()) == [b"a stray print", b"a stray print of native code"]


def test_a_message_may_come_in_pieces_and_several_at_once(start: Start) -> None:
    client = start()
    text = json.dumps({"jsonrpc": "2.0", "id": "ö", "method": "tools/list", "params": {"_meta": META}}, ensure_ascii=False).encode()
    for at in range(0, len(text), 7):
        client.write(text[at : at + 7])
    client.write(b"\r\n\n" + text.replace("ö".encode(), b"2") + b"\n" + text.replace("ö".encode(), b"3"))
    answers = client.end()  # the last line lacks its end
    assert sorted(answer["id"] for answer in answers) == ["2", "3", "ö"]


JUNK = {
    "no json": (b"junk", None, -32700, "the line is not valid JSON at line 1 column 1: a value belongs here"),
    "no utf-8": (b'{"a":"\xff"}', None, -32700, "the line is not valid UTF-8 at byte 6"),
    "too deep": (b"[" * 100_000, None, -32700, "the line is nested deeper than 128 levels"),
    "a batch": (
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
        None,
        -32600,
        "batches are not part of MCP: send one message per line",
    ),
    "no object": (b"7", None, -32600, "a message is a JSON object"),
    "no version": (b'{"id":1,"method":"ping"}', 1, -32600, 'a message holds "jsonrpc": "2.0"'),
    "no method": (b'{"jsonrpc":"2.0","id":1}', 1, -32600, "a message has a method"),
    "null id": (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600, "id must be a string or a whole number"),
    "true id": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None, -32600, "id must be a string or a whole number"),
    "method 3": (b'{"jsonrpc":"2.0","id":"a","method":3}', "a", -32600, "method must be a string"),
    "params in a list": (b'{"jsonrpc":"2.0","id":4,"method":"ping","params":[]}', 4, -32600, "params must be an object"),
    "a key twice": (
        b'{"jsonrpc":"2.0","id":4,"id":5,"method":"ping"}',
        None,
        -32700,
        'the line is the key "id" stands twice in one object',
    ),
}


def test_lines_that_are_no_message_are_answered_with_what_is_wrong(shared: RawClient) -> None:
    client = shared
    client.write(*(line + b"\n" for line, *_ in JUNK.values()))
    told = [(answer["id"], answer["error"]["code"], answer["error"]["message"]) for answer in (client.read() for _ in JUNK)]
    assert told == [tuple(expected) for _, *expected in JUNK.values()]


def test_an_answer_that_nobody_asked_for_is_dropped(shared: RawClient) -> None:
    client = shared
    client.write(b'{"jsonrpc":"2.0","id":9,"result":{}}\n{"jsonrpc":"2.0","id":9,"error":7}\n')
    client.call(1, "quick")
    assert client.read()["id"] == 1


def test_an_id_that_is_under_way_is_refused_and_may_be_used_again_afterwards(start: Start) -> None:
    client = start("jobs=1")
    client.call(1, "spin")
    client.call(1, "quick")
    assert client.read()["error"]["message"] == "a call with this id is under way; give each its own"
    client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    client.call(2, "quick")  # its turn comes when the other is gone
    assert client.answer(2)["result"]["isError"] is False
    client.call(1, "quick")
    assert client.answer(1)["result"]["isError"] is False
    client.call("1", "quick")
    assert client.answer("1")["result"]["isError"] is False


def test_a_line_of_sixteen_mebibytes_is_read_and_a_longer_one_than_may_be_is_skipped(shared: RawClient) -> None:
    client = shared
    client.call(1, "quick", {"x": "y" * (16 << 20)})
    assert client.answer(1)["result"]["structuredContent"]["status"] == "completed"
    client.write(b'{"x":"' + b"y" * MOST_LINE_BYTES + b'"}\n')
    assert client.read()["error"] == {"code": -32600, "message": "a line may be 32 MiB long, not more"}
    client.call(2, "quick")
    assert client.answer(2)["result"]["structuredContent"]["status"] == "completed"


def test_unknown_methods_tools_and_parameters_are_errors_of_the_protocol(shared: RawClient) -> None:
    client = shared
    client.write({"jsonrpc": "2.0", "id": 1, "method": "tools/burn", "params": {"_meta": META}})
    assert client.answer(1)["error"]["code"] == -32601
    client.call(2, "quik")
    assert client.answer(2)["error"] == {"code": -32602, "message": 'unknown tool "quik"; did you mean "quick"?'}
    client.write({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"_meta": META}})
    assert client.answer(3)["error"] == {"code": -32602, "message": "tools/call: params.name is missing"}
    client.write({"jsonrpc": "2.0", "id": 4, "method": "tools/list"})
    assert client.answer(4)["error"]["code"] == -32602


def test_an_older_client_that_did_not_begin_is_told_how(start: Start) -> None:
    client = start()
    client.write({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    told = "the connection has not begun: send initialize first, or give params._meta as revision 2026-07-28 demands"
    assert client.read()["error"] == {"code": -32602, "message": told}
    client.write(INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert client.answer("init")["result"]["protocolVersion"] == "2025-06-18"
    client.write({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    assert "quick" in [tool["name"] for tool in client.answer(2)["result"]["tools"]]


def test_progress_tells_the_place_in_the_line_and_rises(start: Start) -> None:
    client = start("jobs=1")

    def told() -> tuple[str, float, str]:
        params = client.answer(None)["params"]
        return params["progressToken"], params["progress"], params["message"]

    for number, token in enumerate(("first", "second", "third")):
        client.call(number, "spin", progressToken=token)
        expected = (token, ("running", "waiting: next in line", "waiting: 1 job ahead")[number])
        while True:
            name, _, message = told()
            if (name, message) == expected:
                break
    client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}})
    numbers: dict[str, list[float]] = {"first": [], "second": [], "third": []}
    while True:
        token, rises, message = told()
        numbers[token].append(rises)
        if (token, message) == ("third", "waiting: next in line"):
            break
    assert all(each == sorted(set(each)) for each in numbers.values())


def test_a_call_that_takes_long_is_answered_with_a_job_that_can_be_asked_about_and_ended(start: Start) -> None:
    client = start("within=0.3")
    client.call(1, "spin")
    value = client.answer(1)["result"]["structuredContent"]
    assert (value["status"], value["state"]) == ("running", "running")
    client.call(2, "job_result", {"job_id": value["job_id"], "wait_s": 0})
    assert client.answer(2)["result"]["structuredContent"]["status"] == "running"
    client.call(3, "job_cancel", {"job_id": value["job_id"]})
    assert client.answer(3)["result"]["structuredContent"]["status"] == "cancelled"
    client.call(4, "job_result", {"job_id": value["job_id"]})
    outcome = client.answer(4)["result"]
    assert outcome["isError"] is True
    assert outcome["structuredContent"]["error"]["code"] == "cancelled"


def test_a_client_that_declares_tasks_gets_one_and_no_other_client_does(shared: RawClient) -> None:
    client = shared
    client.call(1, "spin", **TASKS)
    task = client.answer(1)["result"]
    assert (task["resultType"], task["status"], task["ttlMs"]) == ("task", "working", None)

    def ask(method: str, meta: dict[str, Any] = TASKS) -> dict[str, Any]:
        client.write({"jsonrpc": "2.0", "id": method, "method": method, "params": {"taskId": task["taskId"], "_meta": meta}})
        return client.answer(method)

    assert ask("tasks/get")["result"]["status"] == "working"
    assert ask("tasks/get", META)["error"]["code"] == -32021
    assert ask("tasks/update")["result"]["resultType"] == "complete"
    assert ask("tasks/cancel")["result"]["resultType"] == "complete"
    while (last := ask("tasks/get")["result"])["status"] == "working":
        pass
    assert last["status"] == "cancelled"
    client.call(2, "quick", **TASKS)
    assert client.answer(2)["result"]["resultType"] == "complete"


def test_a_large_result_becomes_a_link_with_a_preview_and_can_be_read_in_both_ways(shared: RawClient) -> None:
    client = shared
    client.call(1, "large")
    answer = client.answer(1)
    assert len(json.dumps(answer)) < 256 << 10
    result, link = answer["result"]["structuredContent"]["result"], answer["result"]["content"][1]
    assert result["size_bytes"] == 600_002
    assert result["preview"] == '"' + 1_999 * "é"
    assert (link["type"], link["uri"]) == ("resource_link", result["resource"])
    client.write({"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": link["uri"], "_meta": META}})
    whole = client.answer(2)["result"]["contents"][0]["text"]
    assert json.loads(whole)["result"] == "é" * 300_000
    parts, offset = [], 0
    while offset is not None:
        client.call(3, "job_result", {"job_id": link["uri"].split("/")[3], "offset": offset})
        window = client.answer(3)["result"]["structuredContent"]
        parts.append(window["text"])
        offset = window["next_offset"]
    assert "".join(parts) == whole


def test_a_hundred_calls_at_once_are_all_served_by_the_jobs_that_may_run(start: Start) -> None:
    client = start("jobs=2")
    for number in (0, 1):
        client.call(number, "spin", progressToken=number)
        while (told := client.read()["params"])["progressToken"] != number or told["message"] != "running":
            pass
    for number in range(2, 100):
        client.call(number, "quick")
    client.call("list", "jobs_list", {"status": "running"})
    jobs = client.answer("list")["result"]["structuredContent"]["jobs"]
    assert [job["tool"] for job in jobs] == ["spin", "spin"]
    for number in (0, 1):
        client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
    order = [client.read()["id"] for _ in range(98)]
    assert sorted(order) == list(range(2, 100))
    assert max(order[:10]) < 60, "in the order of asking, as far as calls that come at once have one"
    assert min(order[-10:]) > 40


def test_a_client_that_reads_no_more_ends_the_server(start: Start) -> None:
    client = start()
    client.call(1, "spin")
    client.call(2, "quick")
    client.answer(2)
    assert client.process.stdout is not None
    assert client.process.stdin is not None
    client.process.stdout.close()
    client.process.stdin.close()
    assert client.process.wait(timeout=30) == 0  # long before `drain` is over


def test_a_cancelled_call_gets_no_answer_and_its_job_stops(start: Start) -> None:
    client = start("jobs=1")
    client.call(1, "spin", progressToken="p")
    while client.read()["params"]["message"] != "running":
        pass
    client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    client.call(2, "quick")
    client.answer(2)
    client.call(3, "jobs_list")
    assert [job["status"] for job in client.answer(3)["result"]["structuredContent"]["jobs"]] == ["completed", "cancelled"]
    assert client.end() == []


def test_a_call_that_is_cancelled_in_the_middle_of_a_reply_stops_the_real_model(
    start: Start, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTTLEFISH_MODELS", str(models_folder))
    client = start("jobs=1", "model=llama-cpp:smollm2")
    client.call(1, "says-little")
    usage = client.answer(1)["result"]["structuredContent"]["usage"]
    assert (usage["model"], usage["tokens_out"]) == ("smollm2", 8)
    client.call(2, "says", progressToken="p")
    while "tokens" not in client.answer(None)["params"]["message"]:
        pass
    client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
    client.call(3, "quick")  # its turn comes when the model has stopped
    assert client.answer(3)["result"]["isError"] is False
    client.call(4, "jobs_list", {"status": "cancelled"})
    assert [job["tool"] for job in client.answer(4)["result"]["structuredContent"]["jobs"]] == ["says"]


def test_every_call_is_a_line_of_the_audit_log_without_what_was_in_it(start: Start, tmp_path: Path) -> None:
    client = start("within=2")  # within which even a busy machine ends all calls but one
    client.write(INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(id: int, name: str, arguments: object) -> None:
        client.write({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
        client.answer(id)

    call(1, "quick", {"x": "secret words"})
    call(2, "quick", {"x": 5})
    call(3, "fails", {})
    call(4, "spin", {})
    call(5, "absent", {})
    call(6, "nothing", {"x": "secret words"})
    client.end()
    text = (tmp_path / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    outcomes = ["completed", "validation_failed", "too_dark", "running", "unavailable", "error -32602"]
    assert [line["outcome"] for line in lines] == outcomes
    assert [line["tool"] for line in lines] == ["quick", "quick", "fails", "spin", "absent", "nothing"]
    assert {line["client"] for line in lines} == {"raw 1"}
    assert lines[0]["arguments_sha256"] == lines[5]["arguments_sha256"] != lines[1]["arguments_sha256"]
    assert "secret" not in text
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o077 == 0


def test_a_terminating_signal_ends_a_server_with_calls_under_way(start: Start) -> None:
    client = start()
    client.call(1, "spin")
    client.call(2, "quick")
    client.answer(2)
    os.kill(client.process.pid, signal.SIGTERM)
    assert client.process.wait(timeout=30) is not None


@settings(max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: (
                st.lists(inner) | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result"]), inner)
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_line_is_a_message_or_is_told_what_is_wrong(line: bytes) -> None:
    message = read_message(line)
    if isinstance(message, Refused):
        assert message.message.isprintable()
        assert json.loads(message.as_error().model_dump_json())["error"]["code"] in (-32700, -32600)


PARTS = st.tuples(st.text(max_size=3), st.text(max_size=5), st.sampled_from([1, 200_000]))
LONG = PARTS.map(lambda parts: parts[0] + parts[1] * parts[2])


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | LONG,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
)
def test_a_long_message_is_written_in_pieces_that_make_one_line(value: Any) -> None:
    pieces = write_in_pieces(value)
    line = b"".join(pieces)
    assert json.loads(line) == value
    assert line.count(b"\n") == line.endswith(b"\n") == 1
    assert max(map(len, pieces)) < 4 << 20
