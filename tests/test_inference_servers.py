"""Models behind HTTP: every way in which a server can fail, and where the provider may connect to."""

import email.utils
import gc
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from servers.running import KEY_VARIABLE, RunningServer
from servers.scripted import STREAM_HEAD, Answer, Asked, ScriptedServer, http, piece, says, scripted_server, sse

from cuttlefish.errors import CuttlefishError, InferenceFailed, ModelLoadFailed, TimedOut
from cuttlefish.inference import addresses, remote
from cuttlefish.inference.backend import Backend, ImageInput, Prompt, Reply, TokenMeter
from cuttlefish.inference.ollama import ollama_url, open_ollama, open_ollama_embedder
from cuttlefish.inference.openai import open_openai, open_openai_embedder
from cuttlefish.inference.registry import open_backend
from cuttlefish.inference.remote import Timeouts
from cuttlefish_abi import TokenAction

HELLO = Prompt("Hello there", 5)
FULL = sse(piece("Good"), piece(" day", "stop"), {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}, "[DONE]")
OLLAMA_FULL = (
    b'{"message":{"content":"Good"},"done":false}\n'
    b'{"message":{"content":" day"},"done":false}\n'
    b'{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":7,"eval_count":2}\n'
)
QUICK = Timeouts(connect_s=5, first_token_s=1.0, between_tokens_s=1.0)


async def ignore(text: str) -> TokenAction:
    return TokenAction.CONTINUE


@asynccontextmanager
async def openai_server(
    answer: Answer, timeouts: Timeouts | None = None, **more: bytes
) -> AsyncIterator[tuple[ScriptedServer, Backend]]:
    async with scripted_server(answer, **more) as server:
        backend = await open_openai(f"{server.url}/v1#some-model", timeouts=timeouts)
        try:
            yield server, backend
        finally:
            await backend.aclose()


@asynccontextmanager
async def ollama_server(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, timeouts: Timeouts | None = None, **more: bytes
) -> AsyncIterator[tuple[ScriptedServer, Backend]]:
    async with scripted_server(answer, **more) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        backend = await open_ollama("some-model", timeouts=timeouts)
        try:
            yield server, backend
        finally:
            await backend.aclose()


async def failure(backend: Backend, prompt: Prompt = HELLO, meter: TokenMeter | None = None) -> CuttlefishError:
    try:
        reply = await backend.infer(prompt, ignore, meter or TokenMeter())
    except CuttlefishError as e:
        return e
    raise AssertionError(f"a success: {reply}")


async def openai_failure(data: bytes, prompt: Prompt = HELLO, meter: TokenMeter | None = None) -> tuple[type[CuttlefishError], str]:
    """How a prompt fails when the server answers with these bytes and closes; its address is written as PLACE."""
    async with openai_server(says(data)) as (server, backend):
        error = await failure(backend, prompt, meter)
        return type(error), error.message.replace(server.url, "PLACE")


# What is asked and what is understood


async def test_the_openai_provider_asks_for_all_that_the_prompt_says() -> None:
    async with openai_server(says(STREAM_HEAD + FULL)) as (server, backend):
        prompt = Prompt("Look", 9, (ImageInput(b"\x00\x01", "image/webp"),), 0.5, 3, ("END",), {"type": "object"})
        meter = TokenMeter()
        assert await backend.infer(prompt, ignore, meter) == Reply("Good day", "stop")
        assert meter == TokenMeter(7, 2)
    asked = server.asked[-1]
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["host"] == server.url.removeprefix("http://")
    assert "authorization" not in asked.headers
    image = {"type": "image_url", "image_url": {"url": "data:image/webp;base64,AAE="}}
    assert asked.body == {
        "model": "some-model",
        "messages": [{"role": "user", "content": [image, {"type": "text", "text": "Look"}]}],
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 3,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": {"type": "object"}}},
    }


async def test_the_ollama_provider_asks_for_all_that_the_prompt_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ollama_server(says(http(200, OLLAMA_FULL)), monkeypatch) as (server, backend):
        prompt = Prompt("Look", 9, (ImageInput(b"\x00\x01", "image/webp"),), 0.5, 3, ("END",), {"type": "object"})
        meter = TokenMeter()
        assert await backend.infer(prompt, ignore, meter) == Reply("Good day", "stop")
        assert meter == TokenMeter(7, 2)
    assert server.asked[-1].path == "/api/chat"
    assert server.asked[-1].body == {
        "model": "some-model",
        "messages": [{"role": "user", "content": "Look", "images": ["AAE="]}],
        "stream": True,
        "truncate": False,
        "shift": False,
        "options": {"num_predict": 9, "temperature": 0.5, "seed": 3, "stop": ["END"]},
        "format": {"type": "object"},
    }


