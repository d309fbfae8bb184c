"""Tasks that accompany a piece of work and end with it, and what becomes of their errors."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

__all__ = ["background_tasks", "first_error", "one_error"]


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


@contextmanager
def one_error() -> Iterator[None]:
    """Around a nursery whose tasks are all the same to the caller: the first error comes out by itself, not in a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = first_error(group)
        if isinstance(error, trio.Cancelled):
            raise
        raise error from None


def first_error(error: BaseException) -> BaseException:
    """The first error within nested groups that is no cancellation; a cancellation where there is nothing else."""
    leaves = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [inner for leaf in leaves for inner in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else [leaf])]
    return next((leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)), leaves[0])
