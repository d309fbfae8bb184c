"""Who runs next, when more jobs are started than may run at once."""

from collections import deque
from types import TracebackType

import trio

__all__ = ["Turn", "Turns"]


class Turns:
    """At most `most` turns at once, given in the order of `join`.

    A `trio.CapacityLimiter` would serve tasks in the order in which Trio happens to run them first, which is not that of starting.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[Turn] = deque()

    def join(self) -> "Turn":
        """Take the last place in the line. The turn must be entered (or its line is blocked)."""
        turn = Turn(self)
        self._waiting.append(turn)
        self._advance()
        return turn

    def ahead(self, turn: "Turn") -> int:
        """How many turns come before this one; none when it has come, or was given up."""
        return self._waiting.index(turn) if turn in self._waiting else 0

    def _advance(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().came.set()

    def _leave(self, turn: "Turn") -> None:
        if turn.came.is_set():
            self._free += 1
        else:
            self._waiting.remove(turn)
        self._advance()


class Turn:
    """A place in the line: `async with turn:` waits for the turn to come and gives it up at the end.

    Cancelling the wait leaves the line.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.came = trio.Event()

    def ahead(self) -> int:
        """How many turns of the same line come first; none when this one has come."""
        return self._turns.ahead(self)

    async def __aenter__(self) -> None:
        try:
            await self.came.wait()
        except BaseException:
            self._turns._leave(self)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._turns._leave(self)
