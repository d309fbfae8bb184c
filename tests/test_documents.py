"""Documents read in worker processes: what comes back from ordinary files, and how the pool behaves."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

import pytest
import trio
from odd.writer import deflated, long_pdf, opened, pages_pdf, slow_pdf, stream, written
from PIL import Image

from cuttlefish import JobStatus, Progress, open_host
from cuttlefish.errors import BadCommand, DocumentInvalid
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentFacts, DocumentSource, DocumentWorkers, PageText, open_document_workers
from guests import scripted

EXAMPLES = Path(__file__).parent.parent / "examples"
LIMITS = Limits()
MOST_TRIES = 8


@pytest.fixture
async def workers() -> AsyncIterator[DocumentWorkers]:
    async with open_document_workers(2) as workers:
        yield workers


@pytest.fixture
def files() -> Iterator[ExitStack]:
    with ExitStack() as files:
        yield files


def descendants() -> set[int]:
    """The processes started by this one that still exist, zombies included."""
    out = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in out.splitlines()]
    return {int(row[0]) for row in rows if int(row[1]) == os.getpid() and not row[2].startswith("ps ")}


def memory_kib(process: int) -> int:
    out = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=False).stdout
    return int(out or 0)


def processor_s(process: int) -> float:
    """The processor time of a process that we started; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that has no event of its own."""
    with trio.fail_after(30):
        while not condition():  # nobody would set the event
            await trio.sleep(0.005)


# --- Text -----------------------------------------------------------------------------------------------------------------------


async def test_a_document_tells_its_pages_and_each_page_its_text(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("one", "line two"), written(), written("three §"))))
    assert await workers.open_document(source, LIMITS) == DocumentFacts(pages=3, has_text_layer=True)
    texts = [await workers.page_text(source, page, LIMITS) for page in range(3)]
    assert texts == [PageText("one\nline two"), PageText(""), PageText("three §")]


async def test_a_hyphen_at_the_end_of_a_line_stays_and_the_line_ends(workers: DocumentWorkers, files: ExitStack) -> None:
    """PDFium puts U+FFFE for both."""
    source = files.enter_context(
        opened(pages_pdf(written("an exam-", "ple that goes on", "well-", "known, pages 3-", "9, and a - b")))
    )
    text = (await workers.page_text(source, 0, LIMITS)).text
    assert text == "an exam-\nple that goes on\nwell-\nknown, pages 3-\n9, and a - b"
    assert "an example that" in text.replace("-\n", "")


async def test_glyphs_that_mean_no_character_are_replaced_and_control_characters_dropped(
    workers: DocumentWorkers, files: ExitStack
) -> None:
    mapping = b"""/CIDInit /ProcSet findresource begin begincmap /CMapName /X def /CMapType 2 def
