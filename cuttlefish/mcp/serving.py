"""From skills to a server that is ready for its first client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
from cuttlefish.mcp.skill import SkillSet

__all__ = ["AgentServer", "open_server"]


@dataclass(frozen=True, slots=True)
class AgentServer:
    """What a transport runs."""

    server: Server[Any]
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
        yield AgentServer(
            make_server(service, audit, composer, await trio.to_thread.run_sync(version, "cuttlefish")), service.ending
        )
