"""What an author points at: a block's folder, its source or its module."""

from dataclasses import dataclass
from pathlib import Path

from cuttlefish.engine.module import BlockBytes
from cuttlefish.errors import NotFound, Unsupported
from cuttlefish.limits import Limits
from cuttlefish.pipeline.catalog import read_block_file

__all__ = ["Source", "find_source", "load_source"]


@dataclass(frozen=True, slots=True)
class Source:
    """A block as it lies on disk."""

    file: Path
    """A `.wasm` file."""
    folder: Path
    """Where its `cases` are."""


def find_source(path: Path) -> Source:
    """What a path given by a person means: a block's file, or a folder that holds one. Blocking.

    Raises:
        NotFound: there is no such file or folder.
        Unsupported: there is no block in it, or more than one.
    """
    if path.is_file():
        return Source(path, path.parent)
    if not path.is_dir():
        raise NotFound(f'there is no "{path}"; give a block\'s folder, its source or its .wasm file')
    found = sorted(path.glob("*.wasm"))
    if len(found) == 1:
        return Source(found[0], path)
    if not found:
        raise Unsupported(f'there is no block in the folder "{path}"')
    raise Unsupported(f'the folder "{path}" holds {len(found)} blocks: {", ".join(one.name for one in found)}; name one of them')


def load_source(source: Source, limits: Limits) -> BlockBytes:
    """The bytes of a block. Blocking.

    Raises:
        CuttlefishError: it cannot be read.
    """
    return read_block_file(source.file, limits, str(source.file))
