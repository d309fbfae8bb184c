"""The page tree read by ourselves. What comes of it for a user, the odd files show (`count-too-small…`)."""

import contextlib
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd.writer import deflated, packed_pdf, page_objects, pages_pdf, pdf, stream, updated, written

from cuttlefish.media import pdf_tree
from cuttlefish.media.pdf_tree import Unsure, pages_in_tree
from cuttlefish.media.reading import reader

THREE = page_objects(*(written(text) for text in "abc"), count=1)
WRITTEN = {
    "plain": pdf(THREE),
    "packed": packed_pdf(THREE),
    "predicted": packed_pdf(THREE, predicted=True),
    "updated": updated(pages_pdf(written("a"), count=1, kids="6 0 R 8 0 R 4 0 R"), {6: THREE[5], 8: THREE[7]}, 9),
}


def found(data: bytes, claimed: int = 1) -> int:
    return pages_in_tree(reader(data), len(data), claimed)


@pytest.mark.parametrize("data", WRITTEN.values(), ids=WRITTEN)
def test_pages_beyond_the_claim_are_found_however_the_file_is_written(data: bytes) -> None:
    assert [found(data, claimed) for claimed in (1, 2, 3, 4)] == [3, 3, 3, 4]


@pytest.mark.parametrize(
    ("page", "pages"),
    [
        (b"<</Type/Page>>", 2),
        (b"<</T#79pe/P#61ge>>", 2),
        (b"<</Type 3 0 R>>", 1),
        (b"<</MediaBox[0 0 9 9]>>", 2),
        (b"<</Type/Pages>>", 1),
        (b"<</Type/Pages/Count 0/Kids[]>>", 1),
        (b"<</Type/Pages/K#69ds[4 0 R 4 0 R]>>", 3),
        (b"<</Note(Kids \\) ( ) endless)/Type/Page>>", 2),
        (b"<</Type/Page %/Kids[4 0 R 4 0 R]\n>>", 2),
        (b"<</Kids(x)>>", None),
        (b"<<>>", 1),
        (b"null", 1),
        (b"(a page)", 1),
        (b"<</Type/Page", None),
    ],
)
def test_what_looks_like_a_page_is_one(page: bytes, pages: int | None) -> None:
    data = pages_pdf(written("a"), count=1, kids="4 0 R 6 0 R", more=[page])
    if pages is None:
        with pytest.raises(Unsure):
            found(data)
    else:
        assert found(data) == pages


def test_a_tree_that_doubles_with_each_level_is_given_up() -> None:
    nodes = [f"<</Type/Pages/Kids[{at} 0 R {at} 0 R]>>".encode() for at in range(7, 47)]
    with pytest.raises(Unsure):
        found(pages_pdf(written("a"), count=1, kids="4 0 R 6 0 R", more=[*nodes, b"<</Type/Pages/Kids[]>>"]))


def with_sections(count: int) -> bytes:
    """A tree of 50 places, behind a table of so many sections that none of its objects is in."""
    data = pages_pdf(written("a"), count=1, kids="4 0 R " * 50)
    sections = b"".join(b"%d 1\n0000000000 00000 f \n" % (100 + at) for at in range(count))
    return data.replace(b"xref\n0 ", b"xref\n" + sections + b"0 ")


def packed_apart(padding: int) -> bytes:
    """Fifty kids in as many object streams, each of which unpacks to so many bytes."""
    page, streams = b"<</Type/Page>> ", []
    for at in range(50):
        index = b"%d 0 999 %d " % (100 + at, len(page))
        streams.append(deflated(index + page + bytes(padding), f"/Type/ObjStm/N 2/First {len(index)}"))
    kids = " ".join(f"{100 + at} 0 R" for at in range(50))
    data = pages_pdf(written("a"), count=1, kids=kids, more=streams)
    table = len(data)
    rows = b"".join(b"\2" + (6 + at).to_bytes(4, "big") + b"\0" for at in range(50))
    entries = f"/Type/XRef/Size 200/W[1 4 1]/Index[100 50]/Root 1 0 R/Prev {data.index(b'xref')}"
    return data + b"99 0 obj\n%s\nendobj\nstartxref\n%d\n%%%%EOF\n" % (deflated(rows, entries), table)


LONG: dict[str, Callable[[], bytes]] = {
    "sections": lambda: with_sections(3_000),
    "unpacked": lambda: packed_apart(1 << 20),
    "parsed": lambda: pages_pdf(written("a"), count=1, kids="6 0 R " * 50, more=[b"<</Kids[4 0 R]/X(%s)>>" % (b"\\n" * 900)]),
    "differences": lambda: packed_pdf(page_objects(*[written("a")] * 50, count=1, more=[stream(b"")] * 50_000), predicted=True),
}


@pytest.mark.parametrize("name", LONG)
def test_the_work_on_a_tree_is_bounded_whatever_makes_it_long(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Thousands of sections times thousands of pages would take hours, and no single one of them is too many."""
    data = LONG[name]()
    assert found(data) == 50
    monkeypatch.setattr(pdf_tree, "MOST_WORK", 8 << 20)
    with contextlib.suppress(Unsure):
        assert 1 < found(data) < 50, "some of them are enough to know that there are more than one"


@settings(deadline=None)
@given(st.sampled_from(sorted(WRITTEN)), st.integers(0, 2**32), st.integers(1, 8))
def test_a_damaged_file_gives_a_number_or_is_unsure_and_nothing_else(name: str, seed: int, changes: int) -> None:
    chance, data = random.Random(seed), bytearray(WRITTEN[name])
    for _ in range(changes):
        at = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                data[at] = chance.choice(b"0123456789<>[]()/% \nRf\0\xff")
            case 1:
                del data[at : at + chance.randrange(40)]
            case _:
                data[at:at] = data[at : at + chance.randrange(40)]
    with contextlib.suppress(Unsure):
        assert found(bytes(data)) >= 1
