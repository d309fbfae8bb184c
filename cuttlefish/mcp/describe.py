"""What a skill or a family is, in plain text for an agent that asks."""

from collections.abc import Sequence

from cuttlefish.mcp.skill import Availability, Family, Skill

__all__ = ["describe_family", "describe_skill"]


def describe_skill(skill: Skill, availability: Availability) -> str:
    """All there is to know of a skill: description, use cases, examples, rules, schema, and whether it can be used now."""
    raise NotImplementedError


def describe_family(family: Family, skills: Sequence[tuple[Skill, Availability]], availability: Availability) -> str:
    """What a family is for, its skills in one line each, and whether they can be used now."""
    raise NotImplementedError
