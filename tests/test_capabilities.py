"""What a grant allows, what it refuses, and what it says. Every test runs both ways of opening."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from cuttlefish.errors import BadCommand, CapabilityDenied, CuttlefishError, LimitExceeded, NotFound
from cuttlefish.media.capabilities import (
    Capabilities,
    OpenBeneath,
    OpenedFile,
    Unreadable,
    choose_open_beneath,
    open_by_walking,
    open_with_openat2,
    quoted,
)


class Grant(Protocol):
    def __call__(self, *roots: str | Path, base: Path | None = None) -> Capabilities: ...


@pytest.fixture(params=[open_with_openat2, open_by_walking], ids=["openat2", "walk"])
def way(request: pytest.FixtureRequest) -> OpenBeneath:
    way: OpenBeneath = request.param
    return way


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with two files, beside others that are not granted."""
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "a.txt").write_text("a")
    (tmp_path / "notes" / "deep" / "b.txt").write_text("bb")
    (tmp_path / "notes-evil").mkdir()
    (tmp_path / "notes-evil" / "a.txt").write_text("evil")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path


@pytest.fixture
def grant(work: Path, way: OpenBeneath) -> Iterator[Grant]:
    made: list[Capabilities] = []

    def grant(*roots: str | Path, base: Path | None = None) -> Capabilities:
        made.append(Capabilities.grant(roots, base or work, open_beneath=way))
        return made[-1]

    yield grant
    for capabilities in made:
        capabilities.close()


def read(file: OpenedFile) -> bytes:
    with file:
        return os.pread(file.fd, file.size + 1, 0)


def refusal(capabilities: Capabilities, path: str) -> CuttlefishError:
    before = open_descriptors()
    with pytest.raises(CuttlefishError) as caught:
        capabilities.open(path).close()
    assert "\n" not in caught.value.message
    assert open_descriptors() == before
    return caught.value


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_relative_path_starts_at_the_base_folder(grant: Grant) -> None:
    assert read(grant("notes").open("notes/a.txt")) == b"a"
    assert read(grant("notes").open("./notes//deep/./b.txt")) == b"bb"


def test_an_absolute_path_inside_a_root_is_opened(grant: Grant, work: Path) -> None:
    assert read(grant("notes").open(str(work / "notes" / "a.txt"))) == b"a"


def test_leading_dots_go_up_from_the_base_folder(grant: Grant, work: Path) -> None:
    capabilities = grant("..", base=work / "notes" / "deep")
    assert read(capabilities.open("../a.txt")) == b"a"
    assert read(capabilities.open("b.txt")) == b"bb"
    assert refusal(capabilities, "../../secret.txt").code == "capability_denied"


def test_dots_inside_a_path_may_stay_in_the_root_and_not_leave_it(grant: Grant, work: Path) -> None:
    capabilities = grant("notes")
    assert read(capabilities.open("notes/deep/../a.txt")) == b"a"
    assert read(capabilities.open("notes/deep/../../notes/a.txt")) == b"a"
    assert read(capabilities.open(f"{work}/notes-evil/../notes/a.txt")) == b"a"
    assert isinstance(refusal(capabilities, "notes/deep/../../secret.txt"), CapabilityDenied)
    assert isinstance(refusal(capabilities, "notes/a.txt/../a.txt"), NotFound)
    assert isinstance(refusal(capabilities, "notes/none/../a.txt"), NotFound)


def test_a_single_file_can_be_granted_and_nothing_beside_it(grant: Grant) -> None:
    capabilities = grant("notes/a.txt")
    assert read(capabilities.open("notes/a.txt")) == b"a"
    assert isinstance(refusal(capabilities, "notes/deep/b.txt"), CapabilityDenied)
    assert refusal(capabilities, "notes/a.txt/x").message == (
        'open "notes/a.txt/x": "notes/a.txt" is a file, so nothing lies inside it'
    )


def test_two_opens_of_a_granted_file_have_positions_of_their_own(grant: Grant) -> None:
    capabilities = grant("notes/a.txt")
    with capabilities.open("notes/a.txt") as one, capabilities.open("notes/a.txt") as two:
        assert os.read(one.fd, 1) == os.read(two.fd, 1) == b"a"


