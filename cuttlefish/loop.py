"""The command loop: one block run, from `init` to `done`.

The guest runs on a worker thread. There, *immediate* commands (slices, opening a file that is no document, progress) are answered
without leaving the thread; a hop to Trio's thread costs some 100 µs, a step some 5. *Deferred* commands (the model, documents) come
back to Trio, which waits for them. A watcher task beside the run turns a cancellation, or a step that takes too long, into an
interrupt of the guest, so the thread always comes back and is always waited for.
"""

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from cuttlefish.engine.guest import Guest
from cuttlefish.engine.guest_thread import GuestThread, open_guest
from cuttlefish.engine.module import CompiledModule
from cuttlefish.errors import (
    BadCommand,
    BlockFailed,
    CuttlefishError,
    ModelLoadFailed,
    SchemaMismatch,
    Unsupported,
)
from cuttlefish.inference.backend import Backend, Embedder, ImageInput, Prompt, TokenMeter
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.media.capabilities import OpenedFile
from cuttlefish.media.documents import DocumentSource, DocumentWorkers
from cuttlefish.media.documents import PageImage as Picture
from cuttlefish.media.handles import HandleTable, UnreadDocument, image_source
from cuttlefish_abi import (
    BadJson,
    Command,
    DocumentText,
    Done,
    Embed,
    Embedded,
    Emit,
    Emitted,
    Event,
    Fail,
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
    TokenAction,
    TooDeep,
    Ty,
    decode_command,
    encode_event,
)
from cuttlefish_abi.strict_json import has_more_values

__all__ = ["LARGE_BYTES", "BlockRun", "GetBackend", "GetEmbedder", "Transcript", "Watcher", "run_block"]

JSON = Ty(kind="json")

TURN_S = 0.05
"""A guest with nothing but immediate commands gives its thread back this often."""

LARGE_BYTES = 256 << 10
"""JSON of more bytes is read in a thread that a cancellation does not wait for."""


class Watcher(Protocol):
    """Who is told of a run's progress. Called from the guest's thread and from Trio's, in order; must not block."""

    def progress(self, value: object, size_bytes: int) -> None:
        """The block emitted this JSON value, of about so many bytes."""

    def token(self, piece: str) -> None:
        """The model's reply went on by these characters."""

    def log(self, block: str, text: str) -> None:
        """The block of this name printed some text."""


class Transcript(Protocol):
    """Who writes down what a block is told and what it says, byte for byte, in order. Called from the guest's thread; may block."""

    def input(self, value_json: bytes) -> None:
        """The block is about to get its input."""

    def command(self, payload: bytes) -> None:
        """The block gave this command, which is well-formed."""

    def event(self, event: bytes) -> None:
        """The block is about to get this event."""

    def token(self, piece: str, *, stop: bool) -> None:
        """A block that listens has heard this piece of the model's reply; `stop` is its answer."""


class GetEmbedder(Protocol):
    """Who opens the job's embedding model when a block first asks it."""

    async def __call__(self) -> Embedder:
        """The embedder, ready.

        Raises:
            ModelLoadFailed: there is none, or it could not be made ready.
        """


async def no_embedder() -> Embedder:
    """For a run without an embedding model."""
    raise ModelLoadFailed('the block asks for vectors and the job names no embedding model; give one, such as "llama-cpp:smollm2"')


class GetBackend(Protocol):
    """Who opens the job's model when a block first asks it."""

    async def __call__(self) -> Backend:
        """The backend, ready to infer.

        Raises:
            ModelLoadFailed: there is none, or it could not be made ready.
        """


@dataclass(frozen=True, slots=True)
class BlockRun:
    """One run of a block, with all that it is given. Nothing else is within its reach."""

    module: CompiledModule
    handles: HandleTable
    documents: DocumentWorkers
    backend: GetBackend
    watcher: Watcher
    limits: Limits
    threads: trio.CapacityLimiter
    """How many guests may compute at the same time."""
    embedder: GetEmbedder = no_embedder
    password: str | None = field(default=None, repr=False)
    """What opens locked documents."""
    meters: list[TokenMeter] = field(default_factory=list)
    """What each prompt cost, one added before it is asked, so that failed and cancelled work is counted too."""
    transcript: Transcript | None = None
    """Who writes the run down."""


