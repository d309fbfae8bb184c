"""Every limit of the host: its name, default, unit and the harm that it prevents.

A limit is set per job (the order that wins: job, pipeline, host, environment, the default here) by its dotted name:
`Limits().with_values({"guest.memory": "512MiB"})`, `--limit guest.memory=512MiB`, or `CUTTLEFISH_LIMIT_GUEST_MEMORY=512MiB`.
Each appears by that name in the error that it causes.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, cast

from cuttlefish.errors import LimitExceeded
from cuttlefish_abi import MAX_JSON_DEPTH

__all__ = ["LimitSetting", "Limits", "limit_exceeded", "limit_settings", "limits_from_environment"]

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30

VARIABLES = "CUTTLEFISH_LIMIT_"
"""How the environment variables begin that set limits."""

Unit = Literal["bytes", "seconds", "count", "pixels", "levels", "tokens"]


def _limit(name: str, default: float | None, unit: Unit, why: str, most: float = float("inf")) -> Any:
    """A field of `Limits`. `Any`, because dataclass fields are declared by their default."""
    return field(default=default, metadata={"name": name, "unit": unit, "why": why, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one job. Immutable; `with_values` gives a changed copy."""

    guest_memory_bytes: int = _limit("guest.memory", 256 * MiB, "bytes", "a block may not use up the machine's memory", 4 * GiB)
    guest_module_bytes: int = _limit("guest.module", 32 * MiB, "bytes", "compile time and memory grow with a module's size")
    guest_exports: int = _limit("guest.exports", 1_000, "count", "listing exports takes time with the square of their number")
    guest_table_elements: int = _limit("guest.table", 1_000_000, "count", "a table takes host memory")
    guest_compile_time_s: float = _limit("guest.compile_time", 60.0, "seconds", "a compilation cannot be interrupted, only killed")
    guest_step_time_s: float = _limit(
        "guest.step_time", 10.0, "seconds", "a block that never answers is stopped (host work not counted)"
    )
    guest_commands: int = _limit("guest.commands", 1_000_000, "count", "a block that never comes to an end is stopped")
    guest_message_bytes: int = _limit("guest.message", 64 * MiB, "bytes", "one command or result is held in host memory")
    guest_json_depth: int = _limit(
        "guest.json_depth", 128, "levels", "deeply nested JSON exhausts a reader's stack", most=MAX_JSON_DEPTH
    )
    guest_json_values: int = _limit(
        "guest.json_values",
        1_000_000,
        "count",
        "small values take a hundred times their bytes to hold; a list or object counts as four",
    )
    text_window_bytes: int = _limit(
        "text.window", 8 * MiB, "bytes", "a longer slice is answered with fewer bytes, which is no error"
    )
    job_time_s: float | None = _limit(
        "job.time", None, "seconds", "a job as a whole, by the wall clock, from its turn on; none unless set"
    )
    job_handles: int = _limit("job.handles", 4_096, "count", "each open file holds a descriptor")
    job_updates: int = _limit("job.updates", 10_000, "count", "updates nobody has read yet; the newest are kept, the rest counted")
    job_progress_bytes: int = _limit("job.progress", 64 * KiB, "bytes", "one progress report is kept until somebody reads it")
    image_pixels: int = _limit("image.pixels", 40_000_000, "pixels", "a small file may decode to gigabytes; judged by the header")
    image_bytes: int = _limit("image.bytes", 64 * MiB, "bytes", "an image is read whole to show it to a model")
    page_pixels: int = _limit(
        "page.pixels", 40_000_000, "pixels", "a page may claim to be a kilometre wide; judged before rendering"
    )
    document_memory_bytes: int = _limit("document.memory", 2 * GiB, "bytes", "a small document may expand to gigabytes")
    document_time_s: float = _limit("document.time", 30.0, "seconds", "one page or one opening that never ends is stopped")
    infer_tokens: int = _limit("infer.tokens", 32_768, "tokens", "the longest reply that one prompt may ask for")

    def with_values(self, values: Mapping[str, object]) -> "Limits":
        """A copy with some limits changed, by dotted name. Sizes may be written `512MiB`, `64KiB` or `2GiB`.

        Raises:
            ValueError: an unknown name (the nearest is suggested), or a value that is not a positive number.
        """
        settings = {setting.name: setting for setting in limit_settings()}
        changes: dict[str, Any] = {}
        for name, value in values.items():
            setting = settings.get(name)
            if setting is None:
                near = difflib.get_close_matches(name, settings, 1, 0.5)
                hint = f'Did you mean "{near[0]}"?' if near else f"Limits: {', '.join(settings)}."
                raise ValueError(f'there is no limit named "{name}". {hint}')
            changes[setting.field] = setting.parse(value)
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class LimitSetting:
    """What there is to say about one limit."""

    name: str
    field: str
    default: float | None
    unit: Unit
    why: str
    most: float
    """The largest value that has an effect."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return VARIABLES + self.name.upper().replace(".", "_")

    @property
    def _of_unit(self) -> str:
        return "" if self.unit == "count" else f" of {self.unit}"

    def parse(self, value: object) -> float | None:
        """Read a value given by a person.

        Raises:
            ValueError: not a positive number of this limit's unit.
        """
        if value is None or value == "none":
            if self.default is None:
                return None
            raise ValueError(f"{self.name} cannot be switched off; give it a number{self._of_unit}")
        number = value
        if isinstance(value, str):
            match = re.fullmatch(r"([0-9][0-9_]*)(\.[0-9]+)?\s*(B|KiB|MiB|GiB|s)?", value.strip())
            if match is None:
                raise ValueError(f'{self.name} needs a number{self._of_unit}, found "{value}"')
            number = float(match[1] + (match[2] or "")) if match[2] else int(match[1])
            scales = (
                {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB} if self.unit == "bytes" else {"s": 1} if self.unit == "seconds" else {}
            )
            if match[3] and match[3] not in scales:
                raise ValueError(f'{self.name} needs a number{self._of_unit}, found "{value}"')
            number *= scales.get(match[3] or "", 1)
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
            raise ValueError(f"{self.name} needs a positive number{self._of_unit}, found {value!r}")
        if number > self.most:
            raise ValueError(f"{self.name} may be {self.most:.15g} {self.unit} at most, found {value!r}")
        if self.unit == "seconds":
            return float(number)
        if number != int(number):
            raise ValueError(f"{self.name} needs a whole number{self._of_unit}, found {value!r}")
        return int(number)


def limit_settings() -> list[LimitSetting]:
    """All limits, in the order of this module."""
    return [LimitSetting(field=f.name, default=cast("float | None", f.default), **f.metadata) for f in fields(Limits)]


def limits_from_environment(environment: Mapping[str, str]) -> Limits:
    """The defaults, changed by the `CUTTLEFISH_LIMIT_…` variables that are set. An empty variable counts as unset.

    Raises:
        ValueError: a variable that names no limit, or whose value is not a number of the limit's unit.
    """
    names = {setting.variable: setting.name for setting in limit_settings()}
    limits = Limits()
    for variable, value in environment.items():
        if not variable.startswith(VARIABLES) or not value:
            continue
        if variable not in names:
            near = difflib.get_close_matches(variable[len(VARIABLES) :], [name[len(VARIABLES) :] for name in names], 1, 0.5)
            hint = f". Did you mean {VARIABLES}{near[0]}?" if near else ""
            raise ValueError(f"the environment variable {variable} names no limit{hint}")
        try:
            limits = limits.with_values({names[variable]: value})
        except ValueError as error:
            raise ValueError(f"the environment variable {variable}: {error}") from None
    return limits


def limit_exceeded(field_name: str, value: float, needed: str) -> LimitExceeded:
    """The error for a limit that was reached. `needed` ends the sentence: "the block asked for 300000000"."""
    setting = next(s for s in limit_settings() if s.field == field_name)
    unit = "" if setting.unit == "count" else f" {setting.unit}"
    return LimitExceeded(f"{setting.name} is {value:.15g}{unit}; {needed}")
