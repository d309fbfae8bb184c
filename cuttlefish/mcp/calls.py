"""One call of a skill: checked, started, waited for, answered."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import mcp_types as t
import trio
from pydantic import JsonValue

from cuttlefish.background import background_tasks
from cuttlefish.errors import CuttlefishError
from cuttlefish.host import Host
from cuttlefish.jobs.turns import Client
from cuttlefish.mcp.checking import check_arguments
from cuttlefish.mcp.images import image_content
from cuttlefish.mcp.jobs_store import JobsStore, StoredJob
from cuttlefish.mcp.probes import probe_skill
from cuttlefish.mcp.results import compact_json, result_uri
from cuttlefish.mcp.skill import Availability, Ready, Skill, SkillSet, Unavailable
from cuttlefish.pipeline.violations import Violation
from cuttlefish_abi import JobStatus

__all__ = [
    "RUNNING",
    "Report",
    "Service",
    "answer_outcome",
    "answer_running",
    "answer_value",
    "answer_violations",
    "refuse",
    "start_skill",
    "wait_for_job",
]

Report = Callable[[float, str], Awaitable[None]]
"""Tells the client how far a call is: a number that rises, and a sentence."""

REPORT_EVERY_S = 0.25
ALIVE_EVERY_S = 15.0
"""A job that has nothing new to tell is told to be alive, because many clients give up on a silent call after a minute."""


@dataclass(frozen=True, slots=True)
class Service:
    """What one server works with."""

    host: Host
    skills: SkillSet
    store: JobsStore
    answer_within_s: float
    """How long a call waits for its job before it is answered with the job's id."""
    availability: dict[str, Availability] = field(default_factory=dict)
    """Of each skill, as it was last looked at."""
    ending: trio.Event = field(default_factory=trio.Event)
    """Set when the client sends no more: its calls are then waited for, as nobody could ask for a job later."""

    async def probe(self) -> None:
        """Look at what each skill needs, all at once."""

        async def probe(skill: Skill) -> None:
            self.availability[skill.name] = await probe_skill(skill)

        async with trio.open_nursery() as nursery:
            for skill in self.skills.skills.values():
                nursery.start_soon(probe, skill)


async def start_skill(
    service: Service, skill: Skill, arguments: Mapping[str, JsonValue], client: Client
) -> StoredJob | t.CallToolResult:
    """Start a job of the skill, or answer why there is none: arguments that do not fit, something that is missing here, no room.

    What the skill needs is looked at unless the service knows it to be there.
    """
    try:
        checked = await trio.to_thread.run_sync(check_arguments, skill, arguments)
    except CuttlefishError as error:
        return refuse(error.code, error.message)
    if checked.violations:
        return answer_violations(checked.violations)
    availability = service.availability.get(skill.name)
    if not isinstance(availability, Ready):
        # It may have come since: a model that was fetched, a program that was installed.
        availability = await probe_skill(skill)
        if skill.name in service.availability:
            service.availability[skill.name] = availability
    if isinstance(availability, Unavailable):
        told: dict[str, JsonValue] = {"reason": availability.reason}
        told |= {"hint": availability.hint} if availability.hint else {}
        return answer_value({"unavailable": told}, is_error=True)
    if not service.store.has_room(client):
        return refuse("limit_exceeded", "too many of your jobs wait already; ask again when some are done (jobs_list shows them)")
    return service.store.add(skill.name, skill.start(checked.values, client), client)


async def wait_for_job(
    stored: StoredJob, within_s: float, report: Report | None, closed: trio.Event | None, *, owned: bool = True
) -> bool:
    """Wait for the job's outcome, telling how far it is; return whether it is there.

    If the wait is cancelled, or `closed` says that nobody listens any more, so is the job if it is `owned` by this call.
    """

    async def stop_when_closed(closed: trio.Event) -> None:
        await closed.wait()
        stored.cancel()

    waited = False
    try:
        async with background_tasks() as tasks:
            if closed is not None and owned:
                tasks.start_soon(stop_when_closed, closed)
            with trio.move_on_after(within_s):
                await (_report_until_over(stored, report) if report is not None else stored.over.wait())
        waited = True
    finally:
        if not waited and owned:
            stored.cancel()
    return stored.over.is_set()


async def _report_until_over(stored: StoredJob, report: Report) -> None:
    number, told, told_at = 0, "", trio.current_time()
    while not stored.over.is_set():
        state = stored.state()
        if state != told or trio.current_time() - told_at >= ALIVE_EVERY_S:
            number, told, told_at = max(number + 1, stored.tokens + stored.reports), state, trio.current_time()
            await report(number, state)
        with trio.move_on_after(REPORT_EVERY_S):
            await stored.over.wait()


def answer_outcome(stored: StoredJob, protocol_version: str) -> t.CallToolResult:
    """The Envelope of a job that is over, and its images; an error if it did not complete."""
    outcome = stored.outcome
    assert outcome is not None
    content: list[t.ContentBlock] = [t.TextContent(type="text", text=compact_json(outcome.answer))]
    links = protocol_version >= "2025-06-18"  # older clients know no such content; the text names it too
    if outcome.is_cut and links:
        link = t.ResourceLink(
            type="resource_link",
            name=f"{stored.tool}-{stored.id}.json",
            uri=result_uri(stored.id),
            description="The whole Envelope",
            mime_type="application/json",
            size=len(outcome.text),
        )
        content.append(link)
    content += image_content(stored.id, outcome.images, links=links)
    return t.CallToolResult(content=content, structured_content=outcome.answer, is_error=outcome.status is not JobStatus.COMPLETED)


def answer_running(stored: StoredJob) -> t.CallToolResult:
    """In place of an outcome that takes longer: where the job stands, and how to go on."""
    value: dict[str, JsonValue] = {
        "status": str(stored.status),
        "job_id": stored.id,
        "state": stored.state(),
        "next": f'The job goes on. Call job_result with {{"job_id":"{stored.id}"}} for its outcome; job_cancel ends it.',
    }
    return answer_value(value)


RUNNING: dict[str, JsonValue] = {
    "type": "object",
    "description": "In place of an Envelope, when the job takes longer: it goes on, and job_result gives its outcome.",
    "properties": {
        "status": {"enum": ["queued", "running"]},
        "job_id": {"type": "string"},
        "state": {"type": "string"},
        "next": {"type": "string"},
    },
    "required": ["status", "job_id", "state", "next"],
}
"""The schema of what `answer_running` answers."""


def answer_violations(violations: Sequence[Violation]) -> t.CallToolResult:
    """Arguments that do not fit, each with its place and what would."""
    return answer_value({"validation_failed": [violation.as_json() for violation in violations]}, is_error=True)


def refuse(code: str, message: str) -> t.CallToolResult:
    """Something that the agent can mend or wait for."""
    return answer_value({"error": {"code": code, "message": message}}, is_error=True)


def answer_value(value: dict[str, JsonValue], *, is_error: bool = False) -> t.CallToolResult:
    """A value, structured and as text."""
    text = t.TextContent(type="text", text=compact_json(value))
    return t.CallToolResult(content=[text], structured_content=value, is_error=is_error)
