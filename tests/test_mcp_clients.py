"""Agents' programs against `cuttlefish mcp`: the official client in both revisions and over both transports."""

import base64
import gc
import io
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as t
import pytest
import trio
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from PIL import Image

from cuttlefish.cli import main
from guests import SPIN, scripted

TOKEN = "the-token-of-these-tests"
ENVIRONMENT = {**os.environ, "CUTTLEFISH_TOKEN": TOKEN}
MODES = ["legacy", "2026-07-28"]
OWN = {"describe_skill", "describe_family", "job_status", "job_result", "job_cancel", "jobs_list"}


pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # the official client leaves them


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What the official client leaves is collected here, where its warning is known."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pipelines of small blocks."""
    folder = tmp_path_factory.mktemp("pipelines")
    emit = {"cmd": "emit", "progress": {"page": 1}}
    done = {"cmd": "done", "result": {"title": "ö", "size": 2**60}}
    blocks = {
        "quick": scripted(emit, done, signature="{path: text} -> {size: number, title: text}"),
        "takes-number": scripted({"cmd": "done", "result": 1}, signature="{size: number} -> number"),
        "spin": scripted({"cmd": "done", "result": 1}, init=SPIN, signature="{} -> json"),
        "opens": scripted({"cmd": "open", "path": "secret.txt"}, {"cmd": "done", "result": 1}, signature="{} -> json"),
    }
    for name, block in blocks.items():
        (folder / f"{name}.wasm").write_bytes(block.wasm)
        text = f'name = "{name}"\ndescription = "What {name} is for."\nblock = "./{name}.wasm"\nlimits.guest.step_time = 100\n'
        (folder / f"{name}.toml").write_text(text)
    (folder / "asks.toml").write_text('name = "asks"\nmodel = "llama-cpp:absent"\nblock = "summarize"\n')
    return folder


@contextmanager
def http_server(*arguments: str | Path) -> Iterator[str]:
    """`cuttlefish mcp --http`; gives its address."""
    command = [sys.executable, "-m", "cuttlefish", "mcp", *map(str, arguments), "--http", "127.0.0.1:0"]
    command += ["--token-env", "CUTTLEFISH_TOKEN"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0


@pytest.fixture(scope="module")
def address(pipelines: Path) -> Iterator[str]:
    with http_server(pipelines) as address:
        yield address


@asynccontextmanager
async def connected(
    transport: str, mode: str, pipelines: Path, address: str, options: Sequence[str] = (), name: str = "test"
) -> AsyncIterator[Client]:
    """The official client."""
    info = t.Implementation(name=name, version="1")
    if transport == "stdio":
        arguments = ["-m", "cuttlefish", "mcp", str(pipelines), *options]
        server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        async with Client(server, mode=mode, client_info=info) as client:
            yield client
        return
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http,
        Client(streamable_http_client(address, http_client=http), mode=mode, client_info=info) as client,
    ):
        yield client


def value_of(result: t.CallToolResult) -> dict[str, Any]:
    """The structured answer, which stands in the text as well."""
    assert isinstance(result.content[0], t.TextContent)
    assert json.loads(result.content[0].text) == result.structured_content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_lists_and_calls_every_tool(transport: str, mode: str, pipelines: Path, address: str) -> None:
    called: set[str] = set()
    progress: list[tuple[float, str | None]] = []

    async def note(number: float, total: float | None, message: str | None) -> None:
        progress.append((number, message))

    async with connected(transport, mode, pipelines, address) as client:

        async def call(name: str, arguments: dict[str, Any]) -> t.CallToolResult:
            called.add(name)
            return await client.call_tool(name, arguments, progress_callback=note)

        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"quick", "spin", "opens", "asks", "takes-number", *OWN}
        assert client.protocol_version == ("2026-07-28" if mode == "2026-07-28" else "2025-11-25")
        assert tools["quick"].input_schema["required"] == ["path"]
        assert (tools["asks"].description or "").startswith("Cannot be used on this machine now: ")

        envelope = value_of(await call("quick", {"path": "a"}))
        assert envelope["result"] == {"title": "ö", "size": str(2**60)}
        again = value_of(await call("takes-number", {"size": envelope["result"]["size"]}))  # by a client that has only doubles
        assert again["status"] == "completed"

        wrong = await call("quick", {"path": 3})
        assert wrong.is_error
        assert [violation["field"] for violation in value_of(wrong)["validation_failed"]] == ["path"]

        refused = await call("asks", {"path": "a.txt"})
        assert refused.is_error
        assert set(value_of(refused)["unavailable"]) == {"reason", "hint"}

        outside = await call("opens", {})
        assert (outside.is_error, value_of(outside)["error"]["code"]) == (True, "capability_denied")

        with trio.move_on_after(2):
            await call("spin", {})
        spinning = value_of(await call("jobs_list", {}))["jobs"][0]
        with trio.fail_after(60):
            while spinning["status"] != "cancelled":  # leaving the call cancelled it; with HTTP the news takes its way
                spinning = value_of(await call("job_status", {"job_id": spinning["job_id"]}))
        assert value_of(await call("job_status", {"job_id": spinning["job_id"]}))["state"] == "cancelled"
        assert value_of(await call("job_cancel", {"job_id": spinning["job_id"]}))["status"] == "cancelled"
        assert value_of(await call("job_result", {"job_id": spinning["job_id"]}))["error"]["code"] == "cancelled"

        described = (await call("describe_skill", {"skill": "quick"})).content[0]
        assert isinstance(described, t.TextContent)
        assert "What quick is for." in described.text
        assert (await call("describe_family", {"family": "none"})).is_error
        with pytest.raises(MCPError, match='unknown tool "quikc"; did you mean "quick"'):
            await client.call_tool("quikc", {})
    assert called == {"quick", "spin", "opens", "asks", "takes-number", *OWN}
    assert "running" in {message for _, message in progress}


