"""What an agent may call: a skill, whatever it is made of.

A skill is started only with what `checking.check_arguments` made of arguments that it found nothing wrong with, and only while its
probe says that it is ready. Each start is a job, which ends in an Envelope.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import JsonValue

from cuttlefish.jobs.job import Job
from cuttlefish.jobs.turns import Client
from cuttlefish.pipeline.places import Problem
from cuttlefish.pipeline.rules import Rule
from cuttlefish.pipeline.violations import Violation

__all__ = [
    "MOST_DESCRIPTION_CHARS",
    "NAME",
    "RESERVED_NAMES",
    "Annotations",
    "Availability",
    "Checked",
    "Example",
    "Family",
    "Probe",
    "Ready",
    "Skill",
    "SkillSet",
    "Start",
    "Unavailable",
]


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What a skill may be called: the strictest common rule of clients."""

MOST_DESCRIPTION_CHARS = 3_500
"""Of what an author writes: clients take 4,096 for all that is told."""

RESERVED_NAMES = frozenset(
    {"describe_skill", "describe_family", "job_status", "job_result", "job_cancel", "jobs_list", "run_pipeline"}
)
"""The server's own tools."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What it needs is here."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Something that it needs is missing on this machine."""

    reason: str
    """What is missing, as a sentence without a full stop."""
    hint: str | None = None
    """What the operator can do about it."""

    def told(self) -> str:
        """Both as sentences."""
        return f"{self.reason}." + (f" {self.hint.rstrip('.')}." if self.hint else "")


Availability = Ready | Unavailable

Probe = Callable[[], Awaitable[Availability]]
"""Looks at this machine alone (models, engines, folders, programs): never at arguments."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """Hints for the agent about what a call does."""

    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False
    """Whether a call may reach beyond this machine."""


@dataclass(frozen=True, slots=True)
class Example:
    """A call that makes sense."""

    title: str
    arguments: Mapping[str, JsonValue]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Skills that belong together and need the same things."""

    name: str
    description: str
    probe: Probe
    """When it says that the family is unavailable, so is each of its skills, with this reason."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Arguments that were looked at."""

    values: Mapping[str, Any]
    """What the skill is started with: JSON, or what the skill itself has made of it. Of use where there are no violations."""
    violations: Sequence[Violation] = ()
    """What is wrong with them: the first 20 things."""


class Start(Protocol):
    """How a skill is started."""

    def __call__(self, values: Mapping[str, Any], client: Client = ()) -> Job:
        """Start a job with the values of checked arguments and return at once; `client` is as for `Host.start`."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill, ready to be listed and called."""

    name: str
    """1 to 64 of letters, digits, - and _."""
    description: str
    input_schema: Mapping[str, JsonValue]
    """JSON Schema 2020-12 of an object."""
    output_schema: Mapping[str, JsonValue]
    """JSON Schema of the Envelope, with the type of the result."""
    annotations: Annotations
    examples: tuple[Example, ...]
    use_cases: tuple[str, ...]
    rules: tuple[Rule, ...]
    family: Family | None
    probe: Probe
    start: Start
    result_schema: Mapping[str, JsonValue] = field(default_factory=dict)
    """JSON Schema of the result alone; without one it may be anything."""
    read: Callable[[Mapping[str, JsonValue]], Checked] | None = None
    """Looks at arguments that fit the schema for what no schema can say, and makes its values of them. Blocking."""


@dataclass(frozen=True, slots=True)
class SkillSet:
    """What one server offers, by name, in the order of listing."""

    skills: Mapping[str, Skill]
    families: Mapping[str, Family]
    warnings: Sequence[Problem] = ()
    """What is likely to be wrong with their sources, such as an example that does not fit."""
