"""The files and pictures that one block run holds, by number.

Methods that read a file (`open`, `slice`, `slice_bytes`) block and are meant for the guest's thread; the others take no time.
Several threads may use one table at once.
"""

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cuttlefish.errors import BadCommand, LimitExceeded, Unsupported
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.media.capabilities import Capabilities, OpenedFile, quoted
from cuttlefish.media.document_types import DocumentSource
from cuttlefish.media.sniff import HEAD_BYTES, sniff
from cuttlefish.media.text import Window, read_bytes, read_exactly, read_window
from cuttlefish_abi import BinaryKind, DocumentKind, ImageKind, MediaKind, Opened, TextKind

__all__ = ["HANDLES_PER_RUN", "HandleTable", "HeldFile", "HeldPicture", "SharedHandles", "UnreadDocument", "image_source"]

HANDLES_PER_RUN = 4096
"""Each node numbers its handles in a range of its own, so that they do not depend on what runs beside it."""

PICTURES_SHARE = (
    4  # pictures of pages and changed images held in memory, in units of `image.bytes`: enough to show a model several at once
)
WIDEST_CHARACTER_BYTES = 4

READ_WITH = {
    "text": "read it with slice",
    "image": "show it to the model with infer",
    "document": "use page_text",
    "binary": "read it with slice_bytes",
}
SHOW_DOCUMENT_WITH = "make a picture of a page with page_image"
ARTICLES = {"text": "a text", "image": "an image", "document": "a document", "binary": "a binary file"}


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A handle that names a file. The table owns the file. `foreign` names an image format that this host cannot read."""

    handle: int
    kind: MediaKind
    file: OpenedFile
    foreign: str | None = None

    @property
    def len(self) -> int:
        """Bytes, at the time of opening."""
        return self.file.size

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"handle {self.handle} ({quoted(self.file.name)})"


@dataclass(frozen=True, slots=True)
class HeldPicture:
    """A handle that names a picture made by the host, such as a rendered page, held in memory."""

    handle: int
    kind: ImageKind
    data: bytes
    name: str

    @property
    def len(self) -> int:
        """Bytes."""
        return len(self.data)

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"handle {self.handle} ({self.name})"


@dataclass(frozen=True, slots=True)
class UnreadDocument:
    """A PDF or TIFF that was opened and still needs a worker process to count its pages (a TIFF of one is an image).

    Give the file back with `HandleTable.add(file, facts.kind)`, or close it.
    """

    file: OpenedFile


def image_source(held: HeldFile | HeldPicture) -> DocumentSource | bytes:
    """An image as document workers are given it: images have no passwords."""
    return held.data if isinstance(held, HeldPicture) else DocumentSource.of(held.file)


class SharedHandles:
    """What the tables of one job share: how many handles are open (`job.handles` counts all), and where each one is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # two threads must not be given one number, nor both the last place under a limit
        self.count = 0
        self.tables: dict[int, HandleTable] = {}
        """Those whose handles every table of the job may use, by their `run_index`."""


