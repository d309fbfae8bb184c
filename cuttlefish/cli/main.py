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
what is run:
  digest.toml                           a pipeline; `cuttlefish check` shows what it takes
  blocks/own.wasm                       a block's file
  own, own@1.2                          a block of the catalogue (cuttlefish block list), the newest or one version
  summarize                             a block that comes with cuttlefish, unless the catalogue has one of that name

input:
  --input '{"path": "report.pdf"}'      any JSON value
  --input path=report.pdf count:=3      NAME=TEXT and NAME:=JSON make a record
  --input -                             JSON from standard input

models:
  llama-cpp:NAME or llama-cpp:PATH.gguf   a model on this machine (pip install 'cuttlefish[local]'; cuttlefish models list)
  openai:URL#MODEL                        a server with OpenAI's protocol (pip install 'cuttlefish[http]'), such as
                                          openai:http://127.0.0.1:8080/v1#qwen3; openai:URL?key=NAME#MODEL takes the key from
                                          the environment variable NAME
  ollama:TAG                              a model of the Ollama server that OLLAMA_HOST names (pip install 'cuttlefish[http]')
  tesseract:LANG                          no language model: the text that stands in the images; the prompt is ignored
  stub:REPLY                              answers REPLY to every prompt, for trying things out

The Envelope is written to standard output as JSON; progress and the model's words to standard error when that is a terminal,
and what a Python block prints to standard error in any case but --progress never.
Paths in the input start at the current folder. Ctrl-C cancels the job and still writes the Envelope. Exit codes: 0 completed,
1 failed, 2 wrong use, 70 a bug, 130 cancelled.
"""

CHECK_EPILOG = """\
Everything that is wrong goes to standard output as FILE:LINE: WHAT, one a line; nothing is run. A pipeline that is well is shown:
what a job takes and gives, its model, what it may read, and its nodes in the order of running. Exit codes: 0 all are well (there
may be warnings), 2 something is wrong.
"""

GRAPH_EPILOG = """\
The drawing goes to standard output. A pipeline that is wrong is not drawn: its problems go to standard error, exit code 2.
"""

ADD_EPILOG = """\
The block is checked first, and its bytes are kept: what NAME@V means never changes. `cuttlefish run NAME@V` runs it, a pipeline
names it as block = "NAME@V". The catalogue is in the folder that CUTTLEFISH_BLOCKS names, else in your folder for data.
"""


CHECK_BLOCK_EPILOG = """\
The block is built, loaded as a host would, and its cases are played: whether they pass, whether the same events give the same
commands, how far memory grows when they are repeated, and how long a step takes. Exit codes: 0 nothing is wrong (there may be
warnings), 1 something is, 2 wrong use.
"""

TEST_EPILOG = """\
A case is a conversation, cases/NAME.jsonl beside the block: its input, what the block says and what the host answers, a line of
JSON each. No model and no files are needed. Write cases by hand, or record them:
  cuttlefish run BLOCK --input … --record cases/NAME.jsonl
Exit codes: 0 all pass, 1 one does not, or the block does not build, 2 wrong use.
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
    except BaseExceptionGroup as group:
        return _end_of_group(group)
    except BrokenPipeError:
        # Whoever read our output is gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        print(f"cuttlefish: {error.filename or 'output'}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return FAILED
    except Exception as error:  # noqa: BLE001  # the last place where a bug can still be told as one line
        return _end_of_bug(error)


def _end_of_group(group: BaseExceptionGroup[BaseException]) -> int:
    """Trio gives Ctrl-C in a group when it comes while tasks run."""
    from cuttlefish.background import first_error

    error = first_error(group)
    return CANCELLED if isinstance(error, KeyboardInterrupt) else _end_of_bug(error)


def _end_of_bug(error: BaseException) -> int:
    from cuttlefish.cli.log import log_bug

    print(f"cuttlefish: internal: a bug in cuttlefish, please report it with {log_bug(error)}", file=sys.stderr)
    return BUG


