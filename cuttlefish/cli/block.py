"""`cuttlefish block …`."""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import trio

from cuttlefish.cli.exits import COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import start_log
from cuttlefish.engine.module import BlockBytes
from cuttlefish.errors import CuttlefishError
from cuttlefish.host import BlockFacts, open_host

__all__ = ["inspect_command"]


def inspect_command(options: argparse.Namespace) -> int:
    """Show what a block is, and whether this host would run it. Exit code 1 when it would not.

    Raises:
        UsageError: there is no such file.
    """
    path = Path(options.file)
    if not path.is_file():
        raise UsageError(f'there is no block "{path}"')
    start_log()
    wasm = path.read_bytes()
    facts: dict[str, object] = {"file": str(path), "size_bytes": len(wasm), "sha256": hashlib.sha256(wasm).hexdigest()}
    try:
        found = trio.run(_inspect, BlockBytes(path.name, wasm))
    except CuttlefishError as error:
        facts |= {"accepted": False, "code": error.code, "reason": error.message}
    else:
        facts |= {
            "accepted": True,
            "signature": found.signature.describe(),
            "memory_bytes": found.module.shape.memory_bytes,
            "exports": {export.name: export.type for export in found.module.shape.exports},
        }
    sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if options.json else _as_text(facts))
    return COMPLETED if facts["accepted"] else FAILED


async def _inspect(block: BlockBytes) -> BlockFacts:
    async with open_host() as host:
        return await host.inspect(block)


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
