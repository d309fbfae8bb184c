"""Reads the command line and calls the command.

Exit codes: 0 completed, 1 failed, 2 wrong use, 70 a bug of ours, 130 cancelled.
"""

import argparse
import difflib
import gc
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

many files:
  --each inbox/*.pdf                    one job for each file, with the file as "path" of its input beside what --input gives.
                                        A line of JSON, the Envelope with its "path", is written as each job ends, in the order
                                        of ending. Exit code 1 when one has failed; Ctrl-C keeps what is written.

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


MCP_EPILOG = """\
Serves one client on standard input and output, as an agent's program starts it; with --http any number of them. Each pipeline is
a tool: what it may read and which model it asks are the pipeline's and these options' to say, never the agent's. Each call is a
line of audit.jsonl beside the log (the folder that CUTTLEFISH_LOG_DIR names, else your folder for logs).

`cuttlefish mcp install` writes the configuration of an agent's program. Standard error is for people. Exit codes: 0 the client is
gone or a signal came, 1 failed, 2 wrong use, 70 a bug.
"""


MCP_INSTALL = "mcp install"
CLIENT_NAMES = ("claude", "claude-code", "cursor", "gemini", "vscode", "windsurf")


class _Parser(argparse.ArgumentParser):
    """Wrong use is one line and a hint, in place of a page."""

    def error(self, message: str) -> NoReturn:
        if "required: WHAT" in message:  # most likely it was taken for a folder of --read
            message += "; WHAT stands before the options, of which some take all words up to the next one"
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            from cuttlefish_abi.strict_json import suggest

            raise argparse.ArgumentError(action, f'there is no "{value}"; {suggest(str(value), action.choices)}')


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing a user does wrong ends in a traceback."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _open_closed_streams()
        if not given:
            _build().print_help(sys.stderr)
            return USAGE
        return _call(_parse(given))
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


def _open_closed_streams() -> None:
    """Put the empty file in place of standard streams that are closed: else the next file opened would get their numbers.

    Raises:
        UsageError: standard output is closed, so that there is nowhere to write to.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)
            if nothing != number:
                os.close(nothing)
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # kept to the end
            setattr(sys, name, stream)
            if name == "stdout":
                raise UsageError("standard output is closed; send it to /dev/null if it is not wanted")


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
        raise UsageError(str(error)) from None


def _call(options: argparse.Namespace) -> int:
    if options.command != "models":
        _check_environment()
    match options.command, getattr(options, "action", None):
        case "mcp install", _:
            from cuttlefish.cli.mcp_install import install_command

            return install_command(options)
        case "mcp", _:
            return _call_mcp(options)
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


def _call_mcp(options: argparse.Namespace) -> int:
    gc.disable()  # until it serves: while thousands of classes are made, collecting takes a third of a second and finds nothing
    try:
        from cuttlefish.cli.mcp import mcp_command

        return mcp_command(options)
    finally:
        gc.enable()


def _parse(arguments: list[str]) -> argparse.Namespace:
    if arguments[:2] == MCP_INSTALL.split():  # a command of its own, because what `mcp` takes is a list of files
        arguments = [MCP_INSTALL, *arguments[2:]]
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
        "run",
        usage="cuttlefish run WHAT {--input INPUT ... | --each FILE ...} [OPTION ...]",
        help="run a block or a pipeline and print its Envelope",
        epilog=RUN_EPILOG,
        formatter_class=raw,
        allow_abbrev=False,
    )
    run.add_argument("what", metavar="WHAT", help="a pipeline's .toml file, a block's .wasm or .py file, or a block's name")
    run.add_argument("--input", nargs="+", metavar="INPUT", help="the job's input; see below")
    run.add_argument("--each", nargs="+", metavar="FILE", help="run one job for each file; see below")
    run.add_argument("--jobs", type=_count, default=4, metavar="N", help="with --each: jobs that run at once (4)")
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
    run.add_argument("--save-images", metavar="FOLDER", help="write the images that the result names as files")
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
    inspect.add_argument(
        "file", metavar="FILE", help="a .wasm file, a block's source or folder, or the name of a block that comes with cuttlefish"
    )
    inspect.add_argument("--json", action="store_true", help="as JSON")

    add = actions.add_parser(
        "add", help="keep a block in the catalogue", epilog=ADD_EPILOG, formatter_class=raw, allow_abbrev=False
    )
    add.add_argument("file", metavar="FILE", help="a .wasm file, or a block's source or folder, which is built first")
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
    mcp = commands.add_parser(
        "mcp",
        usage="cuttlefish mcp [SOURCE ...] [OPTION ...]",
        help="serve pipelines as tools of an agent (MCP)",
        epilog=MCP_EPILOG,
        formatter_class=raw,
        allow_abbrev=False,
    )
    _add_grants(mcp)
    mcp.add_argument(
        "--answer-within",
        type=_seconds,
        default=50.0,
        metavar="SECONDS",
        help="after so long a call is answered with a job_id, and the job goes on (50)",
    )
    mcp.add_argument("--http", metavar="HOST:PORT", help="serve over HTTP in place of standard input and output")
    mcp.add_argument(
        "--token-env", metavar="VARIABLE", help="the environment variable that holds the token; made anew if not given"
    )
    mcp.add_argument("--allow-remote", action="store_true", help="let --http be an address that other machines reach")

    install = commands.add_parser(
        MCP_INSTALL,
        usage="cuttlefish mcp install [SOURCE ...] --client NAME [OPTION ...]",
        help="write `cuttlefish mcp` into the configuration of an agent's program",
        allow_abbrev=False,
    )
    install.add_argument("--client", required=True, choices=CLIENT_NAMES, help="the program")
    _add_grants(install)
    install.add_argument("--name", default="cuttlefish", metavar="NAME", help="what the client calls the server (cuttlefish)")
    install.add_argument("--file", metavar="FILE", help="the configuration, where it is not in its usual place")
    install.add_argument("--print", action="store_true", help="only show the entry")
    install.add_argument("--yes", action="store_true", help="write without asking")

    models = commands.add_parser("models", help="get and list models for this machine", allow_abbrev=False)
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_Parser)
    pull = actions.add_parser(
        "pull",
        help="fetch a model, check it, and show its licence",
        description="Fetch a model, check its sha256, and show its licence. A pull goes on where an earlier one was cut short.",
        allow_abbrev=False,
    )
    pull.add_argument("name", metavar="NAME", help="a name that `cuttlefish models list` shows")
    listing = actions.add_parser("list", help="show the models that are here or can be fetched", allow_abbrev=False)
    model = actions.add_parser("show", help="show what is known of a model", allow_abbrev=False)
    gone = actions.add_parser(
        "rm", help="remove a model from this machine, or what a pull of it has left unfinished", allow_abbrev=False
    )
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


def _add_grants(parser: argparse.ArgumentParser) -> None:
    """What is served, and what it may use: the operator's to say."""
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="pipelines' .toml files, folders of them, .py files with skills"
    )
    parser.add_argument(
        "--model", metavar="PROVIDER:TARGET", help="the model that may be asked, where a pipeline names none itself"
    )
    parser.add_argument("--embedding-model", metavar="PROVIDER:TARGET", help="the model that turns texts into vectors")
    parser.add_argument(
        "--read", nargs="+", action="extend", default=[], metavar="DIR", help="folders and files that may be opened"
    )
    parser.add_argument(
        "--limit", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="change a limit for every job"
    )
    parser.add_argument("--password-env", metavar="VARIABLE", help="the environment variable that holds the password of documents")
    parser.add_argument("--installed", action="store_true", help="serve the skills that installed packages offer as well")
    parser.add_argument("--allow-pipelines", action="store_true", help="let agents write and run pipelines within these options")
    parser.add_argument("--max-jobs", type=_count, metavar="N", help="jobs that run at once; the others wait their turn")


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f'needs a whole number from 1 to 10000, found "{text}"')
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f'needs a number of seconds from 0 to 86400, found "{text}"')
    return value


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than all else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"cuttlefish {version('cuttlefish')}")
        parser.exit(0)