async def test_progress_is_asked_for_from_llama_cpp_only() -> None:
    listed = http(200, {"data": [{"architecture": {"input_modalities": ["text"]}}]}, Server="llama.cpp")
    async with openai_server(says(STREAM_HEAD + FULL), models=listed) as (server, backend):
        await backend.infer(HELLO, ignore, TokenMeter())
        assert server.asked[-1].body["return_progress"] is True
        assert not backend.accepts_images
    async with openai_server(says(STREAM_HEAD + FULL)) as (server, backend):
        await backend.infer(HELLO, ignore, TokenMeter())
        assert "return_progress" not in server.asked[-1].body
        assert backend.accepts_images


async def test_a_server_that_wants_the_newer_name_of_the_limit_gets_it_from_then_on() -> None:
    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        old = "max_tokens" in asked.body
        refusal = http(400, {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}})
        await stream.send_all(refusal if old else STREAM_HEAD + FULL)

    async with openai_server(answer) as (server, backend):
        for _ in range(2):
            assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Good day"
    limits = [("max_tokens" in a.body, a.body.get("max_completion_tokens")) for a in server.asked if a.body]
    assert limits == [(True, None), (False, 5), (False, 5)]


@pytest.mark.parametrize(("reason", "finish"), [("stop", "stop"), ("length", "length"), ("eos", "stop"), ("MAX_TOKENS", "length")])
async def test_reasons_for_an_end_are_understood(reason: str, finish: str) -> None:
    async with openai_server(says(STREAM_HEAD + sse(piece("Hi", reason), "[DONE]"))) as (_, backend):
        assert (await backend.infer(HELLO, ignore, TokenMeter())).finish == finish


@pytest.mark.parametrize(
    "stream",
    [
        FULL,
        FULL.replace(b"\n", b"\r\n"),
        FULL.replace(b"data: ", b"data:"),
        b": a comment\nevent: message\nid: 4\n" + FULL,
        FULL.removesuffix(b"\n\n"),
        FULL.removesuffix(b"data: [DONE]\n\n"),
        sse(piece("Good"), piece(" day"), "[DONE]"),
        sse({"choices": [{"delta": {"role": "assistant", "content": None}}]}) + FULL,
    ],
    ids=["plain", "crlf", "no space", "other fields", "no last line end", "no [DONE]", "no reason", "role"],
)
async def test_streams_are_read_in_every_form_that_servers_send(stream: bytes) -> None:
    """Byte by byte, which also tears characters and lines apart."""

    async def answer(asked: Asked, out: trio.SocketStream) -> None:
        await out.send_all(STREAM_HEAD)
        for at in range(len(stream)):
            await out.send_all(stream[at : at + 1])

    async with openai_server(answer) as (_, backend):
        assert await backend.infer(HELLO, ignore, TokenMeter()) == Reply("Good day", "stop")


async def test_a_character_that_comes_in_two_pieces_is_shown_whole() -> None:
    shown: list[str] = []

    async def sink(text: str) -> TokenAction:
        shown.append(text)
        return TokenAction.CONTINUE

    async with openai_server(says(STREAM_HEAD + sse(piece("a\ud83d"), piece("\ude00b\ud83d", "stop"), "[DONE]"))) as (_, backend):
        reply = await backend.infer(HELLO, sink, TokenMeter())
    assert shown == ["a", "😀b"]
    assert reply.text == "a😀b"


async def test_a_server_that_does_not_count_is_counted_for() -> None:
    meter = TokenMeter()
    async with openai_server(says(STREAM_HEAD + sse(piece("a"), piece("b"), piece("c", "stop"), "[DONE]"))) as (_, backend):
        await backend.infer(Prompt("x" * 400, 9), ignore, meter)
    assert meter == TokenMeter(100, 3)


async def test_a_models_thoughts_are_counted_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    meter = TokenMeter()
    async with openai_server(says(STREAM_HEAD + sse(thought, piece("Yes", "stop"), "[DONE]"))) as (_, backend):
        assert (await backend.infer(HELLO, ignore, meter)).text == "Yes"
    assert meter.tokens_out == 2
    data = b'{"message":{"content":"","thinking":"hm"}}\n' + OLLAMA_FULL
    async with ollama_server(says(http(200, data)), monkeypatch) as (_, backend):
        assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Good day"


# Failures while answering

CUT = (InferenceFailed, "PLACE broke off in the middle of its reply. Look at the server's log, and ask again")


def nonsense(what: str) -> str:
    return f"PLACE sent {what}, which is no reply of a model. See whether the address is right"


