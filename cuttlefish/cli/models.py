"""`cuttlefish models …`."""

import argparse
import json
import sys

from cuttlefish.cli.exits import COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import start_log
from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference import models

__all__ = ["list_command", "pull_command"]


def list_command(options: argparse.Namespace) -> int:
    """Show the models that are in the models folder, and those that can be fetched."""
    entries = models.list_models()
    if options.json:
        rows = [
            {
                "name": entry.name,
                "installed": entry.path is not None,
                "path": str(entry.path) if entry.path else None,
                "size_bytes": entry.size_bytes,
                "licence": entry.licence,
                "about": entry.about,
            }
            for entry in entries
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return COMPLETED
    print(f"{'NAME':12} {'':9} {'SIZE':>8}  {'LICENCE':12} ABOUT")
    for entry in entries:
        here = "installed" if entry.path else "to fetch"
        print(f"{entry.name:12} {here:9} {entry.size_bytes / 1e6:>5.0f} MB  {entry.licence or 'not known':12} {entry.about}")
    print(f"\nThe models folder is {models.models_folder()}.")
    print("Fetch one with: cuttlefish models pull NAME. Use one with: --model llama-cpp:NAME")
    return COMPLETED


def pull_command(options: argparse.Namespace) -> int:
    """Fetch a model, check it and show its licence. Exit code 1 when it cannot be had.

    Raises:
        UsageError: there is no model of that name.
    """
    known = models.CATALOGUE
    if options.name not in known:
        raise UsageError(f'there is no model "{options.name}" to pull; there is: {", ".join(known)}')
    start_log()
    try:
        path = models.pull(options.name, report=lambda line: print(line, file=sys.stderr))
    except ModelLoadFailed as error:
        print(f"cuttlefish: {error.message}", file=sys.stderr)
        return FAILED
    print(f"licence {known[options.name].licence}: {path.with_suffix('.LICENSE')}", file=sys.stderr)
    return COMPLETED
