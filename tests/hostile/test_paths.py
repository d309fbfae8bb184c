"""Attacks on paths and files. Each runs both ways of opening; the bar is no escape, no wait, and the right code."""

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuttlefish.errors import CuttlefishError
from cuttlefish.limits import Limits
from cuttlefish.media.capabilities import Capabilities, OpenBeneath, open_by_walking, open_with_openat2
from cuttlefish.media.documents import DocumentSource, open_document_workers
from cuttlefish.media.handles import HandleTable
from cuttlefish.media.text import Window
from cuttlefish_abi import Opened

# In turn: a folder that becomes a link out of the root and back, a file that does, and a folder moved out of the root.
SWAPPER = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
while True:
    os.rename("root/folder", "parked"); os.symlink("../outside", "root/folder")
    os.unlink("root/folder"); os.rename("parked", "root/folder")
    os.symlink("../outside/file", "root/new"); os.rename("root/new", "root/file")
    os.link("inside", "root/new"); os.rename("root/new", "root/file")
    os.rename("root/walk/deep", "outside/deep"); os.rename("outside/deep", "root/walk/deep")
"""


@pytest.fixture(params=[open_with_openat2, open_by_walking], ids=["openat2", "walk"])
def way(request: pytest.FixtureRequest) -> OpenBeneath:
    way: OpenBeneath = request.param
    return way


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("root/folder", "root/walk/deep", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("root/folder/file", "root/file", "root/walk/file", "root/walk/deep/file", "inside"):
        (tmp_path / file).write_text("inside")
    for file in ("outside/file", "secret"):
        (tmp_path / file).write_text("outside")
    return tmp_path / "root"


@pytest.fixture
def capabilities(root: Path, way: OpenBeneath) -> Iterator[Capabilities]:
    with Capabilities.grant([root], root, open_beneath=way) as capabilities:
        yield capabilities


def content_or_code(capabilities: Capabilities, path: str) -> str:
    try:
        with capabilities.open(path) as file:
            return os.pread(file.fd, 100, 0).decode()
    except CuttlefishError as failure:
        message, code = failure.message, failure.code
    assert "\n" not in message
    return code


def test_a_quick_link_swapper_never_leads_out(capabilities: Capabilities, root: Path) -> None:
    paths = ("folder/file", "file", "walk/deep/../file", "walk/deep/../../file", "folder/../file")
    seen: dict[str, int] = {}
    with subprocess.Popen([sys.executable, "-c", SWAPPER, str(root.parent)], stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            assert swapper.stdout.readline() == b"ready\n"
            begin = time.monotonic()
            # A second, and longer where the two processes have not yet met often enough to prove anything.
            while time.monotonic() < begin + 1 or (
                min(seen.get("inside", 0), seen.get("capability_denied", 0)) < 50 and time.monotonic() < begin + 60
            ):
                for path in paths:
                    outcome = content_or_code(capabilities, path)
                    seen[outcome] = seen.get(outcome, 0) + 1
            assert swapper.poll() is None, "the swapper died: nothing was proved"
        finally:
            swapper.kill()
    assert seen.keys() <= {"inside", "capability_denied", "not_found"}, seen
    assert seen["inside"] >= 50
    assert seen["capability_denied"] >= 50


def test_a_swapper_escapes_from_a_check_that_comes_before_the_open(root: Path) -> None:
    """The attack itself works: what `Capabilities` does not do is escaped from within moments."""
    escaped = False
    with subprocess.Popen([sys.executable, "-c", SWAPPER, str(root.parent)], stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            swapper.stdout.readline()
            deadline = time.monotonic() + 60
            while not escaped and time.monotonic() < deadline:
                try:
                    if Path(os.path.realpath(root / "folder/file")).is_relative_to(root):
                        escaped = (root / "folder/file").read_text() == "outside"
                except OSError:
                    pass
        finally:
            swapper.kill()
    assert escaped


def test_a_named_pipe_is_refused_at_once_and_not_waited_for(capabilities: Capabilities, root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert content_or_code(capabilities, "pipe") == "bad_command"


def test_a_named_pipe_granted_by_name_is_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(ValueError, match="is a named pipe"):
        Capabilities.grant([root / "pipe"], root)


def test_a_socket_is_refused(capabilities: Capabilities, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)  # a socket's name may have only 108 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert content_or_code(capabilities, "socket") == "bad_command"


@pytest.mark.parametrize("device", ["null", "zero", "full", "tty", "ptmx"])
def test_a_device_is_refused(way: OpenBeneath, device: str) -> None:
    with Capabilities.grant(["/dev"], "/", open_beneath=way) as capabilities:
        assert content_or_code(capabilities, f"/dev/{device}") == "bad_command"


@pytest.mark.parametrize("path", ["root/etc/passwd", "cwd", "exe", "fd/0", "ns/mnt"])
def test_a_magic_link_of_procfs_leads_nowhere(way: OpenBeneath, path: str) -> None:
    with Capabilities.grant([f"/proc/{os.getpid()}"], "/", open_beneath=way) as capabilities:
        assert content_or_code(capabilities, f"/proc/{os.getpid()}/{path}") == "capability_denied"


def test_an_endless_or_empty_looking_file_of_the_system_reads_as_empty(way: OpenBeneath) -> None:
    with Capabilities.grant(["/proc/self"], "/", open_beneath=way) as capabilities, HandleTable(capabilities, Limits()) as table:
        opened = table.open("/proc/self/status")
        assert isinstance(opened, Opened)
        assert opened.len == 0
        assert table.slice(opened.handle, 0, 100) == Window("", 0)


def test_a_hard_link_is_the_file_that_it_names(capabilities: Capabilities, root: Path) -> None:
    """No system can tell a hard link from a file; the documentation of `grant` says so."""
    os.link(root.parent / "inside", root / "hard")
    assert content_or_code(capabilities, "hard") == "inside"


def test_links_out_are_refused_however_they_are_written(capabilities: Capabilities, root: Path) -> None:
    targets = (str(root), f"{root.parent}/secret", "../secret", "/", "..", "folder/../../secret", "/proc/self/root")
    for index, target in enumerate(targets):
        link = root / f"link{index}"
        link.symlink_to(target)
        for path in (link.name, f"{link.name}/file", f"{link.name}/secret", f"{link.name}/none"):
            assert content_or_code(capabilities, path) == "capability_denied", (target, path)


def test_an_absolute_link_into_the_root_itself_is_refused_as_well(capabilities: Capabilities, root: Path) -> None:
    """Stricter than need be: beneath a root the kernel takes every absolute link for one that leaves."""
    (root / "self").symlink_to(root / "file")
    assert content_or_code(capabilities, "self") == "capability_denied"


def test_a_root_that_is_renamed_after_the_grant_stays_the_granted_one(capabilities: Capabilities, root: Path) -> None:
    root.rename(root.parent / "moved")
    assert content_or_code(capabilities, "file") == "inside"
    root.symlink_to("outside")
    assert content_or_code(capabilities, "file") == "inside"
    (root.parent / "moved" / "file").unlink()
    assert content_or_code(capabilities, "file") == "not_found"


def test_a_granted_file_that_is_replaced_stays_the_granted_one(root: Path, way: OpenBeneath) -> None:
    with Capabilities.grant([root / "file"], root, open_beneath=way) as capabilities:
        (root / "file").unlink()
        (root / "file").symlink_to("../secret")
        assert content_or_code(capabilities, "file") == "inside"


def test_a_root_that_is_deleted_has_no_files(capabilities: Capabilities, root: Path) -> None:
    (root / "folder" / "file").unlink()
    with Capabilities.grant(["folder"], root) as other:
        (root / "folder").rmdir()
        assert content_or_code(other, "folder/file") == "not_found"


@pytest.mark.parametrize("sibling", ["root-evil", "root ", "root.", "roo", "ROOT"])
def test_a_folder_with_almost_the_same_name_is_not_the_root(capabilities: Capabilities, root: Path, sibling: str) -> None:
    (root.parent / sibling).mkdir()
    (root.parent / sibling / "file").write_text("outside")
    assert content_or_code(capabilities, f"../{sibling}/file") == "capability_denied"
    assert content_or_code(capabilities, f"{root.parent}/{sibling}/file") == "capability_denied"


@pytest.mark.parametrize(
    "name",
    ["a\nb", "\x1b[2J", "\u202egnp.exe", "-rf", " ", "\\", "...", "*", "~", "%2e%2e", "日本", "e\u0301", "n" * 255],
    ids=ascii,
)
def test_odd_names_are_only_names(capabilities: Capabilities, root: Path, name: str) -> None:
    assert content_or_code(capabilities, name) == "not_found"
    (root / name).write_text("odd")
    assert content_or_code(capabilities, name) == "odd"


def test_a_huge_sparse_file_costs_no_more_than_its_windows(capabilities: Capabilities, root: Path) -> None:
    size = 1 << 40
    with (root / "huge").open("wb") as huge:
        huge.write(b"begin")
        huge.truncate(size)
    with HandleTable(capabilities, Limits()) as table:
        opened = table.open("huge")
        assert isinstance(opened, Opened)
        assert (opened.len, opened.kind.kind) == (size, "binary")
        data, after = table.slice_bytes(opened.handle, size - 3, 2**64 - 1)
        assert (data, after) == (b"\0\0\0", size)
        data, after = table.slice_bytes(opened.handle, 0, 2**64 - 1)
        assert (len(data), after) == (8 << 20, 8 << 20)


async def test_a_huge_image_is_refused_before_memory_is_taken(capabilities: Capabilities, root: Path) -> None:
    with (root / "huge").open("wb") as huge:
        huge.write(b"\x89PNG")
        huge.truncate(1 << 40)
    with capabilities.open("huge") as file:
        source = DocumentSource(file.fd, file.device, file.inode, file.size, file.name)
        async with open_document_workers(1) as workers:
            with pytest.raises(CuttlefishError) as caught:
                await workers.prepare_image(source, Limits())
    assert caught.value.message == 'image.bytes is 67108864 bytes; "huge" has 1099511627776'


def test_when_descriptors_run_out_the_error_says_so_and_the_next_open_works(capabilities: Capabilities) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    for room in range(4):  # the first descriptor fails, then the second, …: a walk needs several, openat2 one
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, hard))
        try:
            outcome = content_or_code(capabilities, "walk/deep/../deep/file")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert outcome in ("limit_exceeded", "inside")
        assert room or outcome == "limit_exceeded"
        again = os.dup(0)
        os.close(again)
        assert again == lowest, "a descriptor was left open"
    assert content_or_code(capabilities, "walk/deep/../deep/file") == "inside"


def test_a_granted_file_is_an_error_too_when_descriptors_run_out(root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Capabilities.grant([root / "file"], root) as capabilities:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            outcome = content_or_code(capabilities, "file")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcome == "limit_exceeded"


@pytest.fixture
def nobody() -> Iterator[None]:
    """Root reads everything, so whoever runs these tests as root is somebody else for the moment."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.fixture
