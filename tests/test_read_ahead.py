"""Pages read ahead of a block, and whole documents: faster, and otherwise as if each page had been asked for alone."""

import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from odd.writer import deflated, opened, pages_pdf, stream, written

from cuttlefish.errors import BadCommand, CuttlefishError, DocumentCrashed, DocumentInvalid, LimitExceeded
from cuttlefish.limits import Limits
from cuttlefish.media import document_worker, documents
from cuttlefish.media.document_answers import Ask
from cuttlefish.media.documents import DocumentSource, DocumentWorkers, PageText, open_document_workers
from cuttlefish.media.read_ahead import MOST_WALKS, ReadAhead
from cuttlefish.media.reading import PageRead

LIMITS = Limits()


@pytest.fixture
async def workers() -> AsyncIterator[DocumentWorkers]:
    async with open_document_workers(1) as workers:
        yield workers


@pytest.fixture
def files() -> Iterator[ExitStack]:
    with ExitStack() as files:
        yield files


@pytest.fixture
def asked(workers: DocumentWorkers, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, object]]:
    """What the worker was asked: first page, and how many."""
    log: list[tuple[int | None, object]] = []
    ask = workers._pool.ask

    async def logged(what: Ask, *arguments: object) -> object:
        log.append((what.page, what.arguments.get("count")))
        return await ask(what, *arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(workers._pool, "ask", logged)
    return log


def numbered(pages: int) -> bytes:
    return pages_pdf(*[written(f"page {page}") for page in range(pages)])


def slow(operators: int = 3_000_000) -> bytes:
    """Content that takes PDFium seconds."""
    return deflated(b"BT /F1 12 Tf 10 10 Td " + b"(a) Tj " * operators + b" ET")


def pages_in_memory(process: int) -> int:
    """Of 4 KiB; a fresh worker has some 8,000."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1])


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that has no event of its own."""
    with trio.fail_after(30):
        while not condition():  # nobody would set the event
            await trio.sleep(0.005)


# --- Walking --------------------------------------------------------------------------------------------------------------------


async def test_pages_in_order_are_asked_for_more_and_more_at_once(
    workers: DocumentWorkers, files: ExitStack, asked: list[tuple[int | None, object]]
) -> None:
    source = files.enter_context(opened(numbered(200)))
    for page in range(200):
        assert (await workers.page_text(source, page, LIMITS)).text == f"page {page}"
    assert [first for first, _ in asked][:4] == [0, 1, 5, 21]
    assert [count for _, count in asked][:4] == [1, 4, 16, 64]
    assert len(asked) < 20


async def test_pages_out_of_order_are_asked_for_one_by_one(
    workers: DocumentWorkers, files: ExitStack, asked: list[tuple[int | None, object]]
) -> None:
    source = files.enter_context(opened(numbered(9)))
    order = [8, 3, 0, 5, 2, 2, 7]
    assert [(await workers.page_text(source, page, LIMITS)).text for page in order] == [f"page {page}" for page in order]
    assert asked == [(page, 1) for page in order]


async def test_two_documents_in_turn_are_each_read_ahead(
    workers: DocumentWorkers, files: ExitStack, asked: list[tuple[int | None, object]]
) -> None:
    sources = [files.enter_context(opened(numbered(60))) for _ in range(2)]
    for page in range(60):
        for source in sources:
            assert (await workers.page_text(source, page, LIMITS)).text == f"page {page}"
    assert len(asked) < 16


async def test_a_bad_page_costs_that_page_only_however_it_is_reached(workers: DocumentWorkers, files: ExitStack) -> None:
    kids = " ".join("999 0 R" if page in (0, 7, 8, 30) else f"{4 + 2 * page} 0 R" for page in range(40))
    source = files.enter_context(opened(pages_pdf(*[written(f"page {page}") for page in range(40)], kids=kids)))

    async def read(page: int) -> str:
        try:
            return (await workers.page_text(source, page, LIMITS)).text
        except DocumentInvalid as error:
            return error.message

    walked = [await read(page) for page in range(40)]
    alone = [await read(page) for page in reversed(range(40))]
    assert walked == alone[::-1]
    assert walked[6] == "page 6"
    assert walked[7] == 'page_text: page 7 of "x.pdf" is missing or damaged and cannot be read; other pages may be'


async def test_a_page_that_takes_too_long_or_too_much_is_that_pages_error_and_no_earlier_ones(
    workers: DocumentWorkers, files: ExitStack
) -> None:
    contents = [written(f"page {page}") for page in range(12)]
    contents[8] = slow()
    source = files.enter_context(opened(pages_pdf(*contents)))
    for limits, message in (
        (
            LIMITS.with_values({"document.time": 2}),
            'document.time is 2 seconds; page 8 of "x.pdf" was not done by then (page_text)',
        ),
        (
            LIMITS.with_values({"document.memory": 300 << 20}),
            'document.memory is 314572800 bytes; page 8 of "x.pdf" needs more (page_text)',
        ),
    ):
        for page in range(12):
            if page == 8:
                with pytest.raises(LimitExceeded) as error:
                    await workers.page_text(source, page, limits)
                assert error.value.message == message
            else:
                assert (await workers.page_text(source, page, limits)).text == f"page {page}"


async def test_a_worker_killed_while_it_reads_ahead_costs_nobody_a_page(
    workers: DocumentWorkers, files: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "AHEAD_PATIENCE_S", 60)  # or a slow machine sees the host end it first
    contents = [written(f"page {page}") for page in range(4)]
    source = files.enter_context(opened(pages_pdf(*contents[:3], slow(), contents[3])))
    await workers.page_text(source, 0, LIMITS)
    (worker,) = workers._pool.workers
    texts: list[PageText] = []

    async def read() -> None:
        texts.append(await workers.page_text(source, 1, LIMITS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: pages_in_memory(worker.process.pid) > 30_000)  # it is inside the slow page
        os.kill(worker.process.pid, signal.SIGKILL)
    assert texts == [PageText("page 1")]
    assert await workers.page_text(source, 2, LIMITS) == PageText("page 2")


class LongPages:
    """A document of which every page has as long a text."""

    key = ("long",)
    pages = 1000

    def __init__(self, length: int) -> None:
        self.text = "x" * length

    def read(self, page: int, question: Mapping[str, object], with_images: bool) -> PageRead:
        return PageRead(self.text)

    def facts(self, question: Mapping[str, object]) -> dict[str, object]:
        raise NotImplementedError

    def picture(self, page: int, question: Mapping[str, object]) -> tuple[dict[str, object], bytes]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def pieces(document: LongPages) -> int:
    """How many pages a worker sends that was asked for 64."""
    here, there = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while data := here.recv(1 << 20):
            received.extend(data)

    reader = threading.Thread(target=receive)
    reader.start()
    worker = document_worker.Worker(document_worker.Answers(there))
    worker.page_texts(document, {"page": 3, "count": 64, "text_bytes": 64 << 20})
    worker.answers.send({})
    there.close()
    reader.join()
    here.close()
    return received.count(b'"more"')


@pytest.mark.parametrize(("length", "pages"), [(100, 64), (600_000, 2), (2 << 20, 1)])
def test_what_is_read_ahead_is_bounded_in_text(length: int, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_worker, "AHEAD_S", 60)
    assert pieces(LongPages(length)) == pages


def test_what_is_read_ahead_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_worker, "AHEAD_S", 0)
    assert pieces(LongPages(1)) == 1


async def test_what_was_read_ahead_of_a_file_that_changed_is_not_told(workers: DocumentWorkers, tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(numbered(9))
    with path.open("rb+", buffering=0) as file:
        status = os.fstat(file.fileno())
        source = DocumentSource(file.fileno(), status.st_dev, status.st_ino, status.st_size, "x.pdf")
        for page in (0, 1):
            assert (await workers.page_text(source, page, LIMITS)).text == f"page {page}"
        file.write(pages_pdf(*[written(f"PAGE {page}") for page in range(9)]))
        os.utime(file.fileno(), ns=(0, status.st_mtime_ns + 1_000_000_000))
        assert (await workers.page_text(source, 2, LIMITS)).text == "PAGE 2"
        file.truncate(100)
        with pytest.raises(DocumentInvalid):
            await workers.page_text(source, 3, LIMITS)


async def test_what_was_read_ahead_with_other_limits_or_another_password_is_not_told(
    workers: DocumentWorkers, files: ExitStack, asked: list[tuple[int | None, object]]
) -> None:
    source = files.enter_context(opened(numbered(9)))
    for page in (0, 1):
        await workers.page_text(source, page, LIMITS)
    assert (await workers.page_text(source, 2, LIMITS)).text == "page 2"
    other = DocumentSource(source.fd, source.device, source.inode, source.size, source.name, password="x")
    await workers.page_text(other, 3, LIMITS)
    with pytest.raises(LimitExceeded):
        await workers.page_text(other, 4, LIMITS.with_values({"guest.message": 3}))
    assert asked == [(0, 1), (1, 4), (3, 1), (4, 1)]


async def test_a_document_that_is_done_with_is_forgotten_and_so_are_the_oldest(
    workers: DocumentWorkers, files: ExitStack, asked: list[tuple[int | None, object]]
) -> None:
    source = files.enter_context(opened(numbered(9)))
    for page in (0, 1):
        await workers.page_text(source, page, LIMITS)
    workers.forget(source)
    workers.forget(source)
    await workers.page_text(source, 2, LIMITS)
    assert asked[-1] == (2, 1)
    ahead = ReadAhead()
    first = ahead.walk(source, LIMITS)
    assert ahead.walk(source, LIMITS) is first
    for _ in range(MOST_WALKS):
        ahead.walk(files.enter_context(opened(b"x")), LIMITS)
    assert ahead.walk(source, LIMITS) is not first


# --- Whole documents ------------------------------------------------------------------------------------------------------------


async def test_a_documents_text_is_that_of_its_pages_with_blank_lines_between(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("one", "more"), written(), written("three"))))
    assert await workers.document_text(source, LIMITS) == "one\nmore\n\nthree"
    empty = files.enter_context(opened(pages_pdf(written(), written())))
    assert await workers.document_text(empty, LIMITS) == ""


