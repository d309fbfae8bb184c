"""The seam to a language model: what a model backend is given, what it gives back, and what it promises.

A backend is opened by `registry.open_backend` and closed by `aclose`; an embedder by `registry.open_embedder`. Everything
here is plain data but for `TokenMeter`, which a backend writes while the caller reads.
"""

import threading
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from cuttlefish_abi import TokenAction

__all__ = [
    "Backend",
    "Embedder",
    "Finish",
    "ImageInput",
    "Missing",
    "Prompt",
    "Reply",
    "ThreadSink",
    "TokenMeter",
    "TokenSink",
]


class TokenSink(Protocol):
    """Who is shown a reply."""

    def __call__(self, piece: str, /) -> Awaitable[TokenAction]:
        """Called with each piece of the reply, in order; the verdict says whether the model goes on."""


@runtime_checkable
class ThreadSink(Protocol):
    """What a `TokenSink` may be able to do beside: hear a piece in the thread that it comes from, without a way through Trio."""

    def hear(self, piece: str) -> TokenAction:
        """The same as awaiting the sink. From any thread but Trio's; it may block until the job is cancelled, and then raises."""


Finish = Literal["stop", "length", "stopped_by_block"]
"""Who ended a reply: the model (or one of `Prompt.stop`), a limit on tokens, or the sink's verdict. An error is an exception."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something without which a model cannot be opened, found without opening it."""

    reason: str
    """What is missing, as a sentence without a full stop."""
    hint: str | None = None
    """What to do about it, as a sentence without a full stop."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An encoded image (PNG, JPEG, …) as it stands in its file."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. The reply ends after `max_tokens` tokens or before the first `stop` text, whichever is first.

    `temperature` 0 takes the likeliest token each time. A `seed` makes the reply repeatable as far as the engine can: above
    temperature 0 it makes the choice, and the embedded engine then takes nothing over from earlier prompts, which could tip
    a close choice. Without a seed a prompt that begins like an earlier one is answered sooner.

    `schema` is a JSON Schema (draft 2020-12): the reply is JSON text that is valid for it.
    """

    text: str
    max_tokens: int
    images: tuple[ImageInput, ...] = ()
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None  # Any: a JSON Schema is any JSON object until it has been checked


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `text` may be empty."""

    text: str
    finish: Finish


@dataclass(slots=True)
class TokenMeter:
    """Tokens spent, in and out. True at every moment, so that failed, stopped and cancelled work counts too.

    It only goes upward, and one meter may serve several prompts, also side by side.
    """

    tokens_in: int = 0
    tokens_out: int = 0

    def add(self, tokens_in: int = 0, tokens_out: int = 0) -> None:
        """Count so many more. Any thread."""
        with _counting:
            self.tokens_in += tokens_in
            self.tokens_out += tokens_out


_counting = threading.Lock()


class Backend(Protocol):
    """A model that is ready to answer. Safe to use from several tasks at once."""

    @property
    def name(self) -> str:
        """The model as the user chose it; shown as `usage.model`."""

    @property
    def accepts_images(self) -> bool:
        """Whether `Prompt.images` may be used. True where a server does not say; it then refuses the prompt itself."""

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """Answer one prompt, showing each piece of the reply to `sink` as soon as it is there.

        Each piece is whole characters; joined, the pieces are `Reply.text` exactly. Nothing of a `stop` text is ever shown.
        The sink is awaited, or heard in a thread if it is a `ThreadSink`, one piece after the other. After it answers STOP
        nothing more is shown and nothing more is in the text; what the model had already made on top of it is counted and
        dropped.

        With `prompt.schema` the reply is valid JSON for it. The one exception is a reply that the sink stopped: it is what
        was shown, `finish` says so, and nothing more is promised of it.

        An exception from the sink ends generation and propagates unchanged. Cancelling stops the model before this
        returns. Either way the model serves the next prompt.

        Raises:
            BadCommand: `prompt.schema` is no JSON Schema, or takes more memory to apply than there is.
            InferenceFailed: the model could not finish, e.g. the prompt does not fit into its context, its server went
                away, or the reply is not valid for the schema (a reply that was cut by `max_tokens` says so).
            TimedOut: a server kept silent for too long, or the schema took too long to apply; the message says which wait it was.
            CuttlefishError: what judges the reply by its schema broke down (`internal`).
            ModelLoadFailed: the server has no such model any more, or refuses the key.
            Unsupported: images for a model that reads only text, or a schema for one that cannot keep to it.
        """

    async def aclose(self) -> None:
        """End running prompts with `InferenceFailed` and free the model. Calling it again does nothing.

        Not interrupted by cancellation: when it returns, no thread or process of the backend is left.
        """


class Embedder(Protocol):
    """A model that turns texts into vectors. Safe to use from several tasks at once."""

    @property
    def name(self) -> str:
        """The model as the user chose it."""

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        """One vector for each text, in order and all of one length. Texts of close meaning have vectors of close direction.

        Cancelling takes effect at the latest when the text being read is done.

        Raises:
            BadCommand: an empty text, which has no meaning to measure.
            InferenceFailed: a text is longer than the model reads at once (both numbers are named), or the model or its
                server broke off.
            TimedOut: a server kept silent for too long.
            ModelLoadFailed: the server has no such model any more, or refuses the key.
        """

    async def aclose(self) -> None:
        """Free the model. Calling it again does nothing. Not interrupted by cancellation."""
