"""The body of a server's answer, line by line and capped."""

from contextlib import suppress

import httpx2
import trio

from cuttlefish.inference.server_errors import broke_off, nonsense

__all__ = ["ResponseLines"]

MOST_LINE_BYTES = 1 << 20
MOST_BODY_BYTES = 64 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some servers send one before the first line, where it is no part of it


class ResponseLines:
    """Reads an answer of `place` whose status is known. To be closed, which ends the connection."""

    def __init__(self, place: str, response: httpx2.Response) -> None:
        self._place = place
        self._response = response
        # raw: a compressed body could grow without a bound
        self._chunks = response.aiter_raw()
        self._buffer = bytearray()
        self._seen = 0
        self._total = 0
        self._begun = False
        self.torn = False
        """Whether the last line came without its end, as it does when a server breaks off in the middle of one."""

    async def aclose(self) -> None:
        """Read no more. Closing the answer first and reading on ends the library's own generators, which it forgets about."""
        with trio.CancelScope(shield=True):  # short: it only closes a socket
            await self._response.aclose()
            with suppress(httpx2.TransportError, httpx2.StreamError):
                while await anext(self._chunks, None) is not None:
                    pass

    async def next(self) -> bytes | None:
        """The next line without its end, or None.

        Raises:
            InferenceFailed: the connection broke, or more came than any reply has.
        """
        while (at := self._buffer.find(b"\n", self._seen)) < 0:
            self._seen = len(self._buffer)
            if self._seen > MOST_LINE_BYTES:
                raise nonsense(self._place, f"a line of more than {MOST_LINE_BYTES >> 20} MiB")
            chunk = await self._chunk()
            if chunk is None:
                rest, self._buffer = bytes(self._buffer), bytearray()
                self._seen = 0
                self.torn = self.torn or bool(rest)
                return self._without_mark(rest) or None
            self._buffer += chunk
        line = bytes(self._buffer[:at]).removesuffix(b"\r")
        del self._buffer[: at + 1]
        self._seen = 0
        return self._without_mark(line)

    async def rest(self, most: int = MOST_BODY_BYTES) -> bytes:
        """All that has not been read yet, cut after `most` bytes.

        Raises:
            InferenceFailed: the connection broke, or more came than any reply has.
        """
        while len(self._buffer) <= most:
            chunk = await self._chunk()
            if chunk is None:
                break
            self._buffer += chunk
        data, self._buffer = bytes(self._buffer), bytearray()
        self._seen = 0
        return data[:most]

    async def _chunk(self) -> bytes | None:
        try:
            chunk = await anext(self._chunks, None)
        except httpx2.TransportError:
            raise broke_off(self._place) from None
        self._total += len(chunk or b"")
        if self._total > MOST_BODY_BYTES:
            raise nonsense(self._place, f"more than {MOST_BODY_BYTES >> 20} MiB")
        return chunk

    def _without_mark(self, line: bytes) -> bytes:
        if self._begun:
            return line
        self._begun = True
        return line.removeprefix(BYTE_ORDER_MARK)
