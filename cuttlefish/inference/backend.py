"""The seam to a language model: what a model backend is given, what it gives back, and what it promises.

A backend is opened by `registry.open_backend` and closed by `aclose`. Everything here is plain data but for `TokenMeter`,
which a backend writes while the caller reads.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from cuttlefish_abi import TokenAction

__all__ = ["Backend", "ImageInput", "Prompt", "Reply", "TokenMeter", "TokenSink"]

TokenSink = Callable[[str], Awaitable[TokenAction]]
"""Called with each piece of the reply, in order; its verdict says whether the model goes on."""


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An encoded image (PNG, JPEG, …) as it stands in its file."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. The reply ends after `max_tokens` tokens or before the first `stop` text, whichever is first.

    `temperature` 0 takes the likeliest token each time; above 0, `seed` makes the choice repeatable.
    """

    text: str
    max_tokens: int
    images: tuple[ImageInput, ...] = ()
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `text` may be empty; `finish` says who ended it: the model, `max_tokens`, or the sink's verdict."""

    text: str
    finish: Literal["stop", "length", "stopped_by_block"]


@dataclass(slots=True)
class TokenMeter:
    """Tokens spent, in and out. True at every moment, so that failed, stopped and cancelled work counts too.

    Written only from Trio's thread, and only upward: one meter may serve several prompts, also side by side.
    """

    tokens_in: int = 0
    tokens_out: int = 0


class Backend(Protocol):
    """A model that is ready to answer. Safe to use from several tasks at once."""

    @property
    def name(self) -> str:
        """The model as the user chose it; shown as `usage.model`."""

    @property
    def accepts_images(self) -> bool:
        """Whether `Prompt.images` may be used."""

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """Answer one prompt, showing each piece of the reply to `sink` as soon as it is there.

        Each piece is whole characters; joined, the pieces are `Reply.text` exactly. The sink is awaited, one piece after
        the other. After it answers STOP nothing more is shown and nothing more is in the text; what the model had
        already made on top of it is counted and dropped.

        An exception from the sink ends generation and propagates unchanged. Cancelling stops the model before this
        returns. Either way the model serves the next prompt.

        Raises:
            InferenceFailed: the model could not finish, e.g. the prompt does not fit into its context.
            Unsupported: images for a model that reads only text.
        """

    async def aclose(self) -> None:
        """End running prompts with `InferenceFailed` and free the model. Calling it again does nothing.

        Not interrupted by cancellation: when it returns, no thread or process of the backend is left.
        """
