"""What the readers of documents share, in the worker process: problems, what a page holds, a file read where it is needed."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

__all__ = ["FileBlocks", "OpenDocument", "PageRead", "Problem", "Read", "reader"]

Read = Callable[[int, int], bytes]
"""Length and offset to bytes, fewer where the file ends."""


class Problem(Exception):  # becomes an error of `errors.py` on the other side
    """Why a command cannot be carried out: a kind that `document_answers.py` knows, and its numbers (or a format's name)."""

    def __init__(self, kind: str, **facts: float | str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.facts = facts


class PageRead(NamedTuple):
    """A page's text; how many images lie on it and which part of its area they cover, where that was asked."""

    text: str
    images: int = 0
    coverage: float = 0.0


class OpenDocument(Protocol):
    """A document kept open between commands: `pdf_reader.PdfDocument` or `tiff_reader.TiffDocument`.

    Every method may raise `Problem`. `question` is the command with its limits.
    """

    key: tuple[object, ...]
    pages: int
    spoiled: bool
    """Whether what it says from now on cannot be trusted, so that it must be opened anew."""

    def facts(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What the `open` command answers."""
        ...

    def read(self, page: int, question: Mapping[str, Any], with_images: bool) -> PageRead:
        """A page's text."""
        ...

    def picture(self, page: int, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A page as a PNG or JPEG, and its size."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class FileBlocks:
    """The document's bytes, read where a reader asks: `pread` only, so that the shared file offset does not matter."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size, self.at = fd, size, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Choose where the next read starts."""
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        """Where the next read starts."""
        return self.at

    def read(self, length: int = -1) -> bytes:
        """Required of a stream by pypdfium2; PDFium itself uses `readinto`."""
        block = os.pread(self.fd, max(0, self.size - self.at) if length < 0 else length, self.at)
        self.at += len(block)
        return block

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; fewer bytes than it holds make PDFium give up on that block."""
        count = os.preadv(self.fd, [buffer], self.at)
        self.at += count
        return count

    def close(self) -> None:
        """Close the descriptor, which is this process's own copy."""
        os.close(self.fd)


def reader(source: bytes | FileBlocks) -> Read:
    """What reads anywhere in a document."""
    if isinstance(source, bytes):
        return lambda length, at: source[at : at + length]
    return lambda length, at: os.pread(source.fd, length, at)
