"""`cuttlefish graph`."""

import argparse
import sys

import trio

from cuttlefish.cli.check import check_file, problem_line
from cuttlefish.cli.exits import COMPLETED, USAGE
from cuttlefish.cli.log import start_log
from cuttlefish.cli.output import write
from cuttlefish.host import open_host
from cuttlefish.pipeline.draw import draw_dot, draw_mermaid, draw_text
from cuttlefish.pipeline.draw_svg import draw_svg
from cuttlefish.pipeline.graph import Graph

__all__ = ["graph_command"]

FORMS = {"text": draw_text, "mermaid": draw_mermaid, "dot": draw_dot, "svg": draw_svg}


def graph_command(options: argparse.Namespace) -> int:
    """Draw a pipeline on standard output. One that is wrong is not drawn: its problems go to standard error, exit code 2."""
    start_log()
    graph = trio.run(_check, options.file)
    if graph is None:
        return USAGE
    write(FORMS[options.form](graph))
    return COMPLETED


async def _check(file: str) -> Graph | None:
    async with open_host() as host:
        graph, problems = await check_file(host, file)
    sys.stderr.write("".join(map(problem_line, problems)))
    return graph
