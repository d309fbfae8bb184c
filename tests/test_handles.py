"""The table of a block run: numbers, kinds, limits, and what each wrong use is told."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cuttlefish.errors import BadCommand, CapabilityDenied, CuttlefishError, DocumentInvalid, LimitExceeded, Unsupported
from cuttlefish.limits import Limits
from cuttlefish.media.capabilities import Capabilities
from cuttlefish.media.handles import HandleTable, HeldFile, HeldPicture, UnreadDocument
from cuttlefish.media.text import Window
from cuttlefish_abi import BinaryKind, DocumentKind, ImageKind, Opened, TextKind

PNG = b"\x89PNG\r\n\x1a\n" + bytes(92)
DOCUMENT = DocumentKind(pages=2, has_text_layer=True)


@pytest.fixture
def capabilities(tmp_path: Path) -> Iterator[Capabilities]:
    (tmp_path / "a.txt").write_text("aéb日")
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7\n")
    (tmp_path / "a.bin").write_bytes(b"ab\xff\0cd")
    (tmp_path / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    with Capabilities.grant(["."], tmp_path) as capabilities:
        yield capabilities


@pytest.fixture
def table(capabilities: Capabilities) -> Iterator[HandleTable]:
    with HandleTable(capabilities, Limits()) as table:
        yield table


def handle_of(table: HandleTable, path: str) -> int:
    match table.open(path):
        case Opened(handle=handle):
            return handle
        case UnreadDocument(file=file):
            return table.add(file, DOCUMENT)


def refusal(action: Callable[[], object]) -> CuttlefishError:
    with pytest.raises(CuttlefishError) as caught:
        action()
    return caught.value


def test_an_opened_file_says_its_handle_length_and_kind(table: HandleTable) -> None:
    assert table.open("a.txt") == Opened(handle=0, len=7, kind=TextKind())
    assert table.open("a.png") == Opened(handle=1, len=100, kind=ImageKind(format="png"))
    assert table.open("a.bin") == Opened(handle=2, len=6, kind=BinaryKind())
    assert [table.kind_of(handle) for handle in range(4)] == ["text", "image", "binary", None]


def test_a_document_gets_its_handle_when_its_pages_are_counted(table: HandleTable) -> None:
    opened = table.open("a.pdf")
    assert isinstance(opened, UnreadDocument)
    assert table.kind_of(0) is None
    assert table.add(opened.file, DOCUMENT) == 0
    held = table.get_document(0)
    assert (held.kind, held.file, held.label) == (DOCUMENT, opened.file, 'handle 0 ("a.pdf")')


def test_each_run_counts_in_a_range_of_its_own(capabilities: Capabilities) -> None:
    with HandleTable(capabilities, Limits(), 3) as table:
        assert [handle_of(table, "a.txt") for _ in range(3)] == [12288, 12289, 12290]
    with pytest.raises(ValueError, match="run_index must be from 0 to 1048575, found 1048576"):
        HandleTable(capabilities, Limits(), 2**20)


def test_opening_one_file_twice_gives_two_handles(table: HandleTable) -> None:
    assert (handle_of(table, "a.txt"), handle_of(table, "a.txt")) == (0, 1)


def test_a_text_is_read_in_windows(table: HandleTable) -> None:
    handle = handle_of(table, "a.txt")
    assert table.slice(handle, 0, 2) == Window("a", 1)
    assert table.slice(handle, 1, 2**64 - 1) == Window("éb日", 7)


def test_a_request_longer_than_the_text_window_is_answered_with_fewer_bytes(capabilities: Capabilities) -> None:
    with HandleTable(capabilities, Limits(text_window_bytes=5)) as table:
        handle = handle_of(table, "a.txt")
        assert table.slice(handle, 0, 1000) == Window("aéb", 4)
        assert table.slice_bytes(handle, 0, 1000) == ("aéb日".encode()[:5], 5)


def test_a_text_window_below_one_character_still_lets_a_text_be_read(capabilities: Capabilities) -> None:
    with HandleTable(capabilities, Limits(text_window_bytes=1)) as table:
        assert table.slice(handle_of(table, "a.txt"), 4, 100) == Window("日", 7)


def test_a_binary_file_is_sliced_as_far_as_it_is_text(table: HandleTable) -> None:
    handle = handle_of(table, "a.bin")
    assert table.slice(handle, 0, 10) == Window("ab", 2)
    assert "not UTF-8 at offset 2" in refusal(lambda: table.slice(handle, 2, 10)).message


@pytest.mark.parametrize("path", ["a.txt", "a.png", "a.pdf", "a.bin"])
def test_bytes_are_read_from_a_handle_of_any_kind(table: HandleTable, tmp_path: Path, path: str) -> None:
    data = (tmp_path / path).read_bytes()
    handle = handle_of(table, path)
    assert table.slice_bytes(handle, 1, 1000) == (data[1:], len(data))
    assert table.slice_bytes(handle, 1, 2) == (data[1:3], 3)
    assert table.slice_bytes(handle, len(data), 2) == (b"", len(data))
    assert refusal(lambda: table.slice_bytes(handle, len(data) + 1, 0)).message == (
        f'slice_bytes: offset {len(data) + 1} is past the end of handle 0 ("{path}"), which has {len(data)} bytes'
    )


def test_a_rendered_page_is_an_image_of_its_own(table: HandleTable) -> None:
    handle = table.add_image(PNG, "png", 'page 1 of "a.pdf"')
    assert (handle, table.kind_of(handle)) == (0, "image")
    assert table.get_image(handle) == HeldPicture(0, ImageKind(format="png"), PNG, 'page 1 of "a.pdf"')
    assert table.get_image(handle).len == 100
    assert table.slice_bytes(handle, 1, 3) == (b"PNG", 4)
    assert refusal(lambda: table.slice_bytes(handle, 101, 3)).message == (
        'slice_bytes: offset 101 is past the end of handle 0 (page 1 of "a.pdf"), which has 100 bytes'
    )


def test_an_image_file_is_told_by_its_handle(table: HandleTable) -> None:
    handle = handle_of(table, "a.png")
    held = table.get_image(handle)
    assert isinstance(held, HeldFile)
    assert held.len == 100


@pytest.mark.parametrize(
    ("command", "path", "message"),
    [
        ("slice", "a.pdf", 'slice: handle 0 ("a.pdf") is a document; use page_text'),
        ("slice", "a.png", 'slice: handle 0 ("a.png") is an image; show it to the model with infer'),
        ("page_text", "a.txt", 'page_text: handle 0 ("a.txt") is a text; read it with slice'),
        ("page_text", "a.bin", 'page_text: handle 0 ("a.bin") is a binary file; read it with slice_bytes'),
        ("page_text", "a.svg", 'page_text: handle 0 ("a.svg") is a binary file; read it with slice_bytes'),
        ("infer", "a.pdf", 'infer: handle 0 ("a.pdf") is a document; make a picture of a page with page_image'),
        ("infer", "a.txt", 'infer: handle 0 ("a.txt") is a text; read it with slice'),
        ("infer", "a.bin", 'infer: handle 0 ("a.bin") is a binary file; read it with slice_bytes'),
    ],
    ids=lambda value: value if len(value) < 12 else "",
)
def test_a_handle_of_the_wrong_kind_is_told_the_right_command(table: HandleTable, command: str, path: str, message: str) -> None:
    handle = handle_of(table, path)
    actions: dict[str, Callable[[], object]] = {
        "slice": lambda: table.slice(handle, 0, 1),
        "page_text": lambda: table.get_document(handle, command),
        "infer": lambda: table.get_image(handle),
    }
    failure = refusal(actions[command])
    assert (type(failure), failure.message) == (BadCommand, message)


@pytest.mark.parametrize("command", ["infer", "image_op"])
def test_an_image_of_a_kind_that_cannot_be_read_hears_its_name_and_what_to_do(
    table: HandleTable, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The name is known since the file was opened: nothing may be read on Trio's thread, where images are asked for."""
    handle = handle_of(table, "a.svg")
    assert table.kind_of(handle) == "binary"
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("it was read"))
    failure = refusal(lambda: table.get_image(handle, command))
    assert (type(failure), failure.message) == (
        Unsupported,
        f'{command}: handle 0 ("a.svg") is SVG, a kind of image that this host cannot read; convert it to PNG or JPEG',
    )


