"""A model server over HTTP: reaching it, and reading its reply as it comes. What is said there is the providers' matter.

Promises kept here for all of them: the connection goes to an address that was checked, where that was asked for; redirects are
not followed; what a server sends is capped; each wait has a limit; each failure has a sentence; the key is in none of them.
A new connection is made for each prompt: one that was kept may be closed by the server just as it is used again.
"""

import email.utils
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import trio

from cuttlefish.errors import CuttlefishError, InferenceFailed, ModelLoadFailed, TimedOut
from cuttlefish.inference.addresses import local_addresses, needs_no_lookup
from cuttlefish.inference.backend import Finish, Missing, Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.showing import Showing

__all__ = ["Chunk", "ModelServer", "Timeouts", "context_exceeded", "missing_server", "open_server", "scrubbed"]

MOST_LINE_BYTES = 1 << 20
MOST_REPLY_BYTES = 64 << 20
MOST_ERROR_BYTES = 64 << 10
MOST_WORDS = 200
TRIES_WHEN_BUSY = 4
LONGEST_BUSY_WAIT_S = 30.0
LOOK_S = 1.0  # for a server on this machine to take a connection
AFTER_THE_END_S = 5.0  # for the count of tokens that follows a finished reply
BYTES_PER_TOKEN = 4  # a guess for servers that do not count; English text has some four bytes a token


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The longest waits for a server. The time that a sink takes is not counted."""

    connect_s: float = 10.0
    first_token_s: float = 300.0
    """From the question to the first sign of the reply; reading a long prompt and loading a model happen here."""
    between_tokens_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One message of a reply that is being made. What it does not say is left as it is here."""

    text: str = ""
    thought: bool = False
    """A token that is no part of the reply: a model thinking."""
    finish: Finish | None = None
    end: bool = False
    """Nothing follows."""
    in_total: int = 0
    """Tokens of the prompt, as far as it has been read."""
    out_total: int = 0
    failure: CuttlefishError | None = None


