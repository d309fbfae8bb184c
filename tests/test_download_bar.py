"""What a download shows on a terminal, and where there is none."""

import io
import re

import pytest

from cuttlefish.cli import download_bar
from cuttlefish.cli.download_bar import DownloadBar

MB = 1_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def every_step_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_bar, "REDRAW_S", 0.0)


def test_without_a_terminal_each_tenth_is_a_line_and_nothing_more() -> None:
    out = io.StringIO()
    bar = DownloadBar(out)
    for done in range(55 * MB, 93 * MB + 1, MB):  # gone on with at 55 MB
        bar.show(done, 93 * MB)
    bar.line("checking")
    assert out.getvalue() == "56 of 93 MB\n66 of 93 MB\n75 of 93 MB\n84 of 93 MB\n93 of 93 MB\nchecking\n"


def test_on_a_terminal_one_line_is_drawn_over_until_a_line_of_text_comes() -> None:
    out = Terminal()
    bar = DownloadBar(out)
    bar.line("downloading")
    bar.show(0, 10 * MB)
    bar.show(5 * MB, 10 * MB)
    bar.show(10 * MB, 10 * MB)
    bar.line("checking")
    bar.line("ready")
    before, *drawn = out.getvalue().split("\r")
    assert before == "downloading\n"
    assert [re.sub(r"  \d.*left", "", text.partition("\x1b")[0]) for text in drawn[:2]] == [
        "─" * 40 + " 0 of 10 MB",
        "━" * 20 + "─" * 20 + " 5 of 10 MB",
    ]
    assert re.search(r"  \d+\.\d MB/s  0 s left\x1b\[K$", drawn[1])
    assert re.fullmatch("━{40} 10 of 10 MB  " + r"\d+\.\d MB/s\x1b\[K\nchecking\nready\n", drawn[2])


@pytest.mark.parametrize("columns", [1, 10, 20, 30, 50, 80, 200])
def test_the_bar_never_needs_a_second_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    bar = DownloadBar(out)
    bar.show(0, 93 * MB)
    bar.show(40 * MB, 93 * MB)
    assert all(len(text.partition("\x1b")[0]) < columns for text in out.getvalue().split("\r"))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7260, "2 h 1 min")]
)
def test_the_time_left_has_the_units_that_matter(seconds: float, shown: str) -> None:
    assert download_bar._time(seconds) == shown