def test_a_root_is_known_by_the_name_that_was_typed_and_by_its_real_one(grant: Grant, work: Path) -> None:
    (work / "alias").symlink_to("notes")
    capabilities = grant("alias")
    assert read(capabilities.open("alias/a.txt")) == b"a"
    assert read(capabilities.open("notes/a.txt")) == b"a"
    assert read(capabilities.open(str(work / "alias" / "a.txt"))) == b"a"


def test_a_base_folder_reached_by_a_link_is_known_by_both_names(grant: Grant, work: Path) -> None:
    (work / "alias").symlink_to("notes")
    capabilities = grant(".", base=work / "alias")
    assert read(capabilities.open("a.txt")) == b"a"
    assert read(capabilities.open(str(work / "alias" / "a.txt"))) == b"a"
    assert read(capabilities.open(str(work / "notes" / "a.txt"))) == b"a"


def test_a_folder_whose_name_only_begins_like_a_root_is_not_granted(grant: Grant) -> None:
    assert isinstance(refusal(grant("notes"), "notes-evil/a.txt"), CapabilityDenied)


def test_the_longest_root_is_tried_first_and_the_others_after_it(grant: Grant, work: Path) -> None:
    (work / "outer").mkdir()
    (work / "outer" / "a.txt").write_text("outer")
    (work / "outer" / "inner").symlink_to(work / "notes")
    capabilities = grant("outer", "outer/inner")
    assert read(capabilities.open("outer/inner/a.txt")) == b"a"
    assert read(capabilities.open("outer/a.txt")) == b"outer"
    assert isinstance(refusal(capabilities, "outer/inner/none"), NotFound)


def test_a_path_is_denied_only_when_every_root_that_matches_denies_it(grant: Grant, work: Path) -> None:
    """The folders change places after the grant, so that the two roots see different things under one path."""
    (work / "notes" / "deep" / "out").symlink_to(work / "secret.txt")
    capabilities = grant("notes", "notes/deep")
    (work / "notes" / "deep").rename(work / "notes" / "old")
    (work / "notes" / "deep").mkdir()
    (work / "notes" / "deep" / "b.txt").write_text("new")
    assert read(capabilities.open("notes/deep/b.txt")) == b"bb", "the longest root comes first"
    assert refusal(capabilities, "notes/deep/out").code == "not_found"
    (work / "notes" / "deep" / "out").write_text("out")
    assert read(capabilities.open("notes/deep/out")) == b"out"


@pytest.mark.parametrize("path", ["../secret.txt", "deep/../../secret.txt", "..", "deep/../.."])
def test_neither_way_of_opening_lets_dots_lead_out_of_the_folder(way: OpenBeneath, work: Path, path: str) -> None:
    root = os.open(work / "notes", os.O_RDONLY)
    try:
        with pytest.raises(OSError) as caught:
            os.close(way(root, path.encode().split(b"/")))
    finally:
        os.close(root)
    assert caught.value.errno == errno.EXDEV


def test_no_root_means_that_everything_is_denied(grant: Grant, work: Path) -> None:
    assert refusal(grant(), "notes/a.txt").message == (
        f'open "notes/a.txt": "{os.path.realpath(work)}/notes/a.txt" lies outside everything that this job may read. '
        "Granted: nothing. If the block should read it, grant its folder with --read"
    )


def test_a_path_outside_is_refused_in_the_same_words_whether_it_exists_or_not(grant: Grant, work: Path) -> None:
    capabilities = grant("notes", work / "notes" / "deep")
    there = refusal(capabilities, "secret.txt")
    assert there.code == "capability_denied"
    assert there.message == (
        f'open "secret.txt": "{os.path.realpath(work)}/secret.txt" lies outside everything that this job may read. '
        f'Granted: "notes", "{work}/notes/deep". If the block should read it, grant its folder with --read'
    )
    (work / "secret.txt").unlink()
    assert refusal(capabilities, "secret.txt").message == there.message