SHOW = """
SIGNATURE = "{path: text} -> {cut: image, whole: image, broken: image}"

def run(input):
    whole = (yield open(input["path"])).handle
    cut = (yield crop(whole, 0, 0, 380, 379)).handle
    broken = (yield open("broken.png")).handle
    return {"cut": cut, "whole": whole, "broken": broken}
"""


@pytest.mark.parametrize("mode", MODES)
async def test_a_model_is_shown_the_images_of_a_result_and_linked_to_those_that_are_too_large_together(
    mode: str, tmp_path: Path
) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "show.toml").write_text('name = "show"\nblock = "./show.py"\nread = ["."]\n')
    Image.frombytes("RGB", (380, 380), random.Random(1).randbytes(3 * 380 * 380)).save(tmp_path / "noise.png")
    noise = (tmp_path / "noise.png").read_bytes()
    (tmp_path / "broken.png").write_bytes(noise[:1000])

    async with connected("stdio", mode, tmp_path / "show.toml", "") as client:
        result = await client.call_tool("show", {"path": "noise.png"})
        assert value_of(result)["status"] == "completed"
        _, named, shown, named_link, link, broken = result.content
        assert isinstance(named, t.TextContent)
        assert named.text == "result.cut:"
        assert isinstance(shown, t.ImageContent)
        with Image.open(io.BytesIO(base64.b64decode(shown.data))) as image:
            assert image.size == (380, 379)
        assert shown.mime_type == "image/png"

        assert isinstance(link, t.ResourceLink)
        assert (link.name, link.size) == ("result.whole", len(noise))
        assert isinstance(named_link, t.TextContent)
        assert str(link.uri) in named_link.text
        contents = (await client.read_resource(link.uri)).contents[0]
        assert isinstance(contents, t.BlobResourceContents)
        assert base64.b64decode(contents.blob) == noise

        assert isinstance(broken, t.TextContent)
        assert broken.text.startswith("result.broken cannot be shown: document_invalid: ")
        for number in (2, 3):
            with pytest.raises(MCPError, match="has no such image"):
                await client.read_resource(f"{str(link.uri).rpartition('/')[0]}/{number}")


async def test_a_cancelled_call_is_cancelled_for_a_client_over_http_that_is_gone(pipelines: Path, address: str) -> None:
    for mode in MODES:
        async with connected("http", mode, pipelines, address) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "spin", {})
            while (value_of(await client.call_tool("jobs_list", {"status": "running"})))["jobs"] == []:
                pass
            nursery.cancel_scope.cancel()
        async with connected("http", mode, pipelines, address) as client:
            with trio.fail_after(60):
                while value_of(await client.call_tool("jobs_list", {"status": "running"}))["jobs"]:
                    pass


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_with_many_calls_keeps_no_other_waiting_for_more_than_one_of_them(mode: str, pipelines: Path) -> None:
    waits = trio.Event()
    told: list[str | None] = []

    async def note(number: float, total: float | None, message: str | None) -> None:
        told.append(message)
        waits.set()

    with http_server(pipelines, "--max-jobs", "1") as address:
        async with (
            connected("http", mode, pipelines, address, name="many") as many,
            connected("http", mode, pipelines, address, name="few") as few,
            trio.open_nursery() as nursery,
        ):

            async def jobs(status: str, count: int) -> list[str]:
                """Their ids, as soon as there are so many."""
                with trio.fail_after(60):
                    while len(found := value_of(await few.call_tool("jobs_list", {"status": status}))["jobs"]) != count:
                        pass
                return [job["job_id"] for job in found]

            async def end_two_when_it_waits() -> None:
                await waits.wait()
                for _ in range(2):  # the one that ran before, and the one whose turn came first
                    (running,) = await jobs("running", 1)
                    await few.call_tool("job_cancel", {"job_id": running})

            for _ in range(21):
                nursery.start_soon(many.call_tool, "spin", {})
            await jobs("running", 1)
            await jobs("queued", 20)
            nursery.start_soon(end_two_when_it_waits)
            with trio.fail_after(60):
                answer = value_of(await few.call_tool("quick", {"path": "a"}, progress_callback=note))
            assert (answer["status"], told[0]) == ("completed", "waiting: 1 job ahead")
            await jobs("queued", 18)
            nursery.cancel_scope.cancel()


