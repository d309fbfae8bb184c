"""From the files that an operator names to the skills that a server offers."""

import importlib.metadata
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

import trio

from cuttlefish.host import Host, JobOptions
from cuttlefish.mcp.pipelines import pipeline_family, pipeline_skill, skill_problems
from cuttlefish.mcp.python_skills import SkillDefinition, bind, definitions_in, enter_shared, load_module, shared_types
from cuttlefish.mcp.skill import RESERVED_NAMES, Family, Skill, SkillSet
from cuttlefish.pipeline.families import FAMILY_FILE, load_families
from cuttlefish.pipeline.places import Problem
from cuttlefish.pipeline.spec import PipelineError

__all__ = ["open_skills"]

PYTHON_SKILLS = "cuttlefish.skills"
"""The group of entry points in which packages offer modules with skills."""


@asynccontextmanager
async def open_skills(
    host: Host, sources: Sequence[Path], *, entry_points: bool = False, **options: Unpack[JobOptions]
) -> AsyncIterator[SkillSet]:
    """The skills of pipeline files (`.toml`), folders of these, and Python files (`.py`), for as long as the block lasts.

    Skills stand in the order of their sources; those of a folder by file name. The shared state of Python skills is made on
    entering, when nothing is wrong anywhere, and ended on leaving. `options` are the operator's: they hold for every job that a
    skill starts, and nothing that an agent gives can change them. With `entry_points`, modules with skills that installed packages
    offer (group `cuttlefish.skills`) come as well.

    Raises:
        PipelineError: with everything that is wrong, in any source: a pipeline with problems, a name that is taken.
    """
    settled = options.copy()
    settled["read"] = tuple(options.get("read") or ())
    loader = _Loader(host, settled)
    for source in sources:
        await loader.add(source)
    if entry_points:
        await loader.add_entry_points()
    if loader.problems:
        raise PipelineError(loader.problems)
    async with AsyncExitStack() as stack:
        for module, states in loader.modules:
            states.update(await enter_shared(module, stack))
        yield SkillSet(loader.skills, loader.families, loader.warnings)


class _Loader:
    """Collects skills, and everything that is wrong with their sources."""

    def __init__(self, host: Host, options: JobOptions) -> None:
        self.host = host
        self.options = options
        self.skills: dict[str, Skill] = {}
        self.families: dict[str, Family] = {}
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.modules: list[tuple[ModuleType, dict[Any, object]]] = []
        """Modules with skills, each with the place for its shared states, by type."""
        self._sources: dict[str, str] = {}
        """Where each skill and family comes from."""

    async def add(self, source: Path) -> None:
        """Add a file, or the pipelines of a folder."""
        if await trio.to_thread.run_sync(source.is_dir):
            files = await trio.to_thread.run_sync(lambda: sorted(source.glob("*.toml")))
            pipelines = [file for file in files if file.name != FAMILY_FILE]
            if not pipelines:
                self.problems.append(Problem("has no pipelines: no .toml files", str(source)))
            for file in pipelines:
                await self._add_pipeline(file)
        elif source.suffix == ".toml":
            await self._add_pipeline(source)
        elif source.suffix == ".py":
            module = await trio.to_thread.run_sync(load_module, source)
            if isinstance(module, Problem):
                self.problems.append(module)
            else:
                await self._add_module(module, str(source))
        else:
            self.problems.append(
                Problem("is no source of skills: those are .toml files, folders of them, and .py files", str(source))
            )

    async def add_entry_points(self) -> None:
        """Add the modules that installed packages offer."""
        for point in importlib.metadata.entry_points(group=PYTHON_SKILLS):
            try:
                module = await trio.to_thread.run_sync(point.load)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever an installed package raises is told by its name
                self.problems.append(Problem(f"cannot be loaded: {type(error).__name__}: {error}", f"entry point {point.name}"))
                continue
            if isinstance(module, ModuleType):
                await self._add_module(module, f"entry point {point.name}")
            else:
                self.problems.append(Problem(f"{point.value} is no module; skills are offered as one", f"entry point {point.name}"))

    async def _add_pipeline(self, file: Path) -> None:
        try:
            graph = await self.host.check(file)
        except PipelineError as error:
            self.problems += error.problems
            return
        loaded, name = graph.loaded, graph.loaded.pipeline.family
        self.problems += skill_problems(graph)
        self.warnings += graph.warnings
        family = None
        if name is not None:
            families = await trio.to_thread.run_sync(load_families, loaded.folder / FAMILY_FILE)
            family = self._family(pipeline_family(name, families), str(loaded.folder / FAMILY_FILE), loaded.problem("", "family"))
        if not any(problem.file == str(file) for problem in self.problems):
            self._take(pipeline_skill(self.host, graph, family, self.options), loaded.problem("", "name"))

    async def _add_module(self, module: ModuleType, source: str) -> None:
        definitions = definitions_in(module)
        types, wrong = shared_types(module)
        self.problems += [replace(problem, file=_as_named(problem.file, source)) for problem in wrong]
        if not definitions:
            self.problems.append(Problem("has no skills: no function with @skill", source))
        states: dict[Any, object] = {}
        self.modules.append((module, states))
        for definition in definitions:
            await self._add_function(replace(definition, file=_as_named(definition.file, source)), types, states)

    async def _add_function(self, definition: SkillDefinition, types: dict[Any, str], states: dict[Any, object]) -> None:
        place = Problem("", definition.file, definition.line)
        bound = await trio.to_thread.run_sync(bind, self.host, definition, types, states, self.options)
        if isinstance(bound, list):
            self.problems += bound
            return
        if bound.family is not None:
            known = self._family(bound.family, definition.file, place)
            if known is not bound.family and self._sources[f"family {known.name}"] == definition.file:
                self.problems.append(Problem(f'there are two families called "{known.name}"', place.file, place.line))
        self._take(bound, place)

    def _family(self, family: Family, source: str, place: Problem) -> Family:
        """The family of that name; one for all of its skills."""
        known = self.families.setdefault(family.name, family)
        if self._sources.setdefault(f"family {family.name}", source) != source:
            other = self._sources[f"family {family.name}"]
            self.problems.append(Problem(f'the family "{family.name}" is described in {other} already', place.file, place.line))
        return known

    def _take(self, skill: Skill, place: Problem) -> None:
        source = f"{place.file}:{place.line}" if place.line else str(place.file)
        if skill.name in RESERVED_NAMES:
            self.problems.append(Problem(f'the name "{skill.name}" is one of the server\'s own tools', place.file, place.line))
        elif skill.name in self.skills:
            other = self._sources[f"skill {skill.name}"]
            self.problems.append(Problem(f'the name "{skill.name}" is taken by {other}', place.file, place.line))
        else:
            self.skills[skill.name] = skill
            self._sources[f"skill {skill.name}"] = source


def _as_named(file: str | None, source: str) -> str:
    """A file as the operator named it, where it is that one; Python knows files by their whole path."""
    return source if file is None or os.path.abspath(source) == file else file
