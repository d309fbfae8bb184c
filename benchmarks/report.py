"""What a run of the benchmarks found: plain data, written as JSON, printed, and shown in `docs/numbers.md`."""

import importlib.metadata
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.timing import Times

__all__ = [
    "RESULTS",
    "Part",
    "Report",
    "Row",
    "Target",
    "beside_ours",
    "machine",
    "read_report",
    "show_amount",
    "timed",
    "write_report",
]

RESULTS = Path(__file__).resolve().parent / "results"
"""A file for each suite, of its last full run."""

PACKAGES = (
    "cuttlefish",
    "wasmtime",
    "pydantic",
    "trio",
    "extism",
    "extism-sys",
    "apache-hamilton",
    "pypdfium2",
    "PyMuPDF",
    "xllamacpp",
)

SECONDS = "s"


@dataclass(frozen=True, slots=True)
class Row:
    """One number of one contestant. `median`, `p99` and `repeats` are there where it was taken several times."""

    case: str
    peer: str
    unit: str
    """`s`, `bytes`, `1/s`, or the plural of what was counted."""
    lowest: float
    median: float | None = None
    p99: float | None = None
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Target:
    """What the project holds itself to, and what came out."""

    text: str
    bound: float
    value: float
    at_least: bool = False
    unit: str = "×"

    @property
    def met(self) -> bool:
        """Whether the number is on the right side of the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True, slots=True)
class Part:
    """One measured thing."""

    name: str
    what: str
    """What is done and moved, in a sentence or two."""
    rows: list[Row]
    targets: list[Target]
    same_output: list[str] = field(default_factory=list)
    """Who was seen to give the same output. A difference ends the run, so whoever stands here gave the same."""


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run."""

    quick: bool
    machine: dict[str, str]
    parts: list[Part]


def timed(case: str, times: dict[str, Times]) -> list[Row]:
    """A row for each contestant."""
    return [Row(case, peer, SECONDS, t.lowest, t.median, t.p99, t.repeats) for peer, t in times.items()]


def beside_ours(part: Part, row: Row) -> float | None:
    """A row's number as a multiple of the first one of the same case, which is ours; None for that one itself."""
    ours = next(other for other in part.rows if other.case == row.case)
    return None if row is ours or not ours.lowest else row.lowest / ours.lowest


def machine() -> dict[str, str]:
    """What the numbers depend on: versions, the system, the number of cores."""
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed"
    return facts


def write_report(report: Report, path: Path) -> None:
    """As JSON; numbers keep four digits, which is more than they are worth."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [
        asdict(part) | {"rows": [_short(asdict(row)) for row in part.rows], "targets": [_target(t) for t in part.targets]}
        for part in report.parts
    ]
    text = json.dumps({"quick": report.quick, "machine": report.machine, "parts": parts}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_report(path: Path = RESULTS / "guest.json") -> Report:
    """What `write_report` wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))
    parts = [
        Part(
            name=part["name"],
            what=part["what"],
            rows=[Row(**row) for row in part["rows"]],
            targets=[Target(**{key: value for key, value in target.items() if key != "met"}) for target in part["targets"]],
            same_output=part["same_output"],
        )
        for part in found["parts"]
    ]
    return Report(found["quick"], found["machine"], parts)


def show_amount(value: float | None, unit: str) -> str:
    """A number as a person reads it, with its unit."""
    if value is None:
        return ""
    if unit == SECONDS:
        for name, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value / 1e-6:.2g} µs"
    if unit == "bytes":
        return f"{value / (1 << 20):.2f} MiB"
    if unit == "1/s":
        return f"{value:,.0f}/s"
    return f"{value:.2f}×" if unit == "×" else f"{value:.3g} {unit}"


def _target(target: Target) -> dict[str, Any]:
    return _short(asdict(target)) | {"met": target.met}


def _short(values: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in values.items()}
