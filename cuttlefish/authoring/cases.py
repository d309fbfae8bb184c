"""A block's cases: the conversations beside it, each replayed in a fresh instance."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import trio

from cuttlefish.authoring.conversations import BadConversation, Conversation, read_conversation
from cuttlefish.authoring.differences import Difference
from cuttlefish.authoring.replay import replay, rewrite
from cuttlefish.engine.guest import Guest
from cuttlefish.engine.guest_thread import open_guest
from cuttlefish.engine.module import CompiledModule
from cuttlefish.errors import CuttlefishError
from cuttlefish.limits import Limits

__all__ = ["CaseResult", "CaseRunner", "Outcome"]

T = TypeVar("T")

Outcome = Literal["passed", "differs", "malformed", "updated", "unchanged", "kept"]
"""What became of a case. `kept`: it could not be updated, and is as it was."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case and what there is to say about it."""

    file: str
    outcome: Outcome
    message: str | None = None
    """One sentence; without it all is well. For `differs` and `kept` the place stands apart, in `line`."""
    line: int | None = None
    difference: Difference | None = None

    @property
    def is_well(self) -> bool:
        """Whether the case is as it should be."""
        return self.outcome in ("passed", "updated", "unchanged")


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Runs the cases of one compiled block. Cancelling stops the guest at once."""

    module: CompiledModule
    limits: Limits
    threads: trio.CapacityLimiter

    async def replay(self, case: Path, shown: str) -> CaseResult:
        """Replay a case; `shown` is what messages call it."""
        try:
            conversation = await trio.to_thread.run_sync(read_conversation, case, shown)
        except BadConversation as error:
            return CaseResult(shown, "malformed", error.message)
        try:
            mismatch = await self._in_guest(replay, conversation)
        except CuttlefishError as error:
            return CaseResult(shown, "differs", f"the block fails: {error.code}: {error.message}", 1)
        if mismatch is not None:
            return CaseResult(shown, "differs", mismatch.message, mismatch.line, mismatch.difference)
        return CaseResult(shown, "passed", None if conversation.is_over else "it ends before the block does")

    async def update(self, case: Path, shown: str) -> CaseResult:
        """Write the commands that the block gives now into a case; input, events and tokens stay.

        Raises:
            OSError: the file cannot be written.
        """
        try:
            conversation = await trio.to_thread.run_sync(read_conversation, case, shown)
        except BadConversation as error:
            return CaseResult(shown, "malformed", error.message)
        try:
            rewritten = await self._in_guest(rewrite, conversation)
        except CuttlefishError as error:
            return CaseResult(shown, "kept", f"the block fails: {error.code}: {error.message}")
        if not rewritten.fits:
            return CaseResult(shown, "kept", rewritten.remark)
        changed = await trio.to_thread.run_sync(_write, case, conversation, rewritten.text)
        return CaseResult(shown, "updated" if changed else "unchanged", rewritten.remark)

    async def _in_guest(self, function: Callable[[Guest, Conversation], T], conversation: Conversation) -> T:
        """What the function gives for a fresh instance that has started."""
        async with open_guest(self.module, self.limits, self.threads) as guest_thread:
            await guest_thread(guest_thread.guest.start)
            return await guest_thread(function, guest_thread.guest, conversation)


def _write(case: Path, conversation: Conversation, text: str) -> bool:
    """Put the text in the place of a case, whole or not at all. False if it says the same as before."""
    draft = case.with_name(f".{case.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(text.encode())
        if read_conversation(draft).lines == conversation.lines:
            return False
        draft.replace(case)
    finally:
        draft.unlink(missing_ok=True)
    return True
