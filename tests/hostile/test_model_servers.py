"""Model servers that lie, ramble, keep silent in many words, or answer in forms that nobody asked for."""

import gzip
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from servers.scripted import STREAM_HEAD, Asked, http, piece, says, scripted_server, sse

from cuttlefish import open_host
from cuttlefish.errors import CuttlefishError, InferenceFailed, ModelLoadFailed, TimedOut
from cuttlefish.inference import checked, connecting
from cuttlefish.inference.backend import Backend, Prompt, Reply, TokenMeter
from cuttlefish.inference.ollama import open_ollama
from cuttlefish.inference.openai import open_openai
from cuttlefish.inference.registry import open_backend
from cuttlefish.inference.remote import Timeouts
from cuttlefish_abi import TokenAction
from guests import echo

HELLO = Prompt("Hello there", 5)
THOUGHT = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
WHOLE = {
    "choices": [{"index": 0, "message": {"content": "Whole"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
BROKE_OFF = "PLACE broke off in the middle of its reply"
LOOK = "Look at the server's log, and ask again"


async def ignore(text: str) -> TokenAction:
    return TokenAction.CONTINUE


def counted(usage: str) -> bytes:
    return STREAM_HEAD + sse(piece("Hi", "stop"), f'{{"choices": [], "usage": {usage}}}', "[DONE]")


@asynccontextmanager
async def opened(data: bytes) -> AsyncIterator[tuple[Backend, str]]:
    async with scripted_server(says(data)) as server:
        backend = await open_openai(f"{server.url}/v1#m")
        try:
            yield backend, server.url
        finally:
            await backend.aclose()


async def outcome(data: bytes, prompt: Prompt = HELLO) -> tuple[Reply | str, TokenMeter]:
    """The reply, or the message of the error with the server's address written as PLACE; and what it cost."""
    meter = TokenMeter()
    async with opened(data) as (backend, url):
        try:
            return await backend.infer(prompt, ignore, meter), meter
        except CuttlefishError as error:
            return error.message.replace(url, "PLACE"), meter


# Replies in forms that nobody asked for


@pytest.mark.parametrize(
    "data",
    [
        STREAM_HEAD + b"\xef\xbb\xbf" + sse(piece("Who"), piece("le", "stop"), "[DONE]"),
        STREAM_HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + sse(piece("Whole", "stop"), "[DONE]"),
        STREAM_HEAD + b'data: {"choices":\ndata: [{"delta": {"content": "Whole"}, "finish_reason": "stop"}]}\n\n',
        STREAM_HEAD + sse(piece("Whole", "stop"), "[DONE]", piece(" lies")),
        STREAM_HEAD + sse({"choices": [*piece("Whole", "stop")["choices"], {"index": 1, "delta": {"content": "Other"}}]}),
        http(200, WHOLE),
        http(200, json.dumps(WHOLE, indent=2)),
        b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM_HEAD + sse(piece("Whole", "stop")),
    ],
    ids=["byte order mark", "HTTP/1.0", "data in lines", "after the end", "two replies", "no stream", "no stream, in lines", "100"],
)
async def test_a_reply_in_an_odd_form_is_the_reply(data: bytes) -> None:
    reply, _ = await outcome(data)
    assert reply == Reply("Whole", "stop")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (http(200, {"error": {"message": "no credit left"}}), f"{BROKE_OFF}: no credit left"),
        (http(200, '{"choices": [{"message": '), f"{BROKE_OFF}. {LOOK}"),
        (
            http(200, "<!doctype html><title>Log in</title>", content_type="text/html"),
            "PLACE sent a web page, which is no reply of a model. See whether the address is right",
        ),
        (
            http(200, gzip.compress(sse(piece("Hi", "stop"))), content_encoding="gzip"),
            "PLACE sent a compressed answer (gzip), which is no reply of a model. See whether the address is right",
        ),
        (STREAM_HEAD + b'event: error\ndata: {"message": "overloaded"}\n\n', f"{BROKE_OFF}: overloaded"),
        (STREAM_HEAD + sse({"object": "error", "message": "bad luck", "code": 500}), f"{BROKE_OFF}: bad luck"),
        (STREAM_HEAD + sse(THOUGHT, THOUGHT, "[DONE]"), f"PLACE ended its answer without any reply. {LOOK}"),
        (
            STREAM_HEAD + sse(piece("Hi", "Sensitive"), "[DONE]"),
            "PLACE withheld the reply: its content filter objects to it. Ask differently, or another model",
        ),
        (
            STREAM_HEAD + sse(piece("Hi", "insufficient_system_resource"), "[DONE]"),
            f'{BROKE_OFF}: it says why by "insufficient_system_resource", which is neither an end nor a limit on tokens',
        ),
        (http(422, {"detail": [{"loc": ["body"], "msg": "too cold"}]}), "PLACE refused the prompt (422: too cold)"),
        (
            http(400, {"error": {"message": "max_completion_tokens is too large"}}),
            "PLACE refused the prompt (400: max_completion_tokens is too large)",
        ),
        (
            http(403, {"error": {"message": "not in your country"}}),
            'PLACE does not allow the use of model "m" (403: not in your country)',
        ),
        (http(302), "PLACE points elsewhere (302), which is not followed. See whether the address is right"),
        (http(204), "PLACE refused the prompt (204)"),
        (
            http(429, {"error": {"message": "You exceeded your quota"}}, retry_after="86400"),
            "PLACE is busy (429: You exceeded your quota; waited 0 s) and asks to wait 86400 s more. "
            "Ask again later, or fewer at a time",
        ),
    ],
    ids=[
        "error in place of a stream",
        "cut in place of a stream",
        "page",
        "compressed",
        "error event",
        "error object",
        "thoughts only",
        "filter by another name",
        "unknown end",
        "words in a list",
        "limit too large",
        "403",
        "302",
        "204",
        "quota",
    ],
)
async def test_what_is_no_reply_is_never_a_success_and_the_servers_reason_is_passed_on(data: bytes, message: str) -> None:
    said, _ = await outcome(data)
    assert said == message


async def test_a_reply_that_was_withheld_is_counted() -> None:
    _, meter = await outcome(STREAM_HEAD + sse(piece("Hi"), piece("!", "content_filter")))
    assert meter.tokens_out == 2


async def test_an_ollama_reply_that_ended_for_an_unknown_reason_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"message": {"content": "Hi"}, "done": true, "done_reason": "unload"}\n'
    async with scripted_server(says(http(200, line))) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        backend = await open_ollama("m")
        with pytest.raises(InferenceFailed, match='"unload", which is neither an end nor a limit on tokens'):
            await backend.infer(HELLO, ignore, TokenMeter())
        await backend.aclose()


# Counts


@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": 1e999, "completion_tokens": 1e999}',
        '{"prompt_tokens": NaN, "completion_tokens": "7"}',
        '{"prompt_tokens": -5, "completion_tokens": -5}',
        '{"prompt_tokens": 1000000000000000000000000000000, "completion_tokens": 4294967296}',
        '{"prompt_tokens": [1], "completion_tokens": {}}',
        "[7]",
        "null",
    ],
)
async def test_a_count_that_is_none_is_replaced_by_our_own(usage: str) -> None:
    assert await outcome(counted(usage), Prompt("x" * 40, 5)) == (Reply("Hi", "stop"), TokenMeter(10, 1))


