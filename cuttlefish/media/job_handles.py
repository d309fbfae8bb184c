"""All that one job has open: a table of handles for each of its nodes.

A handle's number is the node's place in the graph times 4096, plus a counter. So numbers stay the same whatever runs beside a node,
and again after a resume.

    a node that runs once            one table, open until the job's end: its handles may go to other nodes
    the rounds of `repeat`           the node's one table, as a round may get handles from the one before
    the items of `over`              a table each, with the same numbers, closed when the item is done: nothing else may use them

So numbers never run out, however many items there are; the nodes of a pipeline are bounded by 2**32 / 4096, about a million.
"""

from types import TracebackType
from typing import Self

from cuttlefish.limits import Limits
from cuttlefish.media.capabilities import Capabilities
from cuttlefish.media.handles import HandleTable, SharedHandles

__all__ = ["JobHandles"]


class JobHandles:
    """The tables of one job. Every handle of a node may be used by every other; `job.handles` counts all of them.

    `table` and `item_table` belong to Trio's thread. `close` closes the tables of all nodes; call it when nothing runs any more.
    """

    def __init__(self, capabilities: Capabilities, limits: Limits) -> None:
        self._capabilities = capabilities
        self._limits = limits
        self._shared = SharedHandles()

    def table(self, index: int) -> HandleTable:
        """The table of the node at this place of the graph, which lasts until the job's end."""
        tables = self._shared.tables
        if index not in tables:
            tables[index] = HandleTable(self._capabilities, self._limits, index, shared=self._shared)
        return tables[index]

    def item_table(self, index: int) -> HandleTable:
        """A table for one item of the node at this place. The caller closes it."""
        return HandleTable(self._capabilities, self._limits, index, shared=self._shared)

    def close(self) -> None:
        """Close the tables of all nodes."""
        for table in self._shared.tables.values():
            table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
