"""Whether a skill may be started with some arguments: their shape by its JSON Schema, then its rules."""

from collections.abc import Mapping

from pydantic import JsonValue

from cuttlefish.mcp.skill import Skill
from cuttlefish.pipeline.rules import Violation

__all__ = ["Violation", "check_arguments"]


def check_arguments(skill: Skill, arguments: Mapping[str, JsonValue]) -> list[Violation]:
    """Everything that is wrong with the arguments; nothing if the skill may be started with them.

    Blocking: call it in a thread. `[v.as_json() for v in …]` is what an answer holds under `validation_failed`.

    Raises:
        CuttlefishError: a custom rule broke (code `internal`).
    """
    raise NotImplementedError
