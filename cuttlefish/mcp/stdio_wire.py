"""The protocol on standard input and output: one JSON-RPC message per line.

In place of the SDK's own transport, which loses the answers of calls that are under way when the input ends, and says nothing to
lines that are no message. The SDK's server runs on it as on any other.
"""

import json
import logging
import os
import select
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import anyio
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from pydantic import ValidationError

from cuttlefish.mcp.descriptors import StdioDescriptors
from cuttlefish.mcp.serving import AgentServer
from cuttlefish_abi import BadJson, parse_json

__all__ = ["MOST_IN_FLIGHT", "MOST_LINE_BYTES", "Refused", "read_message", "serve_stdio", "write_in_pieces"]

MOST_LINE_BYTES = 32 << 20
"""A longer line is skipped and answered with an error: what is not yet a message must not fill the memory."""
MOST_IN_FLIGHT = 1_000
"""Requests that may wait for their answers at once."""
DRAIN_S = 600.0
"""How long calls may go on after the end of input: their answers can still be read."""
CHUNK = 1 << 16
ATOMIC = 4096  # what a pipe that is ready for writing surely takes (PIPE_BUF)
PIECE = 1 << 18
LARGE = 1 << 16  # a line that is worth a thread: reading or writing 64 KiB takes about a millisecond

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that is no message, and what its sender is told."""

    code: int
    message: str
    id: str | int | None = None

    def as_error(self) -> JSONRPCError:
        """As it is written."""
        return JSONRPCError(jsonrpc="2.0", id=self.id, error=ErrorData(code=self.code, message=self.message))


def read_message(line: bytes) -> JSONRPCMessage | Refused | None:
    """One line as a message; what is wrong with it; or nothing for an answer that cannot be read, as answers get no answer."""
    try:
        value = parse_json(line)
    except BadJson as error:
        return Refused(PARSE_ERROR, f"the line is {error}")
    if isinstance(value, list):
        return Refused(INVALID_REQUEST, "batches are not part of MCP: send one message per line")
    if not isinstance(value, dict):
        return Refused(INVALID_REQUEST, "a message is a JSON object")
    id = value.get("id")
    has_id = isinstance(id, str | int) and not isinstance(id, bool)
    known = id if has_id else None
    if value.get("jsonrpc") != "2.0":
        return Refused(INVALID_REQUEST, 'a message holds "jsonrpc": "2.0"', known)
    if "method" not in value:
        if "result" not in value and "error" not in value:
            return Refused(INVALID_REQUEST, "a message has a method", known)
        try:
            return (JSONRPCResponse if "result" in value else JSONRPCError).model_validate(value)
        except ValidationError:
            _log.debug("dropped an answer that has not its form")
            return None
    if not isinstance(value["method"], str):
        return Refused(INVALID_REQUEST, "method must be a string", known)
    if "id" in value and not has_id:
        return Refused(INVALID_REQUEST, "id must be a string or a whole number")
    if not isinstance(value.get("params", {}), dict):
        return Refused(INVALID_REQUEST, "params must be an object", known)
    if "id" in value:
        return JSONRPCRequest.model_validate(value)
    return JSONRPCNotification.model_validate(value)


async def serve_stdio(agent_server: AgentServer, descriptors: StdioDescriptors, *, drain_s: float = DRAIN_S) -> None:
    """Serve one client until its input ends and the calls that were under way are answered, or until it reads no more.

    Calls that go on `drain_s` seconds after the end of input are cancelled. Cancelling ends all of them at once.
    """
    into_server, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    async with trio.open_nursery() as nursery:
        server = agent_server.server
        wire = _Wire(descriptors, into_server, nursery.cancel_scope, agent_server.ending)
        nursery.start_soon(wire.read, drain_s)
        nursery.start_soon(wire.write, from_server)
        await server.run(read_stream, write_stream, server.create_initialization_options())


class _Wire:
    """One client's two streams."""

    def __init__(
        self,
        descriptors: StdioDescriptors,
        into_server: MemoryObjectSendStream[SessionMessage | Exception],
        everything: trio.CancelScope,
        ending: trio.Event,
    ) -> None:
        self._descriptors = descriptors
        self._into_server = into_server
        self._everything = everything
        self._ending = ending
        self._writing = trio.Lock()
        self._in_flight: set[str] = set()
        self._settled = trio.Event()

    async def read(self, drain_s: float) -> None:
        """Bring lines to the server until they end, then wait for the answers."""
        async with self._into_server:
            async for line in _lines(self._descriptors.input):
                if line is None:
                    await self._refuse(Refused(INVALID_REQUEST, f"a line may be {MOST_LINE_BYTES >> 20} MiB long, not more"))
                elif line.strip():
                    await self._take(line)
            self._ending.set()
            with trio.move_on_after(drain_s):
                while self._in_flight:
                    if _nobody_reads(self._descriptors.output):
                        self._everything.cancel()
                    with trio.move_on_after(0.2):
                        await self._settled.wait()

    async def _take(self, line: bytes) -> None:
        message = await trio.to_thread.run_sync(read_message, line) if len(line) > LARGE else read_message(line)
        if message is None:
            return
        if isinstance(message, Refused):
            await self._refuse(message)
            return
        metadata = None
        if isinstance(message, JSONRPCRequest):
            id = message.id
            key = str(id)  # as the SDK compares them: "1" and 1 are the same call
            if key in self._in_flight:
                await self._refuse(Refused(INVALID_REQUEST, "a call with this id is under way; give each its own", id))
                return
            if len(self._in_flight) >= MOST_IN_FLIGHT:
                told = f"{MOST_IN_FLIGHT} calls are under way; wait for some answers first"
                await self._refuse(Refused(INTERNAL_ERROR, told, id))
                return
            self._in_flight.add(key)

            async def unanswered() -> None:
                self._settle(key)

            metadata = ServerMessageMetadata(on_request_unanswered=unanswered)
        await self._into_server.send(SessionMessage(message, metadata))

    async def _refuse(self, refused: Refused) -> None:
        await self._send(refused.as_error())

    def _settle(self, key: str) -> None:
        self._in_flight.discard(key)
        settled, self._settled = self._settled, trio.Event()
        settled.set()

    async def write(self, from_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write what the server sends, until it sends no more."""
        async with from_server:
            async for sent in from_server:
                if isinstance(sent.message, JSONRPCResponse | JSONRPCError) and sent.message.id is not None:
                    self._settle(str(sent.message.id))  # before: who has the answer may use the id again
                await self._send(sent.message)

    async def _send(self, message: JSONRPCMessage) -> None:
        if _has_long_text(message):
            value = message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            pieces = await trio.to_thread.run_sync(write_in_pieces, value)
        else:
            pieces = [message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"]
        async with self._writing:
            try:
                for piece in pieces:
                    await _write(self._descriptors.output, piece)
            except OSError:  # nobody reads any more: there is no one to do anything for
                self._everything.cancel()
                await trio.lowlevel.checkpoint()


def _has_long_text(message: JSONRPCMessage) -> bool:
    """Whether writing it takes a while: the text of a resource, or of one that a part of an answer holds."""
    level: list[object] = [message.result] if isinstance(message, JSONRPCResponse) else []
    for _ in range(4):  # result, contents, one of them, its text
        if any(isinstance(value, str) and len(value) > LARGE for value in level):
            return True
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
    return False


def write_in_pieces(value: object) -> list[bytes]:
    """A JSON value as a line, in pieces that are each written in a millisecond.

    One call for all of it would keep every other thread waiting, 60 MiB for 200 ms, whichever thread makes it.
    """
    pieces, short = list[bytes](), list[str]()
    for piece in _pieces(value):
        short.append(piece)
        if len(piece) >= PIECE:
            pieces.append("".join(short).encode())
            short.clear()
    return [*pieces, "".join([*short, "\n"]).encode()]


def _pieces(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield '"'
        yield from (json.dumps(value[at : at + PIECE], ensure_ascii=False)[1:-1] for at in range(0, len(value), PIECE))
        yield '"'
    elif isinstance(value, dict):
        yield "{"
        for number, (name, inner) in enumerate(value.items()):
            yield f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:"
            yield from _pieces(inner)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, inner in enumerate(value):
            yield from [","] if number else []
            yield from _pieces(inner)
        yield "]"
    else:
        yield json.dumps(value)


async def _lines(fd: int) -> AsyncIterator[bytes | None]:
    """Each line, whole however it was split; None for one that is too long. The last one may lack its end."""
    parts: list[bytes] = []
    length = 0
    while chunk := await _read(fd):
        *ended, rest = chunk.split(b"\n")
        for end in ended:
            parts.append(end)
            length += len(end)
            yield b"".join(parts) if length <= MOST_LINE_BYTES else None
            parts, length = [], 0
        length += len(rest)
        if length <= MOST_LINE_BYTES:
            parts.append(rest)
        else:
            parts.clear()
    if length:
        yield b"".join(parts) if length <= MOST_LINE_BYTES else None


async def _read(fd: int) -> bytes:
    """Some bytes; none at the end. The descriptor's mode is left alone: a parent may share it."""
    try:
        await trio.lowlevel.wait_readable(fd)
    except PermissionError:  # a regular file, which is always readable
        return await trio.to_thread.run_sync(os.read, fd, CHUNK)
    try:
        return os.read(fd, CHUNK)
    except OSError:  # a terminal or socket that is gone
        return b""


async def _write(fd: int, data: bytes) -> None:
    """All of the bytes, waiting while the reader is slow.

    Raises:
        OSError: the reader is gone.
    """
    view = memoryview(data)
    while view:
        try:
            await trio.lowlevel.wait_writable(fd)
        except PermissionError:  # a regular file
            written = await trio.to_thread.run_sync(os.write, fd, view)
        else:
            written = os.write(fd, view[:ATOMIC])
        view = view[written:]


def _nobody_reads(fd: int) -> bool:
    """Whether the other end of the output is closed."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, events in poll.poll(0))
