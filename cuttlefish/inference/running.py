"""What a backend is busy with, so that closing it ends that."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from cuttlefish.errors import InferenceFailed

__all__ = ["Running"]


class Running:
    """The work on prompts of one model, in Trio's thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._scopes: set[trio.CancelScope] = set()
        self._idle = trio.Event()
        self._is_closed = False

    @contextmanager
    def until_closed(self) -> Iterator[None]:
        """Around a piece of work, which `close` cancels.

        Raises:
            InferenceFailed: it did, or had before.
        """
        closed = InferenceFailed(f'model "{self._model}" is closed')
        if self._is_closed:
            raise closed
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._idle.set()
                    self._idle = trio.Event()
        if scope.cancelled_caught:
            raise closed

    async def close(self) -> None:
        """End all work and wait until it is over; none begins any more. Not interrupted by cancellation."""
        self._is_closed = True
        with trio.CancelScope(shield=True):
            for scope in self._scopes:
                scope.cancel()
            while self._scopes:
                await self._idle.wait()
            await trio.lowlevel.checkpoint()