NOTHING = (InferenceFailed, "PLACE ended its answer without any reply. Look at the server's log, and ask again")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (STREAM_HEAD + sse(piece("Half")), CUT),
        (STREAM_HEAD.replace(b"connection: close", b"transfer-encoding: chunked") + b"40\r\n" + sse(piece("Half")), CUT),
        (
            STREAM_HEAD + sse(piece("Half")) + b'data: {"choices": [{"del',
            CUT,
        ),
        (STREAM_HEAD + sse(piece("Half")) + 'data: {"choices": [{"delta": {"content": "é'.encode()[:-1], CUT),
        (STREAM_HEAD, NOTHING),
        (STREAM_HEAD + sse({"choices": []}, "[DONE]"), NOTHING),
        (STREAM_HEAD + sse({"choices": [], "usage": {"prompt_tokens": 3}}, "[DONE]"), NOTHING),
        (STREAM_HEAD + b"\n <html>a page</html>\n\n", (InferenceFailed, nonsense("a web page"))),
        (
            STREAM_HEAD + sse(piece("Half"), {"error": {"message": "out of\nmemory.", "code": 500}}),
            (InferenceFailed, "PLACE broke off in the middle of its reply: out of memory"),
        ),
        (
            STREAM_HEAD + sse(piece("Half"), {"error": {"code": 500}}),
            CUT,
        ),
        (STREAM_HEAD + b"data: \xff\xfe\n\n", (InferenceFailed, nonsense("bytes that are no UTF-8"))),
        (STREAM_HEAD + sse("{not json"), (InferenceFailed, nonsense("something that is no chat reply"))),
        (STREAM_HEAD + sse([1]), (InferenceFailed, nonsense("something that is no chat reply"))),
        (
            STREAM_HEAD + sse({"choices": [{"delta": {"content": 5}}]}),
            (InferenceFailed, nonsense("something that is no chat reply")),
        ),
        (STREAM_HEAD + sse("[" * 100_000), (InferenceFailed, nonsense("something that is no chat reply"))),
        (STREAM_HEAD + b"data: " + b"x" * 2_000_000, (InferenceFailed, nonsense("a line of more than 1 MiB"))),
        (
            STREAM_HEAD + sse(piece("Half", "content_filter")),
            (InferenceFailed, "PLACE withheld the reply: its content filter objects to it. Ask differently, or another model"),
        ),
        (
            STREAM_HEAD + sse(piece(None, "tool_calls")),
            (InferenceFailed, "PLACE answered with a call of a tool, and there are none. Use a model that answers in words"),
        ),
        (b"", (InferenceFailed, "PLACE broke the connection off. Look at the server's log, and ask again")),
        (b"nonsense\r\n\r\n", (InferenceFailed, "PLACE broke the connection off. Look at the server's log, and ask again")),
        (
            http(401),
            (
                ModelLoadFailed,
                "PLACE wants a key (401). Put it into an environment variable and name it: openai:URL?key=NAME#MODEL",
            ),
        ),
        (
            http(404),
            (
                ModelLoadFailed,
                'PLACE has no model "some-model", or nothing at that address (404). '
                "See which models it lists, and whether the address should end in /v1",
            ),
        ),
        (
            http(500, {"error": {"message": "CUDA error"}}),
            (InferenceFailed, "PLACE broke down over the prompt (500: CUDA error). Look at the server's log"),
        ),
        (http(502, "<html>"), (InferenceFailed, "PLACE broke down over the prompt (502). Look at the server's log")),
        (
            http(400, {"detail": "no\x1b[31m" + "y" * 300}),
            (InferenceFailed, "PLACE refused the prompt (400: no [31m" + "y" * 192 + "…)"),
        ),
        (
            http(307, location="http://elsewhere/v1"),
            (
                InferenceFailed,
                'PLACE points elsewhere (307), which is not followed. Give the address itself: "http://elsewhere/v1"',
            ),
        ),
        (http(200, "[]", content_encoding="gzip"), (InferenceFailed, nonsense("a compressed answer (gzip)"))),
    ],
    ids=[
        "cut",
        "cut chunk",
        "cut inside JSON",
        "cut inside a character",
        "nothing",
        "no choices",
        "only usage",
        "a page",
        "error inside",
        "wordless error inside",
        "no UTF-8",
        "no JSON",
        "a list",
        "wrong type",
        "deep",
        "long line",
        "filter",
        "tool",
        "closed",
        "no HTTP",
        "401",
        "404",
        "500",
        "502",
        "400",
        "redirect",
        "compressed",
    ],
)
async def test_each_failure_of_a_server_has_its_error(data: bytes, expected: tuple[type[CuttlefishError], str]) -> None:
    assert await openai_failure(data) == expected


