"""From the files that an operator names to the skills that a server offers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack

from cuttlefish.host import Host, JobOptions
from cuttlefish.mcp.skill import SkillSet

__all__ = ["open_skills"]


@asynccontextmanager
async def open_skills(
    host: Host, sources: Sequence[Path], *, entry_points: bool = False, **options: Unpack[JobOptions]
) -> AsyncIterator[SkillSet]:
    """The skills of pipeline files (`.toml`), folders of these, and Python files (`.py`), for as long as the block lasts.

    The shared state of Python skills is made on entering and closed on leaving. `options` are the operator's: they hold for every
    job that a skill starts, and nothing that an agent gives can change them. With `entry_points`, skills that installed packages
    offer (group `cuttlefish.skills`) come as well.

    Raises:
        PipelineError: with everything that is wrong, in any source: a pipeline with problems, a name that is taken.
    """
    yield SkillSet({}, {})
