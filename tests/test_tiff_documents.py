"""TIFFs of several pages are documents without text; of one page they are images."""

import io
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
from odd.writer import opened
from PIL import Image

from cuttlefish.errors import BadCommand, DocumentInvalid, LimitExceeded
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentFacts, DocumentWorkers, PageText, open_document_workers
from cuttlefish.media.tiff_reader import page_frames
from cuttlefish_abi import DocumentKind, ImageKind

LIMITS = Limits()
COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


@pytest.fixture
async def workers() -> AsyncIterator[DocumentWorkers]:
    async with open_document_workers(1) as workers:
        yield workers


@pytest.fixture
def files() -> Iterator[ExitStack]:
    with ExitStack() as files:
        yield files


def tiff(pages: int, size: tuple[int, int] = (60, 40), **options: object) -> bytes:
    out = io.BytesIO()
    frames = [Image.new("RGB", size, COLOURS[at % 3]) for at in range(pages)]
    frames[0].save(out, "TIFF", save_all=True, append_images=frames[1:], **options)
    return out.getvalue()


def directories(data: bytes) -> list[int]:
    """Where each frame's directory starts, in a little-endian TIFF."""
    found, at = [], struct.unpack_from("<I", data, 4)[0]
    while at:
        found.append(at)
        at = struct.unpack_from("<I", data, at + 2 + 12 * struct.unpack_from("<H", data, at)[0])[0]
    return found


def with_entry(data: bytes, directory: int, tag: int, value: int) -> bytes:
    """The same with another value for a tag that is there."""
    for at in range(directory + 2, directory + 2 + 12 * struct.unpack_from("<H", data, directory)[0], 12):
        if struct.unpack_from("<H", data, at)[0] == tag:
            return data[: at + 8] + struct.pack("<I", value) + data[at + 12 :]
    raise AssertionError("no such tag")


def frames(data: bytes) -> list[int]:
    return page_frames(lambda length, at: data[at : at + length])


async def test_several_pages_make_a_document_without_text_and_one_makes_an_image(
    workers: DocumentWorkers, files: ExitStack
) -> None:
    many = await workers.open_document(files.enter_context(opened(tiff(3))), LIMITS)
    assert many == DocumentFacts(pages=3, has_text_layer=False)
    assert many.kind == DocumentKind(pages=3, has_text_layer=False)
    one = await workers.open_document(files.enter_context(opened(tiff(1))), LIMITS)
    assert one == DocumentFacts(pages=1, has_text_layer=False, image="tiff")
    assert one.kind == ImageKind(format="tiff")


async def test_each_page_is_one_image_without_text(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(tiff(3)))
    assert [await workers.page_text(source, page, LIMITS) for page in range(3)] == [PageText("", images=1, coverage=1.0)] * 3
    assert await workers.document_text(source, LIMITS) == ""


@pytest.mark.parametrize("options", [{}, {"compression": "tiff_lzw"}, {"compression": "jpeg"}, {"big_tiff": True}], ids=str)
async def test_pages_render_in_any_order(workers: DocumentWorkers, files: ExitStack, options: dict[str, object]) -> None:
    source = files.enter_context(opened(tiff(6, **options)))
    for page in (5, 0, 3, 3, 1, 4, 2):
        shown = await workers.page_image(source, page, LIMITS)
        assert (shown.format, shown.width, shown.height) == ("jpeg", 60, 40)
        with Image.open(io.BytesIO(shown.data)) as picture:
            colour = picture.getpixel((30, 20))
        assert isinstance(colour, tuple)
        assert all(abs(a - b) < 12 for a, b in zip(colour, COLOURS[page % 3], strict=True))


