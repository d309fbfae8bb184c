"""The tools that every server has beside its skills: what skills there are in full, and the jobs that run or ran."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

import mcp_types as t
import trio
from pydantic import JsonValue

from cuttlefish.jobs.turns import Client
from cuttlefish.mcp.calls import Report, Service, answer_outcome, answer_running, answer_value, answer_violations, wait_for_job
from cuttlefish.mcp.describe import describe_family, describe_skill
from cuttlefish.mcp.jobs_store import StoredJob
from cuttlefish.mcp.probes import probe_family
from cuttlefish.mcp.results import result_uri
from cuttlefish.pipeline.violations import Violation
from cuttlefish_abi import JobStatus
from cuttlefish_abi.strict_json import suggest

__all__ = ["SERVER_TOOLS", "Call", "ServerTool"]

MOST_LISTED = 100
MOST_WAIT_S = 300
WINDOW_BYTES = 64 << 10
CANCEL_S = 5.0
"""How long job_cancel waits to see the job end: some milliseconds are usual."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool of the server gets."""

    service: Service
    arguments: Mapping[str, JsonValue]
    """As its schema demands."""
    client: Client
    protocol_version: str
    report: Report | None
    """Set when the client wants to be told of progress."""


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of the server itself."""

    name: str
    description: str
    properties: Mapping[str, dict[str, JsonValue]]
    required: tuple[str, ...]
    run: Callable[[Call], Awaitable[t.CallToolResult | StoredJob]]
    """Gives an answer, or a job that was started, whose outcome is the answer."""
    changes: bool = False

    def listed(self) -> t.Tool:
        """As tools/list shows it."""
        return t.Tool(
            name=self.name,
            description=self.description,
            input_schema=self.input_schema(),
            annotations=t.ToolAnnotations(
                read_only_hint=not self.changes, destructive_hint=self.changes, idempotent_hint=True, open_world_hint=False
            ),
        )

    def input_schema(self) -> dict[str, JsonValue]:
        """JSON Schema of its arguments."""
        schema: dict[str, JsonValue] = {"type": "object", "properties": dict(self.properties), "additionalProperties": False}
        return schema | {"required": list(self.required)} if self.required else schema


JOB_ID: dict[str, JsonValue] = {"type": "string", "description": "The id that a call was answered with, or that jobs_list shows."}


async def _describe_skill(call: Call) -> t.CallToolResult:
    name = cast("str", call.arguments["skill"])
    skills = call.service.skills.skills
    if name not in skills:
        return _unknown("skill", name, list(skills))
    return _text(describe_skill(skills[name], call.service.availability[name]))


async def _describe_family(call: Call) -> t.CallToolResult:
    name = cast("str", call.arguments["family"])
    families = call.service.skills.families
    if name not in families:
        return _unknown("family", name, list(families))
    family = families[name]
    availability = call.service.availability
    members = [(skill, availability[skill.name]) for skill in call.service.skills.skills.values() if skill.family is family]
    return _text(describe_family(family, members, await probe_family(family)))


def _unknown(what: str, name: str, known: list[str]) -> t.CallToolResult:
    message = f'there is no {what} "{name[:100]}"; {suggest(name, known)}' if known else f"this server has no {what} at all"
    return answer_violations([Violation(what, "one_of", message, {"one_of": cast("JsonValue", known)}, name[:100], has_got=True)])


def _text(text: str) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(type="text", text=text)])


def _find(call: Call) -> StoredJob | t.CallToolResult:
    id = cast("str", call.arguments["job_id"])
    stored = call.service.store.get(id)
    if stored is None:
        message = "there is no such job: jobs are remembered while the server runs, the newest 1,000 of them; jobs_list shows them"
        return answer_violations([Violation("job_id", "one_of", message, None, id[:100], has_got=True)])
    return stored


async def _job_status(call: Call) -> t.CallToolResult:
    found = _find(call)
    return found if isinstance(found, t.CallToolResult) else answer_value(_status(found))


def _status(stored: StoredJob) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {
        "job_id": stored.id,
        "tool": stored.tool,
        "status": str(stored.status),
        "state": stored.state(),
        "started_at": stored.started_at.isoformat(timespec="milliseconds"),
        "changed_at": stored.changed_at.isoformat(timespec="milliseconds"),
    }
    return told | {"result": result_uri(stored.id), "size_bytes": len(stored.outcome.text)} if stored.outcome else told


async def _job_result(call: Call) -> t.CallToolResult:
    found = _find(call)
    if isinstance(found, t.CallToolResult):
        return found
    wait_s = min(cast("float", call.arguments.get("wait_s", 30)), call.service.answer_within_s)
    if not await wait_for_job(found, wait_s, call.report, None, owned=False):
        return answer_running(found)
    assert found.outcome is not None
    if "offset" not in call.arguments:
        return answer_outcome(found, call.protocol_version)
    return _window(found.outcome.text, cast("int", call.arguments["offset"]))


def _window(text: bytes, offset: int) -> t.CallToolResult:
    """A part of the outcome as text, from a character's start to a character's start."""
    start = min(offset, len(text))
    while start < len(text) and text[start] & 0xC0 == 0x80:
        start -= 1
    end = min(start + WINDOW_BYTES, len(text))
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end -= 1
    return answer_value(
        {
            "text": text[start:end].decode(),
            "offset": start,
            "next_offset": end if end < len(text) else None,
            "size_bytes": len(text),
        }
    )


async def _job_cancel(call: Call) -> t.CallToolResult:
    found = _find(call)
    if isinstance(found, t.CallToolResult):
        return found
    found.cancel()
    with trio.move_on_after(CANCEL_S):
        await found.over.wait()
    return answer_value(_status(found))


async def _jobs_list(call: Call) -> t.CallToolResult:
    wanted = call.arguments.get("status")
    found = [stored for stored in reversed(call.service.store.all()) if wanted in (None, stored.status)]
    told: dict[str, JsonValue] = {"jobs": [_status(stored) for stored in found[:MOST_LISTED]]}
    return answer_value(told | {"left_out": len(found) - MOST_LISTED} if len(found) > MOST_LISTED else told)


SERVER_TOOLS = {
    tool.name: tool
    for tool in (
        ServerTool(
            "describe_skill",
            "Explains one of the tools here in full: when to use it, examples of calls, the rules for its arguments, and whether "
            "it can be used on this machine now. Read it before the first call of a tool that you do not know.",
            {"skill": {"type": "string", "description": "The tool's name."}},
            ("skill",),
            _describe_skill,
        ),
        ServerTool(
            "describe_family",
            "Explains a group of tools that belong together, and whether what they share is there.",
            {"family": {"type": "string", "description": "The family's name, as describe_skill tells it."}},
            ("family",),
            _describe_family,
        ),
        ServerTool(
            "job_status",
            "Tells where a job stands: waiting (and how many are ahead), running (and how far), or how it ended.",
            {"job_id": JOB_ID},
            ("job_id",),
            _job_status,
        ),
        ServerTool(
            "job_result",
            "Waits for a job and gives its outcome. If the job takes longer than the wait, it goes on: call again. With an offset, "
            "gives a part of a large outcome as text; next_offset leads to the next part.",
            {
                "job_id": JOB_ID,
                "wait_s": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": MOST_WAIT_S,
                    "description": "How many seconds to wait at most, 30 unless given.",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 2**53 - 1,
                    "description": "The byte of the outcome's JSON to read from.",
                },
            },
            ("job_id",),
            _job_result,
        ),
        ServerTool(
            "job_cancel",
            "Ends a job. Its model and its readers stop at once.",
            {"job_id": JOB_ID},
            ("job_id",),
            _job_cancel,
            changes=True,
        ),
        ServerTool(
            "jobs_list",
            "Shows the jobs that run or ran since the server started, the newest first.",
            {"status": {"type": "string", "enum": [str(s) for s in JobStatus if s != "interrupted"], "description": "Only these."}},
            (),
            _jobs_list,
        ),
    )
}
