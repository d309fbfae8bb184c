"""`cuttlefish block …`."""

import argparse
import json
import sys
from pathlib import Path

import trio

from cuttlefish.authoring.sources import Source, load_source
from cuttlefish.cli.block_build import find
from cuttlefish.cli.exits import COMPLETED, FAILED
from cuttlefish.cli.log import start_log
from cuttlefish.errors import CuttlefishError
from cuttlefish.host import open_host
from cuttlefish.pipeline.catalog import builtin_blocks

__all__ = ["inspect_command"]


def inspect_command(options: argparse.Namespace) -> int:
    """Show what a block is, built first if it is a source, and whether this host would run it. Exit code 1 when it would not.

    Raises:
        UsageError: there is no such file, or no block in the folder.
    """
    start_log()
    builtin = None if Path(options.file).exists() else builtin_blocks().get(options.file)
    source = find(str(builtin or options.file))
    facts: dict[str, object] = {"file": str(source.file)}
    try:
        trio.run(_inspect, source, facts)
    except CuttlefishError as error:
        facts |= {"accepted": False, "code": error.code, "reason": error.message}
    sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if options.json else _as_text(facts))
    return COMPLETED if facts["accepted"] else FAILED


async def _inspect(source: Source, facts: dict[str, object]) -> None:
    """Add to the facts as much as there is to know, also of a block that is refused."""
    async with open_host() as host:
        block = await load_source(host, source)
        facts |= {"size_bytes": len(block.wasm), "sha256": block.sha256}
        found = await host.inspect(block)
    facts |= {
        "accepted": True,
        "signature": found.signature.describe(),
        "memory_bytes": found.module.shape.memory_bytes,
        "exports": {export.name: export.type for export in found.module.shape.exports},
    }


def _as_text(facts: dict[str, object]) -> str:
    lines = []
    for name, value in facts.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            lines.append(f"{label}:")
            lines += [f"  {inner:14} {kind}" for inner, kind in value.items()]
        else:
            lines.append(f"{label + ':':14} {('yes' if value else 'no') if isinstance(value, bool) else value}")
    return "\n".join(lines) + "\n"