async def test_a_large_page_is_shrunk_and_a_turned_one_is_upright(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(tiff(2, (3000, 1500))))
    shown = await workers.page_image(source, 1, LIMITS)
    assert (shown.width, shown.height) == (1024, 512)
    exif = Image.Exif()
    exif[274] = 6
    turned = files.enter_context(opened(tiff(2, (60, 40), exif=exif)))
    shown = await workers.page_image(turned, 0, LIMITS)
    assert (shown.width, shown.height) == (40, 60)


async def test_a_page_past_the_end_is_the_blocks_mistake(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(tiff(2), "x.tiff"))
    with pytest.raises(BadCommand) as error:
        await workers.page_image(source, 2, LIMITS)
    assert error.value.message == 'page_image: page 2 is past the end; "x.tiff" has 2 pages (the first is 0)'


async def test_a_damaged_page_is_its_own_error_and_the_others_render(workers: DocumentWorkers, files: ExitStack) -> None:
    data = tiff(3, compression="tiff_lzw")
    data = with_entry(data, directories(data)[1], 273, len(data) + 5)  # its strip lies behind the file's end
    source = files.enter_context(opened(data, "x.tiff"))
    assert (await workers.open_document(source, LIMITS)).pages == 3
    for page in (0, 1, 2, 1, 0):
        if page == 1:
            with pytest.raises(DocumentInvalid) as error:
                await workers.page_image(source, page, LIMITS)
            assert error.value.message == (
                'page_image: page 1 of "x.tiff" is missing or damaged and cannot be read; other pages may be'
            )
        else:
            assert (await workers.page_image(source, page, LIMITS)).width == 60


async def test_a_page_of_a_gigapixel_is_refused_by_its_header(workers: DocumentWorkers, files: ExitStack) -> None:
    data = tiff(2)
    for tag in (256, 257):
        data = with_entry(data, directories(data)[1], tag, 32_000)
    source = files.enter_context(opened(data, "x.tiff"))
    with pytest.raises(LimitExceeded) as error:
        await workers.page_image(source, 1, LIMITS)
    assert error.value.message == 'image.pixels is 40000000 pixels; page 1 of "x.tiff" is 32000×32000 and needs 1024000000'
    assert (await workers.page_image(source, 0, LIMITS)).width == 60


async def test_a_tiff_larger_than_is_read_whole_renders(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(tiff(3) + bytes(70 << 20)))
    assert (await workers.open_document(source, LIMITS.with_values({"document.memory": "400MiB"}))).pages == 3
    assert (await workers.page_image(source, 2, LIMITS)).width == 60


async def test_a_damaged_tiff_is_an_image_whose_damage_shows_in_use(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(b"II*\0\xff\xff\xff\0" + bytes(30), "x.tiff"))
    assert (await workers.open_document(source, LIMITS)).kind == ImageKind(format="tiff")
    with pytest.raises(DocumentInvalid):
        await workers.prepare_image(source, LIMITS)


def test_small_copies_and_masks_are_no_pages() -> None:
    def entries(*kinds: int) -> bytes:
        data = b"II*\0\x08\0\0\0"
        for at, kind in enumerate(kinds):
            following = len(data) + 30 if at < len(kinds) - 1 else 0
            data += struct.pack("<HHHIIHHIII", 2, 254, 4, 1, kind, 256, 4, 1, 1, following)
        return data

    assert frames(entries(0, 0, 0)) == [0, 1, 2]
    assert frames(entries(0, 1, 0, 4, 2)) == [0, 2, 4]
    assert frames(entries(1, 1)) == [0], "a file of nothing else still has its first frame"


def test_a_loop_of_directories_ends_and_so_does_a_cut_one() -> None:
    data = tiff(3)
    places = directories(data)
    last = places[-1] + 2 + 12 * struct.unpack_from("<H", data, places[-1])[0]
    looped = data[:last] + struct.pack("<I", places[0]) + data[last + 4 :]
    assert frames(looped) == frames(data) == [0, 1, 2]
    for end in range(0, len(data), 97):
        assert frames(data[:end])[0] == 0
    assert frames(b"") == [0]