async def test_the_whole_text_is_the_same_as_page_by_page(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(
        opened(pages_pdf(*[written(*[f"line {line} of {page}" for line in range(40)]) for page in range(300)]))
    )
    pages = [(await workers.page_text(source, page, LIMITS)).text for page in range(300)]
    assert await workers.document_text(source, LIMITS) == "\n\n".join(pages)


async def test_a_page_that_cannot_be_read_fails_the_whole_and_is_named(workers: DocumentWorkers, files: ExitStack) -> None:
    kids = "4 0 R 6 0 R 99 0 R 8 0 R"
    source = files.enter_context(opened(pages_pdf(*[written("x")] * 3, kids=kids, count=4)))
    with pytest.raises(DocumentInvalid) as error:
        await workers.document_text(source, LIMITS)
    assert error.value.message == 'document_text: page 2 of "x.pdf" is missing or damaged and cannot be read; other pages may be'
    assert (await workers.page_text(source, 3, LIMITS)).text == "x"


async def test_a_text_too_long_for_a_message_is_refused_with_what_to_do(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(numbered(5)))
    with pytest.raises(LimitExceeded) as error:
        await workers.document_text(source, LIMITS.with_values({"guest.message": 29}))
    assert error.value.message == ('guest.message is 29 bytes; the text of "x.pdf" has more; read it page by page with page_text')
    assert await workers.document_text(source, LIMITS.with_values({"guest.message": 40})) == "\n\n".join(
        f"page {n}" for n in range(5)
    )


async def test_each_page_of_a_document_has_the_time_of_one_command(workers: DocumentWorkers, files: ExitStack) -> None:
    some = slow(200_000)  # about 0.3 s each
    source = files.enter_context(opened(pages_pdf(*[some] * 6)))
    start = trio.current_time()
    await workers.document_text(source, LIMITS)
    whole = trio.current_time() - start
    text = await workers.document_text(source, LIMITS.with_values({"document.time": whole / 2}))
    assert len(text) > 1_000_000


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"document.time": 1}, 'document.time is 1 seconds; page 3 of "x.pdf" was not done by then (document_text)'),
        ({"document.memory": 300 << 20}, 'document.memory is 314572800 bytes; page 3 of "x.pdf" needs more (document_text)'),
    ],
    ids=["time", "memory"],
)
async def test_the_page_that_costs_too_much_is_named(
    workers: DocumentWorkers, files: ExitStack, limits: dict[str, object], message: str
) -> None:
    source = files.enter_context(opened(pages_pdf(*[written("x")] * 3, slow(), written("x"))))
    with pytest.raises(LimitExceeded) as error:
        await workers.document_text(source, LIMITS.with_values(limits))
    assert error.value.message == message
    assert (await workers.page_text(source, 4, LIMITS)).text == "x"


