"""The catalogue of blocks: a folder that keeps blocks by name and version, their bytes by sha256.

What `NAME@VERSION` means never changes: a version is not replaced, and one that was removed may come back with the same bytes only.
Writers hold a lock; they write a file aside, sync it and rename it, so a reader sees the old index or the new one, never a part. A
blob is there before an index names it, and an index before the first blob: a catalogue that lost its index is told from a new one.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cuttlefish.engine.module import BlockBytes
from cuttlefish.errors import CapabilityDenied, CuttlefishError, NotFound, SchemaMismatch
from cuttlefish_abi import BadJson, Signature, parse_json
from cuttlefish_abi.strict_json import show, suggest

__all__ = ["BlockStore", "Entry", "blocks_folder", "split_name", "version_key"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_FORM = ConfigDict(extra="forbid", frozen=True, strict=True)


class Entry(BaseModel):
    """One version of a block."""

    model_config = _FORM

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    version: Annotated[str, Field(pattern=f"^{VERSION.pattern}$")]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """It is also the name of a file: nothing else may stand here."""
    size_bytes: int
    signature: Signature
    """As it was checked when the block was added."""
    removed: bool = False
    """The version can no longer be run; it is kept so that other bytes cannot take its place."""

    @property
    def full_name(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


class _Index(BaseModel):
    model_config = _FORM

    format: Literal[1]
    blocks: list[Entry]


@dataclass(frozen=True, slots=True)
class BlockStore:
    """The catalogue in one folder. Everything here blocks; several processes may use it at once."""

    folder: Path

    def entries(self, *, removed: bool = False) -> list[Entry]:
        """All versions of all blocks, by name and version; with `removed` those too that were removed.

        Raises:
            SchemaMismatch: the index is broken. It says what to do; a broken catalogue is never an empty one.
            CapabilityDenied: the folder cannot be read.
        """
        found = [entry for entry in self._read().blocks if removed or not entry.removed]
        return sorted(found, key=lambda entry: (entry.name, version_key(entry.version)))

    def find(self, name: str) -> Entry | None:
        """The entry of `NAME@VERSION`, or the newest version of `NAME`. None where the catalogue has nothing called `NAME`.

        Raises:
            NotFound: it has the name and not the version.
            SchemaMismatch, CapabilityDenied: as `entries`.
        """
        name, version = split_name(name)
        every = [entry for entry in self.entries(removed=True) if entry.name == name]
        there = [entry for entry in every if not entry.removed]
        if version is None:
            return there[-1] if there else None
        for entry in every:
            if entry.version == version and not entry.removed:
                return entry
            if entry.version == version:
                raise NotFound(f'the block "{entry.full_name}" was removed from the catalogue; {_others(there)}')
        if not every:
            return None
        hint = suggest(version, [entry.version for entry in there]) if there else _others(there)
        raise NotFound(f'there is no version "{version}" of the block "{name}" in the catalogue; {hint}')

    def read(self, entry: Entry) -> BlockBytes:
        """The bytes of a version, checked against their hash.

        Raises:
            NotFound: the version was removed meanwhile.
            SchemaMismatch: its bytes are damaged or lost.
        """
        try:
            wasm = self.blob(entry).read_bytes()
        except FileNotFoundError:
            self.find(entry.full_name)  # raises if it was removed
            wasm = None
        except OSError as error:
            raise self._denied("cannot be read", error) from None
        if wasm is None or hashlib.sha256(wasm).hexdigest() != entry.sha256:
            raise SchemaMismatch(
                f'the bytes of "{entry.full_name}" in the catalogue are {"lost" if wasm is None else "damaged"}; '
                f"add the same file again to mend them: cuttlefish block add FILE --name {entry.name} --version {entry.version}"
            )
        return BlockBytes(f"{entry.full_name}.wasm", wasm)

    def add(self, block: BlockBytes, signature: Signature, name: str, version: str | None = None) -> tuple[Entry, bool]:
        """Keep a block that was loaded and whose signature is known. Returns its entry, and whether it is new.

        The same bytes under the same name and version are there already, which is no error; so are, without a version, bytes that
        any version of the name has. Without a version, new bytes get the next whole number.

        Raises:
            ValueError: a name or version that cannot be one.
            SchemaMismatch: a version that has, or once had, other bytes; a broken index.
            CapabilityDenied: the folder cannot be written to.
        """
        _check_names(name, version)
        with self._writing() as index:
            own = [entry for entry in index.blocks if entry.name == name]
            same = [e for e in own if e.sha256 == block.sha256 and (e.version == version or (version is None and not e.removed))]
            if version is None:
                version = same[-1].version if same else _next_version(own)
            taken = next((entry for entry in own if entry.version == version), None)
            if taken is not None and taken.sha256 != block.sha256:
                had = "was removed, and had" if taken.removed else "is there already, with"
                raise SchemaMismatch(
                    f'"{taken.full_name}" {had} other bytes (sha256 {taken.sha256[:12]}…); what a version means never changes: '
                    "give another with --version"
                )
            entry = Entry(name=name, version=version, sha256=block.sha256, size_bytes=len(block.wasm), signature=signature)
            self._put_blob(entry, block.wasm)
            if taken is not None and not taken.removed:
                return taken, False
            self._write(_Index(format=1, blocks=[*(one for one in index.blocks if one is not taken), entry]))
            return entry, True

    def remove(self, name: str) -> Entry:
        """Remove `NAME@VERSION`. Its hash is remembered.

        Raises:
            ValueError: no version is given.
            NotFound: there is no such version.
            SchemaMismatch: a broken index.
            CapabilityDenied: the folder cannot be written to.
        """
        own, version = split_name(name)
        if version is None:
            versions = [entry.full_name for entry in self.entries() if entry.name == own]
            hint = f"versions: {', '.join(versions)}" if versions else self._unknown(own)
            raise ValueError(f'"{name}" names no version to remove; {hint}')
        if not self.folder.is_dir():
            raise NotFound(f'there is no block "{name}" in the catalogue; {self._unknown(own)}')
        with self._writing() as index:
            entry = self.find(name)
            if entry is None:
                raise NotFound(f'there is no block "{name}" in the catalogue; {self._unknown(own)}')
            gone = entry.model_copy(update={"removed": True})
            left = [gone if one.full_name == entry.full_name else one for one in index.blocks]
            self._write(_Index(format=1, blocks=left))
            if all(one.removed or one.sha256 != entry.sha256 for one in left):
                self.blob(entry).unlink(missing_ok=True)
            return gone

    def blob(self, entry: Entry) -> Path:
        """The file with a version's bytes."""
        return self.folder / "blobs" / f"{entry.sha256}.wasm"

    @property
    def index(self) -> Path:
        """The file that says which versions there are."""
        return self.folder / "index.json"

    def _unknown(self, name: str) -> str:
        known = list(dict.fromkeys(entry.name for entry in self.entries()))
        return suggest(name, known) if known else "the catalogue is empty"

    def _read(self) -> _Index:
        try:
            try:
                data = self.index.read_bytes()
            except FileNotFoundError:
                if not (self.folder / "blobs").exists():
                    return _Index(format=1, blocks=[])
                data = self.index.read_bytes()  # the first writer of all was between the two
        except FileNotFoundError:
            raise self._broken("is gone") from None
        except OSError as error:
            raise self._denied("cannot be read", error) from None
        try:
            value = parse_json(data)
            if isinstance(value, dict) and isinstance(value.get("format"), int) and value["format"] > 1:
                raise SchemaMismatch(f'the catalogue of blocks "{self.folder}" was written by a newer cuttlefish; update this one')
            index = _Index.model_validate(value)
        except BadJson as error:
            raise self._broken(f"is {error}") from None
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise self._broken(f"is not an index{f' at {place}' if place else ''}") from None
        seen: set[str] = set()
        for entry in index.blocks:
            if entry.full_name in seen:
                raise self._broken(f"has {show(entry.full_name)} twice")
            seen.add(entry.full_name)
        return index

    def _broken(self, what: str) -> SchemaMismatch:
        return SchemaMismatch(
            f'the index of the catalogue of blocks, "{self.index}", {what}. Put a copy of it back, or move the folder '
            f'"{self.folder}" away and add the blocks again (their bytes are in its blobs)'
        )

    def _denied(self, what: str, error: OSError) -> CuttlefishError:
        why = (error.strerror or "no reason given").lower()
        return CapabilityDenied(f'the catalogue of blocks "{self.folder}" {what}: {why}')

    @contextlib.contextmanager
    def _writing(self) -> Iterator[_Index]:
        """Hold the lock, and give the index as it is. The system frees the lock however a process ends; its file stays."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self.folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                index = self._read()
                if not self.index.exists():
                    self._write(index)
                (self.folder / "blobs").mkdir(exist_ok=True)
                for aside in self.folder.glob("**/.aside-*"):  # of a writer that was killed: nobody else writes now
                    aside.unlink(missing_ok=True)
                yield index
        except OSError as error:
            raise self._denied("cannot be written to", error) from None

    def _put_blob(self, entry: Entry, wasm: bytes) -> None:
        path = self.blob(entry)
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
            _replace(path, wasm)

    def _write(self, index: _Index) -> None:
        _replace(self.index, index.model_dump_json(indent=1).encode() + b"\n")


def blocks_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The catalogue's folder: `CUTTLEFISH_BLOCKS` if set and not empty, else the place for a user's data on this system."""
    chosen = environment.get("CUTTLEFISH_BLOCKS")
    return Path(chosen) if chosen else platformdirs.user_data_path("cuttlefish", appauthor=False) / "blocks"


