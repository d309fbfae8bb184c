"""A server of skills that are made by hand, over real blocks: `python agent_server.py stdio|http FOLDER [NAME=VALUE …]`.

What the command line does with pipelines, without their files. In http, the first line of standard output is the port.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from cuttlefish import BlockBytes, open_host
from cuttlefish.host import Host, JobOptions
from cuttlefish.mcp.descriptors import claim_stdio
from cuttlefish.mcp.http_server import HttpFace, serve_http
from cuttlefish.mcp.serving import open_server
from cuttlefish.mcp.skill import Annotations, Availability, Ready, Skill, SkillSet, Unavailable
from cuttlefish.mcp.stdio_wire import serve_stdio
from guests import SPIN, scripted

TOKEN = "the-token-of-the-tests"
INFER = {"cmd": "infer", "prompt": "Count from one to a hundred.", "max_tokens": 400}
BLOCKS = {
    "quick": scripted({"cmd": "emit", "progress": {"stage": "reading"}}, {"cmd": "done", "result": {"größe": 2**60, "small": 3}}),
    "large": scripted({"cmd": "done", "result": "é" * 300_000}),
    "spin": scripted({"cmd": "done", "result": 1}, init=SPIN),
    "fails": scripted({"cmd": "fail", "code": "too_dark", "message": "the picture is too dark"}),
    "says": scripted(INFER, {"cmd": "done", "result": 1}),
    "says-little": scripted({**INFER, "max_tokens": 8}, {"cmd": "done", "result": 1}),
    "absent": scripted({"cmd": "done", "result": 1}),
}
INPUT = {"type": "object", "properties": {"x": {"type": "string"}, "n": {"type": "integer"}}, "additionalProperties": False}


async def ready() -> Availability:
    return Ready()


async def absent() -> Availability:
    return Unavailable('the model "nothing" is not on this machine', "The operator can fetch it: cuttlefish models pull nothing")


def skill(host: Host, name: str, block: BlockBytes, options: JobOptions, probe: Callable[[], Awaitable[Availability]]) -> Skill:
    return Skill(
        name=name,
        description=f"What {name} is for.",
        input_schema=INPUT,
        output_schema={"type": "object", "required": ["status"]},
        annotations=Annotations(),
        examples=(),
        use_cases=(),
        rules=(),
        family=None,
        probe=probe,
        start=lambda arguments, client=(): host.start(block, dict(arguments), client=client, **options),
    )


async def main(face: str, folder: Path, settings: dict[str, str]) -> None:
    options = JobOptions(model=settings.get("model"), limits={"guest.step_time": 100})
    async with open_host(max_jobs=int(settings.get("jobs", "2"))) as host:
        skills = [skill(host, name, block, options, absent if name == "absent" else ready) for name, block in BLOCKS.items()]
        async with open_server(
            host,
            SkillSet({each.name: each for each in skills}, {}),
            audit_file=folder / "audit.jsonl",
            answer_within_s=float(settings.get("within", "50")),
            composed=JobOptions(base_dir=folder, read=[folder]),
        ) as server:
            if face == "stdio":
                sys.stdout.write("a stray print\n")  # and one that no Python stream sees:
                os.write(1, b"a stray print of native code\n")
                await serve_stdio(server, descriptors, drain_s=float(settings.get("drain", "60")))
            else:
                listener = socket.create_server(("127.0.0.1", 0))
                sys.stdout.write(f"{listener.getsockname()[1]}\n")
                sys.stdout.flush()
                names = ("localhost", "127.0.0.1", "[::1]")
                await serve_http(server.server, HttpFace(listener, TOKEN, names), trio.sleep_forever)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        descriptors = claim_stdio()
    trio.run(main, sys.argv[1], Path(sys.argv[2]), dict(setting.split("=", 1) for setting in sys.argv[3:]))