1 begincodespacerange <00> <FF> endcodespacerange
7 beginbfchar <41> <FFFE> <42> <FDD0> <43> <0007> <44> <D83DDE00> <45> <D83D> <46> <0085> <47> <FFFF> endbfchar
endcmap end"""
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/ToUnicode 6 0 R>>"
    page = written("xAy xBy xCy xDy xEy xFy xGy")
    data = pages_pdf(page, more=[stream(mapping), font]).replace(b"/F1 3 0 R", b"/F1 7 0 R")
    text = (await workers.page_text(files.enter_context(opened(data)), 0, LIMITS)).text
    assert "\N{GRINNING FACE}" in text
    assert text.count("x") == text.count("y") == 7
    assert not any((ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) < 0xA0 for c in text)
    assert not any(0xD800 <= ord(c) <= 0xDFFF or 0xFDD0 <= ord(c) <= 0xFDEF or ord(c) & 0xFFFE == 0xFFFE for c in text)
    assert "-\n" not in text
    assert "\ufffd" in text


async def test_a_scan_has_no_text_layer_and_a_page_of_punctuation_neither(workers: DocumentWorkers, files: ExitStack) -> None:
    scan = files.enter_context(opened((EXAMPLES / "scanned-note.pdf").read_bytes()))
    assert await workers.open_document(scan, LIMITS) == DocumentFacts(pages=1, has_text_layer=False)
    page = await workers.page_text(scan, 0, LIMITS)
    assert (page.text, page.images) == ("", 1)
    assert page.coverage > 0.9
    dots = files.enter_context(opened(pages_pdf(written(". . ."), written("--"))))
    assert await workers.open_document(dots, LIMITS) == DocumentFacts(pages=2, has_text_layer=False)


async def test_text_on_the_last_page_of_many_counts(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(*[written()] * 99, written("here"))))
    assert await workers.open_document(source, LIMITS) == DocumentFacts(pages=100, has_text_layer=True)


@pytest.mark.parametrize("page", [3, 4, 2**31, 2**32 - 1])
async def test_a_page_past_the_end_is_the_blocks_mistake(workers: DocumentWorkers, files: ExitStack, page: int) -> None:
    source = files.enter_context(opened(pages_pdf(*[written("x")] * 3)))
    message = f'page_text: page {page} is past the end; "x.pdf" has 3 pages (the first is 0)'
    with pytest.raises(BadCommand) as error:
        await workers.page_text(source, page, LIMITS)
    assert error.value.message == message
    with pytest.raises(BadCommand) as error:
        await workers.page_image(source, page, LIMITS)
    assert error.value.message == message.replace("page_text", "page_image")


async def test_a_negative_page_is_the_blocks_mistake(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("x"))))
    with pytest.raises(BadCommand) as error:
        await workers.page_text(source, -1, LIMITS)
    assert error.value.message == "page_text: page -1 cannot be; the first page is 0"


async def test_a_large_document_is_read_block_by_block(workers: DocumentWorkers, files: ExitStack) -> None:
    padding = stream(b"\0" * (70 << 20))
    source = files.enter_context(opened(pages_pdf(written("first"), written("second"), more=[padding])))
    assert (await workers.open_document(source, LIMITS.with_values({"document.memory": "400MiB"}))).pages == 2
    assert await workers.page_text(source, 1, LIMITS) == PageText("second")
    assert await workers.page_text(source, 0, LIMITS) == PageText("first")


@pytest.mark.parametrize("size", [1000, 70 << 20], ids=["read whole", "read by blocks"])
async def test_a_file_that_became_shorter_is_an_error_and_not_half_a_text(
    workers: DocumentWorkers, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(pages_pdf(written("x")))
    with path.open("rb+") as file:
        file.truncate(size)
        status = os.fstat(file.fileno())
        source = DocumentSource(file.fileno(), status.st_dev, status.st_ino, status.st_size, "a\n.pdf")
        file.truncate(100)
        with pytest.raises(DocumentInvalid) as error:
            await workers.open_document(source, LIMITS)
    assert error.value.message == 'open: "a\\n.pdf" became shorter after it was opened; start again when it is whole'


async def test_a_changed_file_is_read_anew(workers: DocumentWorkers, tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(pages_pdf(written("before")))
    with path.open("rb+", buffering=0) as file:
        status = os.fstat(file.fileno())
        source = DocumentSource(file.fileno(), status.st_dev, status.st_ino, status.st_size, "x.pdf")
        assert await workers.page_text(source, 0, LIMITS) == PageText("before")
        file.write(pages_pdf(written("behind")))
        os.utime(file.fileno(), ns=(0, status.st_mtime_ns + 1_000_000_000))
        assert await workers.page_text(source, 0, LIMITS) == PageText("behind")


async def test_a_descriptor_that_is_not_the_approved_file_is_refused(workers: DocumentWorkers, files: ExitStack) -> None:
    one, two = (files.enter_context(opened(pages_pdf(written(text)))) for text in ("approved", "secret"))
    mixed = DocumentSource(two.fd, one.device, one.inode, one.size, "x.pdf")
    with pytest.raises(DocumentInvalid) as error:
        await workers.page_text(mixed, 0, LIMITS)
    assert error.value.message == 'page_text: "x.pdf" is no longer the file that was opened'


# --- Pictures of pages ----------------------------------------------------------------------------------------------------------


async def test_a_page_of_text_becomes_a_png_on_white(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("black on white"))))
    shown = await workers.page_image(source, 0, LIMITS)
    assert (shown.format, shown.width, shown.height) == ("png", 791, 1024)
    with Image.open(BytesIO(shown.data)) as picture:
        assert (picture.format, picture.size, picture.mode) == ("PNG", (791, 1024), "RGB")
        assert picture.getpixel((0, 0)) == (255, 255, 255)
        assert picture.convert("L").histogram()[0:32] != [0] * 32


async def test_a_scanned_page_becomes_a_jpeg(workers: DocumentWorkers, files: ExitStack) -> None:
    shown = await workers.page_image(files.enter_context(opened((EXAMPLES / "scanned-note.pdf").read_bytes())), 0, LIMITS)
    assert (shown.format, shown.width, shown.height) == ("jpeg", 791, 1024)
    with Image.open(BytesIO(shown.data)) as picture:
        assert (picture.format, picture.size) == ("JPEG", (791, 1024))


@pytest.mark.parametrize(
    ("box", "page", "size"),
    [
        ("0 0 612 792", "/Rotate 90", (1024, 791)),
        ("0 0 612 792", "/Rotate -90", (1024, 791)),
        ("0 0 612 792", "/CropBox[0 0 100 100]", (1024, 1024)),
        ("10 10 5 3", "", (731, 1024)),
        ("0 0 595.276 841.89", "", (724, 1024)),
        ("0 0 0.001 1000", "", (1, 1024)),
        ("0 0 14400 14400", "", (1024, 1024)),
        ("0 0 0 0", "", (791, 1024)),
    ],
    ids=["rotated", "rotated back", "cropped", "swapped corners", "fractions", "a hair", "the largest", "no box"],
)
async def test_the_longer_side_of_a_picture_is_as_asked(
    workers: DocumentWorkers, files: ExitStack, box: str, page: str, size: tuple[int, int]
) -> None:
    shown = await workers.page_image(files.enter_context(opened(pages_pdf(written("x"), box=box, page=page))), 0, LIMITS)
    assert (shown.width, shown.height) == size


async def test_filled_form_fields_are_in_the_picture(workers: DocumentWorkers, files: ExitStack) -> None:
    appearance = stream(b"0 0 0 rg 0 0 200 100 re f", "/Type/XObject/Subtype/Form/BBox[0 0 200 100]")
    field = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(t)/V(v)/F 4/Rect[100 100 300 200]/AP<</N 7 0 R>>>>"
    data = pages_pdf(written(), page="/Annots[6 0 R]", catalogue="/AcroForm<</Fields[6 0 R]>>", more=[field, appearance])
    shown = await workers.page_image(files.enter_context(opened(data)), 0, LIMITS)
    with Image.open(BytesIO(shown.data)) as picture:
        assert picture.convert("L").getpixel((200 * 1024 // 792, 1024 - 150 * 1024 // 792)) == 0


# --- The pool -------------------------------------------------------------------------------------------------------------------


async def test_documents_read_at_once_do_not_mix(files: ExitStack) -> None:
    sources = [files.enter_context(opened(pages_pdf(*[written(f"document {d} page {p}") for p in range(5)]))) for d in range(3)]
    read: list[tuple[int, int, str]] = []

    async def walk(workers: DocumentWorkers, document: int) -> None:
        for _ in range(100):
            for page in range(5):
                read.append((document, page, (await workers.page_text(sources[document], page, LIMITS)).text))
            whole = "\n\n".join(f"document {document} page {page}" for page in range(5))
            assert await workers.document_text(sources[document], LIMITS) == whole

    async with open_document_workers(2) as workers, trio.open_nursery() as nursery:
        for document in range(3):
            nursery.start_soon(walk, workers, document)
    assert len(read) == 1500
    assert all(text == f"document {document} page {page}" for document, page, text in read)


async def test_walking_a_document_opens_it_once(workers: DocumentWorkers, tmp_path: Path) -> None:
    path = tmp_path / "x.pdf"
    path.write_bytes(pages_pdf(*[written(f"page {page:03}") for page in range(300)]))
    with path.open("rb+", buffering=0) as file:
        status = os.fstat(file.fileno())
        source = DocumentSource(file.fileno(), status.st_dev, status.st_ino, status.st_size, "x.pdf")
        assert (await workers.open_document(source, LIMITS)).pages == 300
        # Who opened it again would read this; the times say that nothing changed
        file.write(pages_pdf(*[written(f"EGAP {page:03}") for page in range(300)]))
        os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        for page in range(300):
            assert await workers.page_text(source, page, LIMITS) == PageText(f"page {page:03}")


async def test_two_documents_stay_open_in_two_workers(workers: DocumentWorkers, files: ExitStack) -> None:
    one, two = (files.enter_context(opened(pages_pdf(written(text), written(text)))) for text in ("one", "two"))
    for page in (0, 1):
        assert await workers.page_text(one, page, LIMITS) == PageText("one")
        assert await workers.page_text(two, page, LIMITS) == PageText("two")
    assert sorted(str(worker.document) for worker in workers._pool.workers) == sorted(
        str((s.device, s.inode, s.size)) for s in (one, two)
    )
    assert [worker.documents for worker in workers._pool.workers] == [1, 1]


async def test_an_image_does_not_take_the_document_from_its_worker(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("x"))))
    picture = (await workers.page_image(source, 0, LIMITS)).data
    await workers.prepare_image(picture, LIMITS)
    await workers.page_text(source, 0, LIMITS)
    assert sorted(worker.documents for worker in workers._pool.workers) == [0, 1]


async def test_closing_at_any_moment_of_a_start_leaves_no_process(files: ExitStack) -> None:
    source, before = files.enter_context(opened(pages_pdf(written("x")))), descendants()

    async def read(workers: DocumentWorkers) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            await workers.page_text(source, 0, LIMITS)

    for checkpoints in (int(1.5**n) for n in range(24)):
        async with trio.open_nursery() as nursery, open_document_workers(1) as workers:
            nursery.start_soon(read, workers)
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
        assert descendants() == before


async def test_a_pool_starts_no_more_processes_than_its_size_and_none_before_they_are_needed(files: ExitStack) -> None:
    before = descendants()
    sources = [files.enter_context(opened(pages_pdf(written(str(at))))) for at in range(5)]
    async with open_document_workers(2) as workers:
        assert descendants() == before
        async with trio.open_nursery() as nursery:
            for source in sources:
                nursery.start_soon(workers.page_text, source, 0, LIMITS)
        assert len(descendants() - before) == 2


async def test_closing_leaves_no_process_thread_or_descriptor(files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("x"))))

    async def use() -> None:
        async with open_document_workers(2) as workers:
            await workers.page_text(source, 0, LIMITS)
            with trio.move_on_after(0.2):
                await workers.page_text(slow, 0, LIMITS)

    slow = files.enter_context(opened(slow_pdf()))
    await use()
    processes, descriptors = descendants(), sorted(path.name for path in Path("/dev/fd").iterdir())
    for _ in range(3):
        await use()
    assert descendants() == processes
    assert sorted(path.name for path in Path("/dev/fd").iterdir()) == descriptors


async def test_cancelling_a_page_of_gigabytes_ends_its_process_and_no_other(workers: DocumentWorkers, files: ExitStack) -> None:
    slow, source = (files.enter_context(opened(data)) for data in (slow_pdf(), pages_pdf(written("x"))))
    await workers.page_text(source, 0, LIMITS)
    busy = descendants()
    (quiet,) = workers._pool.workers
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workers.page_text, slow, 0, LIMITS)
        await until(lambda: any(memory_kib(process) > 150_000 for process in descendants() - busy))  # it is inside PDFium
        (victim,) = workers._pool.workers - {quiet}
        nursery.cancel_scope.cancel()
    await victim.collected.wait()
    assert victim.code == -signal.SIGKILL
    assert descendants() == busy
    assert await workers.page_text(source, 0, LIMITS) == PageText("x")


async def test_a_job_that_is_cancelled_in_a_page_of_half_a_minute_ends_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    """The best of several tries, because other programs may have the processors at one moment; never longer than some seconds."""
    (tmp_path / "long.pdf").write_bytes(long_pdf())
    block = scripted(
        {"cmd": "open", "path": "long.pdf"}, {"cmd": "emit", "progress": 1}, {"cmd": "page_image", "handle": 0, "page": 0}
    )
    took_s: list[float] = []
    async with open_host() as host:
        for _ in range(MOST_TRIES):
            job = host.start(block, None, read=[tmp_path], base_dir=tmp_path, limits={"document.time": 600})
            async for update in job:
                assert update == Progress(1)
                break
            spent = {process: processor_s(process) for process in descendants()}
            await until(lambda spent=spent: any(processor_s(one) > before + 0.2 for one, before in spent.items()))  # type: ignore[misc]  # mypy sees no type of a default
            began = trio.current_time()
            job.cancel()
            envelope = await job.envelope()
            took_s.append(trio.current_time() - began)
            assert envelope.status is JobStatus.CANCELLED
            if took_s[-1] <= 0.1:
                break
    assert min(took_s) <= 0.1
    assert max(took_s) < 5


async def test_closing_while_a_command_runs_ends_it(files: ExitStack) -> None:
    slow, before = files.enter_context(opened(slow_pdf())), descendants()
    seen: list[type[BaseException]] = []

    async def read(workers: DocumentWorkers) -> None:
        try:
            await workers.page_text(slow, 0, LIMITS)
        except trio.ClosedResourceError as error:
            seen.append(type(error))

    async with trio.open_nursery() as nursery, open_document_workers(1) as workers:
        nursery.start_soon(read, workers)
        await until(lambda: descendants() - before)
    assert seen == [trio.ClosedResourceError]
    assert descendants() == before


async def test_workers_end_with_a_host_that_is_killed(tmp_path: Path) -> None:
    """The kernel tells them (Linux); the closed connection does elsewhere."""
    (tmp_path / "x.pdf").write_bytes(pages_pdf(deflated(b"BT /F1 12 Tf 10 10 Td " + b"(a) Tj " * 3_000_000 + b" ET")))
    program = """
