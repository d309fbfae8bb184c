"""Windows of a file: the contract's cases, every window size, and what each error says."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cuttlefish.errors import BadCommand, CuttlefishError, DocumentInvalid
from cuttlefish.media.text import Window, read_bytes, read_exactly, read_window

VECTORS = [json.loads(line) for line in (Path(__file__).parent.parent / "abi/vectors/slices.jsonl").read_text().splitlines()]
SENTENCES = {
    "window_too_small": "is too small for the character at offset",
    "inside_character": "is inside a character, which starts at",
    "past_end": "is past the end of",
    "not_utf8": "is not UTF-8 at offset",
}
MIXED = "a\u0000é\r\n日本\u2028\U0001f600\ufeff\ufffd z\U0010ffff"


class Held:
    """A file that has bytes and no name."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fill(self, data: bytes) -> int:
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, data, 0)
        return self.fd


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with tempfile.TemporaryFile() as file:
        yield Held(file.fileno())


@pytest.mark.parametrize("case", VECTORS, ids=lambda c: f"{c['hex'] or 'empty'}-{c['offset']}-{c['len']}")
def test_every_case_of_the_contract_is_answered_as_it_says(case: dict[str, str | int], held: Held) -> None:
    data = bytes.fromhex(str(case["hex"]))
    fd = held.fill(data)
    offset, length = int(case["offset"]), int(case["len"])
    if "error" in case:
        with pytest.raises(BadCommand) as caught:
            read_window(fd, len(data), offset, length, "it")
        assert [name for name, sentence in SENTENCES.items() if sentence in caught.value.message] == [case["error"]]
    else:
        assert read_window(fd, len(data), offset, length, "it") == Window(str(case["text"]), int(case["next_offset"]))


def walk(fd: int, size: int, length: int) -> str:
    offset, parts = 0, []
    while offset < size:
        window = read_window(fd, size, offset, length, "it")
        assert window.next_offset == offset + len(window.text.encode()) > offset
        parts.append(window.text)
        offset = window.next_offset
    return "".join(parts)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
@example(text=MIXED)
def test_windows_of_every_size_from_four_join_to_the_text(held: Held, text: str) -> None:
    data = text.encode()
    fd = held.fill(data)
    for length in range(4, 65):
        assert walk(fd, len(data), length) == text


@given(text=st.text(alphabet=st.sampled_from(MIXED), min_size=1, max_size=40), length=st.integers(1, 3))
def test_a_window_below_four_bytes_gives_characters_or_says_that_it_is_too_small(held: Held, text: str, length: int) -> None:
    data = text.encode()
    fd = held.fill(data)
    widest = max(len(character.encode()) for character in text)
    if widest <= length:
        assert walk(fd, len(data), length) == text
    else:
        with pytest.raises(BadCommand, match="is too small for the character"):
            walk(fd, len(data), length)


def expected(data: bytes, offset: int, length: int) -> Window | str:
    """The contract again, by other means: a decoder that marks each bad byte on its own knows where every character starts."""
    starts, at = {}, 0
    for character in data.decode("utf-8", "surrogateescape"):
        starts[at] = character
        at += len(character.encode("utf-8", "surrogateescape"))
    if length == 0 or offset == len(data):
        return Window("", offset)
    if offset not in starts:
        start = max(s for s in starts if s < offset)
        after = start + len(starts[start].encode())
        return f"is inside a character, which starts at {start}; read from {start}, or from {after} after it"
    text, end = "", offset
    while end in starts and not "\udc80" <= starts[end] <= "\udcff" and end + len(starts[end].encode()) <= offset + length:
        text += starts[end]
        end = offset + len(text.encode())
    if text:
        return Window(text, end)
    return SENTENCES["not_utf8" if "\udc80" <= starts[offset] <= "\udcff" else "window_too_small"]


any_bytes = st.binary(max_size=60) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))


@given(data=any_bytes, length=st.integers(0, 70))
@example(data=b"\xf0\x90\x80", length=4)
@example(data=b"\xed\xa0\x80x", length=2)
@example(data=b"\xc0\x80\xe0\x80\x80\xf4\x90\x80\x80\xff", length=4)
def test_any_offset_of_any_bytes_gives_whole_characters_or_one_clear_error(held: Held, data: bytes, length: int) -> None:
    fd = held.fill(data)
    for offset in range(len(data) + 1):
        answer = expected(data, offset, length)
        if isinstance(answer, Window):
            assert read_window(fd, len(data), offset, length, "it") == answer
        else:
            with pytest.raises(BadCommand) as caught:
                read_window(fd, len(data), offset, length, "it")
            assert answer in caught.value.message


