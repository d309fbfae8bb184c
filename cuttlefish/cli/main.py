"""Reads the command line and calls the command.

Exit codes: 0 completed, 1 failed, 2 wrong use, 70 a bug of ours, 130 cancelled.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cuttlefish.cli.exits import BUG, CANCELLED, FAILED, USAGE, UsageError

__all__ = ["main"]

RUN_EPILOG = """\
input:
  --input '{"path": "report.pdf"}'      any JSON value
  --input path=report.pdf count:=3      NAME=TEXT and NAME:=JSON make a record
  --input -                             JSON from standard input

models:
  llama-cpp:NAME or llama-cpp:FILE.gguf   a model on this machine (pip install 'cuttlefish[local]'; cuttlefish models list)
  stub:TEXT                               answers TEXT to every prompt, for trying things out

The Envelope is written to standard output as JSON; progress and the model's words to standard error when that is a terminal.
Ctrl-C cancels the job and still writes the Envelope. Exit codes: 0 completed, 1 failed, 2 wrong use, 70 a bug, 130 cancelled.
"""


class _Parser(argparse.ArgumentParser):
    """Wrong use is one line and a hint, in place of a page."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing a user does wrong ends in a traceback."""
    try:
        options = _parse(sys.argv[1:] if arguments is None else list(arguments))
        return _call(options)
    except UsageError as error:
        print(f"cuttlefish: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return CANCELLED
    except BrokenPipeError:
        # Whoever read our output is gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        print(f"cuttlefish: {error.filename or 'output'}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return FAILED
    except Exception as error:  # noqa: BLE001  # the last place where a bug can still be told as one line
        from cuttlefish.cli.log import log_bug

        print(f"cuttlefish: internal: a bug in cuttlefish, please report it with {log_bug(error)}", file=sys.stderr)
        return BUG


def _call(options: argparse.Namespace) -> int:
    match options.command, getattr(options, "action", None):
        case "run", _:
            from cuttlefish.cli.run import run_command

            return run_command(options)
        case "block", "inspect":
            from cuttlefish.cli.block import inspect_command

            return inspect_command(options)
        case "models", "list":
            from cuttlefish.cli.models import list_command

            return list_command(options)
        case _:
            from cuttlefish.cli.models import pull_command

            return pull_command(options)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _build()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        near = difflib.get_close_matches(unknown[0].partition("=")[0], _all_options(parser), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"unknown argument {unknown[0]}{hint} (see cuttlefish {options.command} --help)")
    return options


def _all_options(parser: argparse.ArgumentParser) -> list[str]:
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                found += _all_options(inner)
    return found


def _build() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="cuttlefish",
        description="Run sandboxed WebAssembly blocks that read documents and ask a language model on this machine.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and stop")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    run = commands.add_parser(
        "run", help="run a block and print its Envelope", epilog=RUN_EPILOG, formatter_class=raw, allow_abbrev=False
    )
    run.add_argument("block", metavar="BLOCK", help="a .wasm file")
    run.add_argument("--input", nargs="+", required=True, metavar="INPUT", help="the block's input; see below")
    run.add_argument("--model", metavar="PROVIDER:TARGET", help="the model that the block may ask")
    run.add_argument(
        "--read", nargs="+", action="extend", default=[], metavar="DIR", help="folders and files that the block may open"
    )
    run.add_argument(
        "--limit", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="change a limit, such as guest.memory=512MiB"
    )
    run.add_argument("--progress", choices=["auto", "always", "never"], default="auto", help="progress on standard error")

    block = commands.add_parser("block", help="look at a block", allow_abbrev=False)
    actions = block.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    inspect = actions.add_parser("inspect", help="show what a block is, and whether it would run here", allow_abbrev=False)
    inspect.add_argument("file", metavar="FILE", help="a .wasm file")
    inspect.add_argument("--json", action="store_true", help="as JSON")

    models = commands.add_parser("models", help="get and list models for this machine", allow_abbrev=False)
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    pull = actions.add_parser("pull", help="fetch a model, check it, and show its licence", allow_abbrev=False)
    pull.add_argument("name", metavar="NAME", help="a name that `cuttlefish models list` shows")
    listing = actions.add_parser("list", help="show the models that are here or can be fetched", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="as JSON")
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than all else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"cuttlefish {version('cuttlefish')}")
        parser.exit(0)
