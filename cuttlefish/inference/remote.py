"""Asking a model server over HTTP, and reading its reply as it comes. What is said there is the providers' matter.

Promises kept here for all of them: redirects are not followed; what a server sends is capped, and so is how long it may send
nothing that counts; a busy server is asked again; each failure has a sentence; the key is in none of them.
"""

import email.utils
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import trio

from cuttlefish.errors import CuttlefishError, InferenceFailed, TimedOut
from cuttlefish.inference.backend import Finish, Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.response_lines import ResponseLines
from cuttlefish.inference.running import Running
from cuttlefish.inference.server_errors import broke_off, lost_connection, nonsense, refusal, unreachable, words_of
from cuttlefish.inference.showing import Showing

__all__ = ["Body", "Chunk", "Explain", "ModelServer", "Timeouts", "told_count"]

MOST_ERROR_BYTES = 64 << 10
MOST_TOKENS = 2**32 - 1  # that the contract can say
TRIES_WHEN_BUSY = 4
LONGEST_BUSY_WAIT_S = 30.0
AFTER_THE_END_S = 5.0  # for the count of tokens that follows a finished reply
BYTES_PER_TOKEN = 4  # a guess for servers that do not count; English text has some four bytes a token
TEXTS_AT_ONCE = 128

Body = Callable[[], Mapping[str, Any]]
"""Makes what a server is asked, in a thread: images become base64 there."""

