"""Run every pipeline of this folder on its own examples, with its own model: `python examples/run_all.py`. A line for each."""

import sys
import time
from pathlib import Path

import trio

from cuttlefish import Envelope, open_host

HERE = Path(__file__).parent


async def main() -> int:
    """1 if a job failed."""
    failed = 0
    async with open_host() as host:
        for file in sorted(HERE.glob("*.toml")):
            graph = await host.check(file)
            for value in graph.loaded.pipeline.examples:
                began = time.monotonic()
                envelope = await host.run(file, value)
                failed += envelope.error is not None
                print(f"{file.name:24} {value!s:36} {time.monotonic() - began:5.1f} s  {told(envelope)}", flush=True)
    return 1 if failed else 0


def told(envelope: Envelope) -> str:
    """An outcome in a few words."""
    if envelope.error is not None:
        return f"{envelope.status}: {envelope.error.code}: {envelope.error.message}"
    words = f"{envelope.status}, {envelope.usage.tokens_in} + {envelope.usage.tokens_out} tokens"
    match envelope.result:
        case {"succeeded": succeeded, "failed": failed, "failures": list(failures)}:
            codes = ", ".join(f"item {one['item']}: {one['code']}" for one in failures if isinstance(one, dict))
            return f"{words}, {succeeded} results and {failed} failure ({codes})"
    return words


if __name__ == "__main__":
    sys.exit(trio.run(main))
