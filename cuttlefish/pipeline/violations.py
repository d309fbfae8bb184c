"""What is wrong with arguments, as people and programs are told it."""

from dataclasses import dataclass

from pydantic import JsonValue

from cuttlefish_abi.strict_json import clip, show

__all__ = ["Violation", "shorten"]

MOST_GOT_CHARS = 200


@dataclass(frozen=True, slots=True)
class Violation:
    """One argument, or several together, that cannot be accepted."""

    field: str
    """Its path, such as `config.timeout` or `pages[2]`; several with commas between them; empty for the arguments as a whole."""
    rule: str
    """The word of the rule, or the keyword of JSON Schema, that it breaks."""
    message: str
    expected: JsonValue
    """What would be accepted, for programs: `{"min": 100, "max": 599}`."""
    got: JsonValue = None
    """What was given, cut short."""
    has_got: bool = False
    """Whether there is a `got`: null may have been given too."""

    def as_json(self) -> dict[str, JsonValue]:
        """As an answer holds it."""
        told: dict[str, JsonValue] = {
            "field": self.field,
            "rule": self.rule,
            "message": self.message,
            "expected": self.expected,
        }
        return told | {"got": self.got} if self.has_got else told


def shorten(value: JsonValue) -> JsonValue:
    """A value as it may be repeated in an answer: small ones as they are, others as the beginning of their JSON."""
    if isinstance(value, bool | None) or (isinstance(value, int | float) and abs(value) < 2**53):
        return value
    return clip(value, MOST_GOT_CHARS) if isinstance(value, str) else show(value, MOST_GOT_CHARS)
