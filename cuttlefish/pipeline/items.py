"""The items of a node that runs over many: lines of a manifest, or files that match a pattern; both under the read grant.

Blocking, and made for threads of `trio.to_thread.run_sync`: a long reading is given up when its job is cancelled.
"""

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import trio

from cuttlefish.errors import BadCommand, CapabilityDenied, NotFound, SchemaMismatch
from cuttlefish.limits import Limits, limit_exceeded
from cuttlefish.media.capabilities import Capabilities, Unreadable
from cuttlefish.media.text import read_exactly
from cuttlefish_abi import BadJson, parse_json

__all__ = ["items_of_manifest", "paths_of_pattern", "pattern_problem"]

CHECK_EVERY = 256  # items read before it is asked again whether the job is cancelled


def pattern_problem(over: str) -> str | None:
    """What is wrong with `over`, if anything. It is a `.jsonl` file or a pattern with `*`, `?`, `[…]`, and `**` for any folders."""
    if "\0" in over:
        return "a path cannot hold a NUL character"
    if over.endswith(".jsonl"):
        return "a manifest is one .jsonl file, not a pattern" if any(sign in over for sign in "*?[") else None
    parts = over.split("/")
    if not any(sign in over for sign in "*?["):
        return 'it is neither a .jsonl file nor a pattern such as "inbox/*.pdf"'
    if any("**" in part and part != "**" for part in parts):
        return "** stands alone between two slashes, for any number of folders"
    if parts[-1] in ("**", "", ".", ".."):
        return 'it must end with the files\' names, such as "*.pdf"'
    if "[" in re.sub(r"\[!?[^\]/][^\]/]*\]", "", over):
        return 'a "[" is never closed, or closed with nothing in it'
    return None


def items_of_manifest(over: str, folder: Path, capabilities: Capabilities, limits: Limits) -> list[object]:
    """One JSON value per line of a file; blank lines are passed over and not counted.

    Raises:
        CapabilityDenied, NotFound: the manifest is opened like any other file.
        LimitExceeded: it is larger than one message may be.
        SchemaMismatch: a line that is no JSON, by its number.
    """
    with capabilities.open(os.path.join(folder, over)) as file:
        if file.size > limits.guest_message_bytes:
            raise limit_exceeded("guest_message_bytes", limits.guest_message_bytes, f'the manifest "{over}" has {file.size}')
        data = read_exactly(file.fd, 0, file.size, "over", f'"{over}"')
    items: list[object] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if number % CHECK_EVERY == 0:
            trio.from_thread.check_cancelled()
        if line.strip():
            try:
                items.append(parse_json(line, max_depth=limits.guest_json_depth))
            except BadJson as error:
                raise SchemaMismatch(f'line {number} of "{over}" is {_within_a_line(error)}') from None
    return items


def paths_of_pattern(over: str, folder: Path, base_dir: Path, capabilities: Capabilities, limits: Limits) -> list[object]:
    """`{"path": …}` for each regular file that matches, sorted by path; relative to `base_dir` where it lies in that.

    `*` and `**` pass over names that start with a dot, and `**` follows no links. A file outside of what is granted, also by way
    of a link, is no item, as nothing may be told about it. One inside that cannot be opened (this user may not read it, its name
    is no text) is an item: what runs on it fails, and says why.

    Raises:
        NotFound: nothing matches that may be read.
        LimitExceeded: more names were looked at than a block may give commands (`guest.commands`).
    """
    looked_at = 0

    def count() -> None:
        nonlocal looked_at
        looked_at += 1
        if looked_at % CHECK_EVERY == 0:
            trio.from_thread.check_cancelled()
        if looked_at > limits.guest_commands:
            raise limit_exceeded("guest_commands", limits.guest_commands, f'"{over}" has to look at more names')

    found = sorted(set(_walk("/" if over.startswith("/") else str(folder), over.strip("/").split("/"), count)))
    items: list[object] = []
    base = os.path.join(os.path.abspath(base_dir), "")
    for path in found:
        count()
        try:
            capabilities.open(path).close()
        except Unreadable:
            pass
        except BadCommand:
            if not capabilities.covers(path):
                continue
        except (CapabilityDenied, NotFound):
            continue
        items.append({"path": path.removeprefix(base)})
    if not items:
        raise NotFound(f'no file that may be read matches "{over}"')
    return items


def _walk(top: str, parts: list[str], count: Callable[[], None]) -> Iterator[str]:
    """The paths beneath a folder that match a pattern, given as its parts."""
    waiting = [(top, 0)]
    while waiting:
        folder, at = waiting.pop()
        part, is_last = parts[at], at == len(parts) - 1
        if part == "**":
            waiting.append((folder, at + 1))
        elif not any(sign in part for sign in "*?["):
            path = os.path.join(folder, part)
            if not is_last:
                waiting.append((path, at + 1))
            elif Path(path).is_file():
                yield path
            continue
        for entry in _entries(folder):
            count()
            if part == "**":
                if not entry.name.startswith(".") and _holds(entry.is_dir, follow_symlinks=False):
                    waiting.append((entry.path, at))
            elif fnmatch.fnmatchcase(entry.name, part) and (part.startswith(".") or not entry.name.startswith(".")):
                if not is_last:
                    waiting.append((entry.path, at + 1))
                elif _holds(entry.is_file):
                    yield entry.path


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return  # what cannot be listed has nothing that could be opened


def _holds(question: Callable[..., bool], **options: bool) -> bool:
    try:
        return question(**options)
    except OSError:  # a link that leads in a circle
        return False


def _within_a_line(error: BadJson) -> str:
    """The parser counts the lines of what it was given, which is always one."""
    return str(error).replace("at line 1 column", "at column")
