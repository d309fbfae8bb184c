"""An Envelope as the answer to a call: never larger than a client can bear, and readable by one that has no large integers."""

import json
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from cuttlefish.jobs.result_images import ResultImage
from cuttlefish.mcp.large_numbers import write_large_numbers
from cuttlefish_abi import Envelope, JobStatus

__all__ = ["MOST_ANSWER_BYTES", "Outcome", "compact_json", "image_uri", "result_uri", "write_outcome"]

MOST_ANSWER_BYTES = 256 << 10
"""Of an answer's two copies of the Envelope together: the structured one, and the one written as text."""
PREVIEW_CHARS = 2_000
SCHEME = "cuttlefish://jobs/"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job, ready to be told."""

    status: JobStatus
    text: bytes
    """The whole Envelope as compact JSON."""
    answer: dict[str, JsonValue]
    """The Envelope as it is told: with a reference and a preview where the result is too large."""
    is_cut: bool
    """Whether the answer leaves something out."""
    images: tuple[ResultImage, ...] = ()
    """Those that the result names."""

    @property
    def size_bytes(self) -> int:
        """What is kept to be read later."""
        return len(self.text) + sum(len(image.data) for image in self.images)


def result_uri(job_id: str) -> str:
    """Where the whole outcome of a job can be read."""
    return f"{SCHEME}{job_id}/result"


def image_uri(job_id: str, number: int | str) -> str:
    """Where an image of its result can be read, counted from zero."""
    return f"{SCHEME}{job_id}/images/{number}"


def compact_json(value: object) -> str:
    """JSON without spaces, of text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_outcome(envelope: Envelope, job_id: str, images: tuple[ResultImage, ...] = ()) -> Outcome:
    """Write an Envelope for agents. Blocking: a large one takes its time.

    Whole numbers beyond 2^53 are written as strings. What is larger than `MOST_ANSWER_BYTES` is replaced in the answer by
    `{"resource", "size_bytes", "preview"}`, or cut if it is a message; `text` always has all of it.
    """
    told = cast("dict[str, JsonValue]", write_large_numbers(envelope.model_dump(mode="json")))
    text = compact_json(told)
    data = text.encode()
    if _answer_bytes(text, data) <= MOST_ANSWER_BYTES:
        return Outcome(envelope.status, data, told, is_cut=False, images=images)
    if "result" in told:
        result = compact_json(told["result"])
        told["result"] = {"resource": result_uri(job_id), "size_bytes": len(result.encode()), "preview": result[:PREVIEW_CHARS]}
    elif envelope.error is not None:
        rest = f" … (all of it: {result_uri(job_id)})"
        told["error"] = {"code": envelope.error.code[:200], "message": envelope.error.message[:PREVIEW_CHARS] + rest}
    return Outcome(envelope.status, data, told, is_cut=True, images=images)


def _answer_bytes(text: str, data: bytes) -> int:
    if len(data) > MOST_ANSWER_BYTES:
        return len(data)
    return len(data) + len(compact_json(text).encode())