async def run_block(run: BlockRun, value: object, value_json: bytes) -> object:
    """Run a block on `value` (given also as JSON) and return its result.

    Cancelling stops the guest within about a millisecond, whatever it does, and the model or document worker that it waits for.

    Raises:
        CuttlefishError: the run failed; code and message say why. The guest is gone in any case.
    """
    async with open_guest(run.module, run.limits, run.threads) as guest_thread:
        return await _Loop(run, guest_thread).run(value, value_json)


def _told(write_down: Callable[[bytes], None], step: Callable[[bytes], bytes], data: bytes) -> bytes:
    """Step the guest, and write down before what it is told: a block that breaks down at this is seen to."""
    write_down(data)
    return step(data)


Work = Infer | Embed | PageText | PageTextOpt | DocumentText | PageImage | ImageOp | UnreadDocument
"""What Trio's thread waits for on a block's behalf."""

Deferred = Work | Done | Fail
"""What the guest's thread cannot answer by itself."""


@dataclass(frozen=True, slots=True)
class _LargeCommand:
    """A command that is too large to be read in passing."""

    payload: bytes


class _Loop:
    """The state of one run. Methods with `async` belong to Trio's thread, the others to the guest's; never both at once."""

    def __init__(self, run: BlockRun, guest_thread: GuestThread) -> None:
        self._run = run
        self._guest = guest_thread.guest
        self._in_thread = guest_thread
        self._commands = 0
        self._unread: UnreadDocument | None = None
        self._output = JSON
        transcript, guest = run.transcript, self._guest
        self._init: Callable[[bytes], bytes] = guest.init if transcript is None else partial(_told, transcript.input, guest.init)
        self._step: Callable[[bytes], bytes] = guest.step if transcript is None else partial(_told, transcript.event, guest.step)

    async def run(self, value: object, value_json: bytes) -> object:
        self._output = await self._in_thread(self._start, value)
        step = self._init
        data: bytes | Event = value_json
        try:
            while True:
                outcome = await self._in_thread(self._serve, step, data)
                if isinstance(outcome, _LargeCommand):
                    outcome = await self._read_aside(outcome.payload)
                match outcome:
                    case Done():
                        return outcome.result
                    case Fail():
                        raise BlockFailed(outcome.code, outcome.message)
                    case bytes():
                        data = outcome  # the turn was over; the event is still to be delivered
                    case _:
                        data = await self._answer(outcome)
                step = self._step
        finally:
            if self._unread is not None:
                self._unread.file.close()

    def _start(self, value: object) -> Ty:
        """Start the guest, check its input, and say what its result must be."""
        self._guest.start()
        signature = self._guest.signature()
        if (wrong := signature.input.mismatch(value, place="input", handle_kind=self._run.handles.kind_of)) is not None:
            raise SchemaMismatch(f'the input does not fit what "{self._guest.name}" takes, {signature.input}: {wrong}')
        return signature.output

    def _serve(self, step: Callable[[bytes], bytes], data: bytes | Event) -> "Deferred | _LargeCommand | bytes":
        """Step the guest until it wants something deferred, or its turn is over: then the event that it has not seen yet."""
        turn_ends = time.monotonic() + TURN_S
        if not isinstance(data, bytes):
            data = encode_event(data)
        while True:
            payload = step(data)
            _pass_log_on(self._guest, self._run.watcher)
            if len(payload) > LARGE_BYTES:
                return _LargeCommand(payload)
            answer = self._take(self._decode(payload), payload)
            if not isinstance(answer, bytes):
                return answer
            step, data = self._step, answer
            if time.monotonic() > turn_ends:
                return data

    async def _read_aside(self, payload: bytes) -> Deferred | bytes:
        """Read and serve a large command. A cancellation does not wait for the reading, which `guest.json_values` bounds."""
        command = await trio.to_thread.run_sync(self._decode, payload, limiter=self._run.threads, abandon_on_cancel=True)
        return await self._in_thread(self._take, command, payload)

    def _take(self, command: Command, payload: bytes) -> Deferred | bytes:
        """Write a command down if somebody wants it, and answer it at once if that is possible."""
        if self._run.transcript is not None:
            self._run.transcript.command(payload)
        return self._answer_at_once(command, len(payload))

    def _decode(self, payload: bytes) -> Command:
        self._commands += 1
        limits = self._run.limits
        if self._commands > limits.guest_commands:
            raise limit_exceeded("guest_commands", limits.guest_commands, f'"{self._guest.name}" gave one more and is not done')
        if has_more_values(payload, limits.guest_json_values):
            what = f'command {self._commands} of "{self._guest.name}" holds more, in {len(payload)} bytes'
            raise limit_exceeded("guest_json_values", limits.guest_json_values, what)
        try:
            command = decode_command(payload, max_depth=limits.guest_json_depth)
        except BadJson as error:
            limit = f" (guest.json_depth is {limits.guest_json_depth} levels)" if isinstance(error, TooDeep) else ""
            raise BadCommand(f'command {self._commands} of "{self._guest.name}": {error}{limit}') from None
        if isinstance(command, Done):
            self._check(command.result)
        return command

    def _answer_at_once(self, command: Command, size_bytes: int) -> Deferred | bytes:
        handles = self._run.handles
        match command:
            case Slice():
                window = handles.slice(command.handle, command.offset, command.len)
                return encode_event(Sliced(text=window.text, next_offset=window.next_offset))
            case SliceBytes():
                data, next_offset = handles.slice_bytes(command.handle, command.offset, command.len)
                return encode_event(SlicedBytes(bytes_base64=base64.b64encode(data).decode(), next_offset=next_offset))
            case Open():
                opened = handles.open(command.path)
                if isinstance(opened, UnreadDocument):
                    self._unread = opened
                    return opened
                return encode_event(opened)
            case Emit():
                limit = self._run.limits.job_progress_bytes
                if size_bytes > limit:
                    raise limit_exceeded("job_progress_bytes", limit, f'"{self._guest.name}" told its progress in {size_bytes}')
                self._run.watcher.progress(command.progress, size_bytes)
                return encode_event(Emitted())
        return command

    async def _answer(self, command: Work) -> Event:
        handles, documents, limits = self._run.handles, self._run.documents, self._run.limits
        match command:
            case Infer():
                return await self._infer(command)
            case Embed():
                return await self._embed(command)
            case UnreadDocument():
                return await self._open_document(command)
            case PageText():
                return await self._page_text(command)
            case PageTextOpt():
                return await self._try_page_text(command)
            case DocumentText():
                document = handles.get_document(command.handle, "document_text")
                return PageTexted(text=await documents.document_text(self._source(document.file), limits))
            case PageImage():
                document = handles.get_document(command.handle, "page_image")
                picture = await documents.page_image(self._source(document.file), command.page, limits)
                return self._add_picture(picture, f"page {command.page} of {document.label}", command.cmd)
            case ImageOp():
                image = handles.get_image(command.handle, "image_op")
                picture = await documents.image_op(image_source(image), command.op, limits)
                return self._add_picture(picture, f"a copy of {image.label}", command.cmd)

    async def _page_text(self, command: PageText | PageTextOpt) -> PageTexted:
        document = self._run.handles.get_document(command.handle, command.cmd)
        page = await self._run.documents.page_text(self._source(document.file), command.page, self._run.limits)
        return PageTexted(text=page.text, images=page.images, coverage=page.coverage)

    async def _try_page_text(self, command: PageTextOpt) -> PageTextAttempted:
        self._run.handles.get_document(command.handle, command.cmd)  # a wrong handle is the block's mistake and ends the job
        try:
            return PageTextAttempted(text=(await self._page_text(command)).text, error=None)
        except CuttlefishError as error:
            return PageTextAttempted(text=None, error=f"{error.code}: {error.message}")

    def _add_picture(self, picture: Picture, name: str, command: str) -> PageImaged:
        handle = self._run.handles.add_image(picture.data, picture.format, name, command)
        return PageImaged(handle=handle, len=len(picture.data), kind=ImageKind(format=picture.format), frames=picture.frames)

    async def _open_document(self, unread: UnreadDocument) -> Opened:
        file = unread.file
        facts = await self._run.documents.open_document(self._source(file), self._run.limits)
        self._unread = None  # `add` owns the file, whatever happens
        return Opened(handle=self._run.handles.add(file, facts.kind), len=file.size, kind=facts.kind)

    async def _infer(self, command: Infer) -> InferDone:
        run = self._run
        if command.max_tokens > run.limits.infer_tokens:
            raise limit_exceeded("infer_tokens", run.limits.infer_tokens, f"the block asked for {command.max_tokens}")
        backend = await run.backend()
        if command.images and not backend.accepts_images:
            raise Unsupported(f'the model "{backend.name}" reads no images; use one that does, or a document with a text layer')
        images = [await self._image(handle) for handle in command.images]
        meter = TokenMeter()
        run.meters.append(meter)

        options = command.options
        prompt = Prompt(
            text=command.prompt,
            max_tokens=command.max_tokens,
            images=tuple(images),
            temperature=options.temperature,
            seed=options.seed,
            stop=tuple(options.stop),
            schema=options.json_schema,
        )
        reply = await backend.infer(prompt, _Listeners(run.watcher, self._in_thread, run.transcript), meter)
        return InferDone(text=reply.text, tokens_out=meter.tokens_out, finish_reason=reply.finish)

    async def _embed(self, command: Embed) -> Embedded:
        embedder = await self._run.embedder()
        meter = TokenMeter()
        self._run.meters.append(meter)
        return Embedded(vectors=await embedder.embed(command.texts, meter))

    async def _image(self, handle: int) -> ImageInput:
        source = image_source(self._run.handles.get_image(handle))
        prepared = await self._run.documents.prepare_image(source, self._run.limits)
        return ImageInput(data=prepared.data, media_type=prepared.media_type)

    def _source(self, file: OpenedFile) -> DocumentSource:
        return DocumentSource.of(file, self._run.password)

    def _check(self, result: object) -> None:
        output = self._output
        if (wrong := output.mismatch(result, place="result", handle_kind=self._run.handles.kind_of)) is not None:
            raise SchemaMismatch(f'"{self._guest.name}" gave a result that does not fit its own signature, {output}: {wrong}')


