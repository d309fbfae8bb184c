"""A server that says what a test tells it to say, byte by byte."""

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class ScriptedServer:
    port: int = 0
    asked: list[Asked] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


Answer = Callable[[Asked, trio.SocketStream], Awaitable[None]]


def http(status: int, body: bytes | str | dict[str, Any] | list[Any] = b"", **headers: str) -> bytes:
    """A whole answer. Header names are written with _ for -."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
"""Without a length: the end of the connection is the end of the answer."""


def sse(*chunks: Any) -> bytes:
    """Events of a stream: each chunk is JSON, or text as it is."""
    return b"".join(
        b"data: " + (c.encode() if isinstance(c, str) else c if isinstance(c, bytes) else json.dumps(c).encode()) + b"\n\n"
        for c in chunks
    )


def piece(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def says(data: bytes) -> Answer:
    async def answer(asked: Asked, stream: trio.SocketStream) -> None:
        await stream.send_all(data)

    return answer


async def read_request(stream: trio.SocketStream) -> Asked | None:
    head = bytearray()
    while b"\r\n\r\n" not in head:
        some = await stream.receive_some()
        if not some:
            return None
        head += some
    raw, _, body = bytes(head).partition(b"\r\n\r\n")
    first, *rest = raw.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    while len(body) < int(headers.get("content-length", 0)):
        body += await stream.receive_some()
    method, path, _ = first.split()
    return Asked(method, path, headers, json.loads(body) if body else None)


@asynccontextmanager
async def scripted_server(
    answer: Answer, *, models: bytes | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    """Answers `GET …/models` and `/api/show` with an empty list, or with `models`, and everything else by `answer`."""
    server = ScriptedServer()

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # the client left, as it may
            async with stream:
                asked = await read_request(stream)
                if asked is None:
                    return
                server.asked.append(asked)
                if asked.path.endswith(("/models", "/api/show")):
                    await stream.send_all(models or http(200, {}))
                else:
                    await answer(asked, stream)

    async with trio.open_nursery() as nursery:
        start = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        if tls is not None:
            start = partial(trio.serve_ssl_over_tcp, serve, 0, tls, host="127.0.0.1", https_compatible=True)
        listeners = await nursery.start(start)
        listener = listeners[0].transport_listener if tls is not None else listeners[0]
        server.port = listener.socket.getsockname()[1]
        try:
            yield server
        finally:
            nursery.cancel_scope.cancel()
