"""For testing Python blocks under ordinary Python, with a debugger if you like: no sandbox, no model, no event loop.

    from cuttlefish.testing import run_block

    def test_a_note_is_counted():
        run = run_block("my_block.py", {"path": "a.txt"}, files={"a.txt": "one two"})
        assert run.result == {"path": "a.txt", "words": 2}

`run_block` plays the host, `play` says exactly what the block is told, `replay_case` plays one of the block's cases. Each starts
the block anew from its file. The sandbox is MicroPython: let `cuttlefish block test` have the last word.
"""

import base64
import json
import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuttlefish.authoring.conversations import read_conversation
from cuttlefish.authoring.cpython import PythonBlock
from cuttlefish.authoring.replay import replay
from cuttlefish.errors import (
    BadCommand,
    BlockFailed,
    CapabilityDenied,
    CuttlefishError,
    InferenceFailed,
    ModelLoadFailed,
    NotFound,
    SchemaMismatch,
)
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.media.capabilities import Capabilities
from cuttlefish.media.handles import HandleTable, UnreadDocument
from cuttlefish_abi import (
    BadJson,
    Command,
    DocumentKind,
    DocumentText,
    Done,
    Embed,
    Embedded,
    Emit,
    Emitted,
    Event,
    Fail,
    Frame,
    ImageKind,
    ImageOp,
    Infer,
    InferDone,
    Open,
    Opened,
    PageImage,
    PageImaged,
    PageText,
    PageTextAttempted,
    PageTexted,
    PageTextOpt,
    Slice,
    SliceBytes,
    Sliced,
    SlicedBytes,
    decode_command,
    encode_event,
)
from cuttlefish_abi.strict_json import show

__all__ = ["Page", "Played", "Replies", "play", "replay_case", "run_block"]

Page = str | CuttlefishError
"""A page of a document: its text (without any, it counts as a scan), or the error that reading it ends in."""

Replies = Sequence[str] | Callable[[dict[str, Any]], str]
"""What the model says: one reply for each prompt in order, or a function of the whole command."""

