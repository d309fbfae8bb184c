"""The server as the SDK runs it: lists, calls, resources; each call audited, no error without its words."""

import base64
import logging
import math
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any, cast

import mcp_types as t
import trio
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult
from pydantic import JsonValue, ValidationError

from cuttlefish.mcp.audit import AuditLog
from cuttlefish.mcp.calls import (
    RUNNING,
    Report,
    Service,
    answer_outcome,
    answer_running,
    answer_violations,
    refuse,
    start_skill,
    wait_for_job,
)
from cuttlefish.mcp.checking import check_shape
from cuttlefish.mcp.clients import Context, client_name, client_of
from cuttlefish.mcp.composed import Composer
from cuttlefish.mcp.jobs_store import StoredJob
from cuttlefish.mcp.large_numbers import with_large_numbers
from cuttlefish.mcp.results import Outcome, image_uri, result_uri
from cuttlefish.mcp.skill import Availability, Skill, Unavailable
from cuttlefish.mcp.tasks import TASK_AFTER_S, add_tasks, declares_tasks, new_task
from cuttlefish.mcp.tools import SERVER_TOOLS, Call
from cuttlefish_abi.strict_json import suggest

__all__ = ["CLOSED", "make_server"]

CLOSED = "cuttlefish.closed"
"""In the scope of an HTTP request: a `trio.Event` that is set when its client is gone."""

MOST_DESCRIPTION_CHARS = 4_096
LIST_TTL_MS = 60_000
RESOURCE = re.compile(r"cuttlefish://jobs/([0-9a-f]{1,64})/(?:result|images/([0-9]{1,9}))")
OPERATIONS = {"tools/call", "resources/read", "tasks/get", "tasks/cancel", "tasks/update"}

INSTRUCTIONS = (
    "Each tool here hands a whole job to this machine: it reads documents, asks a language model, answers with one Envelope: "
    '{"status", "result" or "error", "usage"}. Give paths of files, never their content. A call that takes long is answered with a '
    "job_id: call job_result for its outcome. Arguments that do not fit are answered with validation_failed, which names each "
    "field and what would fit. Whole numbers beyond 2^53 are strings of digits, in answers and arguments. describe_skill explains "
    "a tool with examples."
)

_log = logging.getLogger(__name__)


