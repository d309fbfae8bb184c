"""What an author points at: a block's folder, its source or its module."""

from dataclasses import dataclass
from pathlib import Path

from cuttlefish.authoring.toolchains import LANGUAGES, build, language_of
from cuttlefish.engine.module import BlockBytes
from cuttlefish.errors import NotFound
from cuttlefish.host import Host
from cuttlefish_abi.strict_json import suggest

__all__ = ["LANGUAGE_NAMES", "Source", "find_source", "load_source"]

LANGUAGE_NAMES = ("python", *LANGUAGES)
"""What blocks may be written in, as in `--lang`."""

_SUFFIXES = {".py"} | {language.suffix for language in LANGUAGES.values()}
_SDK_NAMES = {name for language in LANGUAGES.values() for name in language.sdk_names}


@dataclass(frozen=True, slots=True)
class Source:
    """A block as it lies on disk."""

    file: Path
    """Its source, or a `.wasm` file."""
    folder: Path
    """The block's folder, where its `cases` are."""

    @property
    def is_module(self) -> bool:
        """Whether there is nothing to build."""
        return self.file.suffix == ".wasm"

    @property
    def name(self) -> str:
        """The block's name: that of its file, with `-` for `_`; of its folder where the file's says nothing."""
        stem = self.folder.resolve().name if self.file.name == "lib.rs" else self.file.stem
        return stem if self.is_module else stem.replace("_", "-")


def find_source(path: Path) -> Source:
    """What a path given by a person means: a block's file, or a folder that holds one. Blocking.

    In a folder a source counts before a module: first one that is named like the folder (with `_` for `-`), or `src/lib.rs` of a
    crate, else the only one. Tests (`test_….py`) and the files of an SDK are no sources.

    Raises:
        NotFound: there is no such file or folder, no block in it, or more than one that it could be.
    """
    if path.is_dir():
        return Source(_find_in(path), path)
    if not path.is_file():
        beside = path.parent if path.parent.is_dir() else Path()
        known = [str(beside / one.name) for one in beside.iterdir() if one.is_dir() or one.suffix in _SUFFIXES | {".wasm"}]
        hint = suggest(str(path), known)
        hint = hint if hint.endswith("?") else "give a block's folder, its source or its .wasm file"
        raise NotFound(f'there is no "{path}"; {hint}')
    if path.suffix not in _SUFFIXES and path.suffix != ".wasm":
        raise NotFound(f'"{path}" is no block: one ends in .wasm, or in {", ".join(sorted(_SUFFIXES))}')
    in_crate = path.name == "lib.rs" and path.resolve().parent.name == "src"
    return Source(path, path.parent.parent if in_crate else path.parent)


def _find_in(folder: Path) -> Path:
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name not in _SDK_NAMES)
    sources = [file for file in files if file.suffix in _SUFFIXES and not _is_test(file)]
    if (folder / "Cargo.toml").is_file() and (folder / "src" / "lib.rs").is_file():
        sources.append(folder / "src" / "lib.rs")
    name = folder.resolve().name.replace("-", "_")
    named = [file for file in sources if file.stem == name]
    modules = [file for file in files if file.suffix == ".wasm"]
    found = named or sources or [file for file in modules if file.stem.replace("-", "_") == name] or modules
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f'there is no block in the folder "{folder}": neither a source nor a .wasm file')
    listed = ", ".join(file.name for file in found)
    raise NotFound(f'the folder "{folder}" holds several that could be the block: {listed}; name one of them')


def _is_test(file: Path) -> bool:
    return file.suffix == ".py" and (file.name.startswith("test_") or file.name.endswith("_test.py") or file.name == "conftest.py")


async def load_source(host: Host, source: Source) -> BlockBytes:
    """The module of a block: built, if it is a source. Whether it is a block is for the host to say.

    Raises:
        CuttlefishError: it cannot be read, its compiler is not installed (`unsupported`), or it does not compile (`build_failed`;
            of Python, `guest_error`).
    """
    if source.is_module or source.file.suffix == ".py":
        return await host.build(source.file)
    return BlockBytes(f"{source.name}.wasm", await build(language_of(source.file), source.file))