@pytest.mark.parametrize(
    ("data", "offset", "length", "message"),
    [
        (b"abc", 4, 1, 'slice: offset 4 is past the end of handle 3 ("a.txt"), which has 3 bytes'),
        (
            "a日".encode(),
            1,
            2,
            'slice: a window of 2 bytes is too small for the character at offset 1 of handle 3 ("a.txt"), which has 3; '
            "ask for at least 4",
        ),
        (
            "a日".encode(),
            3,
            9,
            'slice: offset 3 of handle 3 ("a.txt") is inside a character, which starts at 1; read from 1, or from 4 after it',
        ),
        (
            b"ab\xffcd",
            2,
            9,
            'slice: handle 3 ("a.txt") is not UTF-8 at offset 2 (byte 0xff); read such bytes with slice_bytes, or go on at 3',
        ),
    ],
    ids=["past the end", "too small", "inside", "not utf8"],
)
def test_an_error_says_where_to_read_instead(held: Held, data: bytes, offset: int, length: int, message: str) -> None:
    with pytest.raises(BadCommand) as caught:
        read_window(held.fill(data), len(data), offset, length, 'handle 3 ("a.txt")')
    assert caught.value.message == message


def test_a_byte_order_mark_and_line_ends_are_kept(held: Held) -> None:
    data = b"\xef\xbb\xbfa\r\nb\rc\n"
    assert read_window(held.fill(data), len(data), 0, 100, "it") == Window("\ufeffa\r\nb\rc\n", len(data))


def test_a_file_that_was_cut_is_an_error_and_not_a_short_answer(held: Held) -> None:
    fd = held.fill(b"0123456789")
    os.ftruncate(fd, 4)
    message = (
        'slice: handle 0 ("a.txt") changed while it was read: it has no byte 4 any more. '
        "Run the job again when nothing writes to the file"
    )
    with pytest.raises(DocumentInvalid) as caught:
        read_window(fd, 10, 2, 8, 'handle 0 ("a.txt")')
    assert caught.value.message == message
    with pytest.raises(DocumentInvalid):
        read_bytes(fd, 10, 2, 8, "it")


def test_a_file_that_grew_ends_where_it_ended_when_it_was_opened(held: Held) -> None:
    fd = held.fill(b"0123456789")
    assert read_window(fd, 4, 0, 100, "it") == Window("0123", 4)
    assert read_window(fd, 4, 4, 100, "it") == Window("", 4)


def test_no_more_is_read_than_the_window_and_three_bytes_on_each_side(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = held.fill(b"x" * 100_000)
    asked: list[tuple[int, int]] = []
    real = os.pread

    def noted(fd: int, count: int, offset: int) -> bytes:
        asked.append((offset, count))
        return real(fd, count, offset)

    monkeypatch.setattr(os, "pread", noted)
    read_window(fd, 100_000, 50_000, 4096, "it")
    assert asked == [(49_997, 4096 + 6)]


def test_a_system_that_returns_fewer_bytes_than_asked_is_asked_again(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MIXED.encode() * 5
    fd = held.fill(data)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: real(fd, min(count, 3), offset))
    assert read_window(fd, len(data), 0, len(data), "it").text == MIXED * 5


def test_a_read_that_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(CuttlefishError) as caught:
            read_exactly(fd, 0, 5, "open", '"a"')
    finally:
        os.close(fd)
    assert (caught.value.code, caught.value.message) == (
        "document_invalid",
        'open: "a" cannot be read: the system reports an error (EISDIR)',
    )


def test_bytes_are_read_up_to_the_end_and_not_past_it(held: Held) -> None:
    fd = held.fill(b"\0\xff\xfe")
    assert read_bytes(fd, 3, 1, 2**64 - 1, "it") == b"\xff\xfe"
    assert read_bytes(fd, 3, 3, 5, "it") == b""
    assert read_bytes(fd, 3, 0, 0, "it") == b""
    with pytest.raises(BadCommand) as caught:
        read_bytes(fd, 3, 4, 0, "it")
    assert caught.value.message == "slice_bytes: offset 4 is past the end of it, which has 3 bytes"