async def test_a_reply_that_breaks_off_is_counted_and_was_shown() -> None:
    meter, shown = TokenMeter(), []

    async def sink(text: str) -> TokenAction:
        shown.append(text)
        return TokenAction.CONTINUE

    async with openai_server(says(STREAM_HEAD + sse(piece("Half"), piece(" of")))) as (_, backend):
        with pytest.raises(InferenceFailed):
            await backend.infer(HELLO, sink, meter)
    assert shown == ["Half", " of"]
    assert meter == TokenMeter(2, 2)


async def test_a_refused_prompt_costs_nothing() -> None:
    meter = TokenMeter()
    await openai_failure(http(500), meter=meter)
    assert meter == TokenMeter()


FITS_NOT = (
    'the prompt has 5031 tokens; the context of model "some-model" is 2048, '
    "for prompt and reply together. Give it less text at a time"
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            {
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 5031,
                "n_ctx": 2048,
                "message": "request (5031 tokens) exceeds",
            },
            FITS_NOT,
        ),
        (
            {
                "code": "context_length_exceeded",
                "message": "This model's maximum context length is 2048 tokens. However, your messages resulted in 5031 tokens.",
            },
            FITS_NOT,
        ),
        (
            {"message": "This model's maximum context length is 2048 tokens. However, you requested 5031 tokens."},
            FITS_NOT,
        ),
        ({"message": "maximum context length is 2048 tokens and your request has 5031 input tokens."}, FITS_NOT),
        (
            "the input length exceeds the context length",
            'the prompt is longer than the context of model "some-model"; by how much is not said. Give it less text at a time',
        ),
        ('{"error":{"type":"exceed_context_size_error","n_prompt_tokens":5031,"n_ctx":2048}}', FITS_NOT),
    ],
    ids=["llama.cpp", "openai", "vllm", "newer vllm", "ollama", "newer ollama"],
)
@pytest.mark.parametrize("when", ["at once", "inside"])
async def test_a_prompt_that_does_not_fit_is_told_by_every_server_in_one_way(
    error: object, message: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = http(400, {"error": error}) if when == "at once" else STREAM_HEAD + sse({"error": error})
    assert await openai_failure(data) == (InferenceFailed, message)
    data = http(400 if when == "at once" else 200, {"error": error})
    async with ollama_server(says(data), monkeypatch) as (_, backend):
        assert (await failure(backend)).message == message


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (http(200, b'{"message":{"content":"Half"}}\n'), InferenceFailed, CUT[1]),
        (http(200, b'{"message":{"content":"Half"}}\n{"message":{"con'), InferenceFailed, CUT[1]),
        (http(200, b"<html>a page</html>"), InferenceFailed, nonsense("a web page")),
        (http(200, b""), InferenceFailed, NOTHING[1]),
        (http(200, b'{"error":"out of memory"}\n'), InferenceFailed, "PLACE broke off in the middle of its reply: out of memory"),
        (http(200, b"\xff\n"), InferenceFailed, nonsense("bytes that are no UTF-8")),
        (http(200, b"[]\n"), InferenceFailed, nonsense("something that is no chat reply")),
        (
            http(404, {"error": "model not found"}),
            ModelLoadFailed,
            'PLACE has no model "some-model" (404). Get it with: ollama pull some-model',
        ),
        (http(401), ModelLoadFailed, "PLACE refuses to answer (401). Sign in to it, or see who stands before it"),
        (
            http(500, {"error": "out of luck"}),
            InferenceFailed,
            "PLACE broke down over the prompt (500: out of luck). Look at the server's log",
        ),
    ],
    ids=["cut", "cut inside", "a page", "nothing", "error inside", "no UTF-8", "a list", "404", "401", "500"],
)
async def test_each_failure_of_an_ollama_server_has_its_error(
    data: bytes, kind: type[CuttlefishError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ollama_server(says(data), monkeypatch) as (server, backend):
        error = await failure(backend)
        assert (type(error), error.message.replace(server.url, "PLACE")) == (kind, message)


async def test_an_exception_of_the_sink_comes_out_unchanged_and_closes_the_connection() -> None:
    closed = trio.Event()

    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        await stream.send_all(STREAM_HEAD + sse(piece("Hi")))
        assert await stream.receive_some() == b""
        closed.set()

    broken = LookupError("mine")

    async def sink(text: str) -> TokenAction:
        raise broken

    async with openai_server(answer) as (_, backend):
        with pytest.raises(LookupError) as caught:
            await backend.infer(HELLO, sink, TokenMeter())
        assert caught.value is broken
        with trio.fail_after(60):
            await closed.wait()
    gc.collect()  # a generator of the HTTP library left behind would warn now


# Busy servers


def busy_then(replies: list[bytes]) -> Answer:
    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        await stream.send_all(replies.pop(0))

    return answer


async def test_the_time_that_a_busy_server_names_is_understood_in_both_forms() -> None:
    assert remote._told_wait_s("7") == 7
    assert remote._told_wait_s(email.utils.formatdate(time.time() + 20)) in (19, 20)
    assert remote._told_wait_s("9" * 30) == 1e30
    assert [remote._told_wait_s(odd) for odd in ("", "soon", "-5", "1e9", "Mon, 99 Foo 2026")] == [None] * 5
    assert remote._told_wait_s("Mon, 01 Jan 0001 00:00:00 -0000") in (0, None)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_that_is_free_again_answers(status: int) -> None:
    replies = [http(status, retry_after="0"), http(status, retry_after="0.01"), STREAM_HEAD + FULL]
    async with openai_server(busy_then(replies)) as (server, backend):
        meter = TokenMeter()
        assert (await backend.infer(HELLO, ignore, meter)).text == "Good day"
        assert meter == TokenMeter(7, 2)
        assert len(server.asked) == 4


async def test_a_server_that_stays_busy_or_wants_a_long_wait_fails_the_prompt() -> None:
    async with openai_server(says(http(429, retry_after="0"))) as (server, backend):
        error = await failure(backend)
        busy = f"{server.url} is busy (429; waited 0 s) and asks to wait 0 s more. Ask again later, or fewer at a time"
        assert (type(error), error.message) == (InferenceFailed, busy)
        assert len(server.asked) == 1 + 4
    async with openai_server(says(http(429, retry_after="3600"))) as (server, backend):
        error = await failure(backend)
        assert (
            error.message
            == f"{server.url} is busy (429; waited 0 s) and asks to wait 3600 s more. Ask again later, or fewer at a time"
        )
        assert len(server.asked) == 1 + 1


async def test_waiting_for_a_busy_server_can_be_cancelled() -> None:
    async with openai_server(says(http(429, retry_after="29"))) as (_, backend):
        with trio.move_on_after(0.2) as scope:
            await backend.infer(HELLO, ignore, TokenMeter())
        assert scope.cancelled_caught


# Silence


async def silent(asked: Asked, stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def silent_after_the_head(asked: Asked, stream: trio.SocketStream) -> None:
    await stream.send_all(STREAM_HEAD)
    while True:
        await stream.send_all(b": still here\n\n")
        await trio.sleep(0.01)


async def silent_after_a_piece(asked: Asked, stream: trio.SocketStream) -> None:
    await stream.send_all(STREAM_HEAD + sse(piece("Hi")))
    await trio.sleep_forever()


async def silent_after_the_end(asked: Asked, stream: trio.SocketStream) -> None:
    await stream.send_all(STREAM_HEAD + sse(piece("Hi", "stop")))
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("answer", "which"),
    [(silent, "for the first token"), (silent_after_the_head, "for the first token"), (silent_after_a_piece, "between two tokens")],
)
async def test_a_silent_server_times_out_and_the_message_says_which_wait_it_was(answer: Answer, which: str) -> None:
    """Comments that keep a connection open are no sign of a reply."""
    async with openai_server(answer, QUICK) as (server, backend):
        error = await failure(backend)
        assert type(error) is TimedOut
        assert error.message == f"{server.url} kept silent for 1 s ({which}). See what it is doing, and ask again"


async def test_silence_after_a_finished_reply_is_no_failure() -> None:
    async with openai_server(silent_after_the_end, QUICK) as (_, backend):
        assert await backend.infer(HELLO, ignore, TokenMeter()) == Reply("Hi", "stop")


async def test_a_server_that_takes_no_connection_times_out() -> None:
    """A listener whose queue is full: the system lets further connections wait."""
    async with openai_server(says(STREAM_HEAD + FULL), Timeouts(connect_s=1.0)) as (server, backend):
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = []
            for _ in range(8):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(full.getsockname())
                waiting.append(one)
            backend._server._url = f"http://127.0.0.1:{full.getsockname()[1]}"  # type: ignore[attr-defined]  # opening would meet it first
            error = await failure(backend)
            for one in waiting:
                one.close()
        assert type(error) is TimedOut
        assert error.message == f"{server.url} took no connection within 1 s (connect). See whether it runs and is reachable"


async def test_the_time_that_a_sink_takes_is_not_the_servers() -> None:
    async def sink(text: str) -> TokenAction:
        await trio.sleep(1.5)
        return TokenAction.CONTINUE

    async with openai_server(says(STREAM_HEAD + FULL), QUICK) as (_, backend):
        assert (await backend.infer(HELLO, sink, TokenMeter())).text == "Good day"


# Opening


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_server_that_is_down_is_told_when_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"http://127.0.0.1:{unused_port()}"
    with pytest.raises(ModelLoadFailed) as caught:
        await open_backend(f"openai:{place}/v1#m")
    assert caught.value.message == f"no server answers at {place}. Start it, or correct the address"
    monkeypatch.setenv("OLLAMA_HOST", place)
    with pytest.raises(ModelLoadFailed) as caught:
        await open_backend("ollama:m")
    assert caught.value.message == f"no server answers at {place}. Start it, or correct the address (Ollama: ollama serve)"


async def test_a_server_that_goes_down_later_fails_the_prompt() -> None:
    async with scripted_server(says(b"")) as server:
        backend = await open_openai(f"{server.url}/v1#m")
    error = await failure(backend)
    assert (type(error), error.message) == (InferenceFailed, f"no server answers at {server.url}. Start it, or correct the address")
    await backend.aclose()


@pytest.mark.parametrize("local_only", [True, False])
async def test_a_name_that_does_not_resolve_is_told_as_such(local_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    with pytest.raises(ModelLoadFailed) as caught:
        await open_backend("openai:http://no-such-machine.invalid/v1#m", local_only=local_only)
    assert caught.value.message == (
        'there is no machine named "no-such-machine.invalid" (http://no-such-machine.invalid). '
        "Correct the address, or see whether this machine has a network"
    )


@pytest.mark.parametrize(
    "target", ["", "#m", "127.0.0.1:80#m", "http://#m", "http://host/v1", "ftp://host#m", "http://host:x/#m", "http://[::1/#m"]
)
async def test_what_is_no_address_is_answered_with_the_form(target: str) -> None:
    with pytest.raises(ModelLoadFailed, match=r"is no address of a model\. Write openai:URL#MODEL, for example"):
        await open_backend(f"openai:{target}")


async def test_a_server_that_answers_nonsense_when_opening_is_told_or_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async with openai_server(says(STREAM_HEAD + FULL), models=http(404, "<html>")) as (_, backend):
        assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Good day"
    async with scripted_server(says(b""), models=http(404, {"error": "model not found"})) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        with pytest.raises(ModelLoadFailed) as caught:
            await open_backend("ollama:gone")
    assert caught.value.message == f'{server.url} has no model "gone" (404). Get it with: ollama pull gone'


# The key


async def test_the_key_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-1234\n")
    caplog.set_level(logging.DEBUG)
    refusal = http(400, {"error": {"message": "Bad key sk-secret-1234 in request"}})
    async with scripted_server(says(refusal)) as server:
        backend = await open_openai(f"{server.url}/v1?key=MY_KEY#m")
        error = await failure(backend)
        shown = [repr(backend), repr(vars(backend)), repr(error), str(error), caplog.text]
        await backend.aclose()
    assert all(a.headers["authorization"] == "Bearer sk-secret-1234" for a in server.asked)
    assert error.message == f"{server.url} refused the prompt (400: Bad key … in request)"
    assert not any("secret" in text for text in shown)
    cause: BaseException | None = error
    while cause is not None:
        assert "secret" not in repr(cause)
        cause = cause.__cause__ or cause.__context__


async def test_a_key_that_is_refused_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-wrong")
    async with scripted_server(says(b""), models=http(401, {"error": {"message": "sk-wrong is wrong"}})) as server:
        with pytest.raises(ModelLoadFailed) as caught:
            await open_openai(f"{server.url}/v1?key=MY_KEY#m")
    assert caught.value.message == f"{server.url} refused the key in the variable MY_KEY (401). See whether it is set and valid"


async def test_a_real_server_refuses_a_wrong_key(text_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-wrong")
    with pytest.raises(ModelLoadFailed) as caught:
        await open_backend(text_server.model)
    refused = f"{text_server.openai} refused the key in the variable {KEY_VARIABLE} (401). See whether it is set and valid"
    assert caught.value.message == refused


@pytest.mark.parametrize("value", [None, "", "  "])
async def test_a_variable_without_a_key_is_told(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ModelLoadFailed) as caught:
        await open_openai("http://127.0.0.1:1/v1?key=MY_KEY#m")
    assert caught.value.message == 'the variable "MY_KEY", which should hold the key for model "m", is not set'


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://me:secret@127.0.0.1/v1#m", "the address of a model holds a name or password"),
        ("http://127.0.0.1/v1?api_key=secret#m", "may have one option, key=NAME of a variable"),
    ],
)
async def test_a_secret_in_the_address_is_refused_and_not_repeated(target: str, message: str) -> None:
    with pytest.raises(ModelLoadFailed, match=message) as caught:
        await open_openai(target)
    assert "secret" not in caught.value.message


async def test_the_usual_variable_is_not_used_for_a_server_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hosted")
    async with openai_server(says(STREAM_HEAD + FULL)) as (server, backend):
        await backend.infer(HELLO, ignore, TokenMeter())
    assert all("authorization" not in a.headers for a in server.asked)


# Where a provider may connect to


async def test_a_server_elsewhere_is_refused_for_a_local_only_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"is not on this machine, and the pipeline is local_only\. Use a model on this machine, or allow others"
    with pytest.raises(ModelLoadFailed, match=message):
        await open_backend("openai:http://192.0.2.1/v1#m", local_only=True)
    monkeypatch.setenv("OLLAMA_HOST", "192.0.2.1")
    with pytest.raises(ModelLoadFailed, match=message):
        await open_backend("ollama:m", local_only=True)


class AlwaysHere(trio.abc.HostnameResolver):
    async def getaddrinfo(self, host: object, port: object, *more: object) -> list[object]:  # type: ignore[override]  # enough for the tests
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    async def getnameinfo(self, sockaddr: object, flags: int) -> tuple[str, str]:
        raise NotImplementedError


async def test_a_name_with_one_address_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: object, port: object, *more: object) -> list[object]:  # type: ignore[override]  # enough for the test
            return [(2, 1, 6, "", (address, port)) for address in ("127.0.0.1", "192.0.2.1")]

        async def getnameinfo(self, sockaddr: object, flags: int) -> tuple[str, str]:
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(Resolver())
    with pytest.raises(ModelLoadFailed, match="local_only"):
        await open_backend("openai:http://mostly-here.test/v1#m", local_only=True)


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """A name that points here when it is checked, and elsewhere when it is asked for once more."""
    answers = ["127.0.0.1"]

    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: object, port: object, *more: object) -> list[object]:  # type: ignore[override]  # enough for the test
            return [(2, 1, 6, "", (answers.pop() if answers else "192.0.2.1", port))]

        async def getnameinfo(self, sockaddr: object, flags: int) -> tuple[str, str]:
            raise NotImplementedError

    async with scripted_server(says(STREAM_HEAD + FULL)) as server:
        trio.socket.set_custom_hostname_resolver(Resolver())
        answers.append("127.0.0.1")
        backend = await open_openai(f"http://rebound.test:{server.port}/v1#m", local_only=True)
        assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Good day"
        await backend.aclose()
    assert {a.headers["host"] for a in server.asked} == {f"rebound.test:{server.port}"}


