"""Tasks that accompany a piece of work and end with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

__all__ = ["background_tasks"]


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery for tasks that are cancelled when the block ends, however it does.

    An error of the block itself comes out as it is; a plain nursery would wrap it in a group. The tasks must not fail.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:  # noqa: BLE001  # raised again below, as it is
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # an error that its own traceback refers to would live until the next garbage collection
