"""Page texts that came along with the one that was asked for, kept until they are asked for too.

A block that walks a document asks for its pages one by one, and each question to a worker costs as much as reading a short page.
So a page that follows the last one asked for brings the next ones with it: 3, then 15, then 63 of them. What is kept is what a
worker would answer now: the file is the same, at the same length and time of change, opened with the same password and limits.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cuttlefish.limits import Limits
from cuttlefish.media.document_types import DocumentSource, PageText

__all__ = ["ReadAhead", "Walk"]

GROWTH = 4
MOST_PAGES_AT_ONCE = 64
MOST_WALKS = 16  # each keeps at most 1 MiB of text (`document_worker.AHEAD_BYTES`)


@dataclass(slots=True)
class Walk:
    """How far someone is in reading a document, and what there is of it ahead."""

    following: int = 0
    """The page after the last one asked for."""
    asked_at_once: int = 0
    kept: dict[int, PageText] = field(default_factory=dict)

    def take(self, page: int) -> PageText | None:
        """A page that is there already."""
        found = self.kept.get(page)
        if found is not None:
            self.following = page + 1
        return found

    def count(self, page: int) -> int:
        """How many pages to ask for, from this one on."""
        walks_on = page == self.following and self.asked_at_once > 0
        return min(MOST_PAGES_AT_ONCE, self.asked_at_once * GROWTH) if walks_on else 1

    def keep(self, page: int, count: int, texts: Sequence[PageText]) -> None:
        """Remember what came, instead of what was there. A batch of `count` that ended early makes the next one as small."""
        self.following = page + 1
        self.asked_at_once = min(count, len(texts))
        self.kept = {page + at: text for at, text in enumerate(texts) if at > 0}


class ReadAhead:
    """The walks through documents that are under way; those not heard of for longest are forgotten."""

    def __init__(self) -> None:
        self._walks: OrderedDict[tuple[object, ...], tuple[tuple[object, ...], Walk]] = OrderedDict()

    def walk(self, source: DocumentSource, limits: Limits) -> Walk:
        """The walk through this document, a new one if the file has changed since.

        Raises:
            OSError: the descriptor is closed, which is the caller's mistake.
        """
        place = _place(source)
        status = os.fstat(source.fd)  # of an open descriptor: answered from memory, without a wait
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, source.size, source.password, limits)
        found = self._walks.get(place)
        if found is None or found[0] != state:
            found = state, Walk()
        self._walks[place] = found
        self._walks.move_to_end(place)
        if len(self._walks) > MOST_WALKS:
            self._walks.popitem(last=False)
        return found[1]

    def forget(self, source: DocumentSource) -> None:
        """Drop what is kept of a document."""
        self._walks.pop(_place(source), None)


def _place(source: DocumentSource) -> tuple[object, ...]:
    return source.device, source.inode
