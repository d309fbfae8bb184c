"""`cuttlefish block new` and `cuttlefish block build`."""

import argparse
import os
import shlex
import sys
from pathlib import Path

import trio

from cuttlefish.authoring.sources import Source, find_source, load_source
from cuttlefish.authoring.templates import BadName, new_block
from cuttlefish.cli.exits import COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import start_log
from cuttlefish.cli.output import write, write_json
from cuttlefish.engine.module import BlockBytes
from cuttlefish.errors import BuildFailed, CuttlefishError, NotFound, Unsupported
from cuttlefish.host import BlockFacts, open_host
from cuttlefish.pipeline.draw import printable

__all__ = ["build_command", "find", "new_command", "tell_failure"]


def find(path: str) -> Source:
    """The block that a path on the command line means.

    Raises:
        UsageError: there is none, or more than one.
    """
    try:
        return find_source(Path(path))
    except NotFound as error:
        raise UsageError(error.message) from None


def tell_failure(error: CuttlefishError) -> None:
    """Say on standard error why a block does not load; of a compiler all that it said."""
    # A traceback of a Python block has lines of its own.
    print("cuttlefish: " + "\n".join(map(printable, error.message.split("\n"))), file=sys.stderr)
    if isinstance(error, BuildFailed):
        print("\n".join(map(printable, error.output.splitlines())), file=sys.stderr)


def new_command(options: argparse.Namespace) -> int:
    """Make a new block from a template, and say what to type next.

    Raises:
        UsageError: a name that cannot be one, or a folder that is there already.
    """
    start_log()
    try:
        files = new_block(options.name, options.lang, Path(options.dir))
    except BadName as error:
        raise UsageError(str(error)) from None
    except Unsupported as error:
        print(f"cuttlefish: {error.message}", file=sys.stderr)
        return FAILED
    folder = shlex.quote(str(Path(options.dir, options.name)))
    write("".join(f"{file}\n" for file in files))
    write(f"\nNext:\n  cuttlefish block test {folder}\n  cuttlefish block build {folder}\n")
    return COMPLETED


def build_command(options: argparse.Namespace) -> int:
    """Build a block into a `.wasm` file, if a host would run it. Exit code 1 if it does not build or would be refused.

    Raises:
        UsageError: there is no such source, or nothing to build.
    """
    start_log()
    source = find(options.path)
    if source.is_module:
        raise UsageError(f'"{source.file}" is a module already; `cuttlefish block inspect {source.file}` shows what it is')
    target = Path(options.output) if options.output else source.folder / f"{source.name}.wasm"
    if target.is_dir():
        target = target / f"{source.name}.wasm"
    if target.suffix != ".wasm":
        raise UsageError(f'--output "{options.output}" must end in .wasm, or be a folder')
    try:
        block, facts = trio.run(_build, source)
    except CuttlefishError as error:
        if options.json:
            write_json({"source": str(source.file), "ok": False, "error": {"code": error.code, "message": error.message}})
        else:
            tell_failure(error)
        return FAILED
    _put(block.wasm, target)
    if options.json:
        report = {"source": str(source.file), "ok": True, "file": str(target), "size_bytes": len(block.wasm)}
        write_json(report | {"sha256": block.sha256, "signature": facts.signature.describe()})
    else:
        write(f"{target}: {len(block.wasm):,} bytes, {printable(facts.signature.describe())}\n")
    return COMPLETED


async def _build(source: Source) -> tuple[BlockBytes, BlockFacts]:
    async with open_host() as host:
        block = await load_source(host, source)
        return block, await host.inspect(block)


def _put(wasm: bytes, target: Path) -> None:
    """Write a file whole or not at all: another program may be reading the one of before."""
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(wasm)
        draft.replace(target)
    except OSError as error:  # which names the draft, or nothing
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        draft.unlink(missing_ok=True)