def _pass_log_on(guest: Guest, watcher: Watcher) -> None:
    """What the block printed goes to whoever watches. Nothing else depends on it."""
    if text := guest.take_log():
        watcher.log(guest.name, text)


@dataclass(frozen=True, slots=True)
class _Listeners:
    """Who hears a model's reply: the watcher, and the block if it wants to. Keeps the promises of `TokenSink` and `ThreadSink`."""

    watcher: Watcher
    guest_thread: GuestThread
    transcript: Transcript | None

    def hear(self, piece: str) -> TokenAction:
        """In any thread that may wait: the guest is not stepped meanwhile, and a cancellation interrupts it."""
        try:
            stop = self.guest_thread.guest.hears_tokens and self._tell_block(piece)
        finally:
            self.watcher.token(piece)  # last: it wakes Trio's thread, which then wants the GIL (220 µs to a verdict, else 40)
        return TokenAction.STOP if stop else TokenAction.CONTINUE

    def _tell_block(self, piece: str) -> bool:
        """Show the block a piece of the reply. True when it has seen enough."""
        guest = self.guest_thread.guest
        is_enough = guest.on_token(piece.encode())
        _pass_log_on(guest, self.watcher)
        if self.transcript is not None:
            self.transcript.token(piece, stop=is_enough)
        return is_enough

    async def __call__(self, piece: str) -> TokenAction:
        """In Trio's thread, which no guest may hold up."""
        if self.guest_thread.guest.hears_tokens:
            return await self.guest_thread(self.hear, piece)
        return self.hear(piece)