def test_an_absent_file_inside_a_root_is_not_found(grant: Grant) -> None:
    capabilities = grant("notes")
    assert refusal(capabilities, "notes/none.txt").code == "not_found"
    assert refusal(capabilities, "notes/none.txt").message == 'open "notes/none.txt": there is no such file in "notes"'
    assert refusal(capabilities, "notes/none/deeper.txt").code == "not_found"
    assert refusal(capabilities, "notes/a.txt/deeper.txt").message == (
        'open "notes/a.txt/deeper.txt": there is no such file in "notes": a part of the path is a file, not a folder'
    )
    assert refusal(capabilities, "notes/" + "x" * 256).code == "not_found"


def test_a_long_path_with_many_dots_is_opened_and_an_endless_one_refused_before_it_is_taken_apart(grant: Grant) -> None:
    capabilities = grant("notes")
    assert read(capabilities.open("notes/" + "deep/../" * 490 + "a.txt")) == b"a"
    assert refusal(capabilities, "a/" * 1_000_000).message == (
        f'open "{"a/" * 75}…{"a/" * 75}": this path has 2000000 bytes; no path may have more than 4096'
    )


def test_a_deep_folder_needs_no_descriptor_for_each_level(grant: Grant, work: Path) -> None:
    deep = work / "notes" / "/".join(["d"] * 200)
    deep.mkdir(parents=True)
    (deep / "a.txt").write_text("deep")
    assert read(grant("notes").open("notes/" + "d/" * 200 + "a.txt")) == b"deep"


def test_a_link_that_leads_out_is_denied_whether_its_target_exists_or_not(grant: Grant, work: Path) -> None:
    (work / "notes" / "out").symlink_to(work / "secret.txt")
    (work / "notes" / "up").symlink_to("../secret.txt")
    (work / "notes" / "dangling").symlink_to(work / "none.txt")
    (work / "notes" / "folder").symlink_to(work)
    capabilities = grant("notes")
    for path in ("out", "up", "dangling", "folder/secret.txt", "folder/none.txt"):
        assert isinstance(refusal(capabilities, f"notes/{path}"), CapabilityDenied), path
    existing, absent = refusal(capabilities, "notes/folder/secret.txt"), refusal(capabilities, "notes/folder/none.txt")
    assert existing.message.replace("secret", "none") == absent.message


def test_links_in_a_circle_are_denied(grant: Grant, work: Path) -> None:
    (work / "notes" / "one").symlink_to("two")
    (work / "notes" / "two").symlink_to("one")
    assert isinstance(refusal(grant("notes"), "notes/one"), CapabilityDenied)


def test_a_link_that_stays_inside_is_followed_where_the_kernel_can_hold_it_there(work: Path) -> None:
    (work / "notes" / "link").symlink_to("deep/b.txt")
    with Capabilities.grant(["notes"], work, open_beneath=open_with_openat2) as capabilities:
        assert read(capabilities.open("notes/link")) == b"bb"
    with Capabilities.grant(["notes"], work, open_beneath=open_by_walking) as capabilities:
        assert refusal(capabilities, "notes/link").message == (
            'open "notes/link": a link on this path cannot be followed safely: it leads in a circle, or out of "notes", or this '
            "system cannot keep links inside a granted folder. Name the file by its path without links"
        )


def test_a_folder_is_an_error_at_once(grant: Grant) -> None:
    capabilities = grant("notes")
    for path in ("notes", "notes/deep", "notes/deep/", "notes/deep/.."):
        assert refusal(capabilities, path).code == "bad_command"
    assert refusal(capabilities, "notes/deep").message == 'open "notes/deep": this is a directory; only files can be opened'


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", 'open "": the path is empty'),
        ("notes/a\0.txt", r'open "notes/a\x00.txt": a path cannot hold a NUL character'),
        ("notes/\ud800", r'open "notes/\ud800": this path is not text (it holds half of a surrogate pair)'),
    ],
    ids=["empty", "NUL", "surrogate"],
)
def test_a_path_that_cannot_be_meant_is_the_blocks_mistake(grant: Grant, path: str, message: str) -> None:
    failure = refusal(grant("notes"), path)
    assert (type(failure), failure.message) == (BadCommand, message)


def test_an_opened_file_tells_its_size_and_identity_and_closes_once(grant: Grant, work: Path) -> None:
    about = (work / "notes" / "deep" / "b.txt").stat()
    file = grant("notes").open("notes/deep/b.txt")
    assert (file.name, file.size, file.device, file.inode) == ("notes/deep/b.txt", 2, about.st_dev, about.st_ino)
    assert not os.get_inheritable(file.fd)
    file.close()
    file.close()
    assert file.fd == -1


