"""Who runs next, when more jobs are started than may run at once."""

from collections import deque
from collections.abc import Hashable
from types import TracebackType

import trio

__all__ = ["Client", "Turn", "Turns"]

Client = tuple[Hashable, ...]
"""For whom a job is done, from the whole to its part: `(machine, program)`. All jobs of `()` are those of one more client."""

_OWN = object()
"""Ends the path of each client, so that a whole which has turns of its own is one more of its parts."""


class Turns:
    """At most `most` turns at once, shared fairly among clients.

    Turns go round over the clients that wait, one each; those of one client come in the order of `join`. Where a client is part of
    something (a program on a machine), turns go round over the wholes first, so that no whole gains by having many parts.

    A `trio.CapacityLimiter` would serve tasks in the order in which Trio happens to run them first, which is not that of starting.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._line = _Line()

    def join(self, client: Client = ()) -> "Turn":
        """Take the last place in the client's line. The turn must be entered (or its line is blocked)."""
        turn = Turn(self, (*client, _OWN))
        self._line.add(turn, turn.path)
        self._advance()
        return turn

    def ahead(self, turn: "Turn") -> int:
        """How many turns come before this one, of those that wait now; none when it has come, or was given up.

        It falls as turns come, and rises when somebody joins whose turn comes first: another client, which waits for fewer.
        """
        return self._line.ahead(turn, turn.path) if turn.waits else 0

    def _advance(self) -> None:
        while self._free and self._line.waiting:
            self._free -= 1
            self._line.take().come()

    def _leave(self, turn: "Turn") -> None:
        if turn.waits:
            self._line.remove(turn, turn.path)
            turn.waits = False
        else:
            self._free += 1
        self._advance()


class Turn:
    """A place in the line: `async with turn:` waits for the turn to come and gives it up at the end.

    Cancelling the wait leaves the line.
    """

    def __init__(self, turns: Turns, path: Client) -> None:
        self._turns = turns
        self._came = trio.Event()
        self.path = path
        self.waits = True

    def ahead(self) -> int:
        """How many turns come first; none when this one has come. See `Turns.ahead`."""
        return self._turns.ahead(self)

    def come(self) -> None:
        """It is this one's turn. For `Turns`."""
        self.waits = False
        self._came.set()

    async def __aenter__(self) -> None:
        try:
            await self._came.wait()
        except BaseException:  # a cancel above all: the place must not be kept
            self._turns._leave(self)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._turns._leave(self)


class _Line:
    """Turns that wait: those of one client in their order, or the lines of the parts of a whole, which are served in rounds."""

    def __init__(self) -> None:
        self._turns: deque[Turn] = deque()
        self._parts: dict[Hashable, _Line] = {}
        """Those that wait, in the order of the round."""
        self.waiting = 0

    def add(self, turn: Turn, path: Client) -> None:
        self.waiting += 1
        if path:
            self._parts.setdefault(path[0], _Line()).add(turn, path[1:])
        else:
            self._turns.append(turn)

    def take(self) -> Turn:
        """The next one. Whose turn it was is last in the next round."""
        self.waiting -= 1
        if not self._parts:
            return self._turns.popleft()
        name = next(iter(self._parts))
        line = self._parts.pop(name)
        turn = line.take()
        if line.waiting:
            self._parts[name] = line
        return turn

    def remove(self, turn: Turn, path: Client) -> None:
        self.waiting -= 1
        if not path:
            self._turns.remove(turn)
            return
        line = self._parts[path[0]]
        line.remove(turn, path[1:])
        if not line.waiting:
            del self._parts[path[0]]

    def ahead(self, turn: Turn, path: Client) -> int:
        if not path:
            return self._turns.index(turn)
        own = self._parts[path[0]].ahead(turn, path[1:])
        total, round_has_come = own, False
        for name, line in self._parts.items():
            if name == path[0]:
                round_has_come = True
            else:  # one for each turn of ours that comes before, and one more where they stand before us in the round
                total += min(line.waiting, own if round_has_come else own + 1)
        return total