PICTURE = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTjW1QAAAABJRU5ErkJggg==")
"""A PNG of one white pixel: all that a block sees of a picture is its handle, kind and size."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a block said and heard."""

    result: Any
    """What it ended with; None where it is not done."""
    commands: list[dict[str, Any]] = field(default_factory=list)
    """All that it said, as in the contract, with the last one."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """All that it was told."""

    @property
    def progress(self) -> list[Any]:
        """What it told of its progress."""
        return [command["progress"] for command in self.commands if command["cmd"] == "emit"]

    @property
    def prompts(self) -> list[str]:
        """What it asked the model."""
        return [command["prompt"] for command in self.commands if command["cmd"] == "infer"]


def run_block(
    path: str | Path,
    value: object,
    *,
    files: Mapping[str, str | bytes | Sequence[Page]] | None = None,
    replies: Replies = (),
    embed: Callable[[list[str]], list[list[float]]] | None = None,
) -> Played:
    """Run the Python block in a file on `value`, with a host around it that has these files and this model; return what was said.

    `files` are by path: a text, bytes (what they are is told by their content, as always), or for a document the list of its pages.
    They are opened and read by the host's own code, so windows, kinds and errors are those of the contract. A picture of a page is
    one white pixel. The model's replies come word by word to the block's `on_token`, which may stop them; a word counts as a token.

    Raises:
        BlockFailed: the block called `fail`; `code` and `message` are its own.
        CuttlefishError: a command that a host would refuse, with the line of the block that gave it; a prompt for which there is no
            reply; input or result that do not fit the SIGNATURE.
        Exception: whatever the block raises, as it is.
    """
    block = PythonBlock(path)
    signature = block.signature()
    value = json.loads(_encode(value))
    if (wrong := signature.input.mismatch(value, place="input")) is not None:
        raise SchemaMismatch(f'the input does not fit what "{block.name}" takes, {signature.input}: {wrong}')
    played = Played(None)
    limits = Limits()
    with tempfile.TemporaryDirectory(prefix="cuttlefish-") as folder:
        documents = _write_files(Path(folder), files or {})
        with Capabilities.grant([folder], folder) as capabilities, HandleTable(capabilities, limits) as handles:
            host = _ScriptedHost(block, files or {}, handles, documents, replies, embed)
            payload = block.init(_encode(value))
            while True:
                command = _decode(block, payload, played, limits)
                match command:
                    case Done():
                        wrong = signature.output.mismatch(command.result, place="result", handle_kind=handles.kind_of)
                        if wrong is not None:
                            own = f"its own signature, {signature.output}"
                            raise SchemaMismatch(f'"{block.name}" gave a result that does not fit {own}: {wrong}')
                        return Played(command.result, played.commands, played.events)
                    case Fail():
                        raise BlockFailed(command.code, command.message)
                try:
                    event = encode_event(host.answer(command))
                except CuttlefishError as error:
                    error.add_context(_place(block))
                    raise
                played.events.append(json.loads(event))
                payload = block.step(event)


def play(path: str | Path, value: object, events: Sequence[Mapping[str, Any]]) -> Played:
    """Tell the Python block in a file exactly this: the input, then the events as they are, whatever it says.

    An event may be one that no host sends. Beside events there may be `{"token": "…"}`, for `on_token`. A `fail` is not raised
    here: it is the last of `commands`.

    Raises:
        ValueError: the block is over before all events are told.
        CuttlefishError: what it said is no command.
        Exception: whatever the block raises, as it is.
    """
    block = PythonBlock(path)
    played, limits = Played(None), Limits()
    command = _decode(block, block.init(_encode(value)), played, limits)
    for count, event in enumerate(events):
        if isinstance(command, Done | Fail):
            raise ValueError(f'"{block.name}" is over with "{command.cmd}" after {count} of {len(events)} events')
        if "token" in event:
            block.on_token(event["token"].encode())
            continue
        played.events.append(dict(event))
        command = _decode(block, block.step(_encode(event)), played, limits)
    return Played(command.result if isinstance(command, Done) else None, played.commands, played.events)


def replay_case(path: str | Path, case: str | Path) -> None:
    """Replay a case, a conversation as in docs/writing-blocks.md, against the Python block in a file.

    Raises:
        AssertionError: the block says something else; the text has the line of the case and the first difference.
        BadConversation: the case cannot be read.
        Exception: whatever the block raises, as it is.
    """
    mismatch = replay(PythonBlock(path), read_conversation(Path(case)))
    if mismatch is not None:
        shown = mismatch.difference.diff if mismatch.difference is not None else ()
        raise AssertionError("\n".join([f"{case}:{mismatch.line}: {mismatch.message}", *shown]))


def _check_frame(op: Frame, label: str) -> int:
    """How many frames an image of a test has: images are not read here, so each counts as a still one."""
    if op.index > 0:
        raise BadCommand(f"image_op: frame {op.index} is past the end; in a test {label} has 1 frame (the first is 0)")
    return 1


@dataclass(slots=True)
class _ScriptedHost:
    """Answers a block's commands from memory."""

    block: PythonBlock
    files: Collection[str]
    handles: HandleTable
    documents: Mapping[int, Sequence[Page]]
    """By the inode of the file that stands for it."""
    replies: Replies
    embed: Callable[[list[str]], list[list[float]]] | None
    _pages: dict[int, Sequence[Page]] = field(default_factory=dict)
    _asked: int = 0

    def answer(self, command: Command) -> Event:
        """Carry a command out."""
        handles = self.handles
        match command:
            case Open():
                return self._open(command.path)
            case Slice():
                window = handles.slice(command.handle, command.offset, command.len)
                return Sliced(text=window.text, next_offset=window.next_offset)
            case SliceBytes():
                data, next_offset = handles.slice_bytes(command.handle, command.offset, command.len)
                return SlicedBytes(bytes_base64=base64.b64encode(data).decode(), next_offset=next_offset)
            case PageText():
                text = self._page(command)
                return PageTexted(text=text, images=0 if text.strip() else 1, coverage=0.0 if text.strip() else 1.0)
            case PageTextOpt():
                handles.get_document(command.handle, command.cmd)
                try:
                    return PageTextAttempted(text=self._page(command), error=None)
                except CuttlefishError as error:
                    return PageTextAttempted(text=None, error=f"{error.code}: {error.message}")
            case DocumentText():
                handles.get_document(command.handle, command.cmd)
                texts = [_text(page) for page in self._pages[command.handle]]
                return PageTexted(text="\n\n".join(stripped for text in texts if (stripped := text.strip("\n"))))
            case PageImage():
                held = handles.get_document(command.handle, command.cmd)
                self._check_page(command)
                return self._picture(f"page {command.page} of {held.label}", command.cmd)
            case ImageOp():
                label = handles.get_image(command.handle, command.cmd).label
                frames = _check_frame(command.op, label) if isinstance(command.op, Frame) else None
                return self._picture(f"a copy of {label}", command.cmd, frames)
            case Infer():
                return self._infer(command)
            case Embed():
                if self.embed is None:
                    raise ModelLoadFailed("the block asks for vectors, and the test gives none; give embed=FUNCTION")
                return Embedded(vectors=self.embed(list(command.texts)))
            case Emit():
                return Emitted()
        raise AssertionError(command)  # `done` and `fail` are not answered

    def _open(self, path: str) -> Opened:
        try:
            opened = self.handles.open(path)
        except (NotFound, CapabilityDenied) as error:
            known = ", ".join(map(show, self.files)) or "nothing"
            where = "the test's files have no such file" if isinstance(error, NotFound) else "it leads out of the test's files"
            raise type(error)(f"open {show(path)}: {where}; they are: {known}") from None
        if not isinstance(opened, UnreadDocument):
            return opened
        file = opened.file
        pages = self.documents.get(file.inode)
        if pages is None:
            file.close()
            raise BadCommand(f'open "{path}": these bytes are a document; a test gives one as the list of its pages\' texts')
        kind = DocumentKind(pages=len(pages), has_text_layer=any(isinstance(page, str) and page.strip() for page in pages))
        handle = self.handles.add(file, kind)
        self._pages[handle] = pages
        return Opened(handle=handle, len=file.size, kind=kind)

    def _picture(self, name: str, command: str, frames: int | None = None) -> PageImaged:
        handle = self.handles.add_image(PICTURE, "png", name, command)
        return PageImaged(handle=handle, len=len(PICTURE), kind=ImageKind(format="png"), frames=frames)

    def _check_page(self, command: PageText | PageTextOpt | PageImage) -> None:
        pages = len(self._pages[command.handle])
        if command.page >= pages:
            name = show(self.handles.get_document(command.handle).file.name)
            count = "1 page" if pages == 1 else f"{pages} pages"
            raise BadCommand(f"{command.cmd}: page {command.page} is past the end; {name} has {count} (the first is 0)")

    def _page(self, command: PageText | PageTextOpt) -> str:
        self.handles.get_document(command.handle, command.cmd)
        self._check_page(command)
        return _text(self._pages[command.handle][command.page])

    def _infer(self, command: Infer) -> InferDone:
        for handle in command.images:
            self.handles.get_image(handle)
        reply = self._reply(command)
        for stop in command.options.stop:
            reply = reply.partition(stop)[0]
        words = re.findall(r"\s*\S+(?:\s+\Z)?|\s+\Z", reply)
        heard = ""
        for count, word in enumerate(words):
            if count == command.max_tokens:
                return InferDone(text=heard, tokens_out=count, finish_reason="length")
            heard += word
            if self.block.on_token(word.encode()):
                return InferDone(text=heard, tokens_out=count + 1, finish_reason="stopped_by_block")
        return InferDone(text=heard, tokens_out=len(words), finish_reason="stop")

    def _reply(self, command: Infer) -> str:
        self._asked += 1
        if callable(self.replies):
            return self.replies(command.model_dump(exclude_unset=True, by_alias=True))
        if self._asked > len(self.replies):
            given = "1 reply" if len(self.replies) == 1 else f"{len(self.replies)} replies"
            raise InferenceFailed(
                f"the block asks the model {self._asked} times, and the test gives {given}: {show(command.prompt)}"
            )
        return self.replies[self._asked - 1]


