"""Measurements that need a process to themselves: `python -m benchmarks.child NAME SIZE` prints numbers as JSON."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

__all__ = ["measure_in_child"]

MEASUREMENTS = {
    "walk": ("benchmarks.walk", "grown_while_walking"),
    "jobs": ("benchmarks.memory", "left_by_our_jobs"),
    "bare": ("benchmarks.memory", "left_by_bare_instances"),
    "extism": ("benchmarks.memory", "left_by_extism_plugins"),
}
"""By name: a module and its function, which takes a size and gives numbers by name."""


def measure_in_child(name: str, size: int) -> dict[str, float]:
    """Run one measurement in a fresh process; get its numbers by name."""
    command = [sys.executable, "-m", "benchmarks.child", name, str(size)]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parent.parent, stdout=subprocess.PIPE, check=True)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


if __name__ == "__main__":
    module, function = MEASUREMENTS[sys.argv[1]]
    print(json.dumps(getattr(importlib.import_module(module), function)(int(sys.argv[2]))))
