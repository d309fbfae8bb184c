"""What a worker's answers mean: each value checked before it is used, each problem as the sentence for the person who reads it."""

import signal
from dataclasses import dataclass, field, replace
from typing import Literal

from cuttlefish.errors import BadCommand, CuttlefishError, DocumentCrashed, DocumentInvalid, DocumentPassword, Unsupported
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.media.capabilities import quoted
from cuttlefish.media.document_types import DocumentSource
from cuttlefish.media.sniff import NAMED_FORMATS
from cuttlefish.media.worker_process import Answer, WorkerGone

__all__ = [
    "MOST_FRAMES",
    "MOST_PAGES",
    "Ask",
    "Refusal",
    "crashed",
    "number",
    "picture_format",
    "refusal",
    "too_much",
    "too_slow",
    "truth",
    "whole",
]

MOST_PAGES = 1 << 20  # PDFium believes no greater count
MOST_FRAMES = (1 << 32) - 1  # the contract's numbers end there
MOST_POINTS = 1e39  # PDFium's sizes are 32-bit floats


@dataclass(frozen=True, slots=True)
class Ask:
    """One command, and what it is called in messages."""

    command: Literal["open", "page_text", "page_image", "document_text", "prepare_image", "image_op"]
    source: DocumentSource | bytes
    page: int | None = None
    """The page that is read, or that is read first."""
    arguments: dict[str, object] = field(default_factory=dict)
    rectangle: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Of a crop: x, y, width, height."""
    frame: int = 0
    """That is taken out of an animation."""

    @property
    def key(self) -> tuple[int, ...] | None:
        """What tells one document from another. None: nothing that a worker would keep open."""
        if self.command in ("prepare_image", "image_op") or isinstance(self.source, bytes):
            return None
        return self.source.device, self.source.inode, self.source.size

    @property
    def thing(self) -> str:
        """The file, as its user knows it."""
        return "the image" if isinstance(self.source, bytes) else quoted(self.source.name)

    @property
    def subject(self) -> str:
        """The page, or the file."""
        return self.thing if self.page is None else f"page {self.page} of {self.thing}"

    def after(self, pieces: int) -> "Ask":
        """The same when so many pages of it are done: what goes wrong from here on is the next one's."""
        return self if self.page is None else replace(self, page=self.page + pieces)


def whole(answer: Answer, name: str, lowest: int, highest: int) -> int:
    """A whole number within bounds."""
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise WorkerGone
    return value


def number(answer: Answer, name: str, lowest: float, highest: float) -> float:
    """A floating number within bounds."""
    value = answer.get(name)
    if not isinstance(value, float) or not lowest <= value <= highest:
        raise WorkerGone
    return value


def truth(answer: Answer, name: str) -> bool:
    """True or false."""
    value = answer.get(name)
    if not isinstance(value, bool):
        raise WorkerGone
    return value


def picture_format(data: bytes, width: int, height: int) -> Literal["png", "jpeg"]:
    """What a picture is, by its own first bytes; a PNG says there how large it is."""
    if data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    raise WorkerGone


@dataclass(frozen=True, slots=True)
class Refusal:
    """A worker's "no", as the error to raise, and whether the worker may serve on."""

    error: CuttlefishError
    spoils_worker: bool = False