def _text(page: Page) -> str:
    if isinstance(page, CuttlefishError):
        raise page
    return page


def _write_files(folder: Path, files: Mapping[str, str | bytes | Sequence[Page]]) -> dict[int, Sequence[Page]]:
    """Write the files of a test where the host's own code can open them. A document is one only by its first bytes."""
    documents: dict[int, Sequence[Page]] = {}
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or path.resolve() == folder.resolve():
            raise ValueError(f"files: {show(name)} is no path of a file below the current folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case str():
                path.write_bytes(content.encode())
            case bytes():
                path.write_bytes(content)
            case _:
                path.write_bytes(b"%PDF-1.7\n")
                documents[path.stat().st_ino] = content
    return documents


def _decode(block: PythonBlock, payload: bytes, played: Played, limits: Limits) -> Command:
    if len(played.commands) >= limits.guest_commands:
        raise limit_exceeded("guest_commands", limits.guest_commands, f'"{block.name}" gave one more and is not done')
    played.commands.append(json.loads(payload))
    try:
        return decode_command(payload)
    except BadJson as error:
        raise BadCommand(f'{_place(block)}command {len(played.commands)} of "{block.name}": {error}') from None


def _place(block: PythonBlock) -> str:
    return f"{block.name}:{block.line}: " if block.line is not None else ""


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
