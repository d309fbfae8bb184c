"""`cuttlefish block check`."""

import argparse
import os
from dataclasses import asdict

import trio

from cuttlefish.authoring.check import Finding, check_block
from cuttlefish.authoring.sources import Source
from cuttlefish.cli.block_build import find
from cuttlefish.cli.exits import COMPLETED, FAILED
from cuttlefish.cli.log import start_log
from cuttlefish.cli.output import write, write_json
from cuttlefish.host import open_host
from cuttlefish.limits import limits_from_environment
from cuttlefish.pipeline.draw import printable

__all__ = ["check_command"]


def check_command(options: argparse.Namespace) -> int:
    """Show what is well and what is wrong with a block, a line for each. Exit code 1 if something is wrong.

    Raises:
        UsageError: there is no such block.
    """
    start_log()
    findings = trio.run(_check, find(options.path), not options.json)
    is_well = all(finding.verdict != "wrong" for finding in findings)
    if options.json:
        write_json({"block": options.path, "ok": is_well, "findings": [asdict(finding) for finding in findings]})
    return COMPLETED if is_well else FAILED


async def _check(source: Source, shows: bool) -> list[Finding]:
    findings = []
    async with open_host() as host:
        async for finding in check_block(host, source, limits_from_environment(os.environ)):
            findings.append(finding)
            if shows:
                write(_as_text(finding))
    return findings


def _as_text(finding: Finding) -> str:
    first, *more = finding.message.split("\n")  # of a compiler or a traceback
    lines = [f"{finding.verdict:8} {finding.check:12} {first}"]
    lines += [f"{'':21} {line}" for line in [*more, *([f"→ {finding.advice}"] if finding.advice else [])]]
    return "".join(printable(line) + "\n" for line in lines)