Explain = Callable[[int, bytes], CuttlefishError | None]
"""The error for a status that is not 200 and its body, where the provider knows more than this file."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The longest waits for a server. The time that a sink takes is not counted."""

    connect_s: float = 10.0
    first_token_s: float = 300.0
    """From the question to the head of the answer, and from there to the first sign of the reply. Servers load a model and read a
    long prompt in either."""
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
    """One server, ready to be asked. Made by `connecting.open_server`."""

    def __init__(
        self, client: httpx2.AsyncClient, url: str, place: str, model: str, secret: str | None, timeouts: Timeouts
    ) -> None:
        self._client = client
        self._url = url
        self._secret = secret
        self._running = Running(model)
        self.place = place
        """The server in words for a message: `http://127.0.0.1:8080`."""
        self.model = model
        self.timeouts = timeouts

    async def converse(
        self,
        path: str,
        body: Body,
        prompt: Prompt,
        sink: TokenSink,
        meter: TokenMeter,
        next_chunk: Callable[[ResponseLines], Awaitable[Chunk | None]],
        explain: Explain,
    ) -> Reply:
        """Ask, and show the reply as it comes. `next_chunk` reads one `Chunk`; None at the end.

        A server that makes more tokens than it was allowed is left there, as if it had stopped.

        Raises:
            CuttlefishError: as `Backend.infer` says.
        """
        showing, tally = Showing(prompt, sink), _Tally(meter, len(prompt.text.encode()))
        finish: Finish | None = None
        ended = answered = False
        try:
            async with self._granted(path, body, explain) as lines:
                tally.served()
                patience = _Patience(self.timeouts)
                while not ended:
                    with trio.CancelScope(deadline=patience.ends_at) as scope:
                        chunk = await next_chunk(lines)
                    if scope.cancelled_caught:
                        if finish is not None:
                            break
                        raise TimedOut(f"{self.place} kept silent for {patience.waited_for}. See what it is doing, and ask again")
                    if chunk is None:
                        break
                    is_news = tally.add(chunk)
                    if chunk.failure is not None:
                        raise chunk.failure
                    if tally.pieces > prompt.max_tokens:
                        return await showing.end("length")
                    finish = chunk.finish or finish
                    ended = chunk.end
                    answered = answered or bool(chunk.text)
                    if chunk.text and not await showing.add(chunk.text):
                        return await showing.end("stop")
                    if finish is not None:
                        patience.waits_for_the_count()
                    elif is_news:
                        patience.begins_anew(answering=tally.pieces > 0)
        finally:
            tally.close()
        if finish is None and not (ended and answered):
            if answered:
                raise broke_off(self.place)
            raise InferenceFailed(f"{self.place} ended its answer without any reply. Look at the server's log, and ask again")
        return await showing.end(finish or ("length" if tally.pieces >= prompt.max_tokens else "stop"))

    async def vectors(
        self,
        path: str,
        texts: Sequence[str],
        meter: TokenMeter,
        body: Callable[[Sequence[str]], Mapping[str, Any]],
        read: Callable[[Any], tuple[list[list[Any]], int]],
        explain: Explain,
    ) -> list[list[float]]:
        """The vectors of `texts`, asked for some at a time. `read` gives those of one answer, in order, and its count of tokens.

        Raises:
            CuttlefishError: as `Embedder.embed` says.
        """
        vectors: list[list[float]] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[start : start + TEXTS_AT_ONCE]
            tally = _Tally(meter, sum(len(text.encode()) for text in some))
            try:
                async with self._granted(path, partial(body, some), explain) as lines:
                    tally.served()
                    data = await self._whole(lines)
                rows, count = await trio.to_thread.run_sync(self._read_vectors, data, read, abandon_on_cancel=True)
                tally.add(Chunk(in_total=count))
            finally:
                tally.close()
            vectors += rows
        return vectors

    def _read_vectors(self, data: bytes, read: Callable[[Any], tuple[list[list[Any]], int]]) -> tuple[list[list[float]], int]:
        try:
            rows, count = read(json.loads(data))
            if all(type(x) in (int, float) and math.isfinite(x) for row in rows for x in row):
                return [[float(x) for x in row] for row in rows], count
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError):
            pass
        raise nonsense(self.place, "something that is no list of vectors")

    async def look(
        self, path: str, body: Mapping[str, Any] | None, explain: Explain, most_s: float
    ) -> tuple[Mapping[str, str], Any]:
        """What a server says of itself: headers and JSON, None where it is no JSON. Without a `body` it is a GET.

        `explain` is asked for a status that is not 200; where it has no error, the answer counts all the same.

        Raises:
            CuttlefishError: the server cannot be reached, is silent, or answers too much.
        """
        with trio.move_on_after(most_s):
            async with self._answer(path, None if body is None else lambda: body) as (response, lines):
                data = await self._whole(lines)
                if response.status_code != 200 and (error := explain(response.status_code, data)) is not None:
                    raise error
            try:
                return response.headers, await trio.to_thread.run_sync(json.loads, data)
            except (ValueError, RecursionError):
                return response.headers, None
        raise TimedOut(f"{self.place} kept silent for {most_s:g} s (for an answer). See what it is doing, and ask again")

    def understand(self, data: bytes, lines: ResponseLines, read: Callable[[Any], Chunk]) -> Chunk:
        """One message of a reply, read from its JSON by `read`, which may raise what lookups and conversions raise.

        Raises:
            InferenceFailed: it is no such message.
        """
        if data.lstrip().startswith(b"<"):
            raise nonsense(self.place, "a web page")
        try:
            return read(json.loads(data.decode()))
        except UnicodeDecodeError:
            what = "bytes that are no UTF-8"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            what = "something that is no chat reply"
        raise broke_off(self.place) if lines.torn else nonsense(self.place, what)

    def words(self, data: bytes) -> str:
        """See `server_errors.words_of`."""
        return words_of(data, self._secret)

    def refusal(self, status: int, data: bytes, location: str = "") -> CuttlefishError:
        """See `server_errors.refusal`."""
        return refusal(self.place, self.model, status, data, location, self._secret)

    async def aclose(self) -> None:
        """End what runs and close. Calling it again does nothing."""
        with trio.CancelScope(shield=True):
            await self._running.close()
            await self._client.aclose()

    @asynccontextmanager
    async def _granted(self, path: str, body: Body, explain: Explain) -> AsyncIterator[ResponseLines]:
        """The server's answer of status 200. While the server is busy it is asked again."""
        waited = 0.0
        for turn in range(TRIES_WHEN_BUSY):
            async with self._answer(path, body) as (response, lines):
                if response.status_code == 200:
                    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
                        raise nonsense(self.place, f"a compressed answer ({encoding[:20]})")
                    yield lines
                    return
                data = await self._whole(lines, MOST_ERROR_BYTES)
                status, headers = response.status_code, response.headers
            if status not in (429, 503):
                raise explain(status, data) or self.refusal(status, data, headers.get("location", ""))
            told_s = _told_wait_s(headers.get("retry-after", ""))
            wait_s = 2.0**turn if told_s is None else told_s
            if turn == TRIES_WHEN_BUSY - 1 or wait_s > LONGEST_BUSY_WAIT_S:
                break
            with self._running.until_closed():
                await trio.sleep(wait_s)
            waited += wait_s
        words = self.words(data)
        how = f"{status}: {words}" if words else str(status)
        more = "does not say for how long" if told_s is None else f"asks to wait {told_s:g} s more"
        raise InferenceFailed(f"{self.place} is busy ({how}; waited {waited:g} s) and {more}. Ask again later, or fewer at a time")

    @asynccontextmanager
    async def _answer(self, path: str, body: Body | None) -> AsyncIterator[tuple[httpx2.Response, ResponseLines]]:
        """The server's answer, its body not read yet. Closed at the end, which is what tells a server that nobody listens."""
        with self._running.until_closed():
            content = None if body is None else await trio.to_thread.run_sync(_encoded, body)
            headers = {"content-type": "application/json"} if content is not None else {}
            request = self._client.build_request(
                "GET" if content is None else "POST", self._url + path, content=content, headers=headers
            )
            response = await self._send(request)
            async with aclosing(ResponseLines(self.place, response)) as lines:
                yield response, lines

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
            raise unreachable(self.place, e) from None
        except httpx2.TransportError as e:
            raise lost_connection(self.place, e) from None

    async def _whole(self, lines: ResponseLines, most: int | None = None) -> bytes:
        with trio.move_on_after(self.timeouts.first_token_s):
            return await (lines.rest() if most is None else lines.rest(most))
        raise TimedOut(f"{self.place} stopped in the middle of its answer. See what it is doing, and ask again")