@pytest.mark.parametrize("command", ["page_text", "document_text", "page_image"])
async def test_a_worker_killed_in_the_middle_of_a_page_is_that_commands_crash(files: ExitStack, command: str) -> None:
    source = files.enter_context(opened(pages_pdf(slow())))
    good = files.enter_context(opened(numbered(1)))
    errors: list[CuttlefishError] = []

    async with open_document_workers(2) as workers:

        async def read() -> None:
            try:
                await getattr(workers, command)(*((source, LIMITS) if command == "document_text" else (source, 0, LIMITS)))
            except CuttlefishError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await until(lambda: any(worker.document for worker in workers._pool.workers))
            (victim,) = workers._pool.workers
            assert (await workers.page_text(good, 0, LIMITS)).text == "page 0"
            os.kill(victim.process.pid, signal.SIGKILL)
        assert (await workers.page_text(good, 0, LIMITS)).text == "page 0"
    assert [(type(error), error.message) for error in errors] == [
        (
            DocumentCrashed,
            f'{command}: page 0 of "x.pdf" crashed the process that read it (SIGKILL); other documents are not affected',
        )
    ]


async def test_cancelling_a_whole_document_returns_at_once(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("x"), slow())))
    await workers.page_text(source, 0, LIMITS)
    (worker,) = workers._pool.workers
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.document_text, source, LIMITS)
        await until(lambda: pages_in_memory(worker.process.pid) > 30_000)
        before = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - before < 0.5
    assert (await workers.page_text(source, 0, LIMITS)).text == "x"


async def test_a_page_past_the_end_is_told_at_every_point_of_a_walk(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(numbered(3)))
    for page in range(3):
        await workers.page_text(source, page, LIMITS)
    for page in (3, 4):
        with pytest.raises(BadCommand) as error:
            await workers.page_text(source, page, LIMITS)
        assert error.value.message == f'page_text: page {page} is past the end; "x.pdf" has 3 pages (the first is 0)'


async def test_streams_of_pages_are_read_though_they_hold_images(workers: DocumentWorkers, files: ExitStack) -> None:
    image = stream(b"q 612 0 0 792 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \0 EI Q")
    source = files.enter_context(opened(pages_pdf(*[image, written("x")] * 4)))
    pages = [await workers.page_text(source, page, LIMITS) for page in range(8)]
    assert pages == [PageText("", 1, 1.0), PageText("x", 0, 0.0)] * 4