async def test_an_older_client_whose_stream_breaks_without_a_word_frees_what_its_call_used(address: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    spin = {"name": "spin", "arguments": {}, "_meta": {"progressToken": "p"}}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:

        def message(method: str, params: Any) -> dict[str, Any]:
            return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

        begun = await http.post(address, json=message("initialize", info))
        http.headers["Mcp-Session-Id"] = begun.headers["mcp-session-id"]
        await http.post(address, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        async with http.stream("POST", address, json=message("tools/call", spin)) as stream:
            async for line in stream.aiter_lines():
                if '"running"' in line:
                    break
    async with connected("http", "2026-07-28", Path(), address) as client:
        with trio.fail_after(60):
            while value_of(await client.call_tool("jobs_list", {"status": "running"}))["jobs"]:
                pass


WRONG = {
    "no token": ({}, 401),
    "another token": ({"Authorization": "Bearer guess"}, 401),
    "two tokens": ([("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")], 401),
    "a page's origin": ({"Authorization": f"Bearer {TOKEN}", "Origin": "https://example.org"}, 403),
    "an origin that only looks local": ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://localhost.example.org"}, 403),
    "null origin": ({"Authorization": f"Bearer {TOKEN}", "Origin": "null"}, 403),
    "a name made to lead here": ({"Authorization": f"Bearer {TOKEN}", "Host": "example.org"}, 403),
}


@pytest.mark.parametrize(("headers", "status"), WRONG.values(), ids=WRONG)
async def test_a_request_without_the_token_or_from_a_page_is_refused(headers: Any, status: int, address: str) -> None:
    async with httpx2.AsyncClient() as http:
        answer = await http.post(address, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == -32600
    assert TOKEN not in answer.text


@pytest.mark.parametrize("authorization", ["", f"Authorization: Bearer {TOKEN}\r\n"], ids=["no token", "the token"])
def test_a_websocket_is_refused_whoever_asks(authorization: str, address: str) -> None:
    url = httpx2.URL(address)
    assert url.port is not None
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        connection.sendall(
            f"GET {url.path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n{authorization}{upgrade}"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 403 ")


async def test_a_local_origin_is_served(address: str) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Origin": "http://localhost:3000",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "server/discover",
    }
    async with httpx2.AsyncClient() as http:
        message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
        answer = await http.post(address, headers=headers, json=message)
        body = answer.json()
        assert body["result"]["supportedVersions"] == ["2026-07-28"]
        large = await http.post(address, headers=headers, content=b" " * ((32 << 20) + 1))
    assert large.status_code == 413


async def test_an_agent_runs_its_own_pipeline_only_where_that_is_allowed_and_within_the_grants(pipelines: Path) -> None:
    text = 'name = "own"\n[nodes.count]\nblock = "word-count"\n'
    async with connected("stdio", "2026-07-28", pipelines, "", ["--allow-pipelines", "--read", str(pipelines)]) as client:

        async def run(pipeline: str, path: Path) -> t.CallToolResult:
            return await client.call_tool("run_pipeline", {"pipeline": pipeline, "input": {"path": str(path)}})

        assert value_of(await run(text, pipelines / "quick.toml"))["status"] == "completed"
        assert value_of(await run(text, Path(__file__)))["error"]["code"] == "capability_denied"
        asks_for_more = (
            'read = ["/"]\npassword_env = "HOME"\nmodel = "openai:http://example.org#m"\ndata_policy = "any"\n'
            'limits.guest.memory = "4GiB"\nembedding_model = "stub:x"\n'
        )
        violations = value_of(await run(asks_for_more + text.replace("word-count", "./quick.wasm"), pipelines))["validation_failed"]
        assert {violation["field"] for violation in violations} == {"pipeline"}
        told = [violation["message"].split(" ")[0] for violation in violations]
        assert told == [f"pipeline:{line}:" for line in (1, 2, 3, 4, 5, 6, 9)]


async def test_what_is_wrong_with_an_agents_own_pipeline_or_its_input_is_told_before_a_job_starts(pipelines: Path) -> None:
    async with connected("stdio", "2026-07-28", pipelines, "", ["--allow-pipelines", "--read", str(pipelines)]) as client:

        async def run(pipeline: str, input: object) -> t.CallToolResult:
            return await client.call_tool("run_pipeline", {"pipeline": pipeline, "input": input})

        async def violations(pipeline: str, input: object) -> list[tuple[str, str, str]]:
            result = await run(pipeline, input)
            assert result.is_error
            told = value_of(result)["validation_failed"]
            return [(violation["field"], violation["rule"], violation["message"]) for violation in told]

        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        example = (listed["run_pipeline"].description or "").split("\n\n")[1]
        assert await violations(example, {"path": 3, "pth": 1}) == [
            ("input.path", "type", "input.path must be text, found 3"),
            ("input.pth", "unknown", 'there is no argument input.pth; did you mean "path"?'),
        ]
        assert await violations(example, {}) == [("input.path", "required", "input.path is missing")]
        for pipeline, message in (
            (example.replace('"chunk"', '"chnk"'), '6: there is no block "chnk" here; did you mean "chunk"?'),
            (
                example.replace("out.pages", "out.kind"),
                '7: node "pieces": input.pages must be [{text: text}], and "pages.out.kind" gives text',
            ),
            ("[", "1: is not TOML: invalid initial character for a key part"),
        ):
            assert await violations(pipeline, {"path": "a.txt"}) == [("pipeline", "pipeline", f"pipeline:{message}")]
        assert value_of(await client.call_tool("jobs_list", {}))["jobs"] == []
        assert value_of(await run(example, {"path": str(pipelines / "quick.toml")}))["status"] == "completed"


def test_whoever_starts_a_server_is_told_what_agents_would_miss(tmp_path: Path) -> None:
    example = '[[examples]]\ntitle = "Wrong"\ninput = { items = 3 }\n'
    for number in range(58):
        text = f'name = "join-{number}"\nblock = "join"\n'
        (tmp_path / f"{number:02}.toml").write_text(text + (example if number == 7 else ""))
    (tmp_path / "asks.toml").write_text('name = "asks"\nmodel = "llama-cpp:absent"\nblock = "summarize"\n')
    command = [sys.executable, "-m", "cuttlefish", "mcp", str(tmp_path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
    fits, asks, many = done.stderr.splitlines()
    wrong = "the example does not fit what the pipeline takes, {items: [json]}: the example.items must be a list, [json], found 3"
    assert fits == f"cuttlefish: warning: {tmp_path}/07.toml:3: {wrong}"
    assert asks.startswith('cuttlefish: warning: asks cannot be used now: there is no model named "absent" on this machine. ')
    told = "there are 65 tools, and many clients take no more than 64; share the skills among several servers"
    assert many == f"cuttlefish: warning: {told}"


def test_without_anything_to_serve_the_command_says_what_to_name(capfd: pytest.CaptureFixture[str]) -> None:
    told = "cuttlefish: there is nothing to serve: name pipelines or folders of them, or give --installed or --allow-pipelines\n"
    assert (main(["mcp"]), *capfd.readouterr()) == (2, "", told)


REFUSED = {
    "no port": (["--http", "localhost"], '--http takes HOST:PORT, such as 127.0.0.1:8765; found "localhost"'),
    "other machines": (
        ["--http", "0.0.0.0:0"],
        '--http: "0.0.0.0" can be reached from other machines; give --allow-remote if that is meant',
    ),
    "no token": (
        ["--http", "127.0.0.1:0", "--token-env", "CUTTLEFISH_NO_TOKEN"],
        "--token-env: the environment variable CUTTLEFISH_NO_TOKEN must hold the token, "
        "16 characters or more, of ASCII without spaces",
    ),
    "no http": (["--token-env", "HOME"], "--allow-remote and --token-env go with --http"),
    "no count": (
        ["--max-jobs", "0"],
        'argument --max-jobs: needs a whole number from 1 to 10000, found "0" (see cuttlefish mcp --help)',
    ),
}


@pytest.mark.parametrize(("options", "told"), REFUSED.values(), ids=REFUSED)
def test_wrong_use_is_one_line(options: list[str], told: str, pipelines: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (main(["mcp", str(pipelines), *options]), *capfd.readouterr()) == (2, "", f"cuttlefish: {told}\n")


def test_without_the_extra_the_command_says_what_to_install(
    pipelines: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = "cuttlefish: serving agents needs the extra mcp: pip install 'cuttlefish[mcp]'\n"
    assert (main(["mcp", str(pipelines)]), *capfd.readouterr()) == (2, "", told)
