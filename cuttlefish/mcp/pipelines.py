"""A pipeline as a skill."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from cuttlefish.host import Host, JobOptions
from cuttlefish.jobs.job import Job
from cuttlefish.jobs.turns import Client
from cuttlefish.mcp.probes import Needs, probe_needs
from cuttlefish.mcp.schemas import envelope_schema, input_schema, result_schema
from cuttlefish.mcp.skill import MOST_DESCRIPTION_CHARS, Annotations, Availability, Example, Family, Skill
from cuttlefish.pipeline.families import LoadedFamilies
from cuttlefish.pipeline.graph import Graph
from cuttlefish.pipeline.inputs import WHOLE, arguments_of
from cuttlefish.pipeline.places import Problem
from cuttlefish_abi import Ty

__all__ = ["pipeline_family", "pipeline_skill", "skill_problems"]


def skill_problems(graph: Graph) -> list[Problem]:
    """Why a checked pipeline cannot be a skill."""
    loaded, pipeline = graph.loaded, graph.loaded.pipeline
    problems: list[Problem] = []
    if len(pipeline.description) > MOST_DESCRIPTION_CHARS:
        found = len(pipeline.description)
        message = f"description may have {MOST_DESCRIPTION_CHARS} characters where a pipeline is a skill, and has {found}"
        problems.append(loaded.problem(message, "description"))
    if _has_handle(graph.input):
        message = f"takes {graph.input}: an image or document that is open already, which nobody outside a job has; take its path"
        problems.append(loaded.problem(message, "name"))
    return problems


def pipeline_family(name: str, families: LoadedFamilies) -> Family:
    """A family of a `family.toml`, with a probe for what its skills need together."""
    form = families.families[name]
    models = tuple(model for model in (form.model, form.embedding_model) if model is not None)
    needs = Needs(models, local_only=False, read=tuple(families.folder / path for path in form.read), programs=tuple(form.programs))
    return Family(name, form.description, lambda: probe_needs(needs))


def pipeline_skill(host: Host, graph: Graph, family: Family | None, options: JobOptions) -> Skill:
    """A checked pipeline as a skill. Its jobs have the pipeline's own grants and `options`; an agent gives the input alone."""
    pipeline, form = graph.loaded.pipeline, graph.form
    needs = _needs(graph, options)
    started_with = options.copy()
    started_with["keep_images"] = True
    is_whole = form.type.kind not in ("record", "json")

    def start(values: Mapping[str, JsonValue], client: Client = ()) -> Job:
        value = values.get(WHOLE, pipeline.input[WHOLE].default if WHOLE in pipeline.input else None) if is_whole else {**values}
        return host.start(graph.loaded, value, client=client, **started_with)

    async def probe() -> Availability:
        return await probe_needs(needs)

    examples = [
        Example(example.title or f"Example {number}", arguments_of(form, example.input), example.note)
        for number, example in enumerate(pipeline.examples_told(), 1)
    ]
    return Skill(
        name=pipeline.name,
        description=_describe(graph, options),
        input_schema=input_schema(form, pipeline),
        result_schema=(result := result_schema(graph.result)),
        output_schema=envelope_schema(result),
        annotations=Annotations(open_world=pipeline.data_policy == "any"),
        examples=tuple(examples),
        use_cases=tuple(pipeline.use_cases),
        rules=tuple(pipeline.rules),
        family=family,
        probe=probe,
        start=start,
    )


def _describe(graph: Graph, options: JobOptions) -> str:
    """The author's words, where data goes, and which paths may be named: what an agent has to know to choose and to call."""
    loaded, pipeline = graph.loaded, graph.loaded.pipeline
    sentences = [pipeline.description.strip() or f"Runs the pipeline {pipeline.name}: {graph.input} → {graph.result}."]
    if pipeline.data_policy == "local_only":
        sentences.append("Local only: nothing that it reads leaves this machine.")
    else:
        sentences.append("What it reads may be sent to a model on another machine.")
    granted = list(dict.fromkeys(os.path.abspath(path) for path in _granted(graph, options)))
    if granted and graph.form.is_used:
        base = os.path.abspath(options.get("base_dir") or loaded.folder)
        sentences.append(f"It may read {' and '.join(granted)}. Relative paths start at {base}.")
    return "\n".join(sentences)


def _needs(graph: Graph, options: JobOptions) -> Needs:
    pipeline = graph.loaded.pipeline
    own = [node.spec.model for node in graph.nodes]
    shared = options.get("model") or pipeline.model
    embedding = options.get("embedding_model") or pipeline.embedding_model
    models = [*(model or shared for model in own), embedding]
    variable = options.get("password_env") or pipeline.password_env
    return Needs(
        models=tuple(dict.fromkeys(model for model in models if model)),
        local_only=pipeline.data_policy == "local_only",
        read=_granted(graph, options),
        variables=(variable,) if variable else (),
    )


def _granted(graph: Graph, options: JobOptions) -> tuple[Path, ...]:
    """What its jobs may read: what the pipeline grants, and what the operator does beside that."""
    loaded = graph.loaded
    base = Path(options.get("base_dir") or loaded.folder)
    return (*(loaded.folder / root for root in loaded.pipeline.read), *(base / root for root in options.get("read") or ()))


def _has_handle(ty: Ty) -> bool:
    if ty.item is not None:
        return _has_handle(ty.item)
    return ty.kind in ("image", "document") or any(_has_handle(inner) for _, inner in ty.fields)