def test_a_tiff_is_looked_at_by_a_worker_before_it_gets_its_handle(table: HandleTable, tmp_path: Path) -> None:
    (tmp_path / "a.tiff").write_bytes(b"II*\0\x08\0\0\0" + bytes(20))
    unread = table.open("a.tiff")
    assert isinstance(unread, UnreadDocument)
    handle = table.add(unread.file, ImageKind(format="tiff"))
    assert table.get_image(handle).kind == ImageKind(format="tiff")


def test_a_rendered_page_is_not_sliced(table: HandleTable) -> None:
    table.add_image(PNG, "png")
    assert refusal(lambda: table.slice(0, 0, 1)).message == (
        "slice: handle 0 (a rendered page) is an image; show it to the model with infer"
    )


def test_an_unknown_handle_is_told_what_is_open(table: HandleTable) -> None:
    actions: list[Callable[[], object]] = [
        lambda: table.slice(7, 0, 0),
        lambda: table.slice_bytes(7, 0, 0),
        lambda: table.get_document(7),
        lambda: table.get_image(7),
    ]
    assert [refusal(action).message for action in actions] == [
        f"{command}: there is no handle 7; nothing is open" for command in ("slice", "slice_bytes", "page_text", "infer")
    ]
    handle_of(table, "a.txt")
    assert refusal(actions[0]).message == "slice: there is no handle 7; open is 0"
    handle_of(table, "a.txt")
    assert refusal(actions[0]).message == "slice: there is no handle 7; open are 0 to 1"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_number_of_handles_is_limited_before_a_file_is_opened(capabilities: Capabilities) -> None:
    with HandleTable(capabilities, Limits(job_handles=2)) as table:
        handle_of(table, "a.txt")
        unread = table.open("a.pdf")
        assert isinstance(unread, UnreadDocument)
        table.add_image(PNG, "png")
        before = open_descriptors()
        failure = refusal(lambda: table.open("a.txt"))
        assert (failure.code, failure.message) == ("limit_exceeded", 'job.handles is 2; open "a.txt" would be one more')
        assert refusal(lambda: table.open("../never-looked-at")).code == "limit_exceeded"
        assert refusal(lambda: table.add_image(PNG, "png")).message == "job.handles is 2; page_image would be one more"
        assert open_descriptors() == before
        assert refusal(lambda: table.add(unread.file, DOCUMENT)).code == "limit_exceeded"
        assert unread.file.fd == -1, "a file that found no place is closed"


