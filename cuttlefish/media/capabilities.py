"""The read grant of one job: folders and files that were opened once, and everything else refused.

A path that a block names is never checked and then opened, because between the two it can become another path. It is opened
*beneath* a descriptor of a granted folder, by one call that cannot leave it, and from then on only the new descriptor is used.

    open_with_openat2   one system call; links and `..` may be used as long as they stay inside (Linux 5.6 and later)
    open_by_walking     one component at a time, elsewhere; stricter: no links at all

How a block's path finds its root: a relative path starts at the job's base folder (`..` at its front goes up from there), an
absolute one stands as it is. It is then compared with the granted roots by components, never by characters.
"""

import ctypes
import errno
import functools
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from cuttlefish.errors import BadCommand, CapabilityDenied, CuttlefishError, LimitExceeded, NotFound

__all__ = [
    "Capabilities",
    "OpenBeneath",
    "OpenedFile",
    "Unreadable",
    "choose_open_beneath",
    "open_by_walking",
    "open_with_openat2",
    "quoted",
]

OPENAT2 = 437  # the number of the system call; the same on every architecture that Python runs on, except Alpha
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08
EAGAIN_TRIES = 200  # a rename somewhere in the system raced the lookup of a `..`; measured: a few tries are enough
WALK_HELD_FOLDERS = 64  # descriptors that one walk may hold for the sake of a later `..`
PATH_BYTES = 4096  # Linux takes no longer path; macOS 1,024
SHOWN_CHARACTERS = 300  # of a name in a message; a block may send a path of megabytes

# O_NONBLOCK: without it opening a FIFO waits for ever. O_NOCTTY: a terminal must not become ours by being opened.
FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# O_PATH: a folder that may be passed through but not listed is no obstacle, as it is none for openat2.
FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

OpenBeneath = Callable[[int, list[bytes]], int]
"""Opens the file that the components name beneath a folder's descriptor. Raises OSError: EXDEV when they lead out of it,
ELOOP for links that are refused, otherwise what the system says."""

RawOpenat2 = Callable[[int, bytes], tuple[int, int]]
"""The system call: from a folder's descriptor and a path to a descriptor, or to -1 and the error number."""


