"""A package index with one wheel on loopback, which breaks down as a test tells it to, and what was asked of it."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

PACKAGE = "tiny-model"


class Request(BaseHTTPRequestHandler):
    """One request. What a test puts into `WheelIndex.faults` is called with it instead of the usual answer."""

    index: "WheelIndex"

    def do_GET(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            path = urlsplit(self.path).path  # a proxy is asked by whole addresses
            if path == f"/simple/{PACKAGE}/":
                page = f'<!DOCTYPE html><a href="/files/{self.index.name}">{self.index.name}</a>'.encode()
                self.head(200, len(page), content_type="text/html")
                self.wfile.write(page)
            elif path == f"/files/{self.index.name}":
                self.index.asked.append(self.headers.get("Range"))
                fault = self.index.faults.pop(0) if self.index.faults else serve
                fault(self)
            else:
                self.head(404, 0)

    def head(self, status: int, length: int | None, **headers: str) -> None:
        """Header names are written with _ for -."""
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()

    @property
    def first(self) -> int:
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(found[1]) if found else 0

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), 1 << 16):
            piece = data[at : at + (1 << 16)]
            self.wfile.write(piece)
            self.index.sent += len(piece)

    def log_message(self, format: str, *arguments: object) -> None:
        """Tests look at `asked`."""


Fault = Callable[[Request], None]


@dataclass
class WheelIndex:
    name: str
    wheel: bytes
    faults: list[Fault] = field(default_factory=list)
    """For the next requests for the wheel, one each."""
    asked: list[str | None] = field(default_factory=list)
    """The `Range` of each request for the wheel."""
    sent: int = 0
    """Bytes of the wheel, of all requests."""
    port: int = 0
    scheme: str = "http"
    let_go: threading.Event = field(default_factory=threading.Event)
    """What a silent server waits for."""
    hung_up: threading.Event = field(default_factory=threading.Event)
    """Set when a client of `falls_silent_after` went away."""

    @property
    def simple(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/simple/"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/files/{self.name}"


@contextmanager
def wheel_index(wheel: Path, tls: ssl.SSLContext | None = None) -> Iterator[WheelIndex]:
    """Serve the wheel for as long as the block lasts."""
    index = WheelIndex(wheel.name, wheel.read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Request", (Request,), {"index": index}))
    server.daemon_threads = False  # closing it waits for all
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)  # but in its thread
        index.scheme = "https"
    index.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield index
    finally:
        index.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()


def serve(request: Request) -> None:
    """What a good server does."""
    _serve(request, request.index.wheel)


def _serve(request: Request, wheel: bytes, end: int | None = None) -> None:
    size = len(wheel)
    if "Range" not in request.headers:
        request.head(200, size)
    elif request.first >= size:
        request.head(416, 0, Content_Range=f"bytes */{size}")
        return
    else:
        request.head(206, size - request.first, Content_Range=f"bytes {request.first}-{size - 1}/{size}")
    request.send(wheel[request.first : end])


def drops_at(end: int) -> Fault:
    """The connection ends before byte `end` of the file, whatever was asked."""
    return lambda request: _serve(request, request.index.wheel, end)


def falls_silent_after(end: int) -> Fault:
    """It serves up to byte `end` and nothing more until it is let go; then it breaks off."""

    def answer(request: Request) -> None:
        with suppress(ConnectionError):
            _serve(request, request.index.wheel, end)
            if _still_there(request):
                return
        request.index.hung_up.set()

    return answer


def _still_there(request: Request) -> bool:
    """Wait until it is let go (true), or the client has gone (false)."""
    request.connection.settimeout(0.05)
    while not request.index.let_go.is_set():
        with suppress(TimeoutError):
            return request.connection.recv(1) != b""
    return True


def is_silent(request: Request) -> None:
    """It takes the request and says nothing until it is let go."""
    request.index.let_go.wait()


def resets(request: Request) -> None:
    """It breaks off before its answer."""
    request.connection.shutdown(socket.SHUT_RDWR)


def knows_no_ranges(request: Request) -> None:
    """It answers with the whole file whatever was asked."""
    request.head(200, len(request.index.wheel))
    request.send(request.index.wheel)


def serves(wheel: bytes) -> Fault:
    """Other bytes than the wheel's."""
    return lambda request: _serve(request, wheel)


def answers(status: int, body: bytes = b"", **headers: str) -> Fault:
    """This status, and this body."""

    def answer(request: Request) -> None:
        request.head(status, len(body), **headers)
        request.wfile.write(body)

    return answer


def sends_to(url: str) -> Fault:
    """A redirect."""
    return answers(302, Location=url)


def answers_without_length(status: int, body: bytes, **headers: str) -> Fault:
    """As `answers`, and the end of the connection is the end of the body."""

    def answer(request: Request) -> None:
        request.head(status, None, **headers)
        request.wfile.write(body)

    return answer
