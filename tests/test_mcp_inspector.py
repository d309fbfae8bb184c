"""The MCP Inspector, a client that is not ours, against `cuttlefish mcp`; `scripts/prepare-tools` installs it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from test_mcp_clients import TOKEN, http_server

from guests import scripted

ROOT = Path(__file__).parent.parent
INSPECTOR = ROOT / "build/inspector/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
NODE = Path(sys.executable).with_name("node")


def inspect(*arguments: str, home: Path) -> tuple[int, Any, str]:
    """Run it; the answer it shows, and what it says about it."""
    done = subprocess.run(
        [NODE, INSPECTOR, "--cli", *arguments], capture_output=True, timeout=120, text=True, env={**os.environ, "HOME": str(home)}
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_the_inspector_finds_no_error_in_the_tools_and_calls_each_over_both_transports(tmp_path: Path) -> None:
    (tmp_path / "quick.wasm").write_bytes(
        scripted({"cmd": "done", "result": 3}, signature="{path: text, size: number} -> number").wasm
    )
    pipeline = tmp_path / "quick.toml"
    pipeline.write_text('name = "quick"\ndescription = "Counts."\nblock = "./quick.wasm"\n')
    calls = {
        "quick": ["path=a.txt", "size=3"],
        "describe_skill": ["skill=quick"],
        "describe_family": ["family=none"],
        "job_status": ["job_id=none"],
        "job_result": ["job_id=none"],
        "job_cancel": ["job_id=none"],
        "jobs_list": [],
    }

    def call(name: str) -> list[str]:
        return ["--method", "tools/call", "--tool-name", name, *(["--tool-arg", *calls[name]] if calls[name] else [])]

    stdio = ["--", sys.executable, "-m", "cuttlefish", "mcp", str(pipeline)]
    code, listed, told = inspect("--method", "tools/list", "--strict", *stdio, home=tmp_path)
    assert (code, [tool["name"] for tool in listed["tools"]]) == (0, list(calls)), told
    code, answer, told = inspect(*call("quick"), *stdio, home=tmp_path)
    assert (code, answer["structuredContent"]["result"]) == (0, 3), told

    with http_server(pipeline) as address:
        http = ["--transport", "http", "--server-url", address, "--header", f"Authorization: Bearer {TOKEN}"]
        code, again, told = inspect("--method", "tools/list", "--strict", *http, home=tmp_path)
        assert (code, again) == (0, listed), told
        for name in calls:
            _, answer, told = inspect(*call(name), *http, home=tmp_path)
            assert ("isError" in answer and answer["isError"]) is ("none" in "".join(calls[name])), told
            assert answer["content"][0]["text"], told