class _Patience:
    """How long a server may still send nothing that brings its reply on. Signs of life that are no part of a reply do not count."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.begins_anew(answering=False)

    def begins_anew(self, *, answering: bool) -> None:
        """The reply has come on; `answering` once there was a token."""
        limit_s = self._timeouts.between_tokens_s if answering else self._timeouts.first_token_s
        self.waited_for = f"{limit_s:g} s ({'between two tokens' if answering else 'for the first token'})"
        self.ends_at = trio.current_time() + limit_s

    def waits_for_the_count(self) -> None:
        """The reply is whole. What may follow is worth a short wait."""
        self.ends_at = min(self.ends_at, trio.current_time() + AFTER_THE_END_S)


class _Tally:
    """Counts upward into a meter: what the server says, at least what was seen, and a guess where it says nothing."""

    def __init__(self, meter: TokenMeter, bytes_in: int) -> None:
        self._meter = meter
        self._bytes_in = bytes_in
        self._in = self._out = 0
        self._told = False
        self.pieces = 0

    def served(self) -> None:
        """The server took the question."""
        self._raise_to(1, 0)

    def add(self, chunk: Chunk) -> bool:
        """Count what a chunk tells. Whether it brought the reply on."""
        is_piece = bool(chunk.text) or chunk.thought
        self.pieces += is_piece
        self._told = self._told or chunk.in_total > 0
        return self._raise_to(chunk.in_total, max(chunk.out_total, self.pieces)) or is_piece

    def close(self) -> None:
        """No more will come. A server that never counted has read the question all the same."""
        if self._in and not self._told:
            self._raise_to(self._bytes_in // BYTES_PER_TOKEN, 0)

    def _raise_to(self, read: int, made: int) -> bool:
        read, made = max(read, self._in), max(made, self._out)
        is_more = (read, made) != (self._in, self._out)
        self._meter.add(read - self._in, made - self._out)
        self._in, self._out = read, made
        return is_more


def told_count(counts: object, name: str) -> int:
    """A count of tokens among those that a server tells; 0 where it tells none, or something that is no count."""
    count = counts.get(name) if isinstance(counts, Mapping) else None
    return count if isinstance(count, int) and 0 <= count <= MOST_TOKENS else 0


def _encoded(body: Body) -> bytes:
    return json.dumps(body(), ensure_ascii=False).encode()


def _told_wait_s(retry_after: str) -> float | None:
    """How long a busy server asks to wait, in seconds or until a date; None if it says neither."""
    if re.fullmatch(r"\s*\d{1,300}(\.\d{1,9})?\s*", retry_after):
        return float(retry_after)
    try:
        return max(0.0, round(email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()))
    except (ValueError, OverflowError, OSError):
        return None
