"""What a skill or a family is, in plain text for an agent that asks."""

import json
from collections.abc import Iterator, Sequence

from cuttlefish.mcp.large_numbers import with_large_numbers
from cuttlefish.mcp.skill import Availability, Example, Family, Skill, Unavailable

__all__ = ["describe_availability", "describe_family", "describe_skill"]

MOST_EXAMPLES = 10
MOST_EXAMPLE_CHARS = 2_000


def describe_skill(skill: Skill, availability: Availability) -> str:
    """All there is to know of a skill: description, use cases, examples, rules, schema, and whether it can be used now."""
    parts = [f"{skill.name}\n{skill.description}", describe_availability(availability)]
    if skill.family is not None:
        parts.append(f"Family: {skill.family.name}")
    if skill.use_cases:
        parts.append("Use it:\n" + "\n".join(f"- {use_case}" for use_case in skill.use_cases))
    if skill.examples:
        left = len(skill.examples) - MOST_EXAMPLES
        more = [f"({left} more)"] if left > 0 else []
        parts.append("\n".join(["Examples:", *map(_example, skill.examples[:MOST_EXAMPLES]), *more]))
    if skill.rules:
        parts.append("Rules, looked at before it runs:\n" + "\n".join(f"- {line}" for line in _rules(skill)))
    parts.append("Arguments (JSON Schema):\n" + json.dumps(with_large_numbers(skill.input_schema), indent=2, ensure_ascii=False))
    parts.append("Result (JSON Schema):\n" + json.dumps(skill.result_schema, indent=2, ensure_ascii=False))
    return "\n\n".join(parts) + "\n"


def describe_family(family: Family, skills: Sequence[tuple[Skill, Availability]], availability: Availability) -> str:
    """What a family is for, its skills in one line each, and whether they can be used now."""
    lines = []
    for skill, own in skills:
        first = skill.description.partition("\n")[0]
        state = f" ({describe_availability(own)})" if isinstance(own, Unavailable) and own != availability else ""
        lines.append(f"- {skill.name}: {first}{state}")
    told = "\n".join(["Skills:", *lines]) if lines else "It has no skills here."
    return "\n\n".join([f"{family.name}\n{family.description}", describe_availability(availability), told]) + "\n"


def describe_availability(availability: Availability) -> str:
    """The line that says whether something can be used now: `Ready.`, or why not and what the operator can do."""
    if isinstance(availability, Unavailable):
        return f"Unavailable: {availability.told()}"
    return "Ready."


def _example(example: Example) -> str:
    arguments = json.dumps(dict(example.arguments), ensure_ascii=False)
    if len(arguments) > MOST_EXAMPLE_CHARS:
        arguments = arguments[:MOST_EXAMPLE_CHARS] + "…"
    note = f"\n  {example.note}" if example.note else ""
    return f"- {example.title}: {arguments}{note}"


def _rules(skill: Skill) -> Iterator[str]:
    for rule in skill.rules:
        yield rule.describe() + (f" ({rule.message})" if rule.message else "")