def refusal(ask: Ask, answer: Answer, limits: Limits) -> Refusal:
    """What a worker's problem means. The words are ours; of the worker's answer only the kind and checked numbers are used."""
    thing, subject, command = ask.thing, ask.subject, ask.command
    match answer.get("problem"):
        case "memory":
            return Refusal(too_much(ask, limits), spoils_worker=True)  # what else it lacks memory for is not known
        case "changed":
            return Refusal(DocumentInvalid(f"{command}: {thing} became shorter after it was opened; start again when it is whole"))
        case "other_file":
            return Refusal(DocumentInvalid(f"{command}: {thing} is no longer the file that was opened"))
        case "not_pdf":
            return Refusal(DocumentInvalid(f"{command}: {thing} is not a readable PDF: it is damaged, cut short or something else"))
        case "no_pages":
            return Refusal(DocumentInvalid(f"{command}: {thing} is not a readable PDF: it has no pages"))
        case "no_pages_left":
            return Refusal(DocumentInvalid(f"{command}: {thing} is not a readable PDF: none of its pages can be found"))
        case "pages_hidden":
            claimed, found = whole(answer, "claimed", 1, MOST_PAGES), whole(answer, "found", 2, 4 * MOST_PAGES)
            count = "1 page" if claimed == 1 else f"{claimed} pages"
            problem = f"says that it has {count} and holds {found}, the others of which cannot be read"
            return Refusal(DocumentInvalid(f"{command}: {thing} {problem}; open it in a PDF program and save it anew"))
        case "xfa":
            problem = "is a form that only Adobe's programs can show (XFA); its pages say no more than that"
            return Refusal(Unsupported(f"{command}: {thing} {problem}. Open it in Acrobat Reader and print it to a new PDF"))
        case "password":
            return Refusal(DocumentPassword(f"{command}: {thing} is locked with a password, {_about_password(ask)}"))
        case "security":
            return Refusal(
                DocumentPassword(f"{command}: {thing} is locked in a way that cannot be opened here; use an unlocked copy")
            )
        case "no_page":
            pages = whole(answer, "pages", 1, MOST_PAGES)
            count = "1 page" if pages == 1 else f"{pages} pages"
            return Refusal(BadCommand(f"{command}: page {ask.page} is past the end; {thing} has {count} (the first is 0)"))
        case "bad_page":
            return Refusal(DocumentInvalid(f"{command}: {subject} is missing or damaged and cannot be read; other pages may be"))
        case "damaged_on_page":
            problem = "shows an image that is damaged or cut short, so its picture would lack it; page_text still gives its words"
            return Refusal(DocumentInvalid(f"{command}: {subject} {problem}"))
        case "page_box":
            width_pt, height_pt = number(answer, "width", 0, MOST_POINTS), number(answer, "height", 0, MOST_POINTS)
            needed = (
                f"{subject} measures {width_pt:.6g}×{height_pt:.6g} points and needs {max(1.0, width_pt) * max(1.0, height_pt):.6g}"
            )
            return Refusal(limit_exceeded("page_pixels", limits.page_pixels, needed))
        case "page_pixels":
            width, height = whole(answer, "width", 1, 1 << 32), whole(answer, "height", 1, 1 << 32)
            needed = f"{subject} at {width}×{height} needs {width * height}"
            return Refusal(limit_exceeded("page_pixels", limits.page_pixels, needed))
        case "text_too_long":
            needed = f"the text of {subject} has {whole(answer, 'needed', 1, 1 << 40)}"
            return Refusal(limit_exceeded("guest_message_bytes", limits.guest_message_bytes, needed))
        case "document_too_long":
            needed = f"the text of {thing} has more; read it page by page with page_text"
            return Refusal(limit_exceeded("guest_message_bytes", limits.guest_message_bytes, needed))
        case "image_bytes":
            needed = f"{subject}, as a picture for a model, has {whole(answer, 'needed', 1, 1 << 40)}"
            return Refusal(limit_exceeded("image_bytes", limits.image_bytes, needed))
        case "image_pixels":
            width, height = whole(answer, "width", 1, 1 << 32), whole(answer, "height", 1, 1 << 32)
            needed = f"{subject} is {width}×{height} and needs {width * height}"
            return Refusal(limit_exceeded("image_pixels", limits.image_pixels, needed))
        case "image_damaged":
            return Refusal(DocumentInvalid(f"{thing} is an image that is damaged or cut short"))
        case "image_unknown":
            return Refusal(Unsupported(f"{thing} is no image of a known kind; use PNG, JPEG, GIF, WEBP, TIFF, BMP or AVIF"))
        case "image_foreign":
            name = answer.get("format")
            if name not in NAMED_FORMATS:
                raise WorkerGone
            return Refusal(Unsupported(f"{thing} is {name}, a kind of image that this host cannot read; convert it to PNG or JPEG"))
        case "image_rare":
            problem = "is a TIFF of a rare kind, which this host cannot read"
            return Refusal(Unsupported(f"{thing} {problem}; save it with 8 bits for each colour, or as PNG or JPEG"))
        case "image_outside":
            x, y, width, height = ask.rectangle
            right, bottom = whole(answer, "width", 1, 1 << 32), whole(answer, "height", 1, 1 << 32)
            return Refusal(
                BadCommand(
                    f"{command}: the rectangle {width}×{height} at ({x}, {y}) does not lie inside {thing}, "
                    f"which is {right}×{bottom}: the largest x is {right - 1}, the largest y {bottom - 1}"
                )
            )
        case "no_frame":
            frames = whole(answer, "frames", 1, MOST_FRAMES)
            count = "1 frame" if frames == 1 else f"{frames} frames"
            return Refusal(BadCommand(f"{command}: frame {ask.frame} is past the end; {thing} has {count} (the first is 0)"))
        case _:
            raise WorkerGone


def _about_password(ask: Ask) -> str:
    """What to do, and never the password."""
    how = '--password-env NAME, or password_env="NAME" in Python'
    if isinstance(ask.source, DocumentSource) and ask.source.password is not None:
        return f"and the one that was given does not open it; check the environment variable that is named with {how}"
    return f"and none was given; put it into an environment variable and name that: {how}"


def too_slow(ask: Ask, limits: Limits) -> CuttlefishError:
    """The error for a command that took longer than `document.time`."""
    return limit_exceeded("document_time_s", limits.document_time_s, f"{ask.subject} was not done by then ({ask.command})")


def too_much(ask: Ask, limits: Limits) -> CuttlefishError:
    """The error for a command that needed more than `document.memory`."""
    return limit_exceeded("document_memory_bytes", limits.document_memory_bytes, f"{ask.subject} needs more ({ask.command})")


def crashed(ask: Ask, code: int | None) -> CuttlefishError:
    """The error for a worker that died, by its exit code (None: it had to be ended)."""
    reason = "it did not keep to the rules" if code is None or code >= 0 else signal.Signals(-code).name
    return DocumentCrashed(
        f"{ask.command}: {ask.subject} crashed the process that read it ({reason}); other documents are not affected"
    )
