"""`cuttlefish mcp install`."""

import argparse
import json
import os
import sys
from pathlib import Path

from cuttlefish.cli.exits import COMPLETED, FAILED, UsageError
from cuttlefish.cli.output import write
from cuttlefish.cli.run import read_limits
from cuttlefish.mcp.install import CLIENTS, InstallError, plan_change, server_entry, write_change

__all__ = ["install_command"]

CARRIED = ("CUTTLEFISH_MODELS", "CUTTLEFISH_BLOCKS", "CUTTLEFISH_CACHE", "CUTTLEFISH_LOG_DIR")
"""Variables that a client would not pass on by itself, and without which the server would look elsewhere."""


def install_command(options: argparse.Namespace) -> int:
    """Show what would change in a client's configuration, and change it if that is meant.

    Raises:
        UsageError: sources that are not there, or a configuration that cannot be changed.
    """
    client = CLIENTS[options.client]
    sources = [Path(source) for source in options.sources]
    if missing := [source for source in sources if not source.exists()]:
        raise UsageError(f'there is no file or folder "{missing[0]}"')
    if not sources and not options.installed and not options.allow_pipelines:
        raise UsageError("there is nothing to serve: name pipelines or folders of them, or give --installed or --allow-pipelines")
    read_limits(options.limit)  # what is wrong is better told now than to a client
    carried = {name: os.environ[name] for name in CARRIED if os.environ.get(name)}
    entry = server_entry(client, _arguments(options, sources), {name: os.path.abspath(value) for name, value in carried.items()})
    if options.print:
        write(json.dumps({client.key: {options.name: entry}}, indent=2, ensure_ascii=False) + "\n")
        return COMPLETED
    path = Path(options.file) if options.file else client.path(Path.home(), Path.cwd())
    try:
        change = plan_change(client, path, options.name, entry)
        if not change.is_needed():
            write(f"{change.path} has it already\n")
            return COMPLETED
        write(change.shown() + "\n")
        if not options.yes and not _confirmed(client.title):
            return FAILED
        backup = write_change(change)
    except InstallError as error:
        raise UsageError(str(error)) from None
    write(f"written{f'; what it was is in {backup}' if backup else ''}. Start {client.title.split(',')[0]} anew to see the tools\n")
    return COMPLETED


def _arguments(options: argparse.Namespace, sources: list[Path]) -> list[str]:
    """The server's own options, with paths that hold wherever the client starts it."""
    arguments = [os.path.abspath(source) for source in sources]
    for name, value in (
        ("--model", options.model),
        ("--embedding-model", options.embedding_model),
        ("--password-env", options.password_env),
        ("--max-jobs", options.max_jobs and str(options.max_jobs)),
    ):
        arguments += [name, value] if value else []
    arguments += ["--read", *map(os.path.abspath, options.read)] if options.read else []
    arguments += ["--limit", *options.limit] if options.limit else []
    arguments += ["--installed"] if options.installed else []
    return arguments + (["--allow-pipelines"] if options.allow_pipelines else [])


def _confirmed(title: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nothing is written yet: give --yes if this is meant")
    write(f"Write this into the configuration of {title}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