import os, sys, trio
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentSource, open_document_workers
async def main():
    fd = os.open(sys.argv[1], os.O_RDONLY)
    status = os.fstat(fd)
    source = DocumentSource(fd, status.st_dev, status.st_ino, status.st_size, "x.pdf")
    async with open_document_workers(1) as workers, trio.open_nursery() as nursery:
        nursery.start_soon(workers.page_text, source, 0, Limits())
        while not any(worker.document for worker in workers._pool.workers):  # one that is ready
            await trio.sleep(0.01)
        print(*[worker.process.pid for worker in workers._pool.workers], flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "x.pdf")]
    with subprocess.Popen(  # noqa: ASYNC220  # a host whose killing is the test; nothing else runs meanwhile
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as host:
        assert host.stdout is not None
        worker = int(await trio.to_thread.run_sync(host.stdout.readline))
        if sys.platform == "linux":
            os.kill(worker, signal.SIGSTOP)  # so that it can end by the kernel's signal only
        host.kill()

    def is_gone() -> bool:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(worker)], capture_output=True, text=True, check=False).stdout.strip()
        return state == "" or state.startswith("Z")  # a zombie waits for an init that a container may not have

    try:
        await until(is_gone)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


async def test_a_worker_imports_neither_the_host_nor_its_libraries() -> None:
    program = """
import sys
import cuttlefish.media.worker_process as worker_process
code = worker_process.BOOTSTRAP.replace("main(fd, memory, parent)", "import cuttlefish.media.images; print(*sys.modules)")
import json, subprocess
media = worker_process.Path(worker_process.__file__).parent
packages = [["cuttlefish", str(media.parent)], ["cuttlefish.media", str(media)]]
arguments = json.dumps([0, 0, 0, packages, worker_process.site_folders()])
subprocess.run([sys.executable, "-I", "-c", code, arguments], check=True, env={})
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = await trio.run_process([sys.executable, "-c", program], capture_stdout=True, env=environment)
    modules = set(ran.stdout.decode().split())
    assert "cuttlefish.media.images" in modules
    assert not modules & {"trio", "pydantic", "wasmtime", "cuttlefish.errors", "cuttlefish.limits", "cuttlefish_abi"}


# --- The samples ----------------------------------------------------------------------------------------------------------------


def test_the_samples_are_what_their_script_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLES / "make_samples.py"), str(tmp_path)], check=True)
    written_now = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.pdf")}
    assert set(written_now) == {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.pdf")}
    for name, data in written_now.items():
        assert data == (EXAMPLES / name).read_bytes(), name


async def test_the_sample_reads_as_its_text(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened((EXAMPLES / "night-sky-survey.pdf").read_bytes()))
    pages = (EXAMPLES / "night-sky.txt").read_text(encoding="utf-8").split("\f")
    assert await workers.open_document(source, LIMITS) == DocumentFacts(pages=len(pages), has_text_layer=True)
    for number, page in enumerate(pages):
        text = (await workers.page_text(source, number, LIMITS)).text
        assert text.split() == [*page.split(), str(number + 1)]
