"""A guest on a thread of its own, and watched: it stops when it is cancelled, or when one call takes too long."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from cuttlefish.background import background_tasks
from cuttlefish.engine.guest import Guest
from cuttlefish.engine.module import CompiledModule
from cuttlefish.errors import JobCancelled, TimedOut
from cuttlefish.limits import Limits

__all__ = ["GuestThread", "open_guest"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GuestThread:
    """A guest, and the way to step it: `await guest_thread(guest_thread.guest.start)`."""

    guest: Guest
    limiter: trio.CapacityLimiter

    async def __call__(self, function: Callable[..., T], *arguments: object) -> T:
        """Run on a worker thread what steps the guest, and always wait for it: the watcher sees to it that it comes back."""
        try:
            with trio.CancelScope(shield=True):
                result = await trio.to_thread.run_sync(function, *arguments, limiter=self.limiter)
        finally:
            await trio.lowlevel.checkpoint_if_cancelled()
        return result


@asynccontextmanager
async def open_guest(module: CompiledModule, limits: Limits, threads: trio.CapacityLimiter) -> AsyncIterator[GuestThread]:
    """A guest that is not started yet, watched for as long as the block lasts: stopped on cancellation, or when one call takes
    longer than `guest.step_time`.
    """
    guest = Guest(module, limits)
    async with background_tasks() as nursery:
        nursery.start_soon(_watch, guest, limits.guest_step_time_s)
        try:
            yield GuestThread(guest, threads)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(guest.close, limiter=threads)


async def _watch(guest: Guest, step_time_s: float) -> None:
    """Interrupt the guest when one call takes longer than `step_time_s`, and when this task is cancelled."""
    try:
        while True:
            since = guest.running_since
            left = step_time_s if since is None else since + step_time_s - time.monotonic()
            if left <= 0:
                guest.interrupt(
                    TimedOut(f'"{guest.name}" computed for longer than one step may (guest.step_time is {step_time_s:g} seconds)')
                )
                left = step_time_s
            await trio.sleep(left)
    finally:
        guest.interrupt(JobCancelled("the job was cancelled"))
