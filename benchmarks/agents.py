"""What an agent waits for beyond its job: a call of a tool beside the same job started by a program, and a server's start."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from benchmarks.guests import scripted
from benchmarks.report import Part, Row, Target, timed
from benchmarks.scale import Scale
from benchmarks.timing import interleave_awaited, times_of
from cuttlefish import JobStatus, open_host

__all__ = ["measure_calls", "measure_ready"]

LIBRARY, TOOL = "Host.run", "tools/call, standard input and output"
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
DONE = scripted({"cmd": "done", "result": 1}, name="done.wasm")


class _Server:
    """A server in a process of its own, and the simplest client that there can be."""

    def __init__(self, pipeline: Path) -> None:
        command = [sys.executable, "-m", "cuttlefish", "mcp", str(pipeline)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())["result"]
        return answer


@contextmanager
def _pipeline() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        (Path(folder) / "done.wasm").write_bytes(DONE.wasm)
        pipeline = Path(folder) / "done.toml"
        pipeline.write_text('name = "done"\nblock = "./done.wasm"\n')
        yield pipeline


@contextmanager
def _server(pipeline: Path) -> Iterator[_Server]:
    server = _Server(pipeline)
    try:
        yield server
    finally:
        server.process.communicate(timeout=60)


def measure_calls(scale: Scale) -> Part:
    """The same job by the library and by a tool."""
    part = Part(
        "calls",
        "A pipeline of one block that is done at once: run by the library in this process, and called as a tool of a server in "
        "another one, line by line on its standard input and output; the call is checked, audited, queued and answered.",
        rows=[],
        targets=[],
    )
    with _pipeline() as pipeline, _server(pipeline) as server:
        trio.run(_measure_calls, part, scale, pipeline, server)
    return part


async def _measure_calls(part: Part, scale: Scale, pipeline: Path, server: _Server) -> None:
    async with open_host() as host:

        async def library() -> None:
            assert (await host.run(pipeline, {})).status is JobStatus.COMPLETED

        async def tool() -> None:
            answer = await trio.to_thread.run_sync(lambda: server.ask("tools/call", name="done", arguments={}))
            assert answer["structuredContent"]["status"] == "completed"

        times, _ = await interleave_awaited({TOOL: tool, LIBRARY: library}, scale.starts)
    part.rows.extend(timed("one call", times))
    beyond = times[TOOL].median - times[LIBRARY].median
    part.targets.append(Target("a tool call beyond the library's", 5.0, 1e3 * beyond, unit="ms"))


def measure_ready(scale: Scale) -> Part:
    """From a client's starting the server to its first answer."""
    part = Part(
        "ready",
        "From starting `cuttlefish mcp` with one pipeline until it answers the first request, tools/list; and from the end of its "
        "input until it is gone.",
        rows=[],
        targets=[],
    )
    starts, ends = [], []
    with _pipeline() as pipeline:
        for _ in range(scale.cold_starts):
            began = time.perf_counter()
            server = _Server(pipeline)
            server.ask("tools/list")
            starts.append(time.perf_counter() - began)
            began = time.perf_counter()
            server.process.communicate(timeout=60)
            ends.append(time.perf_counter() - began)
    for case, seconds in (("start to first answer", starts), ("end of input to exit", ends)):
        took = times_of(seconds)
        part.rows.append(Row(case, TOOL, "s", took.lowest, took.median, took.p99, took.repeats))
    part.targets.append(Target("start to first answer", 1.5, statistics.median(starts), unit="s"))
    return part