class HandleTable:
    """What one block run has open. `close` ends all of it; after that every method refuses.

    Handles count up from `run_index * 4096` in the order of opening and are never used twice. A handle that is not its own is
    looked for in the tables of `shared`, so that a node may use what another node opened; see `job_handles.py`.
    """

    def __init__(
        self, capabilities: Capabilities, limits: Limits, run_index: int = 0, *, shared: SharedHandles | None = None
    ) -> None:
        if not 0 <= run_index < 2**32 // HANDLES_PER_RUN:
            raise ValueError(f"run_index must be from 0 to {2**32 // HANDLES_PER_RUN - 1}, found {run_index}")
        self._capabilities = capabilities
        self._limits = limits
        self._first = run_index * HANDLES_PER_RUN
        self._held: dict[int, HeldFile | HeldPicture] = {}
        self._picture_bytes = 0
        self._closed = False
        self._shared = shared or SharedHandles()
        self._lock = self._shared.lock

    def open(self, path: str) -> Opened | UnreadDocument:
        """Open a granted file and give it a handle, unless it may be a document: those are finished by `add`, from outside.

        Raises:
            CapabilityDenied, NotFound, BadCommand: as `Capabilities.open`.
            DocumentInvalid: the file changed or could not be read while its first bytes were looked at.
            LimitExceeded: `job.handles` are held already, or the system has no descriptor left.
        """
        with self._lock:
            self._check_room(f"open {quoted(path)}")
        file = self._capabilities.open(path)
        try:
            head = read_exactly(file.fd, 0, min(file.size, HEAD_BYTES), "open", quoted(path))
        except BaseException:
            file.close()
            raise
        sniffed = sniff(head, file.size)
        if sniffed.kind == "document" or sniffed.format == "tiff":
            return UnreadDocument(file)
        kind = (
            TextKind() if sniffed.kind == "text" else BinaryKind() if sniffed.format is None else ImageKind(format=sniffed.format)
        )
        return Opened(handle=self.add(file, kind, sniffed.foreign), len=file.size, kind=kind)

    def add(self, file: OpenedFile, kind: MediaKind, foreign: str | None = None) -> int:
        """Give a file a handle. The table owns the file from here on, also when this raises: then it is closed. `foreign` is what
        `sniff` says of it.

        Raises:
            LimitExceeded: `job.handles` are held already.
        """
        try:
            with self._lock:
                handle = self._check_room(f"open {quoted(file.name)}")
                self._hold(HeldFile(handle, kind, file, foreign))
                return handle
        except BaseException:
            file.close()
            raise

    def add_image(self, data: bytes, format: str, name: str = "a rendered page", command: str = "page_image") -> int:
        """Give a picture that the host made a handle, and keep it in memory until `close`. `name` and `command` are for messages.

        Raises:
            LimitExceeded: the picture is larger than `image.bytes`, all pictures of this run together would be larger than
                four times that, or `job.handles` are held already.
        """
        with self._lock:
            handle = self._check_room(command)
            cap = self._limits.image_bytes
            if len(data) > cap:
                raise limit_exceeded("image_bytes", cap, f"{name} has {len(data)}")
            if self._picture_bytes + len(data) > PICTURES_SHARE * cap:
                raise limit_exceeded(
                    "image_bytes",
                    cap,
                    f"a block run may keep {PICTURES_SHARE} times that in pictures, "
                    f"and {name} would make it {self._picture_bytes + len(data)}",
                )
            self._picture_bytes += len(data)
            self._hold(HeldPicture(handle, ImageKind(format=format), data, name))
            return handle

    def slice(self, handle: int, offset: int, length: int) -> Window:
        """Return whole characters of a text, and where to read on; see `cuttlefish.media.text.read_window`.

        One window holds at most `text.window` bytes; a longer request is answered with fewer, which is no error. A binary
        file is read as far as it is UTF-8.

        Raises:
            BadCommand: no such handle, a document or an image, or what `read_window` refuses.
            DocumentInvalid: the file changed while it was read.
        """
        held = self._get(handle, "slice")
        if isinstance(held, HeldPicture) or held.kind.kind in ("document", "image"):
            raise _wrong_kind(held, "slice")
        return read_window(held.file.fd, held.len, offset, self._capped(length), held.label)

    def slice_bytes(self, handle: int, offset: int, length: int) -> tuple[bytes, int]:
        """Return bytes of anything that has a handle, and where to read on. At most `text.window` bytes at once.

        Raises:
            BadCommand: no such handle, or `offset` past the end.
            DocumentInvalid: the file changed while it was read.
        """
        held = self._get(handle, "slice_bytes")
        length = self._capped(length)
        if isinstance(held, HeldFile):
            data = read_bytes(held.file.fd, held.len, offset, length, held.label)
        elif offset <= held.len:
            data = held.data[offset : offset + length]
        else:
            raise BadCommand(f"slice_bytes: offset {offset} is past the end of {held.label}, which has {held.len} bytes")
        return data, offset + len(data)

    def get_document(self, handle: int, command: str = "page_text") -> HeldFile:
        """Return the document that a handle names. `command` is what messages say was being done.

        Raises:
            BadCommand: no such handle, or something else than a document.
        """
        held = self._get(handle, command)
        if isinstance(held, HeldFile) and isinstance(held.kind, DocumentKind):
            return held
        raise _wrong_kind(held, command)

    def get_image(self, handle: int, command: str = "infer") -> HeldFile | HeldPicture:
        """Return the image that a handle names: a file, or a picture in memory.

        Raises:
            BadCommand: no such handle, or something else than an image.
            Unsupported: an image in a format that this host knows and cannot read; the message names it.
        """
        held = self._get(handle, command)
        if isinstance(held.kind, ImageKind):
            return held
        raise _no_image(held, command)

    def kind_of(self, handle: int) -> str | None:
        """Return "text", "image", "document" or "binary"; None where this run holds no such handle."""
        held = self._find(handle)
        return None if held is None else held.kind.kind

    def close(self) -> None:
        """Close every file and drop every picture. Idempotent. Call it when no guest uses the table any more."""
        with self._lock:
            held, self._held = self._held, {}
            self._shared.count -= len(held)
            self._closed = True
            self._picture_bytes = 0
        for one in held.values():
            if isinstance(one, HeldFile):
                one.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _capped(self, length: int) -> int:
        # Below one character no window could ever be answered, and a block has no way to know why.
        return min(length, max(self._limits.text_window_bytes, WIDEST_CHARACTER_BYTES))

    def _check_room(self, doing: str) -> int:
        """The next number. Call it with the lock held."""
        if self._closed:
            raise _over(doing)
        if self._shared.count >= self._limits.job_handles:
            raise limit_exceeded("job_handles", self._limits.job_handles, f"{doing} would be one more")
        count = len(self._held)
        if count >= HANDLES_PER_RUN:
            raise LimitExceeded(f"{doing}: one block run can hold {HANDLES_PER_RUN} handles, whatever job.handles allows")
        return self._first + count  # handles are never dropped one by one, so their count is the next number

    def _hold(self, held: HeldFile | HeldPicture) -> None:
        """Call it with the lock held."""
        self._held[held.handle] = held
        self._shared.count += 1

    def _find(self, handle: int) -> HeldFile | HeldPicture | None:
        if self._closed:
            return None
        table = self._shared.tables.get(handle // HANDLES_PER_RUN)
        return self._held.get(handle) or (None if table is None else table._held.get(handle))

    def _get(self, handle: int, command: str) -> HeldFile | HeldPicture:
        held = self._find(handle)
        if held is not None:
            return held
        if self._closed:
            raise _over(command)
        count = len(self._held)
        last = self._first + count - 1
        known = "nothing is open" if not count else f"open is {self._first}" if count == 1 else f"open are {self._first} to {last}"
        raise BadCommand(f"{command}: there is no handle {handle}; {known}")


def _over(doing: str) -> BadCommand:
    return BadCommand(f"{doing}: this block run is over and its files are closed")


def _wrong_kind(held: HeldFile | HeldPicture, command: str) -> BadCommand:
    kind = held.kind.kind
    return BadCommand(f"{command}: {held.label} is {ARTICLES[kind]}; {READ_WITH[kind]}")


def _no_image(held: HeldFile | HeldPicture, command: str) -> BadCommand | Unsupported:
    """As `_wrong_kind`, but a picture in a format that we cannot read hears its name."""
    if isinstance(held.kind, DocumentKind):
        return BadCommand(f"{command}: {held.label} is a document; {SHOW_DOCUMENT_WITH}")
    if isinstance(held, HeldFile) and held.foreign is not None:
        problem = f"is {held.foreign}, a kind of image that this host cannot read"
        return Unsupported(f"{command}: {held.label} {problem}; convert it to PNG or JPEG")
    return _wrong_kind(held, command)
