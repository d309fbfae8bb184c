"""What a block answers to a piece of the model's reply."""

from enum import Enum

__all__ = ["TokenAction"]


class TokenAction(Enum):
    """The verdict of `cf_on_token`: 0 goes on, anything else stops the model."""

    CONTINUE = 0
    STOP = 1
