"""`cuttlefish check`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import trio

from cuttlefish.cli.exits import COMPLETED, USAGE
from cuttlefish.cli.log import start_log
from cuttlefish.cli.output import write, write_json
from cuttlefish.host import Host, open_host
from cuttlefish.pipeline.draw import describe_marks, printable
from cuttlefish.pipeline.families import FAMILY_FILE, LoadedFamilies, load_families
from cuttlefish.pipeline.graph import Graph
from cuttlefish.pipeline.places import Problem
from cuttlefish.pipeline.spec import PipelineError
from cuttlefish_abi import Ty

__all__ = ["check_command", "check_file", "problem_line"]


def check_command(options: argparse.Namespace) -> int:
    """Check pipeline files; what is wrong with them, or what they are, goes to standard output. Exit code 2 if one is wrong."""
    start_log()
    checked = trio.run(_check_all, options.files)
    if options.json:
        report = {"ok": all(graph for _, graph, _ in checked), "files": [_as_json(*one) for one in checked]}
        write_json(report)
    else:
        write("\n".join(_as_text(*one) for one in checked))
    return COMPLETED if all(graph for _, graph, _ in checked) else USAGE


async def check_file(host: Host, file: str) -> tuple[Graph | None, Sequence[Problem]]:
    """The graph of a pipeline file and its warnings; where something is wrong, no graph and all problems."""
    if Path(file).suffix != ".toml":
        return None, [Problem("is no pipeline: a pipeline's file is called NAME.toml", file)]
    try:
        graph = await host.check(file)
    except PipelineError as error:
        return None, error.problems
    return graph, graph.warnings


def problem_line(problem: Problem) -> str:
    """A problem as one harmless line, whatever names are in it."""
    return printable(str(problem)) + "\n"


async def _check_all(files: Sequence[str]) -> list[tuple[str, Graph | LoadedFamilies | None, Sequence[Problem]]]:
    async with open_host() as host:
        return [
            (file, *(await (_check_families(file) if Path(file).name == FAMILY_FILE else check_file(host, file)))) for file in files
        ]


async def _check_families(file: str) -> tuple[LoadedFamilies | None, Sequence[Problem]]:
    try:
        return await trio.to_thread.run_sync(load_families, Path(file)), ()
    except PipelineError as error:
        return None, error.problems


def _as_text(file: str, graph: Graph | LoadedFamilies | None, problems: Sequence[Problem]) -> str:
    lines = "".join(map(problem_line, problems))
    if graph is None:
        return lines
    if isinstance(graph, LoadedFamilies):
        told = [f"  {printable(name):10} {printable(family.description)}\n" for name, family in graph.families.items()]
        return f"{printable(file)}: well\n" + "".join(told)
    pipeline = graph.loaded.pipeline
    also = {name: ty for name, ty in graph.form.optional.items() if name in pipeline.input}
    rules = [rule.describe() for rule in pipeline.rules]
    rows = [
        ("name", pipeline.name),
        ("takes", str(graph.input)),
        *([("also", str(Ty.record(also)))] if also else []),
        ("gives", str(graph.result)),
        ("model", pipeline.model or "none"),
        ("may read", ", ".join(pipeline.read) or "nothing"),
        *(("" if index else "rules", one) for index, one in enumerate(rules)),
    ]
    lines += f"{printable(file)}: well\n" + "".join(f"  {key:10} {printable(value)}\n" for key, value in rows)
    width = max(len(printable(node.name)) for node in graph.nodes)
    for number, node in enumerate(graph.nodes, 1):
        own_model = f"; model {node.spec.model}" if node.spec.model else ""
        ways = [f"{label} → {', '.join(targets)}" for label, targets in (node.spec.branch or {}).items()]
        marks = "".join(f"; {mark}" for mark in [*describe_marks(node), *(["branch " + " | ".join(ways)] if ways else [])])
        line = printable(f"{node.spec.block}: {node.signature.describe()}{own_model}{marks}")
        lines += f"  {number:3} {printable(node.name):{width}}  {line}\n"
    return lines


def _as_json(file: str, graph: Graph | LoadedFamilies | None, problems: Sequence[Problem]) -> dict[str, object]:
    told = [
        {"file": one.file, "line": one.line, "code": one.code, "message": one.message, "warning": one.is_warning}
        for one in problems
    ]
    report: dict[str, object] = {"file": file, "ok": graph is not None, "problems": told}
    if graph is None:
        return report
    if isinstance(graph, LoadedFamilies):
        return report | {"families": {name: family.model_dump() for name, family in graph.families.items()}}
    pipeline = graph.loaded.pipeline
    nodes = [
        {
            "name": node.name,
            "block": node.spec.block,
            "sha256": node.module.sha256,
            "input": str(node.signature.input),
            "output": str(node.signature.output),
            "gives": str(node.output),
            "model": node.spec.model or pipeline.model,
            "after": list(node.waits_for),
            "over": node.spec.over,
            "repeat": node.spec.repeat and node.spec.repeat.model_dump(),
            "branch": node.spec.branch,
        }
        for node in graph.nodes
    ]
    return report | {
        "name": pipeline.name,
        "description": pipeline.description,
        "input": str(graph.input),
        "optional": {name: str(ty) for name, ty in graph.form.optional.items()},
        "rules": [rule.describe() for rule in pipeline.rules],
        "result": str(graph.result),
        "model": pipeline.model,
        "data_policy": pipeline.data_policy,
        "read": pipeline.read,
        "nodes": nodes,
    }
