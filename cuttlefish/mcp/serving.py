"""From skills to a server that is ready for its first client."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trio
from mcp.server import Server

from cuttlefish.host import Host, JobOptions
from cuttlefish.mcp.audit import AuditLog
from cuttlefish.mcp.calls import Service
from cuttlefish.mcp.composed import Composer
from cuttlefish.mcp.jobs_store import open_jobs_store
from cuttlefish.mcp.server import make_server
from cuttlefish.mcp.skill import SkillSet, Unavailable
from cuttlefish.mcp.tools import SERVER_TOOLS

__all__ = ["AgentServer", "open_server"]

MOST_TOOLS = 64
"""That every client takes."""


@dataclass(frozen=True, slots=True)
class AgentServer:
    """What a transport runs."""

    server: Server[Any]
    warnings: Sequence[str]
    """What whoever starts it should know, a sentence each: tools that cannot be used now, more of them than clients take."""
    ending: trio.Event
    """For a transport of one client to set when that one sends no more."""


@asynccontextmanager
async def open_server(
    host: Host,
    skills: SkillSet,
    *,
    audit_file: Path,
    answer_within_s: float,
    composed: JobOptions | None = None,
) -> AsyncIterator[AgentServer]:
    """A server of these skills, for as long as the block lasts, for one of the transports to run.

    `answer_within_s` is how long a call waits for its job before it is answered with the job's id. `composed` are the options of
    pipelines that agents write themselves; without them none can be.

    Raises:
        OSError: the audit log cannot be written.
    """
    composer = Composer(composed) if composed is not None else None
    audit = AuditLog(audit_file)
    await trio.to_thread.run_sync(audit.open)
    async with open_jobs_store() as store:
        service = Service(host, skills, store, answer_within_s)
        await service.probe()
        server = make_server(service, audit, composer, await trio.to_thread.run_sync(version, "cuttlefish"))
        tools = len(skills.skills) + len(SERVER_TOOLS) + (composer is not None)
        yield AgentServer(server, list(_warnings(service, tools)), service.ending)


def _warnings(service: Service, tools: int) -> Iterator[str]:
    yield from (str(replace(problem, is_warning=False)) for problem in service.skills.warnings)
    for name in service.skills.skills:
        if isinstance(availability := service.availability[name], Unavailable):
            yield f"{name} cannot be used now: {availability.told()}"
    if tools > MOST_TOOLS:
        yield f"there are {tools} tools, and many clients take no more than {MOST_TOOLS}; share the skills among several servers"
