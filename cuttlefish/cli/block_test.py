"""`cuttlefish block test`."""

import argparse
import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import trio

from cuttlefish.authoring.cases import CaseResult, CaseRunner
from cuttlefish.authoring.conversations import case_files
from cuttlefish.authoring.sources import Source, load_source
from cuttlefish.cli.block_build import find, tell_failure
from cuttlefish.cli.exits import COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import start_log
from cuttlefish.cli.output import write, write_json
from cuttlefish.errors import CuttlefishError
from cuttlefish.host import Host, open_host
from cuttlefish.limits import Limits, limits_from_environment
from cuttlefish.pipeline.draw import printable

__all__ = ["test_command"]

LOOK_EVERY_S = 0.3
"""How often the files are looked at while watching. A look costs about 10 µs for each file."""

THREADS = 2
LEFT_BY_BUILDS = ("build", "node_modules", "target", "__pycache__")


def test_command(options: argparse.Namespace) -> int:
    """Replay a block's cases, one line each. Exit code 1 when one differs or the block does not build.

    Raises:
        UsageError: there is no such block, or it has no cases.
    """
    start_log()
    limits = limits_from_environment(os.environ)
    source = find(options.path)
    if options.watch:
        return trio.run(_watch, options, limits)
    cases = case_files(source.folder)
    if not cases:
        raise UsageError(_no_cases(options.path, source))
    return trio.run(_test_once, options, source, cases, limits)


async def _test_once(options: argparse.Namespace, source: Source, cases: list[Path], limits: Limits) -> int:
    async with open_host() as host:
        return await _test(host, options, source, cases, limits)


async def _test(host: Host, options: argparse.Namespace, source: Source, cases: list[Path], limits: Limits) -> int:
    """One round. Whatever an author did wrong is told and gives FAILED."""
    report: dict[str, object] = {"block": options.path, "ok": False}
    try:
        facts = await host.inspect(await load_source(host, source))
    except CuttlefishError as error:
        if options.json:
            write_json(report | {"error": {"code": error.code, "message": error.message}, "cases": []})
        else:
            tell_failure(error)
        return FAILED
    runner = CaseRunner(facts.module, limits, trio.CapacityLimiter(THREADS))
    results = []
    for case in cases:
        result = await (runner.update if options.update else runner.replay)(case, str(case))
        results.append(result)
        if not options.json:
            write(_as_text(result))
    is_well = all(result.is_well for result in results)
    if options.json:
        write_json(report | {"ok": is_well, "sha256": facts.module.sha256, "cases": [asdict(result) for result in results]})
    else:
        write(_summary(results))
    return COMPLETED if is_well else FAILED


async def _watch(options: argparse.Namespace, limits: Limits) -> int:
    """Test whenever a file of the block changes, until Ctrl-C."""
    seen: dict[Path, tuple[int, int]] | None = None
    async with open_host() as host:
        while True:
            now = await trio.to_thread.run_sync(_files, options.path)
            if now != seen:
                if seen is not None:
                    changed = dict.fromkeys(sorted(str(path) for path, _ in set(now.items()) ^ set(seen.items())))
                    write(f"\n{printable(', '.join(changed))} changed\n")
                await _watch_once(host, options, limits)
                # What an update wrote is no news; what its author wrote meanwhile is.
                seen = await trio.to_thread.run_sync(_files, options.path) if options.update else now
            await trio.sleep(LOOK_EVERY_S)


async def _watch_once(host: Host, options: argparse.Namespace, limits: Limits) -> None:
    try:
        source = await trio.to_thread.run_sync(find, options.path)
    except UsageError as error:  # moved away since, or more than one now
        print(f"cuttlefish: {error}", file=sys.stderr)
    else:
        cases = await trio.to_thread.run_sync(case_files, source.folder)
        if cases:
            await _test(host, options, source, cases, limits)
        else:
            write(_no_cases(options.path, source) + "\n")
    write("waiting for changes; Ctrl-C ends\n")


def _files(path: str) -> dict[Path, tuple[int, int]]:
    """The files of a block with size and time of their last change. Hidden ones, and what builds leave behind, are left out."""
    found = {}
    for root, folders, names in os.walk(path if Path(path).is_dir() else Path(path).parent):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in LEFT_BY_BUILDS]
        for name in names:
            file = Path(root, name)
            try:
                status = file.stat()
            except OSError:
                continue  # gone since
            if not name.startswith("."):
                found[file] = (status.st_size, status.st_mtime_ns)
    return found


def _no_cases(path: str, source: Source) -> str:
    folder = source.folder / "cases"
    return (
        f'"{path}" has no cases: there is no {folder}/NAME.jsonl. Write one (docs/writing-blocks.md shows how), '
        f"or record one: cuttlefish run {source.file} --input … --record {folder}/NAME.jsonl"
    )


def _as_text(result: CaseResult) -> str:
    name = Path(result.file).stem
    if result.is_well:
        return printable(f"{result.outcome:9}  {name}{f': {result.message}' if result.message else ''}") + "\n"
    where = f"{result.file}:{result.line}: " if result.line is not None else ""
    lines = [f"{result.outcome:9}  {name}", f"           {where}{result.message}"]
    if result.difference is not None:
        lines += [f"           {line}" for line in result.difference.diff]
    return "".join(printable(line) + "\n" for line in lines)


def _summary(results: list[CaseResult]) -> str:
    counts = Counter(result.outcome for result in results)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return f"{len(results)} {'case' if len(results) == 1 else 'cases'}: {told}\n"
