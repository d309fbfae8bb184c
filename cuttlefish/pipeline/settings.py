"""Checks what stands in a pipeline beside its blocks and seams: grants, models, patterns, and keys that do not go together."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuttlefish.inference.registry import Provider, providers
from cuttlefish.pipeline.families import FAMILY_FILE, load_families
from cuttlefish.pipeline.forms import Node
from cuttlefish.pipeline.items import pattern_problem
from cuttlefish.pipeline.spec import LoadedPipeline, PipelineError
from cuttlefish_abi import ErrorCode
from cuttlefish_abi.strict_json import suggest

__all__ = ["Wrong", "check_node", "check_pipeline_settings", "grant_problem", "model_problem"]


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong, and at which keys."""

    message: str
    keys: tuple[str | int, ...]
    code: str = ErrorCode.SCHEMA_VALIDATION_FAILED


OVER_KEYS = ("concurrency", "on_error", "retry")


def check_pipeline_settings(loaded: LoadedPipeline) -> Iterator[Wrong]:
    """What is wrong at the top of a pipeline. Blocking: it looks at the granted folders."""
    pipeline = loaded.pipeline
    for index, root in enumerate(pipeline.read):
        if wrong := grant_problem(loaded.folder / root):
            yield Wrong(f'read grants "{root}", which {wrong}', ("read", index), ErrorCode.CAPABILITY_DENIED)
    if pipeline.model is not None and (wrong := model_problem(pipeline.model, providers())):
        yield Wrong(f"model {wrong}", ("model",), ErrorCode.MODEL_LOAD_FAILED)
    if pipeline.family is not None and (wrong := _family_problem(pipeline.family, loaded.folder)):
        yield Wrong(wrong, ("family",))
    embedders = tuple(provider for provider in providers() if provider.embedder is not None)
    if pipeline.embedding_model is not None and (wrong := model_problem(pipeline.embedding_model, embedders)):
        yield Wrong(f"embedding_model {wrong}", ("embedding_model",), ErrorCode.MODEL_LOAD_FAILED)


def check_node(node: Node) -> Iterator[Wrong]:
    """What is wrong with a node by itself. Keys are within the node."""
    if node.model is not None and (wrong := model_problem(node.model, providers())):
        yield Wrong(f"model {wrong}", ("model",), ErrorCode.MODEL_LOAD_FAILED)
    if node.over is not None:
        if wrong := pattern_problem(node.over):
            yield Wrong(f'over is "{node.over}": {wrong}', ("over",))
        if node.repeat is not None:
            yield Wrong("a node has over or repeat, not both", ("repeat",))
        if node.branch is not None:
            yield Wrong("a node has over or branch, not both: each item would take another way", ("branch",))
    else:
        for key in OVER_KEYS:
            if key in node.model_fields_set:
                yield Wrong(f"{key} only means something in a node with over", (key,))


def _family_problem(name: str, folder: Path) -> str | None:
    if not (folder / FAMILY_FILE).exists():
        return f'family is "{name}", and there is no {FAMILY_FILE} beside the pipeline that describes it'
    try:
        families = load_families(folder / FAMILY_FILE).families
    except PipelineError as error:
        return f'family is "{name}", and its file cannot be used: {"; ".join(map(str, error.problems))}'
    return None if name in families else f'family is "{name}", and {FAMILY_FILE} has none of that name; {suggest(name, families)}'


def grant_problem(path: Path) -> str | None:
    """Why a folder or file cannot be granted. Blocking."""
    try:
        if not path.exists():
            return "does not exist"
        is_readable = os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)
    except OSError:  # a folder on the way may not be entered, or the name is too long
        is_readable = False
    return None if is_readable else "cannot be read"


def model_problem(model: str, known: tuple[Provider, ...]) -> str | None:
    """What is wrong with the way a model is written; which models there are is not looked at."""
    name, colon, target = model.partition(":")
    if name not in [provider.name for provider in known]:
        return f'is "{model}", and there is no provider "{name}"; {suggest(name, [provider.name for provider in known])}'
    if not colon or (not target and name != "stub"):
        form = next(provider.form for provider in known if provider.name == name)
        return f'is "{model}"; write {form}'
    return None
