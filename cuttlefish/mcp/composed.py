"""`run_pipeline`: a pipeline that an agent writes itself, where the operator allows it.

It can do nothing that the operator's own options do not allow: it names only blocks of the catalogue and those that ship, grants
itself no file, brings no model, no limit and no password, and its models stay on this machine.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mcp_types as t
import trio
from pydantic import JsonValue

from cuttlefish.host import JobOptions
from cuttlefish.jobs.job import Job
from cuttlefish.jobs.turns import Client
from cuttlefish.mcp.calls import answer_violations, start_skill
from cuttlefish.mcp.jobs_store import StoredJob
from cuttlefish.mcp.pipelines import pipeline_skill, skill_problems
from cuttlefish.mcp.tools import Call, ServerTool
from cuttlefish.pipeline.block_store import BlockStore, blocks_folder
from cuttlefish.pipeline.catalog import builtin_blocks
from cuttlefish.pipeline.places import Problem
from cuttlefish.pipeline.spec import LoadedPipeline, PipelineError, read_pipeline
from cuttlefish.pipeline.violations import Violation
from cuttlefish_abi.strict_json import show, suggest

__all__ = ["Composer"]

NAME = "run_pipeline"
MOST_TEXT_CHARS = 64 << 10
NOWHERE = Path(os.devnull, "nowhere")
"""The folder of a pipeline that has none: no file in it can be taken for a block."""
MAY_BE_SET = {"name", "description", "block", "nodes", "timeout", "model", "data_policy"}
"""Of a pipeline's keys. What is new in pipelines is refused here until somebody has thought about it."""


DESCRIPTION = """Runs a pipeline that you write of this machine's blocks, checked before it runs. Answers with an Envelope. Such as:

name = "pieces"
[nodes.pages]
block = "read-document"
input = { path = "job.input.path" }
[nodes.pieces]
block = "chunk"
input = { pages = "pages.out.pages" }

It grants itself no files, models or limits; paths in the input are opened as the operator allows."""
PROPERTIES: dict[str, dict[str, JsonValue]] = {
    "pipeline": {"type": "string", "description": "The pipeline's TOML text."},
    "input": {
        "type": "object",
        "description": 'The job\'s input, such as {"path": "a.pdf"}. One that is no object stands in one: {"input": "a text"}.',
    },
}


class Composer:
    """Runs pipelines that agents write, within the operator's options."""

    def __init__(self, options: JobOptions) -> None:
        self._options = options
        self.tool = ServerTool(NAME, DESCRIPTION, PROPERTIES, ("pipeline", "input"), self._start)

    async def _start(self, call: Call) -> StoredJob | t.CallToolResult:
        """Check the pipeline and its input and start a job of it, or answer what is wrong with them."""
        host, text, value = call.service.host, cast("str", call.arguments["pipeline"]), call.arguments["input"]
        try:
            graph = await host.check(await trio.to_thread.run_sync(self._read, text))
            if problems := skill_problems(graph):
                raise PipelineError(problems)
        except PipelineError as error:
            return answer_violations([_violation(problem) for problem in error.problems])
        skill = pipeline_skill(host, graph, None, self._options)

        def start(values: Mapping[str, Any], client: Client = ()) -> Job:
            return skill.start(values["input"], client)

        schema: dict[str, JsonValue] = {"type": "object", "properties": {"input": dict(skill.input_schema)}}
        return await start_skill(
            call.service, replace(skill, name=NAME, input_schema=schema, start=start), {"input": value}, call.client
        )

    def _read(self, text: str) -> LoadedPipeline:
        """The pipeline, if it stays within what an agent may write.

        Raises:
            PipelineError: it is wrong, or asks for more.
        """
        if len(text) > MOST_TEXT_CHARS:
            raise PipelineError([Problem(f"is longer than it may be, {MOST_TEXT_CHARS} characters")])
        loaded = read_pipeline(text, NOWHERE, "pipeline")
        pipeline = loaded.pipeline
        problems = [
            loaded.problem(f"{key} is for the operator to say, not for a pipeline that is written here", key)
            for key in sorted(pipeline.model_fields_set - MAY_BE_SET)
        ]
        if pipeline.data_policy != "local_only":
            problems.append(loaded.problem("data_policy must be local_only here", "data_policy"))
        allowed = self._options.get("model")
        for path, model in [
            (("model",), pipeline.model),
            *((("nodes", n, "model"), node.model) for n, node in pipeline.nodes.items()),
        ]:
            if model not in (None, allowed):
                hint = f'leave it out, and "{allowed}" is asked' if allowed else "the operator allows none"
                problems.append(loaded.problem(f"model {show(model)} is not the operator's; {hint}", *path))
        names = _block_names()
        for name, node in pipeline.graph().items():
            if node.block.partition("@")[0] not in names:
                place = ("block",) if pipeline.block else ("nodes", name, "block")
                problems.append(loaded.problem(f"there is no block {show(node.block)} here; {suggest(node.block, names)}", *place))
        if problems:
            raise PipelineError(problems)
        return loaded


def _block_names() -> list[str]:
    entries = BlockStore(blocks_folder()).entries()
    return sorted({entry.name for entry in entries} | set(builtin_blocks()))


def _violation(problem: Problem) -> Violation:
    return Violation("pipeline", "pipeline", str(problem), None)
