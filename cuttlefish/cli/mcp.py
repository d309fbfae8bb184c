"""`cuttlefish mcp`: pipelines as tools of an agent."""

import argparse
import gc
import importlib.util
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import trio

from cuttlefish.background import first_error
from cuttlefish.cli.exits import COMPLETED, UsageError
from cuttlefish.cli.log import log_path, start_log
from cuttlefish.cli.run import read_limits
from cuttlefish.host import JobOptions, open_host
from cuttlefish.mcp.descriptors import StdioDescriptors, claim_stdio
from cuttlefish.mcp.loading import open_skills
from cuttlefish.pipeline.spec import PipelineError

__all__ = ["mcp_command"]

AUDIT_FILE = "audit.jsonl"
SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class _Http:
    """What `--http` asks for."""

    listener: socket.socket
    token: str
    names: tuple[str, ...] | None


def mcp_command(options: argparse.Namespace) -> int:
    """Serve skills until the client is gone or a signal comes.

    Raises:
        UsageError: an option or a source that cannot be served.
    """
    if not all(map(importlib.util.find_spec, ("mcp", "hypercorn"))):
        raise UsageError("serving agents needs the extra mcp: pip install 'cuttlefish[mcp]'")
    sources = [Path(source) for source in options.sources]
    if missing := [source for source in sources if not source.exists()]:
        raise UsageError(f'there is no file or folder "{missing[0]}"')
    if not sources and not options.installed and not options.allow_pipelines:
        raise UsageError("there is nothing to serve: name pipelines or folders of them, or give --installed or --allow-pipelines")
    if options.password_env and options.password_env not in os.environ:
        raise UsageError(f"--password-env: the environment variable {options.password_env} is not set")
    grants = JobOptions(
        model=options.model,
        embedding_model=options.embedding_model,
        read=[os.path.abspath(path) for path in options.read],  # whatever a pipeline's folder is
        password_env=options.password_env,
        limits=read_limits(options.limit),
    )
    if not options.http and (options.allow_remote or options.token_env):
        raise UsageError("--allow-remote and --token-env go with --http")
    face = _http(options) if options.http else claim_stdio()
    start_log()
    importing = Thread(target=_import_protocol, daemon=True)  # takes a second; meanwhile the skills are loaded
    importing.start()
    try:
        trio.run(_serve, options, sources, grants, face, importing)
    except BaseExceptionGroup as group:
        error = first_error(group)
        if isinstance(error, PipelineError):
            raise UsageError(str(error)) from None
        raise error from None
    return COMPLETED


def _import_protocol() -> None:
    import cuttlefish.mcp.serving
    import cuttlefish.mcp.stdio_wire  # noqa: F401  # what it imports is kept


async def _serve(
    options: argparse.Namespace, sources: list[Path], grants: JobOptions, face: StdioDescriptors | _Http, importing: Thread
) -> None:
    async with trio.open_nursery() as nursery:
        told_to_end = trio.Event()
        await nursery.start(_hear_signals, told_to_end)
        if isinstance(face, StdioDescriptors):
            nursery.start_soon(_cancel_when, told_to_end, nursery.cancel_scope)
        async with (
            open_host(max_jobs=options.max_jobs) as host,
            open_skills(host, sources, entry_points=options.installed, **grants) as skills,
        ):
            await trio.to_thread.run_sync(importing.join)
            from cuttlefish.mcp.serving import open_server

            async with open_server(
                host,
                skills,
                audit_file=log_path().with_name(AUDIT_FILE),
                answer_within_s=options.answer_within,
                composed=_for_composed(grants) if options.allow_pipelines else None,
            ) as server:
                gc.freeze()
                gc.enable()
                if isinstance(face, StdioDescriptors):
                    from cuttlefish.mcp.stdio_wire import serve_stdio

                    _warn(server.warnings)
                    await serve_stdio(server, face)
                else:
                    from cuttlefish.mcp.http_server import HttpFace, serve_http

                    _tell_address(face, len(skills.skills), shows_token=not options.token_env)
                    _warn(server.warnings)
                    await serve_http(server.server, HttpFace(face.listener, face.token, face.names), told_to_end.wait)
        nursery.cancel_scope.cancel()


def _for_composed(grants: JobOptions) -> JobOptions:
    """A pipeline that an agent writes lies in no folder: its paths start where the server was started."""
    composed = grants.copy()
    composed["base_dir"] = Path.cwd()
    return composed


async def _hear_signals(told_to_end: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if told_to_end.is_set():
                os._exit(COMPLETED)  # the second time they mean it; workers end with this process
            told_to_end.set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _http(options: argparse.Namespace) -> _Http:
    """Bind the address that was asked for.

    Raises:
        UsageError: no address, one of other machines without --allow-remote, one that is taken, a token that is not there.
    """
    name, colon, port_text = options.http.rpartition(":")
    name = name.removeprefix("[").removesuffix("]")
    if not colon or not name or not port_text.isdecimal() or int(port_text) > 65_535:
        raise UsageError(f'--http takes HOST:PORT, such as 127.0.0.1:8765; found "{options.http}"')
    token = secrets.token_urlsafe(32)
    if options.token_env:
        token = os.environ.get(options.token_env, "")
        if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            told = f"{SHORTEST_TOKEN} characters or more, of ASCII without spaces"
            raise UsageError(f"--token-env: the environment variable {options.token_env} must hold the token, {told}")
    try:
        found = socket.getaddrinfo(name, int(port_text), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise UsageError(f'--http: there is no host "{name}"') from None
    family, _, _, _, address = found[0]
    is_local = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if not is_local and not options.allow_remote:
        raise UsageError(f'--http: "{name}" can be reached from other machines; give --allow-remote if that is meant')
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(f"--http: {options.http}: {(error.strerror or str(error)).lower()}") from None
    named = f"[{name}]" if ":" in name else name
    return _Http(listener, token, ("localhost", "127.0.0.1", "[::1]", named.lower()) if is_local else None)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"cuttlefish: warning: {warning}", file=sys.stderr, flush=True)


def _tell_address(face: _Http, count: int, *, shows_token: bool) -> None:
    host, port = face.listener.getsockname()[:2]
    print(
        f"cuttlefish: {count} skill{'s' * (count != 1)} at http://{f'[{host}]' if ':' in host else host}:{port}/mcp",
        file=sys.stderr,
    )
    if shows_token:
        print(f"cuttlefish: clients send the header Authorization: Bearer {face.token}", file=sys.stderr)
    sys.stderr.flush()