async def test_a_job_survives_a_server_that_counts_beyond_all_bounds() -> None:
    usage = '{"prompt_tokens": 4294967295, "completion_tokens": 4294967295}'
    async with scripted_server(says(counted(usage))) as server, open_host() as host:
        command = {"cmd": "infer", "prompt": "p", "max_tokens": 5}
        envelope = await host.run(echo(), [command, command], model=f"openai:{server.url}/v1#m")
    assert envelope.error is None
    assert envelope.usage.tokens_out == 2 * 4294967295


# Servers that ramble, or keep silent in many words


async def passes(seconds: float, clock: trio.testing.MockClock) -> None:
    """Let time pass when whoever listens has taken in what was said."""
    await trio.testing.wait_all_tasks_blocked(0.02)
    clock.jump(seconds)


@pytest.mark.parametrize("what", [piece("x "), THOUGHT], ids=["text", "thoughts"])
async def test_a_server_that_makes_more_tokens_than_it_was_allowed_is_left(what: dict[str, Any]) -> None:
    left = trio.Event()

    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        try:
            await stream.send_all(STREAM_HEAD)
            while True:
                await stream.send_all(sse(what))
        except trio.BrokenResourceError:
            left.set()

    async with scripted_server(answer) as server:
        backend, meter = await open_openai(f"{server.url}/v1#m"), TokenMeter()
        with trio.fail_after(60):
            reply = await backend.infer(HELLO, ignore, meter)
            await left.wait()
        await backend.aclose()
    assert reply == Reply("x " * 5 if what != THOUGHT else "", "length")
    assert meter.tokens_out == 6


