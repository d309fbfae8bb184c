"""What a person sees while a job runs."""

import io
from collections.abc import Sequence

import pytest

from cuttlefish.cli.display import Display
from cuttlefish.jobs.updates import Dropped, LogLine, Origin, Progress, TokenPiece, Update

A, B = Origin("a"), Origin("b")


def shown(*updates: Update, only_log: bool = False) -> list[str]:
    out = io.StringIO()
    display = Display(out, only_log=only_log)
    for update in updates:
        display.show(update)
    display.close()
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("update", "line"),
    [
        (Progress({"stage": "reading", "done": 1, "of": 4}), "· reading 1/4"),
        (Progress({"stage": "reading", "done": 1, "of": 4}, A), "· a: reading 1/4"),
        (Progress({"done": 1, "of": 4}, Origin("a", 7)), "· a, item 7: 1/4"),
        (Progress(["any", "\x1b[2J"]), '· ["any", "\\u001b[2J"]'),
        (Progress({"node": "a", "of": 3, "stage": "skipped"}), "· a: skipped"),
        (Progress({"node": "a", "item": 1, "items": 9, "succeeded": 2, "failed": 0}), "· a: 2 of 9 done"),
        (
            Progress(
                {"node": "a", "item": 1, "items": 9, "succeeded": 2, "failed": 1, "code": "not_found", "message": "no\x07 file"}
            ),
            "· a: 3 of 9 done, 1 failed; item 1 failed, not_found: no\\x07 file",
        ),
        (LogLine("block.py", "hello\x1b"), "block.py: hello\\x1b"),
        (Dropped(5), "· 5 updates were dropped: this terminal is slower than the job"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_update_is_a_line_for_people_that_cannot_steer_their_terminal(update: Update, line: str) -> None:
    assert shown(update) == [line]


def test_long_progress_is_cut_short() -> None:
    (line,) = shown(Progress("x" * 500))
    assert line.startswith('· "xxx')
    assert line.endswith("x…")
    assert len(line) <= 102


@pytest.mark.parametrize(
    ("updates", "lines"),
    [
        ([TokenPiece("so "), TokenPiece("it is"), Progress({"done": 1, "of": 2})], ["so it is", "· 1/2"]),
        ([TokenPiece("so\n"), Progress({"done": 1, "of": 2})], ["so", "· 1/2"]),
        (
            [TokenPiece("one ", A), TokenPiece("two ", B), TokenPiece("more", A), TokenPiece("words", B)],
            ["a: one more", "b: two words"],
        ),
        (
            [
                TokenPiece("one ", A),
                Progress({"done": 1, "of": 2}, B),
                TokenPiece("two ", B),
                TokenPiece("more", A),
                Progress({"node": "b", "of": 2, "stage": "failed"}),
                Progress({"node": "a", "of": 2, "stage": "finished"}),
                TokenPiece("three", Origin("c")),
            ],
            ["a: one more", "· a: finished", "· b: 1/2", "b: two ", "· b: failed", "c: three"],
        ),
        ([TokenPiece("x", Origin("a", 0)), TokenPiece("y", Origin("a", 1))], []),
    ],
    ids=["as they come", "lines of the model's own", "one node at a time", "reports in between", "not of items"],
)
def test_the_models_words_are_never_mixed_with_others(updates: Sequence[Update], lines: list[str]) -> None:
    assert shown(*updates) == lines


def test_only_what_blocks_print_is_shown_where_nobody_watches() -> None:
    assert shown(Progress(1), TokenPiece("word"), LogLine("a.py", "told"), Dropped(3), only_log=True) == ["a.py: told"]
