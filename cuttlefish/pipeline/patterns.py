"""Patterns that are tried on what an agent sends, by an engine that no text can make slow."""

from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from cuttlefish_abi.strict_json import show

__all__ = ["MOST_SUBJECT_CHARS", "check_pattern", "matches"]

MOST_SUBJECT_CHARS = 16_384
"""Of a text that a pattern is tried on: the engine's time grows with the text's length times the pattern's."""

MOST_PATTERN_CHARS = 1_000


def check_pattern(pattern: str) -> str:
    """The pattern, if it can be used.

    Raises:
        ValueError: it is too long, or none that the engine knows; the message says why.
    """
    if len(pattern) > MOST_PATTERN_CHARS:
        raise ValueError(f"pattern may have {MOST_PATTERN_CHARS} characters, found {len(pattern)}")
    try:
        _compiled(pattern)
    except SchemaError as error:
        lines = str(error).splitlines()
        reason = next((line.partition("error: ")[2] for line in lines if line.startswith("error: ")), "it is too large")
        raise ValueError(f"pattern {show(pattern)} cannot be used: {reason}") from None
    return pattern


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> SchemaValidator:
    """The pattern for the engine that comes with pydantic (Rust's): its time is linear in the text, whatever the pattern."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern is found in the text. False for a text that is too long to be tried."""
    if len(text) > MOST_SUBJECT_CHARS:
        return False
    try:
        _compiled(pattern).validate_python(text)
    except ValidationError:
        return False
    return True