def unreadable(capabilities: Capabilities, root: Path) -> Iterator[Capabilities]:
    (root / "file").chmod(0)
    (root / "folder").chmod(0)
    (root / "walk").chmod(0o711)  # may be passed through, not listed
    yield capabilities
    (root / "folder").chmod(0o755)


def test_a_file_that_this_user_may_not_read_is_denied(unreadable: Capabilities, nobody: None) -> None:
    assert content_or_code(unreadable, "file") == "capability_denied"
    assert content_or_code(unreadable, "folder/file") == "capability_denied"
    assert content_or_code(unreadable, "folder/none") == "capability_denied"


def test_a_folder_that_may_be_passed_through_but_not_listed_is_no_obstacle(unreadable: Capabilities, nobody: None) -> None:
    assert content_or_code(unreadable, "walk/file") == "inside"


def test_a_root_that_this_user_may_not_read_is_named(unreadable: Capabilities, root: Path, nobody: None) -> None:
    with pytest.raises(ValueError) as caught:
        Capabilities.grant([root / "folder"], "/")
    assert str(caught.value) == f'the granted path "{root}/folder" may not be read by this user'


def test_a_file_replaced_between_two_windows_is_read_on_as_it_was(capabilities: Capabilities, root: Path) -> None:
    with HandleTable(capabilities, Limits()) as table:
        opened = table.open("file")
        assert isinstance(opened, Opened)
        assert table.slice(opened.handle, 0, 4) == Window("insi", 4)
        (root / "new").write_text("OUTSIDE")
        (root / "new").rename(root / "file")
        assert table.slice(opened.handle, 4, 4) == Window("de", 6)


def test_a_file_cut_to_nothing_is_an_error_for_every_reader(capabilities: Capabilities, root: Path) -> None:
    (root / "file").write_bytes(b"\x89PNG" + bytes(100))
    with HandleTable(capabilities, Limits()) as table:
        opened = table.open("file")
        assert isinstance(opened, Opened)
        os.truncate(root / "file", 0)
        with pytest.raises(CuttlefishError) as caught:
            table.slice_bytes(opened.handle, 0, 10)
        assert caught.value.code == "document_invalid"
