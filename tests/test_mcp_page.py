"""What docs/mcp.md and the skill file for agents say is so."""

import json
import re
from pathlib import Path

from cuttlefish.cli.main import _build
from cuttlefish.jobs.result_images import MOST_IMAGES
from cuttlefish.mcp.images import MOST_SHOWN_BYTES
from cuttlefish.mcp.install import CLIENTS
from cuttlefish.mcp.jobs_store import MOST_FINISHED, MOST_FINISHED_BYTES, MOST_UNFINISHED
from cuttlefish.mcp.results import MOST_ANSWER_BYTES
from cuttlefish.mcp.skill import RESERVED_NAMES
from cuttlefish.mcp.stdio_wire import DRAIN_S, MOST_LINE_BYTES
from cuttlefish.mcp.tools import SERVER_TOOLS
from cuttlefish_abi import Envelope

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "mcp.md").read_text()
SKILL = (DOCS / "skill" / "SKILL.md").read_text()


def test_the_page_names_every_client_and_every_tool_of_the_server() -> None:
    clients = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", PAGE, re.MULTILINE)
    assert [name for name, _ in clients if name in CLIENTS] == list(CLIENTS)
    assert {*SERVER_TOOLS, "run_pipeline"} == RESERVED_NAMES
    assert all(f"`{name}`" in PAGE for name in RESERVED_NAMES)


def test_the_options_that_the_pages_name_are_there() -> None:
    commands = next(action for action in _build()._actions if action.dest == "command").choices
    assert isinstance(commands, dict)
    known = {option for name in ("mcp", "mcp install") for action in commands[name]._actions for option in action.option_strings}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known


def test_the_amounts_that_the_page_names_are_those_of_the_code() -> None:
    assert (MOST_ANSWER_BYTES, MOST_LINE_BYTES, DRAIN_S) == (256 << 10, 32 << 20, 600)
    assert (MOST_SHOWN_BYTES, MOST_IMAGES) == (640 << 10, 100)
    assert (MOST_UNFINISHED, MOST_FINISHED, MOST_FINISHED_BYTES) == (1_000, 1_000, 256 << 20)


def test_the_envelope_that_the_page_shows_is_one() -> None:
    shown = re.search(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert Envelope.model_validate_json(shown[1]).model_dump(mode="json") == json.loads(shown[1])


def test_the_skill_file_names_only_tools_that_there_are_and_has_a_head() -> None:
    head = re.match(r"---\nname: [a-z-]+\ndescription: .{40,1024}\n---\n", SKILL)
    assert head is not None
    assert set(re.findall(r"`((?:job|jobs|describe|run)_[a-z]+)`", SKILL)) <= RESERVED_NAMES | {"job_id"}
