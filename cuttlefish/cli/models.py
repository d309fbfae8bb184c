"""`cuttlefish models …`."""

import argparse
import sys

from cuttlefish.cli.download_bar import DownloadBar
from cuttlefish.cli.exits import COMPLETED, FAILED, UsageError
from cuttlefish.cli.log import start_log
from cuttlefish.cli.output import write, write_json
from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.models import installed
from cuttlefish.inference.models.catalogue import CATALOGUE
from cuttlefish.inference.models.folder import models_folder
from cuttlefish.inference.models.pull import kept_of, pull

__all__ = ["models_command"]


def models_command(action: str, options: argparse.Namespace) -> int:
    """Run one of `list`, `show`, `pull` and `rm`. Exit code 1 when a model cannot be had or removed.

    Raises:
        UsageError: there is no model of that name.
    """
    match action:
        case "list":
            return _list(as_json=options.json)
        case "show":
            return _show(options.name, as_json=options.json)
        case "pull":
            return _pull(options.name)
    return _remove(options.name)


def _list(*, as_json: bool) -> int:
    entries = installed.list_models()
    if as_json:
        write_json([_row(entry) for entry in entries])
        return COMPLETED
    lines = [f"{'NAME':12} {'':9} {'SIZE':>8}  {'LICENCE':12} ABOUT"]
    for entry in entries:
        here = "installed" if entry.path else "to fetch"
        lines.append(f"{entry.name:12} {here:9} {entry.size_bytes / 1e6:>5.0f} MB  {entry.licence or 'not known':12} {entry.about}")
    lines.append(f"\nThe models folder is {models_folder()}.")
    lines.append("Fetch one with: cuttlefish models pull NAME. Use one with: --model llama-cpp:NAME")
    write("\n".join(lines) + "\n")
    return COMPLETED


def _facts(name: str) -> installed.ModelFacts:
    try:
        return installed.show(name)
    except ModelLoadFailed as error:
        raise UsageError(error.message) from None


def _show(name: str, *, as_json: bool) -> int:
    facts = _facts(name)
    row = _row(facts.entry) | {
        "context_tokens": facts.context,
        "sha256": facts.sha256,
        "source": facts.source,
        "licence_file": str(facts.licence_path) if facts.licence_path else None,
        "image_reader": str(facts.projector) if facts.projector else None,
    }
    if as_json:
        write_json(row)
    else:
        shown = {key.replace("_", " "): value for key, value in row.items() if value is not None}
        write(
            "".join(
                f"{key + ':':15} {('yes' if value else 'no') if isinstance(value, bool) else value}\n"
                for key, value in shown.items()
            )
        )
    return COMPLETED


def _pull(name: str) -> int:
    if name not in CATALOGUE:
        raise UsageError(f'there is no model "{name}" to pull; there is: {", ".join(CATALOGUE)}')
    start_log()
    bar = DownloadBar(sys.stderr)
    try:
        path = pull(name, report=bar.line, on_progress=bar.show)
    except ModelLoadFailed as error:
        bar.line(f"cuttlefish: {error.message}")
        return FAILED
    except KeyboardInterrupt:
        bar.line(f"stopped. {kept_of(name)}".rstrip())
        raise
    print(f"licence {CATALOGUE[name].licence}: {path.with_suffix('.LICENSE')}", file=sys.stderr)
    return COMPLETED


def _remove(name: str) -> int:
    _facts(name)  # a name that is mistyped is wrong use
    try:
        freed = installed.remove(name)
    except ModelLoadFailed as error:
        print(f"cuttlefish: {error.message}", file=sys.stderr)
        return FAILED
    print(f"{name} is removed; {freed / 1e6:.0f} MB are free again", file=sys.stderr)
    return COMPLETED


def _row(entry: installed.ModelEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "installed": entry.path is not None,
        "path": str(entry.path) if entry.path else None,
        "size_bytes": entry.size_bytes,
        "licence": entry.licence,
        "about": entry.about,
    }
