"""`cuttlefish block add|list|show|rm`: the blocks that can be run by name."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import trio

from cuttlefish.authoring.sources import Source, find_source, load_source
from cuttlefish.cli.exits import COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import start_log
from cuttlefish.cli.output import write, write_json
from cuttlefish.engine.module import BlockBytes
from cuttlefish.errors import CuttlefishError, NotFound
from cuttlefish.host import BlockFacts, open_host
from cuttlefish.limits import limits_from_environment
from cuttlefish.pipeline.block_store import BlockStore, Entry, blocks_folder, split_name
from cuttlefish.pipeline.catalog import builtin_blocks, read_block_file
from cuttlefish.pipeline.draw import printable
from cuttlefish_abi.strict_json import suggest

__all__ = ["catalog_command"]


def catalog_command(action: str, options: argparse.Namespace) -> int:
    """Run one of the commands. Exit code 1 for a block that is refused, or a catalogue that cannot be used.

    Raises:
        UsageError: there is no such file or block, or a name that cannot be one.
    """
    start_log()
    store = BlockStore(blocks_folder())
    actions = {"add": _add, "list": _list, "show": _show, "rm": _remove}
    try:
        return actions[action](store, options)
    except (NotFound, ValueError) as error:
        raise UsageError(error.message if isinstance(error, NotFound) else str(error)) from None
    except CuttlefishError as error:
        print(f"cuttlefish: {error.message}", file=sys.stderr)
        return FAILED


def _add(store: BlockStore, options: argparse.Namespace) -> int:
    path = Path(options.file)
    if path.suffix == ".wasm" or not path.exists():
        block = read_block_file(path, limits_from_environment(os.environ), options.file)
        name, version = split_name(path.name.removesuffix(".wasm"))
    else:
        source = find_source(path)
        block = trio.run(_build, source)
        name, version = source.name, None
    (facts,) = trio.run(_inspect, [block])
    if isinstance(facts, CuttlefishError):
        raise facts
    entry, is_new = store.add(block, facts.signature, options.name or name, options.block_version or version)
    if options.json:
        write_json(_facts(store, entry) | {"added": is_new})
    else:
        write(f"{entry.full_name} {'is added' if is_new else 'is there already'}: {printable(entry.signature.describe())}\n")
    return COMPLETED


def _list(store: BlockStore, options: argparse.Namespace) -> int:
    entries = store.entries()
    builtin = _builtin()
    if options.json:
        write_json(
            [
                *(_facts(store, entry) for entry in entries),
                *({"name": n, "builtin": True, "signature": s} for n, s in builtin.items()),
            ]
        )
        return COMPLETED
    rows = [(entry.full_name, entry.signature.describe()) for entry in entries]
    taken = {entry.name for entry in entries}
    rows += [
        (name, f"{signature}{'  (the catalogue has one of this name)' if name in taken else ''}")
        for name, signature in builtin.items()
    ]
    width = max(len(name) for name, _ in rows)
    lines = "".join(f"{name:{width}}  {printable(signature)}\n" for name, signature in rows)
    write(f"{lines}\nThe catalogue is {store.folder}. Names without a version come with cuttlefish.\n")
    return COMPLETED


def _show(store: BlockStore, options: argparse.Namespace) -> int:
    entry = store.find(options.name)
    entries = store.entries(removed=True)
    if entry is None:
        own, _ = split_name(options.name)
        gone = [one.version for one in entries if one.name == own]
        if gone:
            raise NotFound(f'every version of the block "{own}" was removed from the catalogue: {", ".join(gone)}')
        if options.name in builtin_blocks():
            raise NotFound(
                f'"{own}" comes with cuttlefish and is not in the catalogue. Show it with: cuttlefish block inspect {own}'
            )
        known = dict.fromkeys(one.name for one in entries)
        hint = suggest(own, known) if known else "the catalogue is empty"
        raise NotFound(f'there is no block "{options.name}" in the catalogue; {hint}')
    versions = [one for one in entries if one.name == entry.name]
    facts = _facts(store, entry)
    if options.json:
        write_json(
            facts | {"versions": [{"version": one.version, "sha256": one.sha256, "removed": one.removed} for one in versions]}
        )
        return COMPLETED
    facts["versions"] = ", ".join(one.version + (" (removed)" if one.removed else "") for one in versions)
    write("".join(f"{key.replace('_', ' ') + ':':14} {printable(str(value))}\n" for key, value in facts.items()))
    return COMPLETED


def _remove(store: BlockStore, options: argparse.Namespace) -> int:
    entry = store.remove(options.name)
    if options.json:
        write_json({"name": entry.name, "version": entry.version, "sha256": entry.sha256, "removed": True})
    else:
        write(f"{entry.full_name} is removed; the same bytes may come back under this version, others may not\n")
    return COMPLETED


def _builtin() -> Mapping[str, str]:
    """The signatures of the blocks that ship with Cuttlefish, or why one would be refused."""
    limits = limits_from_environment(os.environ)
    blocks = {name: read_block_file(path, limits, name) for name, path in builtin_blocks().items()}
    found = trio.run(_inspect, list(blocks.values()))
    return {
        name: f"refused: {facts.message}" if isinstance(facts, CuttlefishError) else facts.signature.describe()
        for name, facts in zip(blocks, found, strict=True)
    }


async def _build(source: Source) -> BlockBytes:
    async with open_host() as host:
        return await load_source(host, source)


async def _inspect(blocks: list[BlockBytes]) -> list[BlockFacts | CuttlefishError]:
    found: list[BlockFacts | CuttlefishError] = []
    async with open_host() as host:
        for block in blocks:
            try:
                found.append(await host.inspect(block))
            except CuttlefishError as error:
                found.append(error)
    return found


def _facts(store: BlockStore, entry: Entry) -> dict[str, object]:
    return {
        "name": entry.name,
        "version": entry.version,
        "sha256": entry.sha256,
        "size_bytes": entry.size_bytes,
        "signature": entry.signature.describe(),
        "file": str(store.blob(entry)),
    }
