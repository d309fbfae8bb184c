"""The block under ordinary Python, where a debugger works. `cuttlefish block test` plays its cases in the sandbox."""

from pathlib import Path

import pytest

from cuttlefish.errors import BlockFailed
from cuttlefish.testing import run_block

BLOCK = Path(__file__).parent / "my_block.py"


def test_words_are_counted():
    run = run_block(BLOCK, {"path": "a.txt"}, files={"a.txt": "one two\nONE"})
    assert run.result["words"] == [{"word": "one", "count": 2}, {"word": "two", "count": 1}]


def test_what_is_no_text_is_refused():
    with pytest.raises(BlockFailed) as caught:
        run_block(BLOCK, {"path": "a.png"}, files={"a.png": b"\x89PNG\r\n\x1a\n"})
    assert caught.value.code == "no_text"