async def test_the_second_address_of_a_name_is_tried_when_the_first_refuses() -> None:
    async with scripted_server(says(STREAM_HEAD + FULL)) as server:

        class Resolver(trio.abc.HostnameResolver):
            async def getaddrinfo(self, host: object, port: object, *more: object) -> list[object]:  # type: ignore[override]  # enough for the test
                return [(2, 1, 6, "", ("127.0.0.2", port)), (2, 1, 6, "", ("127.0.0.1", port))]

            async def getnameinfo(self, sockaddr: object, flags: int) -> tuple[str, str]:
                raise NotImplementedError

        trio.socket.set_custom_hostname_resolver(Resolver())
        backend = await open_openai(f"http://two.test:{server.port}/v1#m", local_only=True)
        assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Good day"
        await backend.aclose()


async def test_a_checked_address_is_asked_by_its_name_over_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The certificate is for the name; the connection goes to the number."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("proven.test").configure_cert(context)
    trio.socket.set_custom_hostname_resolver(AlwaysHere())
    async with scripted_server(says(STREAM_HEAD + FULL), tls=context) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        backend = await open_openai(f"https://proven.test:{server.port}/v1#m", local_only=True)
        assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Good day"
        await backend.aclose()
        with pytest.raises(ModelLoadFailed, match=r"does not prove who it is: its certificate does not hold for that name here"):
            await open_openai(f"https://other.test:{server.port}/v1#m", local_only=True)
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(ModelLoadFailed, match=r"does not prove who it is"):
            await open_openai(f"https://proven.test:{server.port}/v1#m", local_only=True)


