"""One odd file through a whole host, seen as a block sees it: real wasm, real workers, a model that keeps what it is shown."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from cuttlefish import Host, JobStatus
from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.stub import StubBackend
from guests import echo
from odd.expected import Binary, Document, Expected, Image, OddFile, Page, Picture, Refused, Text

__all__ = ["LIMITS", "differences", "is_character", "of_page", "opening", "recording", "showing", "told"]

LIMITS: dict[str, object] = {"document.memory": 1 << 30, "document.time": 10}
"""What each file may cost."""

COLOUR_PLACE = 8  # a corner's colour is looked at an eighth of the way in
DARK = 100

Command = dict[str, object]


@contextmanager
def recording() -> Iterator[dict[str, list[bytes]]]:
    """While this lasts, what a stub model is shown is kept in the mapping that it gives: images by their prompt."""
    shown: dict[str, list[bytes]] = {}
    real = StubBackend.infer

    async def infer(self: StubBackend, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        shown[prompt.text] = [image.data for image in prompt.images]
        return await real(self, prompt, sink, meter)

    StubBackend.infer = infer  # type: ignore[method-assign]  # the one place where a model sees what a host shows it
    try:
        yield shown
    finally:
        StubBackend.infer = real  # type: ignore[method-assign]


def _image_op(handle: int, op: str, **numbers: int) -> Command:
    return {"cmd": "image_op", "handle": handle, "op": {"op": op, **numbers}}


async def told(host: Host, folder: Path, *commands: Command, time_s: float = 10) -> list[dict[str, Any]] | Refused:
    """What a block that gives these commands is told, or the error that ends its job."""
    envelope = await host.run(
        echo(), list(commands), read=[folder], base_dir=folder, model="stub:ok", limits=LIMITS | {"document.time": time_s}
    )
    if envelope.status is JobStatus.COMPLETED:
        return json.loads(json.dumps(envelope.result))  # type: ignore[no-any-return]  # the echo's list of events
    assert envelope.error is not None
    return Refused(envelope.error.code, envelope.error.message)


async def differences(host: Host, folder: Path, file: OddFile, shown: dict[str, list[bytes]]) -> list[str]:
    """Where what a block sees of this file is not what is expected. The file lies in `folder` by its name."""
    return await _Look(host, folder, file, shown).differences()


def opening(name: str) -> Command:
    return {"cmd": "open", "path": name}


def showing(name: str, *handles: int) -> Command:
    return {"cmd": "infer", "prompt": name, "max_tokens": 5, "images": handles}


def of_page(command: str, page: int) -> Command:
    return {"cmd": command, "handle": 0, "page": page}


@dataclass(slots=True)
class _Look:
    host: Host
    folder: Path
    file: OddFile
    shown: dict[str, list[bytes]]
    found: list[str] = field(default_factory=list)

    async def differences(self) -> list[str]:
        expected, opened = self.file.expected, await self.told(opening(self.file.name))
        if isinstance(expected, Refused):
            self.compare_refusal("open", opened, expected)
        elif isinstance(opened, Refused):
            self.found.append(f"open: {opened}, expected {type(expected).__name__}")
        else:
            self.equal("kind", opened[0]["kind"], _kind(expected))
            self.equal("len", opened[0]["len"], (self.folder / self.file.name).stat().st_size)
            if opened[0]["kind"] == _kind(expected):
                await self.look_at(expected)
        return self.found

    async def look_at(self, expected: Document | Image | Text | Binary) -> None:
        match expected:
            case Document():
                await self.look_at_document(expected)
            case Image():
                await self.look_at_image(expected.seen)
            case Text():
                await self.look_at_text(expected)
            case Binary():
                self.compare_refusal("infer", await self.told(opening(self.file.name), showing(self.file.name, 0)), expected.named)

    async def look_at_document(self, expected: Document) -> None:
        for page, wanted in enumerate(expected.shown):
            await self.look_at_page(page, wanted)
        past = await self.told(opening(self.file.name), of_page("page_text", expected.pages))
        self.compare_refusal("the page past the end", past, Refused("bad_command", "is past the end"))
        # Once more as a block that walks the pages would; where some are bad, back and forth
        forward = list(range(len(expected.shown)))
        order = [*forward, *reversed(forward), *forward] if any(page.refused for page in expected.shown) else forward
        walked = await self.told(opening(self.file.name), *(of_page("page_text_opt", page) for page in order))
        if isinstance(walked, Refused):
            self.found.append(f"page_text_opt: {walked}")
            return
        for page, event in zip(order, walked[1:], strict=True):
            wanted = expected.shown[page]
            if wanted.refused is None:
                self.compare_text(f"page_text_opt {page}", event["text"], wanted)
            elif not _is_error(event, wanted.refused):
                self.found.append(f"page_text_opt {page}: {event}, expected {wanted.refused}")
        if len(expected.shown) == expected.pages:
            whole = await self.told(opening(self.file.name), {"cmd": "document_text", "handle": 0})
            if refused := next((page.refused for page in expected.shown if page.refused is not None), None):
                self.compare_refusal("document_text", whole, refused)
            elif isinstance(whole, Refused):
                self.found.append(f"document_text: {whole}")
            else:
                texts = [event["text"].strip("\n") for event in walked[1:]]
                self.equal("document_text", whole[1]["text"], "\n\n".join(filter(None, texts)))

    async def look_at_page(self, page: int, wanted: Page) -> None:
        text = await self.told(opening(self.file.name), of_page("page_text", page))
        if wanted.refused is not None:
            self.compare_refusal(f"page_text {page}", text, wanted.refused)
        elif isinstance(text, Refused):
            self.found.append(f"page_text {page}: {text}")
        else:
            event = text[1]
            self.compare_text(f"page_text {page}", event["text"], wanted)
            if wanted.images is not None:
                self.equal(f"images of page {page}", event.get("images"), wanted.images)
            if wanted.coverage is not None:
                coverage = event.get("coverage")
                self.equal(f"coverage of page {page}", coverage if coverage is None else round(coverage, 2), wanted.coverage)
        shown = await self.told(opening(self.file.name), of_page("page_image", page), showing(self.file.name, 1))
        if wanted.picture_refused is not None:
            self.compare_refusal(f"page_image {page}", shown, wanted.picture_refused)
        elif isinstance(shown, Refused):
            if wanted.refused is None or shown.code != wanted.refused.code:
                self.found.append(f"page_image {page}: {shown}")
        else:
            self.compare_page_image(f"page_image {page}", wanted)

    def compare_page_image(self, what: str, wanted: Page) -> None:
        with Pillow.open(io.BytesIO(self.shown[self.file.name][0])) as picture:
            if wanted.size is not None:
                self.equal(f"size of {what}", picture.size, wanted.size)
            if wanted.dark is not None:
                x, y = int(wanted.dark[0] * picture.width), int(wanted.dark[1] * picture.height)
                level = picture.convert("L").crop((x, y, x + 1, y + 1)).tobytes()[0]
                if level > DARK:
                    self.found.append(f"{what}: {x}, {y} is {level}, expected dark")

    async def look_at_image(self, seen: Picture | Refused) -> None:
        shown = await self.told(opening(self.file.name), showing(self.file.name, 0))
        if isinstance(seen, Refused):
            self.compare_refusal("infer", shown, seen)
        elif isinstance(shown, Refused):
            self.found.append(f"infer: {shown}")
        else:
            self.compare_picture("infer", self.shown[self.file.name][0], seen)
            await self.look_at_copies(seen)

    async def look_at_copies(self, seen: Picture) -> None:
        """A block's own changes to a picture: those that change nothing, a corner that is cut out, and one that is not there."""
        width, height = max(1, seen.width // 2), max(1, seen.height // 2)
        left, top = seen.width - width, seen.height - height
        made = await self.told(
            opening(self.file.name),
            _image_op(0, "resize", max_width=1 << 30, max_height=1 << 30),
            _image_op(0, "crop", x=0, y=0, width=seen.width, height=seen.height),
            _image_op(0, "crop", x=left, y=top, width=width, height=height),
            showing(self.file.name, 1, 2, 3),
        )
        if isinstance(made, Refused):
            self.found.append(f"image_op: {made}")
            return
        same, also_same, corner = self.shown[self.file.name]
        self.compare_picture("resize to more than it is", same, seen)
        self.compare_picture("crop of all", also_same, seen)
        lower_right = None if seen.corners is None else (seen.corners[3],) * 4
        self.compare_picture("crop", corner, Picture(width, height, seen.mode, lower_right, seen.tolerance))
        outside = _image_op(0, "crop", x=1, y=0, width=seen.width, height=1)
        past = await self.told(opening(self.file.name), outside)
        self.compare_refusal("crop past the edge", past, Refused("bad_command", "image_op: "))

    def compare_picture(self, what: str, data: bytes, seen: Picture) -> None:
        with Pillow.open(io.BytesIO(data)) as picture:
            self.equal(f"size, {what}", picture.size, (seen.width, seen.height))
            self.equal(f"mode, {what}", picture.mode, seen.mode)
            if picture.size != (seen.width, seen.height) or seen.corners is None:
                return
            across, down = seen.width // COLOUR_PLACE, seen.height // COLOUR_PLACE
            places = [(x, y) for y in (down, seen.height - 1 - down) for x in (across, seen.width - 1 - across)]
            whole = picture.convert("RGB")
            found = [whole.getpixel(place) for place in places]
            for colour, wanted in zip(found, seen.corners, strict=True):
                assert isinstance(colour, tuple)
                if any(abs(one - other) > seen.tolerance for one, other in zip(colour, wanted, strict=True)):
                    self.found.append(f"corners, {what}: {found}, expected {seen.corners} ± {seen.tolerance}")
                    return

    async def look_at_text(self, expected: Text) -> None:
        length = len(expected.text.encode())
        read = await self.told(opening(self.file.name), {"cmd": "slice", "handle": 0, "offset": 0, "len": 1 << 40})
        if isinstance(read, Refused):
            self.found.append(f"slice: {read}")
        else:
            self.equal("text", read[1]["text"], expected.text)
            self.equal("next_offset", read[1]["next_offset"], length)
        if expected.then is not None:
            more = await self.told(opening(self.file.name), {"cmd": "slice", "handle": 0, "offset": length, "len": 99})
            self.compare_refusal("slice at the end", more, expected.then)
        shown = await self.told(opening(self.file.name), showing(self.file.name, 0))
        self.compare_refusal("infer", shown, Refused("bad_command", "is a text"))

    async def told(self, *commands: Command) -> list[dict[str, Any]] | Refused:
        return await told(self.host, self.folder, *commands, time_s=self.file.time_s)

    def compare_refusal(self, what: str, found: object, expected: Refused) -> None:
        if not isinstance(found, Refused) or found.code != expected.code or expected.says not in found.says:
            self.found.append(f"{what}: {str(found)[:500]}, expected {expected}")

    def compare_text(self, what: str, text: object, wanted: Page) -> None:
        if not isinstance(text, str):
            self.found.append(f"{what}: {text!r} is no text")
            return
        if wanted.text is not None:
            self.equal(what, text, wanted.text)
        self.in_order(what, text, wanted.holds)
        for part in wanted.lacks:
            if part in text:
                self.found.append(f"{what}: {text[:200]!r} holds {part!r}")
        if wrong := sorted({character for character in text if not is_character(character)}):
            self.found.append(f"{what}: {text[:200]!r} holds {wrong}")

    def in_order(self, what: str, text: str, parts: tuple[str, ...] | list[str]) -> None:
        at = 0
        for part in parts:
            place = text.find(part, at)
            if place < 0:
                self.found.append(f"{what}: {text[:200]!r} lacks {part!r}, or not in this order: {parts}")
                return
            at = place + len(part)

    def equal(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.found.append(f"{what}: {str(found)[:300]!r}, expected {str(expected)[:300]!r}")


def _kind(expected: Expected) -> dict[str, object]:
    match expected:
        case Document():
            return {"kind": "document", "pages": expected.pages, "has_text_layer": expected.has_text_layer}
        case Image():
            return {"kind": "image", "format": expected.format}
        case _:
            return {"kind": type(expected).__name__.lower()}


def _is_error(event: dict[str, Any], wanted: Refused) -> bool:
    """Whether a page's failure came as a value: its code and sentence."""
    error = event["error"]
    return event["text"] is None and str(error).startswith(f"{wanted.code}: ") and wanted.says in error


def is_character(character: str) -> bool:
    """Whether a page's text may hold it: no controls but tab and line feed, no halves of pairs, no noncharacters."""
    number = ord(character)
    if number < 0x20 or 0x7F <= number < 0xA0:
        return character in "\t\n"
    return not (0xD800 <= number < 0xE000 or 0xFDD0 <= number < 0xFDF0 or number & 0xFFFE == 0xFFFE)