class ModelServer:
    """One server, ready to be asked. Made by `open_server`."""

    def __init__(
        self, client: httpx2.AsyncClient, url: str, place: str, model: str, secret: str | None, timeouts: Timeouts
    ) -> None:
        self._client = client
        self._url = url
        self._secret = secret
        self._closed = False
        self._running: set[trio.CancelScope] = set()
        self._idle = trio.Event()
        self.place = place
        """The server in words for a message: `http://127.0.0.1:8080`."""
        self.model = model
        self.timeouts = timeouts

    async def converse(
        self,
        path: str,
        body: Mapping[str, Any],
        prompt: Prompt,
        sink: TokenSink,
        meter: TokenMeter,
        next_chunk: Callable[["Lines"], Awaitable[Chunk | None]],
        explain: Callable[[int, bytes], CuttlefishError | None],
    ) -> Reply:
        """Ask, and show the reply as it comes. `next_chunk` reads one `Chunk` (None at the end), `explain` turns a status that is
        not 200 into an error, where the provider knows more than this file.

        Raises:
            CuttlefishError: as `Backend.infer` says.
        """
        showing, tally = Showing(prompt, sink), _Tally(meter, prompt)
        limit, wait = self.timeouts.first_token_s, "for the first token"
        finish: Finish | None = None
        ended = False
        try:
            async with self._stream(path, body, explain) as lines:
                tally.served()
                while not ended:
                    with trio.move_on_after(limit) as scope:
                        chunk = await next_chunk(lines)
                    if scope.cancelled_caught:
                        if finish is not None:
                            break
                        raise TimedOut(f"{self.place} kept silent for {limit:g} s ({wait}). See what it is doing, and ask again")
                    if chunk is None:
                        break
                    if chunk.failure is not None:
                        raise chunk.failure
                    tally.add(chunk)
                    finish = chunk.finish or finish
                    ended = chunk.end
                    if chunk.text or chunk.thought:
                        limit, wait = self.timeouts.between_tokens_s, "between two tokens"
                    if chunk.text and not await showing.add(chunk.text):
                        return await showing.end("stop")
                    if finish is not None:
                        limit = min(limit, AFTER_THE_END_S)
        finally:
            tally.close()
        if finish is None and not (ended and tally.pieces):
            what = "ended its answer without any reply" if not tally.pieces else "broke off in the middle of its reply"
            raise InferenceFailed(f"{self.place} {what}. Look at the server's log, and ask again")
        return await showing.end(finish or ("length" if tally.pieces >= prompt.max_tokens else "stop"))

    async def ask(
        self, path: str, body: Mapping[str, Any] | None, explain: Callable[[int, bytes], CuttlefishError | None], most_s: float
    ) -> tuple[int, Mapping[str, str], Any]:
        """One question with one JSON answer, or None where it is no JSON: status, headers, answer. Without a `body` it is a GET.

        `explain` is asked for a status that is not 200; where it has no error, that status is the caller's.

        Raises:
            CuttlefishError: the server cannot be reached, is silent, or answers too much.
        """
        with trio.move_on_after(most_s):
            async with self._answer(path, body) as response:
                data = await self._whole(response, MOST_REPLY_BYTES)
                if response.status_code != 200 and (error := explain(response.status_code, data)) is not None:
                    raise error
            try:
                return response.status_code, response.headers, await trio.to_thread.run_sync(json.loads, data)
            except (ValueError, RecursionError):
                return response.status_code, response.headers, None
        raise TimedOut(f"{self.place} kept silent for {most_s:g} s (for an answer). See what it is doing, and ask again")

    async def aclose(self) -> None:
        """End what runs and close. Calling it again does nothing."""
        with trio.CancelScope(shield=True):
            self._closed = True
            for scope in self._running:
                scope.cancel()
            while self._running:
                await self._idle.wait()
            await self._client.aclose()

    @asynccontextmanager
    async def _stream(
        self, path: str, body: Mapping[str, Any], explain: Callable[[int, bytes], CuttlefishError | None]
    ) -> AsyncIterator["Lines"]:
        waited = 0.0
        for turn in range(TRIES_WHEN_BUSY):
            async with self._answer(path, body) as response:
                if response.status_code == 200:
                    async with aclosing(Lines(self, response)) as lines:
                        yield lines
                    return
                data = await self._whole(response, MOST_ERROR_BYTES)
                status, retry_after = response.status_code, response.headers.get("retry-after")
            if status not in (429, 503):
                raise explain(status, data) or self.refusal(status, data, response.headers)
            wait = _busy_wait_s(retry_after, turn)
            if turn == TRIES_WHEN_BUSY - 1 or wait > LONGEST_BUSY_WAIT_S:
                break
            waited += wait
            await trio.sleep(wait)
        more = f"asks to wait {wait:g} s more" if retry_after else "does not say for how long"
        raise InferenceFailed(
            f"{self.place} is busy ({status}; waited {waited:g} s) and {more}. Ask again later, or fewer at a time"
        )

    @asynccontextmanager
    async def _answer(self, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[httpx2.Response]:
        """The server's answer, its body not read yet. Closed at the end, which is what tells a server that nobody listens."""
        if self._closed:
            raise self._is_closed()
        with trio.CancelScope() as scope:
            self._running.add(scope)
            try:
                content = None if body is None else await trio.to_thread.run_sync(_encoded, body)
                headers = {"content-type": "application/json"} if content is not None else {}
                request = self._client.build_request(
                    "GET" if content is None else "POST", self._url + path, content=content, headers=headers
                )
                response = await self._send(request)
                try:
                    yield response
                finally:
                    with trio.CancelScope(shield=True):  # short: it only closes a socket
                        await response.aclose()
            finally:
                self._running.discard(scope)
                if not self._running:
                    self._idle.set()
                    self._idle = trio.Event()
        if scope.cancelled_caught:
            raise self._is_closed()

    def _is_closed(self) -> InferenceFailed:
        return InferenceFailed(f'model "{self.model}" is closed')

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        limit = self.timeouts.first_token_s
        try:
            with trio.fail_after(limit):  # some servers answer only when they have a token
                return await self._client.send(request, stream=True)
        except trio.TooSlowError:
            raise TimedOut(
                f"{self.place} kept silent for {limit:g} s (for the first token). See what it is doing, and ask again"
            ) from None
        except httpx2.ConnectTimeout:
            limit = self.timeouts.connect_s
            raise TimedOut(
                f"{self.place} took no connection within {limit:g} s (connect). See whether it runs and is reachable"
            ) from None
        except httpx2.ConnectError as e:
            raise InferenceFailed(_why_unreachable(self.place, e)) from None
        except httpx2.TransportError as e:
            raise self._gone(e) from None

    def _gone(self, error: httpx2.TransportError) -> InferenceFailed:
        if isinstance(error, httpx2.ProxyError):
            return InferenceFailed(
                f"the proxy on the way to {self.place} refused the connection. See the variables HTTP_PROXY and HTTPS_PROXY"
            )
        if isinstance(error, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol):
            return InferenceFailed(
                f"{self.place} cannot be asked: a part of its address or of the key has characters that HTTP does not allow"
            )
        return InferenceFailed(f"{self.place} broke the connection off. Look at the server's log, and ask again")

    async def _whole(self, response: httpx2.Response, most: int) -> bytes:
        data = bytearray()
        with trio.move_on_after(self.timeouts.first_token_s):
            async with aclosing(Lines(self, response)) as lines:
                while (chunk := await lines.chunk()) is not None:
                    data += chunk
                    if len(data) > most:
                        if response.status_code != 200:
                            return bytes(data[:most])
                        raise self.nonsense(f"more than {most >> 20} MiB")
                return bytes(data)
        raise TimedOut(f"{self.place} stopped in the middle of its answer. See what it is doing, and ask again")

    def words(self, data: bytes) -> str:
        """What a server says about an error, fit to be shown: one short line, without the key. Empty if it says nothing."""
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            return ""
        for key in ("error", "message", "detail"):
            if isinstance(said, Mapping) and key in said:
                said = said[key]
        return scrubbed(said, self._secret) if isinstance(said, str) else ""

    def refusal(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> CuttlefishError:
        """The error for a status that means the same with every server."""
        words = self.words(data)
        said = f": {words}" if words else ""
        if (too_long := context_exceeded(self.model, data)) is not None:
            return too_long
        if 300 <= status < 400:
            where = scrubbed((headers or {}).get("location", ""), self._secret)
            return InferenceFailed(
                f'{self.place} points elsewhere ({status}), which is not followed. Give the address itself: "{where}"'
            )
        if status >= 500:
            return InferenceFailed(f"{self.place} broke down over the prompt ({status}{said}). Look at the server's log")
        return InferenceFailed(f"{self.place} refused the prompt ({status}{said})")

    def nonsense(self, what: str) -> InferenceFailed:
        """The error for an answer that cannot be read."""
        return InferenceFailed(f"{self.place} sent {what}, which is no reply of a model. See whether the address is right")


class Lines:
    """The body of an answer, line by line and capped."""

    def __init__(self, server: ModelServer, response: httpx2.Response) -> None:
        self._server = server
        self._response = response
        # raw: a compressed body could grow without a bound
        self._chunks = response.aiter_raw()
        self._buffer = bytearray()
        self._seen = 0
        self._total = 0

    async def aclose(self) -> None:
        """Read no more. Closing the answer first and reading on ends the library's own generators, which it forgets about."""
        with trio.CancelScope(shield=True):  # short: it only closes a socket
            await self._response.aclose()
            with suppress(httpx2.TransportError, httpx2.StreamError):
                while await anext(self._chunks, None) is not None:
                    pass

    async def chunk(self) -> bytes | None:
        """The next bytes, whatever they are; None at the end.

        Raises:
            InferenceFailed: the connection broke.
        """
        try:
            return await anext(self._chunks, None)
        except httpx2.TransportError:
            raise InferenceFailed(
                f"{self._server.place} broke off in the middle of its reply. Look at the server's log, and ask again"
            ) from None

    async def next(self) -> bytes | None:
        """The next line without its end, or None.

        Raises:
            InferenceFailed: the connection broke, or more came than any reply has.
        """
        while (at := self._buffer.find(b"\n", self._seen)) < 0:
            self._seen = len(self._buffer)
            if self._seen > MOST_LINE_BYTES:
                raise self._server.nonsense(f"a line of more than {MOST_LINE_BYTES >> 20} MiB")
            chunk = await self.chunk()
            if chunk is None:
                rest, self._buffer = bytes(self._buffer), bytearray()
                self._seen = 0
                return rest or None
            self._total += len(chunk)
            if self._total > MOST_REPLY_BYTES:
                raise self._server.nonsense(f"more than {MOST_REPLY_BYTES >> 20} MiB")
            self._buffer += chunk
        line = bytes(self._buffer[:at]).removesuffix(b"\r")
        del self._buffer[: at + 1]
        self._seen = 0
        return line


class _Tally:
    """Counts upward into a meter: what the server says, at least what was seen, and a guess where it says nothing."""

    def __init__(self, meter: TokenMeter, prompt: Prompt) -> None:
        self._meter = meter
        self._prompt_bytes = len(prompt.text.encode())
        self._in = self._out = 0
        self._told = False
        self.pieces = 0

    def served(self) -> None:
        """The server took the prompt."""
        self._raise_to(1, 0)

    def add(self, chunk: Chunk) -> None:
        self.pieces += bool(chunk.text or chunk.thought)
        self._told = self._told or chunk.in_total > 0
        self._raise_to(chunk.in_total, max(chunk.out_total, self.pieces))

    def close(self) -> None:
        """No more will come. A server that never counted has read the prompt all the same."""
        if self._in and not self._told:
            self._raise_to(self._prompt_bytes // BYTES_PER_TOKEN, 0)

    def _raise_to(self, read: int, made: int) -> None:
        read, made = max(read, self._in), max(made, self._out)
        self._meter.add(read - self._in, made - self._out)
        self._in, self._out = read, made


async def open_server(
    url: str, *, model: str, headers: Mapping[str, str], secret: str | None, local_only: bool, timeouts: Timeouts
) -> ModelServer:
    """A way to a server at `url`, which is not asked anything yet.

    A server on this machine is reached without a proxy and at the addresses that were checked here. With `local_only` any other
    is refused.

    Raises:
        ModelLoadFailed: not on this machine, though it has to be.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    place = f"{parts.scheme}://{parts.netloc}"
    try:
        addresses = await local_addresses(host, port)
    except (OSError, UnicodeError):
        if local_only:
            raise ModelLoadFailed(_no_such_machine(host, place)) from None
        addresses = ()  # a proxy may know the name
    if local_only and not addresses:
        raise ModelLoadFailed(
            f'"{host}" is not on this machine, and the pipeline is local_only. Use a model on this machine, or allow others'
        )

    def make() -> httpx2.AsyncClient:  # reads certificates, and takes a while
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        transport = _Pinned(httpx2.AsyncHTTPTransport(limits=limits), addresses) if addresses else None
        return httpx2.AsyncClient(
            headers={"accept-encoding": "identity", "user-agent": "cuttlefish", **headers},
            timeout=httpx2.Timeout(None, connect=timeouts.connect_s),
            follow_redirects=False,
            limits=limits,
            transport=transport,
            trust_env=not addresses,
        )

    return ModelServer(await trio.to_thread.run_sync(make), url.rstrip("/"), place, model, secret, timeouts)


async def missing_server(url: str, *, local_only: bool, start: str) -> Missing | None:
    """Whether a server at `url` is there, if it is on this machine; nothing is said of others, and no name service is asked.

    `start` is the hint for one that is not running.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if not needs_no_lookup(host):
        return None
    try:
        addresses = await local_addresses(host, port)
    except (OSError, UnicodeError):
        return None
    if not addresses:
        reason = f'"{host}" is not on this machine, and the pipeline is local_only'
        return Missing(reason, "Use a model on this machine, or allow others") if local_only else None
    for address in addresses:
        with trio.move_on_after(LOOK_S):
            try:
                stream = await trio.open_tcp_stream(address, port)
            except OSError:
                continue
            await trio.aclose_forcefully(stream)
            return None
    return Missing(f"no server answers at {parts.scheme}://{parts.netloc}", start)


class _Pinned(httpx2.AsyncBaseTransport):
    """Connects to addresses that were checked, in turn, and nowhere else. The server is still asked by its name."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, addresses: tuple[str, ...]) -> None:
        self._inner = inner
        self._addresses = addresses

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Its `host` header and the name for TLS are those of the address that was asked for."""
        request.extensions = {**request.extensions, "sni_hostname": request.url.host}
        asked_for = request.url
        for address in self._addresses[:-1]:
            request.url = asked_for.copy_with(host=address)
            try:
                return await self._inner.handle_async_request(request)
            except httpx2.ConnectError:
                continue
        request.url = asked_for.copy_with(host=self._addresses[-1])
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close what is below."""
        await self._inner.aclose()


def context_exceeded(model: str, data: bytes) -> InferenceFailed | None:
    """The error for a prompt that does not fit, if that is what a server says; with both numbers if it says them."""
    text = data.decode(errors="replace").replace("\\", "")
    if not re.search(r"exceed_context_size|context_length_exceeded|context (length|size|window)", text):
        return None
    fixed = re.search(r'n_prompt_tokens"?\D{1,3}(\d+)', text), re.search(r'n_ctx"?\D{1,3}(\d+)', text)
    told = (
        re.search(r"(?:resulted in|requested|request has|has|contains)\D{0,20}(\d+) (?:input )?tokens", text),
        re.search(r"context (?:length|size|window)\D{0,20}(\d+)", text),
    )
    for needed, room in (fixed, told):
        if needed and room:
            return InferenceFailed(
                f'the prompt has {needed[1]} tokens; the context of model "{model}" is {room[1]}, '
                "for prompt and reply together. Give it less text at a time"
            )
    return InferenceFailed(
        f'the prompt is longer than the context of model "{model}"; by how much is not said. Give it less text at a time'
    )


def scrubbed(text: str, secret: str | None) -> str:
    """A server's words as one short line without control characters and without the key."""
    if secret:
        text = text.replace(secret, "…")
    line = " ".join("".join(c if c.isprintable() else " " for c in text[:10_000]).split()).rstrip(".")
    return line if len(line) <= MOST_WORDS else line[: MOST_WORDS - 1] + "…"


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _busy_wait_s(retry_after: str | None, turn: int) -> float:
    """Seconds, or a date, or neither: then a little longer each time."""
    if retry_after is not None:
        if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", retry_after):
            return float(retry_after)
        try:
            return max(0.0, round(email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()))
        except (ValueError, OverflowError):
            pass
    return float(2**turn)


def _no_such_machine(host: str, place: str) -> str:
    return f'there is no machine named "{host}" ({place}). Correct the address, or see whether this machine has a network'


def _why_unreachable(place: str, error: httpx2.ConnectError) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{place} does not prove who it is: its certificate does not hold for that name here. Correct the address"
        if isinstance(cause, ssl.SSLError):
            return f"{place} does not speak TLS as it should. See whether its address begins with http:// or https://"
        if isinstance(cause, trio.socket.gaierror):
            return _no_such_machine(urlsplit(place).hostname or "", place)
        cause = cause.__cause__ or cause.__context__
    return f"no server answers at {place}. Start it, or correct the address"
