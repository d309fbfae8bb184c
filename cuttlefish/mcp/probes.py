"""What a skill needs of this machine, and whether it is here: models, engines, folders, programs.

Its blocks are no part of this: they were loaded when it was, and each job checks them again.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import trio

from cuttlefish.inference.registry import find_missing
from cuttlefish.mcp.skill import Availability, Ready, Skill, Unavailable
from cuttlefish.pipeline.settings import grant_problem

__all__ = ["Needs", "probe_needs", "probe_skill"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be here."""

    models: tuple[str, ...] = ()
    """`provider:target` each."""
    local_only: bool = True
    """Whether models must be on this machine."""
    read: tuple[Path, ...] = ()
    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Environment variables."""


async def probe_skill(skill: Skill) -> Availability:
    """Whether a skill can be used now. What its family lacks is told before what it lacks itself."""
    if skill.family is not None and isinstance(shared := await skill.family.probe(), Unavailable):
        return shared
    return await skill.probe()


async def probe_needs(needs: Needs) -> Availability:
    """Whether everything is here; else the first thing that is not. Nothing is asked of other machines, and no model is loaded.

    A server of models is looked for on this machine only, where its address needs no name service: one second at most.
    """
    for program in needs.programs:
        if await trio.to_thread.run_sync(shutil.which, program) is None:
            return Unavailable(f'the program "{program}" is not installed', f'Install it so that "{program}" is found on the PATH')
    for variable in needs.variables:
        if variable not in os.environ:
            return Unavailable(f"the environment variable {variable} is not set", "Set it where the server is started")
    for path in needs.read:
        if (wrong := await trio.to_thread.run_sync(grant_problem, path)) is not None:
            return Unavailable(f'"{path}" {wrong}', "Make it readable for the server")
    for model in needs.models:
        if (missing := await find_missing(model, local_only=needs.local_only)) is not None:
            return Unavailable(missing.reason, missing.hint)
    return Ready()
