"""The protocol over HTTP (streamable HTTP), for clients on this machine that hold the token."""

import hmac
import json
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import hypercorn.trio
import trio
from hypercorn.config import Config
from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings

from cuttlefish.mcp.server import CLOSED
from cuttlefish.mcp.stdio_wire import MOST_LINE_BYTES

__all__ = ["PATH", "HttpFace", "serve_http"]

PATH = "/mcp"
MOST_SESSIONS = 1_000
GRACE_S = 2.0
"""How long calls may go on when the server is told to end."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""ASGI's own forms, which are `Any` by nature."""


@dataclass(frozen=True, slots=True)
class HttpFace:
    """Where and for whom to serve."""

    listener: socket.socket
    """Bound and listening."""
    token: str = field(repr=False)
    names: tuple[str, ...] | None
    """The names under which a client may address this server; None if it is reached from other machines, by whatever name."""


async def serve_http(server: Server[Any], face: HttpFace, told_to_end: Callable[[], Awaitable[None]]) -> None:
    """Serve any number of clients until `told_to_end` returns. The listener is closed then."""
    no_checks = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # `_Gate` does them, in one place
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MOST_LINE_BYTES,
        max_sessions=MOST_SESSIONS,
        transport_security=no_checks,
    )
    config = Config()
    config.bind = [f"fd://{face.listener.detach()}"]
    config.errorlog = None
    config.accesslog = None
    config.include_server_header = False
    config.graceful_timeout = GRACE_S
    config.shutdown_timeout = GRACE_S + 1
    gate: Any = _Gate(app, face)  # `Any`: ASGI's events are plain dictionaries here, and hypercorn has a class for each
    await hypercorn.trio.serve(gate, config, shutdown_trigger=told_to_end, mode="asgi")


class _Gate:
    """Who may pass: a known Host, no foreign Origin, the token. And it tells a call when its client is gone."""

    def __init__(self, app: Any, face: HttpFace) -> None:
        self._app = app
        self._face = face
        self._expected = b"Bearer " + face.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._serve(scope, receive, send)
            case "lifespan":  # of the server, and no client's
                await self._app(scope, receive, send)
            case "websocket":
                await send({"type": "websocket.close"})  # before it is accepted, so it is answered with 403
            case other:
                raise AssertionError(f"nobody may pass by {other}")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        closed = scope[CLOSED] = trio.Event()

        async def receive_until_closed() -> Any:
            event = await receive()
            if event["type"] == "http.disconnect":
                closed.set()
            return event

        await self._app(scope, receive_until_closed, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = [_host_of(value) for value in headers.get(b"host", [])]
        if self._face.names is not None and (len(hosts) != 1 or hosts[0] not in self._face.names):
            return 403, "this server is not addressed by that name"  # a page whose name was made to lead here
        allowed = self._face.names or (*LOOPBACK, *hosts)
        for origin in headers.get(b"origin", []):
            if not re.match(rb"https?://", origin) or _host_of(origin.partition(b"://")[2]) not in allowed:
                return 403, "requests from pages of other origins are refused"
        given = headers.get(b"authorization", [])
        if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
            return 401, "the header Authorization: Bearer TOKEN is missing or has another token"
        return None


def _host_of(value: bytes) -> str:
    """A host without its port, in small letters."""
    return re.sub(rb":\d*$", b"", value).decode("latin-1").lower()


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="cuttlefish"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