def test_files_stay_open_when_the_grant_is_closed_and_new_ones_are_refused(grant: Grant) -> None:
    capabilities = grant("notes")
    file = capabilities.open("notes/a.txt")
    capabilities.close()
    capabilities.close()
    assert read(file) == b"a"
    assert refusal(capabilities, "notes/a.txt").message == 'open "notes/a.txt": this job is over and its folders are closed'


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("none", 'the granted path "none" does not exist'),
        ("secret.txt/x", 'the granted path "secret.txt/x" does not exist: a part of it is a file, not a folder'),
        ("circle", 'the granted path "circle" is a link that leads in a circle'),
        ("pipe", 'the granted path "pipe" is a named pipe; only folders and files can be granted'),
        ("/dev/null", 'the granted path "/dev/null" is a device; only folders and files can be granted'),
        ("", 'a granted folder has an empty name; write "." for the base folder'),
        ("a\0", r'the granted path "a\x00" holds a NUL character'),
        ("x" * 256, f'the granted path "{"x" * 256}" is too long for a path'),
    ],
    ids=["absent", "beneath a file", "circle", "pipe", "device", "empty", "NUL", "long"],
)
def test_a_root_that_cannot_be_granted_is_named_before_anything_runs(grant: Grant, work: Path, root: str, message: str) -> None:
    os.mkfifo(work / "pipe")
    (work / "circle").symlink_to("circle")
    before = open_descriptors()
    with pytest.raises(ValueError) as caught:
        grant("notes", root)
    assert str(caught.value) == message
    assert open_descriptors() == before, "the roots before it were not closed"


def test_a_base_folder_that_is_absent_is_named(grant: Grant, work: Path) -> None:
    with pytest.raises(ValueError) as caught:
        grant(base=work / "none")
    assert str(caught.value) == f'the base folder "{work}/none" does not exist or is not a folder'


def test_a_folder_above_the_base_with_a_name_that_is_no_text_can_be_granted(grant: Grant, work: Path) -> None:
    odd = work / os.fsdecode(b"odd\xff")
    (odd / "in").mkdir(parents=True)
    (odd / "in" / "a.txt").write_text("odd")
    capabilities = grant(work, base=odd / "in")
    assert read(capabilities.open("a.txt")) == b"odd"
    assert r"odd\udcff" in refusal(grant("a.txt", base=odd / "in"), "../x").message


def test_an_old_kernel_or_a_filter_makes_the_walk_take_over() -> None:
    assert choose_open_beneath(lambda folder, path: (-1, errno.ENOSYS)) is open_by_walking
    assert choose_open_beneath(lambda folder, path: (-1, errno.EPERM)) is open_by_walking
    assert choose_open_beneath(lambda folder, path: (-1, errno.ENOENT)) is open_with_openat2


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EMFILE, LimitExceeded),
        (errno.ENFILE, LimitExceeded),
        (errno.ENOMEM, LimitExceeded),
        (errno.EAGAIN, CapabilityDenied),
        (errno.EACCES, Unreadable),
        (errno.ENXIO, BadCommand),
        (errno.EIO, NotFound),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value.__name__,
)
def test_every_failure_of_the_system_is_an_error_of_ours(work: Path, number: int, error: type[CuttlefishError]) -> None:
    def fail(folder: int, components: list[bytes]) -> int:
        raise OSError(number, "the system's own words")

    with Capabilities.grant(["notes"], work, open_beneath=fail) as capabilities:
        failure = refusal(capabilities, "notes/a.txt")
    assert type(failure) is error
    assert failure.message.startswith('open "notes/a.txt": ')
    assert "own words" not in failure.message


def test_names_in_messages_stay_on_one_line_and_short() -> None:
    assert quoted('a"b\\c\n\x1b[31m\u202e\udcffé') == r'"a\"b\\c\n\x1b[31m\u202e\udcffé"'
    assert quoted("x" * 1_000_000) == '"' + "x" * 150 + "…" + "x" * 150 + '"'