@pytest.mark.parametrize("first", [(), (piece("Hi"),)], ids=["before the first token", "after it"])
@pytest.mark.parametrize(
    "nothing",
    [sse({"choices": []}), sse({"choices": [{"delta": {"role": "assistant"}}]}), b": alive\n\n", b"x"],
    ids=["no choices", "roles", "comments", "a line without an end"],
)
async def test_messages_that_say_nothing_do_not_keep_a_prompt_waiting_for_ever(
    first: Sequence[object], nothing: bytes, mock_clock: trio.testing.MockClock
) -> None:

    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        await stream.send_all(STREAM_HEAD + sse(*first))
        while True:
            await stream.send_all(nothing)
            await passes(50, mock_clock)

    async with scripted_server(answer) as server:
        backend = await open_openai(f"{server.url}/v1#m")
        with pytest.raises(TimedOut) as caught:
            await backend.infer(HELLO, ignore, TokenMeter())
        await backend.aclose()
    waited = "60 s (between two tokens)" if first else "300 s (for the first token)"
    assert caught.value.message == f"{server.url} kept silent for {waited}. See what it is doing, and ask again"


async def test_reading_a_long_prompt_is_a_sign_of_life(mock_clock: trio.testing.MockClock) -> None:
    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        await stream.send_all(STREAM_HEAD)
        for read in range(1, 10):
            await passes(200, mock_clock)
            await stream.send_all(sse({"choices": [], "prompt_progress": {"processed": read}}))
        await stream.send_all(sse(piece("Hi", "stop")))

    async with scripted_server(answer) as server:
        backend = await open_openai(f"{server.url}/v1#m")
        assert await backend.infer(HELLO, ignore, TokenMeter()) == Reply("Hi", "stop")
        await backend.aclose()


async def test_closing_does_not_wait_for_a_busy_server() -> None:
    asked_once = trio.Event()

    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        await stream.send_all(http(429, retry_after="29"))
        asked_once.set()

    async with scripted_server(answer) as server:
        backend = await open_openai(f"{server.url}/v1#m")

        async def ask() -> None:
            with pytest.raises(InferenceFailed, match='model "m" is closed'):
                await backend.infer(HELLO, ignore, TokenMeter())

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await asked_once.wait()
                await trio.testing.wait_all_tasks_blocked(0.05)
                await backend.aclose()


# What is large is not worked on in Trio's thread


async def test_questions_are_made_and_vectors_read_beside_the_event_loop() -> None:
    threads: list[int] = []

    def body(texts: Sequence[str]) -> Mapping[str, Any]:
        threads.append(threading.get_ident())
        return {"input": list(texts)}

    def read(said: Any) -> tuple[list[list[Any]], int]:
        threads.append(threading.get_ident())
        return [[1, 2.5]], 1

    async with scripted_server(says(http(200, {}))) as server:
        asked = await connecting.open_server(server.url, model="m", headers={}, secret=None, local_only=True, timeouts=Timeouts())
        assert await asked.vectors("/e", ["a"], TokenMeter(), body, read, lambda status, data: None) == [[1.0, 2.5]]
        await asked.aclose()
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_a_schema_and_its_reply_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    parse = checked.parse_json

    def parse_json(data: bytes) -> object:
        threads.append(threading.get_ident())
        return parse(data)

    monkeypatch.setattr(checked, "parse_json", parse_json)
    await (await open_backend("stub:{}")).infer(Prompt("", 9, schema={"type": "object"}), ignore, TokenMeter())
    assert len(threads) == 2
    assert threading.get_ident() not in threads


# Where a server is


@pytest.mark.parametrize("written", ["0.0.0.0", "2130706433", "127.1", "[::ffff:127.0.0.1]", "LOCALHOST"])
async def test_an_address_of_this_machine_is_local_however_it_is_written(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.0.0.0 is what servers print; nobody else's key or proxy has anything to do with it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hosted")
    async with scripted_server(says(STREAM_HEAD + sse(piece("Hi", "stop")))) as server:
        backend = await open_openai(f"http://{written}:{server.port}/v1#m", local_only=True)
        assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Hi"
        await backend.aclose()
    assert all("authorization" not in asked.headers for asked in server.asked)


@pytest.mark.parametrize(
    "written", ["[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::ffff:192.0.2.1]", "3221225985", "192.0.513", "[fe80::1]", "[ff02::1]"]
)
async def test_an_address_that_only_looks_like_this_machines_is_refused(written: str) -> None:
    with pytest.raises(ModelLoadFailed, match="is not on this machine, and the pipeline is local_only"):
        await open_openai(f"http://{written}:9/v1#m", local_only=True)
