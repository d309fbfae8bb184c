"""What a skill needs of this machine, and whether it is here: models, engines, folders, programs.

Its blocks are no part of this: they were loaded when it was, and each job checks them again.
"""

import logging
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import trio

from cuttlefish.inference.registry import find_missing
from cuttlefish.mcp.skill import Availability, Family, Probe, Ready, Skill, Unavailable
from cuttlefish.pipeline.settings import grant_problem

__all__ = ["Needs", "probe_family", "probe_needs", "probe_skill"]

PROBE_S = 30

_log = logging.getLogger(__name__)


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
    if skill.family is not None and isinstance(shared := await probe_family(skill.family), Unavailable):
        return shared
    return await _told_by(skill.probe, f'skill "{skill.name}"')


async def probe_family(family: Family) -> Availability:
    """Whether what the skills of a family share is here."""
    return await _told_by(family.probe, f'family "{family.name}"')


async def _told_by(probe: Probe, what: str) -> Availability:
    """What a probe says. One that breaks or hangs, which may be the operator's own, makes nothing else unavailable."""
    found: object = None
    try:
        with trio.move_on_after(PROBE_S) as time:
            found = await probe()
        if time.cancelled_caught:
            return Unavailable(f"the probe of {what} has not answered within {PROBE_S} seconds")
        if not isinstance(found, Ready | Unavailable):
            raise TypeError(f"a probe gives Ready or Unavailable, not {type(found).__name__}")
    except Exception as error:  # noqa: BLE001  # whatever the operator's own code raises
        reference = secrets.token_hex(4)
        _log.error("the probe of %s broke: %s", what, reference, exc_info=error)
        return Unavailable(f"the probe of {what} broke, which is a fault in its code", f"The log says more under {reference}")
    return found


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
