"""The extension `io.modelcontextprotocol/tasks`: a call that takes long is answered with a task, which the client asks about.

A task is a job of the store; only clients that declare the extension ever see one.
"""

from typing import Any

import mcp_types as t
from mcp import MCPError
from mcp.server import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from cuttlefish.mcp.calls import Service, answer_outcome
from cuttlefish.mcp.clients import Context
from cuttlefish.mcp.jobs_store import StoredJob
from cuttlefish_abi import JobStatus

__all__ = ["TASK_AFTER_S", "add_tasks", "declares_tasks", "new_task"]

EXTENSION = "io.modelcontextprotocol/tasks"
TASK_AFTER_S = 1.0
"""A call that is over by then is answered at once: that is one message in place of three."""
POLL_MS = 1_000


class TaskParams(t.RequestParams):
    """What tasks/get, tasks/cancel and tasks/update are given."""

    task_id: str = Field(alias="taskId")


def declares_tasks(ctx: Context) -> bool:
    """Whether this client can be answered with a task."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and ctx.session.check_client_capability(
        t.ClientCapabilities(extensions={EXTENSION: {}})
    )


def new_task(stored: StoredJob) -> dict[str, Any]:
    """The answer to a call whose job goes on."""
    return {"resultType": "task", **_task(stored)}


def _task(stored: StoredJob) -> dict[str, Any]:
    status = {JobStatus.COMPLETED: "completed", JobStatus.FAILED: "completed", JobStatus.CANCELLED: "cancelled"}
    return {
        "taskId": stored.id,
        "status": status.get(stored.status, "working"),
        "statusMessage": stored.state(),
        "createdAt": stored.started_at.isoformat(timespec="milliseconds"),
        "lastUpdatedAt": stored.changed_at.isoformat(timespec="milliseconds"),
        "ttlMs": None,  # as long as the server runs
        "pollIntervalMs": POLL_MS,
    }


def add_tasks(server: Server[Any], service: Service) -> None:
    """Let a server answer for tasks."""

    def find(ctx: Context, params: TaskParams) -> StoredJob:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(t.METHOD_NOT_FOUND, "Method not found", ctx.method)
        if not declares_tasks(ctx):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            raise MCPError(t.MISSING_REQUIRED_CLIENT_CAPABILITY, f"{ctx.method} is for clients that declare {EXTENSION}", needed)
        stored = service.store.get(params.task_id)
        if stored is None:
            raise MCPError(t.INVALID_PARAMS, "there is no such task")
        return stored

    async def get(ctx: Context, params: TaskParams) -> dict[str, Any]:
        stored = find(ctx, params)
        task = _task(stored)
        if task["status"] == "completed":
            result = answer_outcome(stored, ctx.protocol_version)
            task["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return task

    async def cancel(ctx: Context, params: TaskParams) -> dict[str, Any]:
        find(ctx, params).cancel()
        return {}

    async def update(ctx: Context, params: TaskParams) -> dict[str, Any]:
        find(ctx, params)  # no job of ours asks for input: what is sent is for nobody
        return {}

    server.extensions[EXTENSION] = {}
    for method, handler in (("tasks/get", get), ("tasks/cancel", cancel), ("tasks/update", update)):
        server.add_request_handler(method, TaskParams, handler)