class Unreadable(CapabilityDenied):
    """Granted, and the system does not let this user read it."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenedFile:
    """A regular file that a grant allowed, held by its descriptor. Whoever has it last closes it.

    Read it with `pread` only: nothing keeps a position for you. `fd` becomes -1 with `close`, so that a late reader gets an
    error and never another file that was given the same number.
    """

    fd: int
    size: int
    """Bytes, at the time of opening."""
    name: str
    """The path as the block gave it. For messages; it is never opened again."""
    device: int
    inode: int

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        fd = self.fd
        if fd >= 0:
            object.__setattr__(self, "fd", -1)  # frozen for everyone else; see the class
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Root:
    fd: int
    typed: str
    is_folder: bool
    places: tuple[tuple[str, ...], ...]
    """Its components: as the caller typed it (from the base as typed, and as it really is), and with its links followed."""


@dataclass(slots=True, eq=False)
class Capabilities:
    """What one job may read. Made by `grant`; nothing can be added later.

    `open` may be called from several threads at once. `close` gives the roots back; call it when no `open` is running.
    """

    _roots: tuple[_Root, ...]
    _base: tuple[str, ...]
    _open_beneath: OpenBeneath
    _closed: bool = field(default=False, init=False)

    @classmethod
    def grant(cls, roots: Iterable[str | Path], base_dir: str | Path, *, open_beneath: OpenBeneath | None = None) -> Self:
        """Open each root and hold it: a folder with everything in it, or a single file.

        From here on the *opened* folder or file is what is granted, even when something else takes its name. Relative roots,
        and later the relative paths of blocks, start at `base_dir`. `open_beneath` is for tests; left out, the best way that
        this system has is used. All roots or none: when one fails, those opened before it are closed.

        Hard links are not told apart from files: granting a folder grants every file that has a name in it.

        Raises:
            ValueError: a root or the base folder is absent, unreadable, or neither a folder nor a regular file. One
                sentence that names it.
        """
        base = os.path.realpath(base_dir)
        if not Path(base).is_dir():
            raise ValueError(f"the base folder {quoted(str(base_dir))} does not exist or is not a folder")
        bases = (tuple(_components(base)), tuple(_components(os.path.abspath(base_dir))))
        opened: list[_Root] = []
        try:
            for root in roots:
                opened.append(_open_root(os.fspath(root), bases))
        except BaseException:  # whatever ends it, what is open is ours to close
            for held in opened:
                os.close(held.fd)
            raise
        return cls(tuple(opened), bases[0], open_beneath or choose_open_beneath())

    def open(self, path: str) -> OpenedFile:
        """Open a regular file beneath a granted root, for reading. Never waits for a writer, whatever the path names.

        Of several roots that match, the longest is tried first; the path is refused only when all of them refuse it.
        Blocking (a file system may be slow): call it from a worker thread. The caller owns the result and closes it.

        Raises:
            CapabilityDenied: outside every root, out of them through a link, or not readable for this user. Outside, the
                message is the same whether the path exists or not.
            NotFound: inside a root, and there is no such file.
            BadCommand: an empty or overlong path, one with a NUL character, or one that names no regular file.
            LimitExceeded: this process can hold no more open files.
        """
        if self._closed:
            raise BadCommand(f"open {quoted(path)}: this job is over and its folders are closed")
        if not path:
            raise BadCommand('open "": the path is empty')
        if "\0" in path:
            raise BadCommand(f"open {quoted(path)}: a path cannot hold a NUL character")
        try:
            length = len(path.encode())
        except UnicodeEncodeError:
            raise BadCommand(f"open {quoted(path)}: this path is not text (it holds half of a surrogate pair)") from None
        if length > PATH_BYTES:  # before it is taken apart: a block may send megabytes of slashes
            raise BadCommand(f"open {quoted(path)}: this path has {length} bytes; no path may have more than {PATH_BYTES}")

        place = _place(path, self._base)
        candidates = self._candidates(place)
        if not candidates:
            raise self._denied(path, place)
        failures: list[CuttlefishError] = []
        for root, rest in candidates:
            try:
                return self._open_in(root, rest, path)
            except (CapabilityDenied, NotFound) as failure:
                failures.append(failure)
        raise next((f for f in failures if not isinstance(f, CapabilityDenied)), failures[0])

    def covers(self, path: str) -> bool:
        """Whether a path, as it is written, lies in a granted root. Whether it can be opened is for `open` to find out."""
        return bool(self._candidates(_place(path, self._base)))

    def close(self) -> None:
        """Give all roots back. Idempotent. Files that were opened stay open: each belongs to whoever opened it."""
        if not self._closed:
            self._closed = True
            for root in self._roots:
                os.close(root.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _candidates(self, place: tuple[str, ...]) -> list[tuple[_Root, tuple[str, ...]]]:
        """The roots that may hold this place, the longest first, each with what remains of the path beneath it."""
        found = self._matches(place)
        # `/docs/x/../reports/a`: no root holds it as the system would walk it (through x, which is not granted). Read by its
        # components alone it may still lie in one. Either way it is opened beneath that root, so this can only find more.
        return found or self._matches(_without_ups(place))

    def _matches(self, place: tuple[str, ...]) -> list[tuple[_Root, tuple[str, ...]]]:
        found: dict[int, tuple[int, _Root, tuple[str, ...]]] = {}
        for index, root in enumerate(self._roots):
            for parts in root.places:
                rest = place[len(parts) :]
                longer = index not in found or found[index][0] < len(parts)
                if place[: len(parts)] == parts and longer and not _leaves(rest):
                    found[index] = (len(parts), root, rest)
        return [(root, rest) for _, root, rest in sorted(found.values(), key=lambda match: -match[0])]

    def _open_in(self, root: _Root, rest: tuple[str, ...], path: str) -> OpenedFile:
        shown = f"open {quoted(path)}"
        if not root.is_folder and rest:
            raise NotFound(f"{shown}: {quoted(root.typed)} is a file, so nothing lies inside it")
        try:
            fd = (
                self._open_beneath(root.fd, [part.encode("utf-8", "surrogateescape") for part in rest])
                if root.is_folder
                else _open_again(root.fd)
            )
            try:
                about = os.fstat(fd)
                if stat.S_ISREG(about.st_mode):
                    return OpenedFile(fd, about.st_size, path, about.st_dev, about.st_ino)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        except OSError as failure:
            raise _explained(failure, shown, root) from None
        raise BadCommand(f"{shown}: this is {_kind_of(about.st_mode)}; only files can be opened")

    def _denied(self, path: str, place: tuple[str, ...]) -> CapabilityDenied:
        meant = quoted("/" + "/".join(_without_ups(place)))
        granted = ", ".join(quoted(root.typed) for root in self._roots) or "nothing"
        return CapabilityDenied(
            f"open {quoted(path)}: {meant} lies outside everything that this job may read. Granted: {granted}. "
            "If the block should read it, grant its folder with --read"
        )


def quoted(name: str) -> str:
    """A name in double quotes, on one line: control and other invisible characters are escaped, very long names are cut."""
    if len(name) > SHOWN_CHARACTERS:
        half = SHOWN_CHARACTERS // 2
        name = f"{name[:half]}…{name[-half:]}"
    if not name.isprintable() or '"' in name or "\\" in name:  # most names need nothing, and labels are made for each window
        name = "".join(_escaped(character) for character in name)
    return f'"{name}"'


@functools.cache
def choose_open_beneath(openat2: RawOpenat2 | None = None) -> OpenBeneath:
    """`open_with_openat2` where the kernel has it and lets us use it, otherwise `open_by_walking`. Asked once, then remembered.

    `openat2` stands in for the system call, so that a test can be a system without it.
    """
    if openat2 is None and sys.platform != "linux":
        return open_by_walking
    # The empty path answers ENOENT where the call exists, and takes no descriptor. ENOSYS: an old kernel; EPERM: a filter.
    _, code = (openat2 or _openat2)(-1, b"")
    return open_with_openat2 if code == errno.ENOENT else open_by_walking


def open_with_openat2(root: int, components: list[bytes]) -> int:
    """Open beneath `root` by one system call; the kernel refuses whatever leads out, however the tree changes meanwhile."""
    path = b"/".join(components) or b"."
    for attempt in range(EAGAIN_TRIES):
        fd, code = _openat2(root, path)
        if fd >= 0:
            return fd
        if code not in (errno.EAGAIN, errno.EINTR):
            break
        if attempt > EAGAIN_TRIES // 2:
            time.sleep(0.0001)  # something renames without pause: let it go on
    raise OSError(code, os.strerror(code))


def open_by_walking(root: int, components: list[bytes]) -> int:
    """Open beneath `root` one component at a time, each relative to the last descriptor, following no link.

    `..` goes back to the descriptor it came from, never to whatever the system calls the parent now, so a folder that is
    moved during the walk cannot lead out.
    """
    names = components or [b"."]
    last_up = max((index for index, name in enumerate(names) if name == b".."), default=-1)
    held = [root]  # the folders on the way; the root is the caller's
    try:
        for index, name in enumerate(names):
            if name == b"..":
                if len(held) == 1:
                    raise OSError(errno.EXDEV, "leads out")
                os.close(held.pop())
            elif index < len(names) - 1:
                held.append(_open_step(held[-1], name, FOLDER_FLAGS))
                if index > last_up:  # no `..` comes any more: the folders above are not needed
                    while len(held) > 2:
                        os.close(held.pop(1))
                if len(held) > WALK_HELD_FOLDERS:
                    raise OSError(errno.ENAMETOOLONG, "too deep")
        last = b"." if names[-1] == b".." else names[-1]
        return _open_step(held[-1], last, FILE_FLAGS | os.O_NOFOLLOW)
    finally:
        for fd in held[1:]:
            os.close(fd)


def _open_step(folder: int, name: bytes, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as failure:
        # What a link answers to O_NOFOLLOW differs by system and flags; only the sentence depends on this second look.
        if failure.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK) and _is_link(folder, name):
            raise OSError(errno.ELOOP, "a link") from None
        raise


def _is_link(folder: int, name: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW = _OpenHow(FILE_FLAGS, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)  # the kernel only reads it


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(folder: int, path: bytes) -> tuple[int, int]:
    """The system call itself: a descriptor, or -1 and the error number. The path must not hold a NUL."""
    how, size = ctypes.byref(_HOW), ctypes.c_size_t(ctypes.sizeof(_HOW))
    fd = _libc().syscall(ctypes.c_long(OPENAT2), ctypes.c_int(folder), ctypes.c_char_p(path), how, size)
    return (fd, 0) if fd >= 0 else (-1, ctypes.get_errno())


def _open_root(typed: str, bases: tuple[tuple[str, ...], tuple[str, ...]]) -> _Root:
    if not typed:
        raise ValueError('a granted folder has an empty name; write "." for the base folder')
    if "\0" in typed:
        raise ValueError(f"the granted path {quoted(typed)} holds a NUL character")
    place = _place(typed, bases[0])
    path = "/" + "/".join(place)
    places = [place, *([] if ".." in _components(typed) else [_place(typed, bases[1])])]
    try:
        fd = os.open(path, FILE_FLAGS)
    except OSError as failure:
        reason = {
            errno.ENOENT: "does not exist",
            errno.ENOTDIR: "does not exist: a part of it is a file, not a folder",
            errno.EACCES: "may not be read by this user",
            errno.ELOOP: "is a link that leads in a circle",
            errno.ENAMETOOLONG: "is too long for a path",
            errno.ENXIO: "is neither a folder nor a regular file",
            errno.EMFILE: "cannot be opened: this process has too many open files",
            errno.ENFILE: "cannot be opened: this machine has too many open files",
        }.get(failure.errno or 0, f"cannot be opened ({_code_name(failure)})")
        raise ValueError(f"the granted path {quoted(typed)} {reason}") from None
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise ValueError(f"the granted path {quoted(typed)} is {_kind_of(mode)}; only folders and files can be granted")
        places.append(tuple(_components(os.path.realpath(path))))
        return _Root(fd, typed, stat.S_ISDIR(mode), tuple(dict.fromkeys(places)))
    except BaseException:
        os.close(fd)
        raise


def _open_again(fd: int) -> int:
    """A second descriptor of a granted file; with a position of its own where the system allows that."""
    try:
        again = os.open(f"/proc/self/fd/{fd}", FILE_FLAGS)
    except OSError:
        return os.dup(fd)
    here, there = os.fstat(fd), os.fstat(again)
    if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
        return again
    os.close(again)  # something that is not procfs is mounted there
    return os.dup(fd)


def _components(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _place(path: str, base: tuple[str, ...]) -> tuple[str, ...]:
    """The components of a path from the file system's top. `..` at its front goes up from the base; others stay in it."""
    parts = _components(path)
    place = [] if path.startswith("/") else list(base)
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return (*place[: max(0, len(place) - ups)], *parts[ups:])