def test_one_run_stays_in_its_range_of_numbers(capabilities: Capabilities) -> None:
    with HandleTable(capabilities, Limits(job_handles=5000), 1) as table:
        for _ in range(4096):
            last = table.add_image(b"", "png")
        assert last == 8191
        failure = refusal(lambda: table.add_image(b"", "png"))
        assert isinstance(failure, LimitExceeded)
        assert failure.message == "page_image: one block run can hold 4096 handles, whatever job.handles allows"


def test_rendered_pages_are_limited_one_by_one_and_together(capabilities: Capabilities) -> None:
    with HandleTable(capabilities, Limits(image_bytes=100)) as table:
        assert refusal(lambda: table.add_image(bytes(101), "png", "page 1")).message == "image.bytes is 100 bytes; page 1 has 101"
        for _ in range(4):
            table.add_image(PNG, "png")
        failure = refusal(lambda: table.add_image(b"x", "png", "page 5"))
        assert (failure.code, failure.message) == (
            "limit_exceeded",
            "image.bytes is 100 bytes; a block run may keep 4 times that in pictures, and page 5 would make it 401",
        )
        assert table.add_image(b"", "png") == 4, "a refused picture used up a number"


def test_a_denied_path_uses_up_no_number(table: HandleTable) -> None:
    assert isinstance(refusal(lambda: table.open("../x")), CapabilityDenied)
    assert handle_of(table, "a.txt") == 0


def test_a_link_swapped_after_open_changes_nothing(table: HandleTable, tmp_path: Path) -> None:
    handle = handle_of(table, "a.txt")
    (tmp_path / "secret").write_text("secret!")
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").symlink_to("secret")
    assert table.slice(handle, 0, 100) == Window("aéb日", 7)


def test_a_file_cut_between_two_windows_is_an_error(table: HandleTable, tmp_path: Path) -> None:
    handle = handle_of(table, "a.txt")
    assert table.slice(handle, 0, 3) == Window("aé", 3)
    os.truncate(tmp_path / "a.txt", 4)
    failure = refusal(lambda: table.slice(handle, 3, 10))
    assert isinstance(failure, DocumentInvalid)
    assert failure.message == (
        'slice: handle 0 ("a.txt") changed while it was read: it has no byte 4 any more. '
        "Run the job again when nothing writes to the file"
    )


def test_close_ends_everything_once_and_refuses_what_comes_after(capabilities: Capabilities) -> None:
    before = open_descriptors()
    table = HandleTable(capabilities, Limits())
    for path in ("a.txt", "a.png", "a.pdf"):
        handle_of(table, path)
    unread = table.open("a.pdf")
    assert isinstance(unread, UnreadDocument)
    table.close()
    table.close()
    assert table.kind_of(0) is None
    assert refusal(lambda: table.open("a.txt")).message == 'open "a.txt": this block run is over and its files are closed'
    assert refusal(lambda: table.slice(0, 0, 1)).message == "slice: this block run is over and its files are closed"
    assert refusal(lambda: table.add_image(PNG, "png")).code == "bad_command"
    assert refusal(lambda: table.add(unread.file, DOCUMENT)).code == "bad_command"
    assert open_descriptors() == before


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns at every chance, so that a missing lock shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(interval)


def test_threads_that_open_at_once_get_numbers_of_their_own_and_keep_the_limit(
    capabilities: Capabilities, hasty_threads: None
) -> None:
    """Pictures, because nothing of the system's lies between two of them: the threads meet in the table itself."""
    with HandleTable(capabilities, Limits(job_handles=3900)) as table:
        start, found, refused = threading.Barrier(4), list[int](), list[CuttlefishError]()

        def opener() -> None:
            start.wait()
            for _ in range(1000):
                try:
                    found.append(table.add_image(b"", "png"))
                except LimitExceeded as failure:
                    refused.append(failure)

        threads = [threading.Thread(target=opener) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(3900))
        assert len(refused) == 100