def split_name(name: str) -> tuple[str, str | None]:
    """`NAME@VERSION` or `NAME` as its parts."""
    own, at, version = name.partition("@")
    return own, version if at else None


def version_key(version: str) -> tuple[object, ...]:
    """What versions are compared by: numbers as numbers (1.10 after 1.9); `1.0-rc1` and `1.0rc1`, `1.0`, `1.0.0` in this order."""
    release, dash, before = version.partition("-")
    # The text itself at the end: versions such as 1.0 and 01.0 have an order too.
    return (_parts(release), not dash, _parts(before), version)


def _parts(text: str) -> tuple[tuple[int, int, str], ...]:
    """Letters come before the end of a version, and the end before a number: 1.0rc1, 1.0, 1.0.1."""
    found = re.findall(r"\d+|[A-Za-z]+", text)
    return (*((2, int(part), "") if part.isdigit() else (0, 0, part.lower()) for part in found), (1, 0, ""))


def _next_version(own: list[Entry]) -> str:
    numbers = [int(found[0]) for entry in own if (found := re.match(r"\d+", entry.version))]
    return str(max(numbers, default=0) + 1)


def _others(there: list[Entry]) -> str:
    return f"there is: {', '.join(entry.version for entry in there)}" if there else "no other version is there"


def _check_names(name: str, version: str | None) -> None:
    rule = "letters, digits, . _ and -, 64 at most"
    if not NAME.fullmatch(name) or name.endswith((".wasm", ".toml")):
        raise ValueError(f"{show(name)} cannot be a block's name: {rule}, and no .wasm at the end; give one with --name")
    if version is not None and not VERSION.fullmatch(version):
        raise ValueError(f"{show(version)} cannot be a version: {rule}, starting with a letter or digit")


def _replace(path: Path, data: bytes) -> None:
    """Put a file in place in one step, on the disk before it has its name."""
    fd, name = tempfile.mkstemp(prefix=".aside-", dir=path.parent)
    aside = Path(name)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