async def test_a_server_without_tls_is_told_as_such() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(http(400))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        place = f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        with pytest.raises(ModelLoadFailed) as caught:
            await open_openai(f"{place}/v1#m")
        nursery.cancel_scope.cancel()
    assert (
        caught.value.message == f"{place} does not speak TLS as it should. See whether its address begins with http:// or https://"
    )


async def test_this_machines_own_addresses_are_local_and_others_are_not() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; shows which address of ours leads outside, if any does
        own = probe.getsockname()[0]
    assert await addresses.local_addresses(own, 80) == (own,)
    assert await addresses.local_addresses("127.3.2.1", 80) == ("127.3.2.1",)
    assert await addresses.local_addresses("::ffff:127.0.0.1", 80)
    for elsewhere in ("192.0.2.1", "224.0.0.1", "255.255.255.255", "0.0.0.0", "::", "::ffff:192.0.2.1", "2001:db8::1"):
        assert await addresses.local_addresses(elsewhere, 80) == (), elsewhere


async def test_a_server_on_this_machine_is_reached_past_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port()}")
    async with openai_server(says(STREAM_HEAD + FULL)) as (_, backend):
        assert (await backend.infer(HELLO, ignore, TokenMeter())).text == "Good day"


@pytest.mark.parametrize("said", [{"remote_host": "https://ollama.com"}, {"remote_model": "gpt-oss:120b"}])
async def test_a_model_in_ollamas_cloud_is_refused_for_a_local_only_pipeline(
    said: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is on this machine; the model is not."""
    async with scripted_server(says(b""), models=http(200, dict(said))) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        await (await open_ollama("big", local_only=False)).aclose()
        with pytest.raises(ModelLoadFailed) as caught:
            await open_ollama("big", local_only=True)
    assert caught.value.message == 'model "big" runs in Ollama\'s cloud, and the pipeline is local_only. Use one that runs here'


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("box", "http://box:11434"),
        ("box:80", "http://box:80"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:99", "http://127.0.0.1:99"),
        ("[::]:99", "http://[::1]:99"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("http://box", "http://box:80"),
        ("https://box", "https://box:443"),
        ("https://box:8443/", "https://box:8443"),
        ("box/ollama", "http://box:11434/ollama"),
        ("https://box/a/b/", "https://box:443/a/b"),
        (' "box:80" ', "http://box:80"),
    ],
)
def test_ollama_host_is_read_in_every_form_that_ollama_takes(value: str, url: str) -> None:
    assert ollama_url(value) == url


@pytest.mark.parametrize("value", ["ftp://box", "box:port", "http://[::1", "http://me:secret@box"])
def test_what_is_no_ollama_host_is_refused_by_its_name(value: str) -> None:
    with pytest.raises(ModelLoadFailed, match="OLLAMA_HOST") as caught:
        ollama_url(value)
    assert "secret" not in caught.value.message


# Vectors


@pytest.mark.parametrize(
    "data",
    [
        "{}",
        "[]",
        "[" * 100_000,
        '{"data": [{"index": 0}]}',
        '{"data": [{"index": 0, "embedding": ["x"]}]}',
        '{"data": [{"index": 0, "embedding": "12"}], "embeddings": ["12"]}',
        '{"data": [{"index": 0, "embedding": [NaN]}], "embeddings": [[NaN]]}',
        '{"data": [{"index": 0, "embedding": [1e999]}], "embeddings": [[1e999]]}',
        f'{{"data": [{{"index": 0, "embedding": [{"9" * 400}]}}], "embeddings": [[{"9" * 400}]]}}',
        '{"data": [{"index": 0, "embedding": [true]}], "embeddings": [[true]]}',
        '{"data": [{"index": 1, "embedding": [1]}], "embeddings": {"0": [1]}}',
        '{"data": [{"index": 1e999, "embedding": [1]}], "embeddings": 5}',
    ],
    ids=lambda data: data[:60],
)
async def test_nonsense_in_place_of_vectors_is_told_and_what_was_read_is_counted(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_server(says(http(200, data))) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        for embedder in (await open_openai_embedder(f"{server.url}/v1#m"), await open_ollama_embedder("m")):
            meter = TokenMeter()
            with pytest.raises(InferenceFailed, match="something that is no list of vectors"):
                await embedder.embed(["a" * 40], meter)
            assert meter == TokenMeter(10, 0)
            await embedder.aclose()


async def test_a_busy_server_is_asked_for_vectors_again() -> None:
    replies = [http(429, retry_after="0"), http(200, {"data": [{"embedding": [1, 2]}], "usage": {"prompt_tokens": 3}})]
    async with scripted_server(busy_then(replies)) as server:
        embedder, meter = await open_openai_embedder(f"{server.url}/v1#m"), TokenMeter()
        assert await embedder.embed(["a"], meter) == [[1.0, 2.0]]
        assert meter == TokenMeter(3, 0)
        await embedder.aclose()
