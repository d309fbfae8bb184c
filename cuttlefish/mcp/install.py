"""Writes the server into the configuration of an agent's program, beside whatever stands there."""

import difflib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

__all__ = ["CLIENTS", "Change", "Client", "InstallError", "plan_change", "server_entry", "write_change"]

MOST_BYTES = 16 << 20


class InstallError(Exception):
    """The configuration cannot be changed. The text says why; the file is as it was."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program whose configuration is known."""

    title: str
    key: str
    """The table of servers in its file."""
    path: Callable[[Path, Path], Path]
    """Its file, given the home and the current folder."""
    extra: Mapping[str, str]
    """What an entry holds beside command and arguments."""


def _claude_desktop(home: Path, folder: Path) -> Path:
    return Path(platformdirs.user_config_path("Claude", appauthor=False, roaming=True)) / "claude_desktop_config.json"


CLIENTS: dict[str, Client] = {
    "claude": Client("Claude Desktop", "mcpServers", _claude_desktop, {}),
    "claude-code": Client(
        "Claude Code, in this folder", "mcpServers", lambda home, folder: folder / ".mcp.json", {"type": "stdio"}
    ),
    "cursor": Client("Cursor", "mcpServers", lambda home, folder: home / ".cursor" / "mcp.json", {}),
    "gemini": Client("Gemini CLI", "mcpServers", lambda home, folder: home / ".gemini" / "settings.json", {}),
    "vscode": Client("VS Code, in this folder", "servers", lambda home, folder: folder / ".vscode" / "mcp.json", {"type": "stdio"}),
    "windsurf": Client("Windsurf", "mcpServers", lambda home, folder: home / ".codeium" / "windsurf" / "mcp_config.json", {}),
}


@dataclass(frozen=True, slots=True)
class Change:
    """What a file is, and what it would be."""

    path: Path
    before: bytes | None
    """None if there is no such file."""
    after: bytes

    def is_needed(self) -> bool:
        """Whether anything would change."""
        return self.before != self.after

    def shown(self) -> str:
        """The difference, line by line."""
        old = (self.before or b"").decode("utf-8", "replace").splitlines()
        new = self.after.decode().splitlines()
        return "\n".join(difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm="", n=2))


def server_entry(client: Client, arguments: list[str], environment: Mapping[str, str]) -> dict[str, object]:
    """How the client starts the server: by this Python, which surely has it, whatever the client's PATH is."""
    entry: dict[str, object] = {**client.extra, "command": sys.executable, "args": ["-m", "cuttlefish", "mcp", *arguments]}
    return entry | {"env": dict(environment)} if environment else entry


def plan_change(client: Client, path: Path, name: str, entry: Mapping[str, object]) -> Change:
    """The file with the entry in it and everything else as it was. Blocking; writes nothing.

    Raises:
        InstallError: the file cannot be read, is no JSON, or does not have the form of this client's configuration.
    """
    path = path.resolve()  # of a link, what it leads to is changed
    try:
        with open(path, "rb") as file:
            before: bytes | None = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        before = None
    except OSError as error:
        raise InstallError(f"{path} cannot be read: {(error.strerror or 'no reason given').lower()}") from None
    table: object = {}
    if before is not None and before.strip():
        try:
            table = json.loads(before.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            told = "it is no plain JSON (comments, perhaps); put the entry in by hand, --print shows it"
            raise InstallError(f"{path} is left as it is: {told}") from None
    servers = table.setdefault(client.key, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(servers, dict):
        raise InstallError(f'{path} is left as it is: "{client.key}" should be a table of servers')
    servers[name] = dict(entry)
    return Change(path, before, json.dumps(table, indent=2, ensure_ascii=False).encode() + b"\n")


def write_change(change: Change) -> Path | None:
    """Write the file at once or not at all, and keep the old one beside it; return where. Blocking.

    Raises:
        InstallError: it cannot be written, or was changed since `plan_change`.
    """
    folder = change.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        now = change.path.read_bytes() if change.path.exists() else None
        if now != change.before:
            raise InstallError(f"{change.path} was changed by something else meanwhile; try again")
        backup = None
        mode = 0o600
        if change.before is not None:
            mode = change.path.stat().st_mode & 0o777
            backup = change.path.with_name(change.path.name + ".before-cuttlefish")
            _write_whole(backup, change.before, mode)
        _write_whole(change.path, change.after, mode)
    except OSError as error:
        raise InstallError(f"{change.path} cannot be written: {(error.strerror or 'no reason given').lower()}") from None
    return backup


def _write_whole(path: Path, data: bytes, mode: int) -> None:
    fd, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).chmod(mode)
        Path(aside).replace(path)
    except BaseException:  # Ctrl-C too: nothing is left beside the file
        Path(aside).unlink(missing_ok=True)
        raise
