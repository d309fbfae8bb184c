"""What a skill needs of this machine, and whether it is here: models, engines, folders, programs, blocks."""

from cuttlefish.mcp.skill import Availability, Skill

__all__ = ["probe_skill"]


async def probe_skill(skill: Skill) -> Availability:
    """Whether a skill can be used now. What its family lacks is told before what it lacks itself."""
    raise NotImplementedError