def _without_ups(place: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    for part in place:
        if part != "..":
            kept.append(part)
        elif kept:
            kept.pop()
    return tuple(kept)


def _leaves(rest: tuple[str, ...]) -> bool:
    depth = 0
    for part in rest:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def _explained(failure: OSError, shown: str, root: _Root) -> CuttlefishError:
    """The error for a system call that failed beneath a root."""
    folder = quoted(root.typed)
    match failure.errno:
        case errno.ENOENT:
            return NotFound(f"{shown}: there is no such file in {folder}")
        case errno.ENOTDIR:
            return NotFound(f"{shown}: there is no such file in {folder}: a part of the path is a file, not a folder")
        case errno.ENAMETOOLONG:
            return NotFound(f"{shown}: there is no such file in {folder}: the path is longer than the system allows")
        case errno.EXDEV:
            return CapabilityDenied(f'{shown}: a link or ".." on this path leads out of the granted folder {folder}')
        case errno.ELOOP:
            return CapabilityDenied(
                f"{shown}: a link on this path cannot be followed safely: it leads in a circle, or out of {folder}, or this "
                "system cannot keep links inside a granted folder. Name the file by its path without links"
            )
        case errno.EACCES | errno.EPERM:
            return Unreadable(f"{shown}: it lies in {folder}, and the system does not let this user read it")
        case errno.EAGAIN:
            return CapabilityDenied(f"{shown}: the folders of {folder} did not hold still long enough to open it; try again")
        case errno.ENXIO | errno.ENODEV:
            return BadCommand(f"{shown}: this is a socket or a device; only files can be opened")
        case errno.EMFILE:
            return LimitExceeded(
                f'{shown}: this process has as many open files as the system lets it have. Raise the limit ("ulimit -n") or '
                "run fewer jobs at a time"
            )
        case errno.ENFILE | errno.ENOMEM:
            return LimitExceeded(f"{shown}: this machine has no room for one more open file; try again later")
        case _:
            return NotFound(f"{shown}: the system cannot open it ({_code_name(failure)})")


def _code_name(failure: OSError) -> str:
    return errno.errorcode.get(failure.errno or 0, "no reason given")


def _kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else repr(character)[1:-1]