def _check_environment() -> None:
    """Refuse what the environment says about limits here, where it can be told as the mistake that it is."""
    from cuttlefish.limits import limits_from_environment

    try:
        limits_from_environment(os.environ)
    except ValueError as error:
        raise UsageError(f"environment: {error}") from None


def _call(options: argparse.Namespace) -> int:
    if options.command != "models":
        _check_environment()
    match options.command, getattr(options, "action", None):
        case "run", _:
            from cuttlefish.cli.run import run_command

            return run_command(options)
        case "check", _:
            from cuttlefish.cli.check import check_command

            return check_command(options)
        case "graph", _:
            from cuttlefish.cli.graph import graph_command

            return graph_command(options)
        case "block", "inspect":
            from cuttlefish.cli.block import inspect_command

            return inspect_command(options)
        case "block", "new":
            from cuttlefish.cli.block_build import new_command

            return new_command(options)
        case "block", "build":
            from cuttlefish.cli.block_build import build_command

            return build_command(options)
        case "block", "check":
            from cuttlefish.cli.block_check import check_command as check_block_command

            return check_block_command(options)
        case "block", "test":
            from cuttlefish.cli.block_test import test_command

            return test_command(options)
        case "block", str(action):
            from cuttlefish.cli.catalog import catalog_command

            return catalog_command(action, options)
        case _, str(action):
            from cuttlefish.cli.models import models_command

            return models_command(action, options)
    raise AssertionError  # the parser lets no other command through


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
        "run", help="run a block or a pipeline and print its Envelope", epilog=RUN_EPILOG, formatter_class=raw, allow_abbrev=False
    )
    run.add_argument("what", metavar="WHAT", help="a pipeline's .toml file, a block's .wasm or .py file, or a block's name")
    run.add_argument("--input", nargs="+", required=True, metavar="INPUT", help="the job's input; see below")
    run.add_argument("--model", metavar="PROVIDER:TARGET", help="the model that may be asked, where a node names none itself")
    run.add_argument("--embedding-model", metavar="PROVIDER:TARGET", help="the model that turns texts into vectors")
    run.add_argument("--read", nargs="+", action="extend", default=[], metavar="DIR", help="folders and files that blocks may open")
    run.add_argument(
        "--limit", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="change a limit, such as guest.memory=512MiB"
    )
    run.add_argument(
        "--password-env", metavar="VARIABLE", help="the environment variable that holds the password of locked documents"
    )
    run.add_argument("--progress", choices=["auto", "always", "never"], default="auto", help="progress on standard error")

    run.add_argument("--record", metavar="FILE", help="write a block's run down as a conversation, for `cuttlefish block test`")
    run.add_argument("--graph", action="store_true", help="draw a pipeline with times and tokens on standard error at the end")

    check = commands.add_parser(
        "check", help="check pipelines without running them", epilog=CHECK_EPILOG, formatter_class=raw, allow_abbrev=False
    )
    check.add_argument("files", nargs="+", metavar="FILE", help="a pipeline's .toml file")
    check.add_argument("--json", action="store_true", help="as one JSON document")

    graph = commands.add_parser(
        "graph", help="draw a pipeline, with the types on its edges", epilog=GRAPH_EPILOG, formatter_class=raw, allow_abbrev=False
    )
    graph.add_argument("file", metavar="FILE", help="a pipeline's .toml file")
    forms = graph.add_mutually_exclusive_group()
    for form, what in (
        ("text", "as a tree, the default"),
        ("mermaid", "for Mermaid"),
        ("dot", "for Graphviz"),
        ("svg", "as a picture"),
    ):
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, default="text", help=what)

    block = commands.add_parser("block", help="write, test and look at blocks, and keep them by name", allow_abbrev=False)
    actions = block_actions = block.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    inspect = actions.add_parser("inspect", help="show what a block is, and whether it would run here", allow_abbrev=False)
    inspect.add_argument("file", metavar="FILE", help="a .wasm file, or a block's source or folder")
    inspect.add_argument("--json", action="store_true", help="as JSON")

    add = actions.add_parser(
        "add", help="keep a block in the catalogue", epilog=ADD_EPILOG, formatter_class=raw, allow_abbrev=False
    )
    add.add_argument("file", metavar="FILE", help="a .wasm file")
    add.add_argument("--name", metavar="NAME", help="its name, that of the file unless given")
    add.add_argument("--version", dest="block_version", metavar="V", help="its version, the next whole number unless given")
    blocks = actions.add_parser("list", help="show the blocks that can be run by name", allow_abbrev=False)
    showing = actions.add_parser("show", help="show a block of the catalogue and its versions", allow_abbrev=False)
    showing.add_argument("name", metavar="NAME[@V]", help="the newest version unless one is given")
    remove = actions.add_parser("rm", help="remove a version of a block from the catalogue", allow_abbrev=False)
    remove.add_argument("name", metavar="NAME@V", help="what to remove")
    for one in (add, blocks, showing, remove):
        one.add_argument("--json", action="store_true", help="as JSON")

    _add_author_actions(block_actions)

    models = commands.add_parser("models", help="get and list models for this machine", allow_abbrev=False)
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    pull = actions.add_parser("pull", help="fetch a model, check it, and show its licence", allow_abbrev=False)
    pull.add_argument("name", metavar="NAME", help="a name that `cuttlefish models list` shows")
    listing = actions.add_parser("list", help="show the models that are here or can be fetched", allow_abbrev=False)
    model = actions.add_parser("show", help="show what is known of a model", allow_abbrev=False)
    gone = actions.add_parser("rm", help="remove a model from this machine", allow_abbrev=False)
    for one in (model, gone):
        one.add_argument("name", metavar="NAME", help="a name that `cuttlefish models list` shows")
    for one in (listing, model):
        one.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _add_author_actions(actions: "argparse._SubParsersAction[_Parser]") -> None:
    """What whoever writes blocks needs (docs/writing-blocks.md)."""
    raw = argparse.RawDescriptionHelpFormatter
    new = actions.add_parser("new", help="start a block from a template, with a case that passes", allow_abbrev=False)
    new.add_argument("name", metavar="NAME", help="the block's name, such as count-words")
    new.add_argument(
        "--lang", choices=["python", "zig", "c", "rust", "assemblyscript"], default="python", help="python unless given"
    )
    new.add_argument("--dir", default=".", metavar="DIR", help="where its folder is made; here unless given")
    build = actions.add_parser("build", help="build a block into a .wasm file", allow_abbrev=False)
    build.add_argument("path", metavar="PATH", help="a block's folder or source")
    build.add_argument("-o", "--output", metavar="FILE", help="the .wasm file, or its folder; beside the source unless given")
    build.add_argument("--json", action="store_true", help="as JSON")
    test = actions.add_parser("test", help="replay a block's cases", epilog=TEST_EPILOG, formatter_class=raw, allow_abbrev=False)
    test.add_argument("path", metavar="PATH", help="a block's folder, source or .wasm file")
    test.add_argument("--update", action="store_true", help="write the commands that the block gives now into its cases")
    check = actions.add_parser(
        "check", help="look for what is wrong with a block", epilog=CHECK_BLOCK_EPILOG, formatter_class=raw, allow_abbrev=False
    )
    check.add_argument("path", metavar="PATH", help="a block's folder, source or .wasm file")
    check.add_argument("--json", action="store_true", help="as one JSON document")
    forms = test.add_mutually_exclusive_group()
    forms.add_argument("--watch", action="store_true", help="test again whenever a file of the block changes")
    forms.add_argument("--json", action="store_true", help="as one JSON document")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than all else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"cuttlefish {version('cuttlefish')}")
        parser.exit(0)