def make_server(service: Service, audit: AuditLog, composer: Composer | None, version: str) -> Server[Any]:
    """A server of these skills, for any number of clients at once. `composer`, if given, runs pipelines that agents write."""

    async def list_tools(ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
        tools = [_listed(skill, service.availability[skill.name]) for skill in service.skills.skills.values()]
        tools += [tool.listed() for tool in SERVER_TOOLS.values()]
        tools += [composer.tool.listed()] if composer else []
        return t.ListToolsResult(tools=tools, ttl_ms=LIST_TTL_MS, cache_scope="private")

    async def call_tool(ctx: Context, params: t.CallToolRequestParams) -> t.CallToolResult | dict[str, Any]:
        arguments = cast("Mapping[str, JsonValue]", params.arguments or {})
        skill = service.skills.skills.get(params.name)
        if skill is not None:
            return await _answer(service, ctx, await start_skill(service, skill, arguments, client_of(ctx)))
        tool = composer.tool if composer and params.name == composer.tool.name else SERVER_TOOLS.get(params.name)
        if tool is None:
            known = [*service.skills.skills, *SERVER_TOOLS, *([composer.tool.name] if composer else [])]
            raise MCPError(t.INVALID_PARAMS, f'unknown tool "{params.name[:100]}"; {suggest(params.name, known)}')
        checked = await trio.to_thread.run_sync(check_shape, tool.input_schema(), arguments)
        if checked.violations:
            return answer_violations(checked.violations)
        call = Call(service, checked.values, client_of(ctx), ctx.protocol_version, _report(ctx))
        return await _answer(service, ctx, await tool.run(call))

    async def list_resources(ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListResourcesResult:
        finished = [stored for stored in reversed(service.store.all()) if stored.outcome is not None][:100]
        return t.ListResourcesResult(resources=[_resource(stored) for stored in finished], ttl_ms=0, cache_scope="private")

    async def list_templates(ctx: Context, params: t.PaginatedRequestParams | None) -> t.ListResourceTemplatesResult:
        result = t.ResourceTemplate(
            name="job result",
            uri_template=result_uri("{job_id}"),
            description="The whole Envelope of a job that is over",
            mime_type="application/json",
        )
        image = t.ResourceTemplate(
            name="job image",
            uri_template=image_uri("{job_id}", "{number}"),
            description="An image in the result of a job that is over, counted from zero",
        )
        return t.ListResourceTemplatesResult(resource_templates=[result, image], ttl_ms=LIST_TTL_MS, cache_scope="private")

    async def read_resource(ctx: Context, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        uri = str(params.uri)
        match = RESOURCE.fullmatch(uri)
        stored = service.store.get(match[1]) if match else None
        if stored is None:
            raise MCPError(t.INVALID_PARAMS, "there is no such resource; what there is looks like cuttlefish://jobs/JOB_ID/result")
        if stored.outcome is None:
            raise MCPError(t.INVALID_PARAMS, f"the job {stored.id} is not over yet ({stored.state()}); job_result waits for it")
        contents = await trio.to_thread.run_sync(_contents, uri, stored.outcome, match and match[2])
        if contents is None:
            raise MCPError(t.INVALID_PARAMS, f"the result of the job {stored.id} has no such image")
        return t.ReadResourceResult(contents=[contents], ttl_ms=LIST_TTL_MS, cache_scope="private")

    server: Server[Any] = Server(
        "cuttlefish",
        version=version,
        title="Cuttlefish",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    server.add_request_handler("tools/call", t.CallToolRequestParams, call_tool)  # here, because a task is an answer too
    add_tasks(server, service)

    async def audited(ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method not in OPERATIONS:
            return await _in_words(ctx, call_next)
        began, outcome = time.monotonic(), "cancelled"
        try:
            result = await _in_words(ctx, call_next)
            outcome = _outcome(result)
            return result
        except MCPError as error:
            outcome = f"error {error.error.code}"
            raise
        finally:
            params = ctx.params or {}
            tool = params.get("name") if ctx.method == "tools/call" else ctx.method
            arguments = params.get("arguments") if ctx.method == "tools/call" else {k: v for k, v in params.items() if k != "_meta"}
            await audit.write(
                client=client_name(ctx),
                tool=tool[:128] if isinstance(tool, str) else ctx.method,
                arguments=arguments if isinstance(arguments, dict) else {},
                outcome=outcome,
                duration_s=time.monotonic() - began,
            )

    server.middleware.append(audited)
    return server


async def _answer(service: Service, ctx: Context, started: StoredJob | t.CallToolResult) -> t.CallToolResult | dict[str, Any]:
    """Wait for a job that was started: its outcome, or how to ask for it later."""
    if isinstance(started, t.CallToolResult):
        return started
    has_tasks = declares_tasks(ctx)
    within_s = min(service.answer_within_s, TASK_AFTER_S) if has_tasks else service.answer_within_s
    is_over = await wait_for_job(started, within_s, _report(ctx), _closed(ctx))
    if not is_over and service.ending.is_set():
        is_over = await wait_for_job(started, math.inf, None, _closed(ctx))
    if is_over:
        return answer_outcome(started, ctx.protocol_version)
    return new_task(started) if has_tasks else answer_running(started)


def _listed(skill: Skill, availability: Availability) -> t.Tool:
    description = skill.description
    if isinstance(availability, Unavailable):
        description = f"Cannot be used on this machine now: {availability.told()}\n\n{description}"
    hints = skill.annotations
    return t.Tool(
        name=skill.name,
        description=description if len(description) <= MOST_DESCRIPTION_CHARS else description[: MOST_DESCRIPTION_CHARS - 1] + "…",
        input_schema=with_large_numbers(skill.input_schema),
        output_schema={"type": "object", "anyOf": [dict(skill.output_schema), RUNNING]},
        annotations=t.ToolAnnotations(
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def _contents(uri: str, outcome: Outcome, number: str | None) -> t.TextResourceContents | t.BlobResourceContents | None:
    """A job's Envelope, or the image of this number; None where there is no such image. Blocking, by its size."""
    if number is None:
        return t.TextResourceContents(uri=uri, mime_type="application/json", text=outcome.text.decode())
    image = outcome.images[int(number)] if int(number) < len(outcome.images) else None
    if image is None or image.problem is not None:
        return None
    return t.BlobResourceContents(uri=uri, mime_type=image.media_type, blob=base64.b64encode(image.data).decode())


def _resource(stored: StoredJob) -> t.Resource:
    assert stored.outcome is not None
    return t.Resource(
        name=f"{stored.tool}-{stored.id}.json",
        uri=result_uri(stored.id),
        description=f"The Envelope of a job of {stored.tool}: {stored.status}",
        mime_type="application/json",
        size=len(stored.outcome.text),
    )


def _report(ctx: Context) -> Report | None:
    """How to tell the client of progress, if it asked to be told."""
    if not ctx.meta or ctx.meta.get("progress_token") is None:
        return None

    async def report(number: float, state: str) -> None:
        await ctx.session.report_progress(number, None, state)

    return report


def _closed(ctx: Context) -> trio.Event | None:
    """What tells that the client of an HTTP request is gone; on standard input and output the stream's end tells it."""
    return ctx.request.scope.get(CLOSED) if ctx.request is not None else None


def _outcome(result: HandlerResult) -> str:
    """How a call ended, as one word: a status, or the code of what went wrong."""
    if not isinstance(result, dict):
        return "completed"
    if result.get("resultType") == "task":
        return "task"
    value = result.get("structuredContent")
    if not isinstance(value, dict):
        return "failed" if result.get("isError") else "completed"
    error = value.get("error")
    if isinstance(error, dict):
        return str(error.get("code"))
    return next((word for word in ("validation_failed", "unavailable") if word in value), str(value.get("status", "completed")))


async def _in_words(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Let nothing out that is no error of the protocol: what the SDK says in its own words, and bugs."""
    try:
        return await call_next(ctx)
    except MCPError as error:
        if error.error.code == t.INVALID_PARAMS and error.error.data == "":
            told = "the connection has not begun: send initialize first, or give params._meta as revision 2026-07-28 demands"
            raise MCPError(t.INVALID_PARAMS, told) from None
        raise
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        told = "is missing" if first["type"] == "missing" else "does not have the form that the protocol demands"
        raise MCPError(t.INVALID_PARAMS, f"{ctx.method}: {place or 'params'} {told}") from None
    except Exception as error:  # noqa: BLE001  # a bug of ours costs one call, and none of its words come out
        reference = secrets.token_hex(4)
        _log.error("internal error %s in %s", reference, ctx.method, exc_info=error)
        told = f"a bug in cuttlefish, please report it with what the log says under {reference}"
        if ctx.method == "tools/call":
            return refuse("internal", told).model_dump(by_alias=True, mode="json", exclude_none=True)
        raise MCPError(t.INTERNAL_ERROR, told, {"code": "internal"}) from None
