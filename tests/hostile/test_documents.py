"""Hostile documents: the bar is a known error for that one command, and the next document works."""

import json
import os
import random
import signal
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
from odd.locked import locked_pdf
from odd.writer import deflated, opened, pages_pdf, pdf, slow_pdf, stream, written

from cuttlefish.errors import CuttlefishError, DocumentCrashed, DocumentInvalid, LimitExceeded
from cuttlefish.limits import Limits
from cuttlefish.media import system_calls, worker_process
from cuttlefish.media.documents import DocumentFacts, DocumentSource, DocumentWorkers, PageText, open_document_workers
from cuttlefish.media.system_calls import ALLOW, ARGUMENTS_AT, MACHINE_AT, NUMBER_AT, REFUSE, filter_instructions

LIMITS = Limits()
GOOD = pages_pdf(written("good"))


@pytest.fixture
async def workers() -> AsyncIterator[DocumentWorkers]:
    async with open_document_workers(2) as workers:
        yield workers


@pytest.fixture
def files() -> Iterator[ExitStack]:
    with ExitStack() as files:
        yield files


@pytest.fixture(scope="module")
def slow_data() -> bytes:
    return slow_pdf()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event of its own."""
    with trio.fail_after(30):
        while not condition():  # nobody would set the event
            await trio.sleep(0.005)


async def check_next_works(workers: DocumentWorkers) -> None:
    with opened(GOOD) as source:
        assert await workers.page_text(source, 0, LIMITS) == PageText("good")


NOT_A_PDF = 'open: "x.pdf" is not a readable PDF: it is damaged, cut short or something else'
NO_PAGES = 'open: "x.pdf" is not a readable PDF: it has no pages'
NONE_FOUND = 'open: "x.pdf" is not a readable PDF: none of its pages can be found'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", NOT_A_PDF),
        (b"%PDF-1.7", NOT_A_PDF),
        (random.Random(1).randbytes(5000), NOT_A_PDF),
        (GOOD[: len(GOOD) // 3], NOT_A_PDF),
        (b" " * 2000 + GOOD, NOT_A_PDF),
        (pages_pdf(), NO_PAGES),
        (pdf([b"<</Type/Catalog>>"]), NO_PAGES),
        (pages_pdf(written("x"), count=1, kids="2 0 R"), NONE_FOUND),
        (pages_pdf(written("x"), count=5, kids="77 0 R"), NONE_FOUND),
    ],
    ids=[
        "empty",
        "only the mark",
        "garbage",
        "cut",
        "junk in front",
        "zero pages",
        "no page tree",
        "the tree is a loop",
        "no such page",
    ],
)
async def test_what_is_no_document_is_invalid(workers: DocumentWorkers, files: ExitStack, data: bytes, message: str) -> None:
    with pytest.raises(DocumentInvalid) as error:
        await workers.open_document(files.enter_context(opened(data)), LIMITS)
    assert error.value.message == message
    await check_next_works(workers)


async def test_the_reason_is_that_documents_own_and_not_the_one_before(files: ExitStack) -> None:
    """PDFium keeps its last error, also when a document without pages opens well."""
    async with open_document_workers(1) as workers:
        for data, message in [(b"garbage", NOT_A_PDF), (pages_pdf(), NO_PAGES), (locked_pdf(b"x"), None), (pages_pdf(), NO_PAGES)]:
            with pytest.raises(CuttlefishError) as error:
                await workers.open_document(files.enter_context(opened(data)), LIMITS)
            assert message in (error.value.message, None)


async def test_a_count_that_lies_is_not_believed(workers: DocumentWorkers, files: ExitStack) -> None:
    for count in (1_000_000, 2_000_000, 2**31 - 1, -5):
        source = files.enter_context(opened(pages_pdf(written("a"), written("b"), count=count)))
        assert await workers.open_document(source, LIMITS) == DocumentFacts(pages=2, has_text_layer=True)
        assert await workers.page_text(source, 1, LIMITS) == PageText("b")


async def test_pages_are_hidden_from_nobody_in_a_large_file_either(workers: DocumentWorkers, files: ExitStack) -> None:
    """Its table is damaged, so that its tree is read in a copy, which is kept without its pictures."""
    picture = stream(bytes(70 << 20), "/Filter/DCTDecode")
    data = pages_pdf(*[written("a")] * 3, count=1, catalogue="/X 10 0 R", more=[picture]).replace(b"startxref", b"startxxxx")
    with pytest.raises(DocumentInvalid, match="says that it has 1 page and holds 3"):
        await workers.open_document(files.enter_context(opened(data)), LIMITS)


async def test_a_few_missing_pages_are_counted_and_named(workers: DocumentWorkers, files: ExitStack) -> None:
    """Most of the document is there: to end early would hide the damage."""
    source = files.enter_context(opened(pages_pdf(*[written("x")] * 3, count=5)))
    assert (await workers.open_document(source, LIMITS)).pages == 5
    with pytest.raises(DocumentInvalid) as error:
        await workers.page_text(source, 4, LIMITS)
    assert error.value.message == 'page_text: page 4 of "x.pdf" is missing or damaged and cannot be read; other pages may be'


async def test_one_bad_page_among_good_ones_is_only_that_pages_error(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("a"), written("b"), kids="4 0 R 99 0 R (x) 6 0 R", count=4)))
    pages = (await workers.open_document(source, LIMITS)).pages
    found = []
    for page in range(pages):
        try:
            found.append((await workers.page_text(source, page, LIMITS)).text)
        except DocumentInvalid:
            found.append("?")
    assert found == ["a", "?", "?", "b"]


@pytest.mark.parametrize("command", ["page_text", "page_image", "document_text"])
async def test_an_absurd_page_is_refused_before_its_text_or_picture(
    workers: DocumentWorkers, files: ExitStack, command: str
) -> None:
    source = files.enter_context(opened(pages_pdf(written("x"), box="0 0 2000000000 2000000000")))
    assert await workers.open_document(source, LIMITS) == DocumentFacts(pages=1, has_text_layer=False)
    with pytest.raises(LimitExceeded) as error:
        await getattr(workers, command)(*([source, LIMITS] if command == "document_text" else [source, 0, LIMITS]))
    assert error.value.message == 'page.pixels is 40000000 pixels; page 0 of "x.pdf" measures 2e+09×2e+09 points and needs 4e+18'


async def test_a_long_page_that_fits_the_limit_is_read(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(pages_pdf(written("x"), box="0 0 800 40000")))
    assert await workers.page_text(source, 0, LIMITS) == PageText("x")


async def test_a_picture_above_the_pixel_limit_is_refused_before_it_is_drawn(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(GOOD))
    with pytest.raises(LimitExceeded) as error:
        await workers.page_image(source, 0, LIMITS, long_side=1_000_000)
    needed = 772_727 * 1_000_000
    assert error.value.message == f'page.pixels is 40000000 pixels; page 0 of "x.pdf" at 772727×1000000 needs {needed}'


async def test_a_page_that_takes_too_long_is_ended(workers: DocumentWorkers, files: ExitStack, slow_data: bytes) -> None:
    source = files.enter_context(opened(slow_data))
    start = trio.current_time()
    with pytest.raises(LimitExceeded) as error:
        await workers.page_text(source, 0, LIMITS.with_values({"document.time": 0.3}))
    assert error.value.message == 'document.time is 0.3 seconds; page 0 of "x.pdf" was not done by then (page_text)'
    assert trio.current_time() - start < 5
    await check_next_works(workers)


async def test_a_page_that_takes_too_much_memory_is_ended(workers: DocumentWorkers, files: ExitStack, slow_data: bytes) -> None:
    limits = LIMITS.with_values({"document.memory": 300 << 20})
    for data in (slow_data, pages_pdf(deflated(b" " * 300_000_000))):
        source = files.enter_context(opened(data))
        with pytest.raises(LimitExceeded) as error:
            await workers.page_text(source, 0, limits)
        assert error.value.message == 'document.memory is 314572800 bytes; page 0 of "x.pdf" needs more (page_text)'
        await check_next_works(workers)


async def test_limits_too_small_for_a_worker_are_an_error_and_not_a_wait(workers: DocumentWorkers, files: ExitStack) -> None:
    with pytest.raises(CuttlefishError) as error:
        await workers.page_text(files.enter_context(opened(GOOD)), 0, LIMITS.with_values({"document.memory": "1MiB"}))
    assert error.value.message.startswith("the process that reads documents did not start: document.memory may be too small")
    await check_next_works(workers)


async def test_a_killed_worker_fails_its_own_command_only(workers: DocumentWorkers, files: ExitStack, slow_data: bytes) -> None:
    slow = files.enter_context(opened(slow_data))
    good = files.enter_context(opened(GOOD))
    await workers.page_text(good, 0, LIMITS)
    (quiet,) = workers._pool.workers
    errors: list[CuttlefishError] = []

    async def read() -> None:
        try:
            await workers.page_text(slow, 0, LIMITS)
        except CuttlefishError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: any(worker.document is not None for worker in workers._pool.workers - {quiet}))
        (victim,) = workers._pool.workers - {quiet}
        os.kill(victim.process.pid, signal.SIGKILL)
        assert await workers.page_text(good, 0, LIMITS) == PageText("good")
    (error,) = errors
    assert type(error) is DocumentCrashed
    assert (
        error.message == 'page_text: page 0 of "x.pdf" crashed the process that read it (SIGKILL); other documents are not affected'
    )
    await check_next_works(workers)


async def test_a_worker_that_died_while_idle_is_replaced_unnoticed(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(GOOD))
    await workers.page_text(source, 0, LIMITS)
    (worker,) = workers._pool.workers
    os.kill(worker.process.pid, signal.SIGKILL)
    await until(lambda: worker.process.poll() is not None)
    assert await workers.page_text(source, 0, LIMITS) == PageText("good")


async def test_workers_have_no_environment_few_descriptors_and_their_limits(workers: DocumentWorkers, files: ExitStack) -> None:
    await workers.page_text(files.enter_context(opened(GOOD)), 0, LIMITS)
    (worker,) = workers._pool.workers
    proc = Path(f"/proc/{worker.process.pid}")
    assert (proc / "environ").read_bytes() in (b"", b"LC_CTYPE=C.UTF-8\0")
    rows = {line[:26].strip(): line[26:].split()[:2] for line in (proc / "limits").read_text().splitlines()}
    assert rows["Max address space"] == [str(2 << 30)] * 2
    assert rows["Max file size"] == rows["Max core file size"] == rows["Max processes"] == ["0", "0"]
    assert rows["Max open files"] == ["32", "32"]
    assert 30 < int(rows["Max cpu time"][0]) < 40
    assert len(list((proc / "fd").iterdir())) == 4  # null twice, stderr, the connection


ANSWERS = {
    "closes": "pass",
    "exits": "sys.exit(3)",
    "half a length": "s.send(b'\\0\\0')",
    "half a header": "s.send(F.pack(100, 0) + b'{')",
    "half a payload": "s.send(F.pack(2, 100) + b'{}' + b'x')",
    "a giant header": "s.send(F.pack(2**32 - 1, 0))",
    "a giant payload": "s.send(F.pack(2, 2**32 - 1) + b'{}')",
    "no JSON": "answer(b'{')",
    "bad UTF-8 in JSON": "answer(b'\"\\xff\"')",
    "deep JSON": "answer(b'[' * 4000)",
    "a long number": "answer(b'9' * 4096)",
    "a list": "answer(b'[]')",
    "bad UTF-8 in the text": "piece(b'\\xff'), answer(b'{}')",
    "a surrogate in the text": "piece(b'\\xed\\xa0\\x80'), answer(b'{}')",
    "a text above the limit": "piece(b'x' * 100_001), answer(b'{}')",
    "no text": "answer(b'{}')",
    "no number of images": "answer(b'{\"more\": true, \"coverage\": 0.0}'), answer(b'{}')",
    "true for a number of images": "answer(PIECE.replace(b'0,', b'true,')), answer(b'{}')",
    "fewer images than none": "answer(PIECE.replace(b'0,', b'-1,')), answer(b'{}')",
    "a coverage above one": "answer(PIECE.replace(b'0.0', b'1.5')), answer(b'{}')",
    "a coverage that is no number": "answer(PIECE.replace(b'0.0', b'NaN')), answer(b'{}')",
    "an unknown problem": 'answer(b\'{"problem": "rm"}\')',
    "a problem that is a list": "answer(b'{\"problem\": []}')",
    "a problem without numbers": 'answer(b\'{"problem": "no_page"}\')',
    "a problem with true for a number": 'answer(b\'{"problem": "no_page", "pages": true}\')',
    "a problem with not a number": 'answer(b\'{"problem": "page_box", "width": NaN, "height": 1.0}\')',
}


AFTER_THE_PAGE = {
    "a text in the end": "piece(b'x'), answer(b'{}', b'y')",
    "one page too many": "piece(b'x'), piece(b'y'), answer(b'{}')",
    "one answer too many": "s.sendall(framed(PIECE, b'now') + framed(b'{}') + framed(PIECE, b'later') + framed(b'{}'))",
}


@contextmanager
def taken_over(monkeypatch: pytest.MonkeyPatch, answers: str) -> Iterator[None]:
    """Workers started meanwhile say this, whatever they are asked."""
    program = f"""
import json, socket, struct, sys
fd = json.loads(sys.argv[1])[0]
s, F = socket.socket(fileno=fd), struct.Struct("!II")
PIECE = b'{{"more": true, "images": 0, "coverage": 0.0}}'
def framed(header, payload=b""):
    return F.pack(len(header), len(payload)) + header + payload
def answer(header, payload=b""):
    s.sendall(framed(header, payload))
def piece(text):
    answer(PIECE, text)
answer(b"{{}}")
s.recv(8)
{answers}
"""
    with monkeypatch.context() as patch:
        patch.setattr(worker_process, "BOOTSTRAP", program)
        yield


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_breaks_the_rules_is_a_crash(
    workers: DocumentWorkers, files: ExitStack, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A worker that a document took over can say anything."""
    source = files.enter_context(opened(GOOD))
    with taken_over(monkeypatch, ANSWERS[name]):
        tracemalloc.start()
        try:
            with pytest.raises(DocumentCrashed):
                await workers.page_text(source, 0, LIMITS.with_values({"guest.message": 100_000}))
            assert tracemalloc.get_traced_memory()[1] < 10 << 20  # lengths are checked before anything is allocated
        finally:
            tracemalloc.stop()
    assert workers._pool.workers == set()
    await check_next_works(workers)


@pytest.mark.parametrize("name", AFTER_THE_PAGE)
async def test_an_answer_that_breaks_the_rules_after_the_page_costs_its_worker_only(
    workers: DocumentWorkers, files: ExitStack, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What was read ahead is the worker's own affair; but it may not serve on."""
    source = files.enter_context(opened(GOOD))
    with taken_over(monkeypatch, AFTER_THE_PAGE[name]):
        assert await workers.page_text(source, 0, LIMITS) in (PageText("x"), PageText("now"))
    assert workers._pool.workers == set()
    await check_next_works(workers)


@pytest.mark.parametrize("command", ["open_document", "page_image"])
async def test_pieces_of_an_answer_that_has_none_are_a_crash(
    workers: DocumentWorkers, files: ExitStack, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    source = files.enter_context(opened(GOOD))
    with taken_over(monkeypatch, """while True: answer(b'{"more": 1}')"""), pytest.raises(DocumentCrashed):
        await getattr(workers, command)(*((source, LIMITS) if command == "open_document" else (source, 0, LIMITS)))
    await check_next_works(workers)


TAKEN_OVER = """
import ctypes, os, platform, signal, socket, subprocess
from cuttlefish.media import document_worker
libc = ctypes.CDLL(None, use_errno=True)
TKILL = 200 if platform.machine() == "x86_64" else 130

def tried(what):
    try:
        return repr(what())
    except OSError as error:
        return type(error).__name__ + " " + os.strerror(error.errno)

def carry_out(self, question, fd, payload):
    found = {
        "socket": tried(lambda: socket.socket(socket.AF_INET)),
        "unix socket": tried(lambda: socket.socket(socket.AF_UNIX)),
        "pair": tried(socket.socketpair),
        "bind": tried(lambda: self.answers.connection.bind("x")),
        "fork": tried(os.fork),
        "spawn": tried(lambda: os.posix_spawn("/bin/true", ["true"], {})),
        "exec": tried(lambda: os.execv("/bin/true", ["true"])),
        "kill the host": tried(lambda: os.kill(os.getppid(), 0)),
        "abort the host": tried(lambda: [libc.tgkill(os.getppid(), os.getppid(), 0), ctypes.get_errno()]),
        "abort the host as musl does": tried(lambda: [libc.syscall(TKILL, os.getppid(), 0), ctypes.get_errno()]),
        "abort itself": tried(lambda: libc.tgkill(os.getpid(), os.getpid(), 0)),
        "abort itself as musl does": tried(lambda: libc.syscall(TKILL, os.getpid(), 0)),
        "nice the host": tried(lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)),
        "queue": tried(lambda: [libc.msgget(0, 0o1600), ctypes.get_errno()]),
        "trace the host": tried(lambda: [libc.ptrace(16, os.getppid(), 0, 0), ctypes.get_errno()]),
        "limits of the host": tried(lambda: resource_of(os.getppid())),
        "own limits": tried(lambda: resource_of(0)),
        "write": tried(lambda: os.open(os.path.join(FOLDER, "x"), os.O_WRONLY | os.O_CREAT)),
        "empty": tried(lambda: os.open(os.path.join(FOLDER, "file"), os.O_TRUNC)),
        "read": tried(lambda: os.read(os.open(os.path.join(FOLDER, "file"), os.O_RDONLY), 9)),
        "truncate": tried(lambda: os.truncate(os.path.join(FOLDER, "file"), 0)),
        "remove": tried(lambda: os.unlink(os.path.join(FOLDER, "file"))),
        "rename": tried(lambda: os.rename(os.path.join(FOLDER, "file"), os.path.join(FOLDER, "other"))),
        "folder": tried(lambda: os.mkdir(os.path.join(FOLDER, "folder"))),
        "modes": tried(lambda: os.chmod(os.path.join(FOLDER, "file"), 0o777)),
        "io_uring": [libc.syscall(425, 1, None), ctypes.get_errno()],
        "old numbers": [libc.syscall(0x40000000 + 39), ctypes.get_errno()] if platform.machine() == "x86_64" else [-1, 1],
    }
    os.close(fd)
    self.answers.send({"more": True, "images": 0, "coverage": 0.0}, json.dumps(found).encode())
    return {}, b""

def resource_of(process):
    import resource
    return len(resource.prlimit(process, resource.RLIMIT_NOFILE))

document_worker.Worker.carry_out = carry_out
main(fd"""


async def test_a_worker_that_was_taken_over_reaches_no_network_process_or_file(
    workers: DocumentWorkers, files: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file")
    code = TAKEN_OVER.replace("FOLDER", repr(str(tmp_path)))
    monkeypatch.setattr(worker_process, "BOOTSTRAP", worker_process.BOOTSTRAP.replace("main(fd", code))
    found = json.loads((await workers.page_text(files.enter_context(opened(GOOD)), 0, LIMITS)).text)
    allowed = {name: found.pop(name) for name in ("abort itself", "abort itself as musl does", "own limits", "read")}
    assert allowed == {"abort itself": "0", "abort itself as musl does": "0", "own limits": "2", "read": "b'a file'"}
    refused = ("PermissionError Operation not permitted", "[-1, 1]", [-1, 1])
    assert {name: outcome for name, outcome in found.items() if outcome not in refused} == {}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "a file"


def judged(column: int, machine: int, number: int, *arguments: int, of: int | None = None) -> int:
    """What the filter makes of a call, run as the kernel runs it."""
    seen = {NUMBER_AT: number, MACHINE_AT: machine if of is None else of}
    seen |= {ARGUMENTS_AT + 8 * at: argument for at, argument in enumerate(arguments)}
    program, at, value = list(filter_instructions(column, machine, own_process=7)), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        match code:
            case system_calls.RETURN:
                return operand
            case system_calls.LOAD:
                value = seen.get(operand, 0)
            case system_calls.JUMP_IF_EQUAL:
                at += if_true if value == operand else if_false
            case system_calls.JUMP_IF_LEAST:
                at += if_true if value >= operand else if_false
            case system_calls.JUMP_IF_BITS:
                at += if_true if value & operand else if_false


@pytest.mark.parametrize(("name", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_of_every_machine_refuses_what_it_should_and_nothing_else(name: str, column: int) -> None:
    machine = system_calls.MACHINES[name][1]
    refused = {number for numbers in system_calls.REFUSED.values() if (number := numbers[column]) is not None}
    openat, prlimit = system_calls.OPENAT[column], system_calls.PRLIMIT[column]
    ending = [call[column] for call in (system_calls.TKILL, system_calls.TGKILL)]
    assert openat is not None
    assert prlimit is not None
    for number in range(600):
        expected = REFUSE if number in refused or number in ending else ALLOW
        assert judged(column, machine, number) == expected, number
        assert judged(column, machine, number, of=0x40000003) == REFUSE
    assert judged(column, machine, openat, 0, 0, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) == ALLOW
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
        assert judged(column, machine, openat, 0, 0, flag) == REFUSE
    for call in ending:
        assert call is not None
        assert [judged(column, machine, call, process) for process in (7, 8)] == [ALLOW, REFUSE]
    assert [judged(column, machine, prlimit, process) for process in (0, 8)] == [ALLOW, REFUSE]
    assert judged(column, machine, 0x40000001) == REFUSE


async def test_what_a_worker_prints_does_not_stop_it(files: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pipe would block it until the time limit."""
    chatter = worker_process.BOOTSTRAP.replace(
        "main(fd", "import os\nfor _ in range(99):\n    try: os.write(2, b'x' * 9999)\n    except OSError: pass\nmain(fd"
    )
    monkeypatch.setattr(worker_process, "BOOTSTRAP", chatter)
    async with open_document_workers(1) as workers:
        await check_next_works(workers)


async def test_mutated_documents_never_hurt_the_host(workers: DocumentWorkers) -> None:
    chance = random.Random(20)
    whole = pages_pdf(deflated(b"BT /F1 12 Tf 50 700 Td (some words) Tj ET"), written("more"), stream(b"q 1 0 0 1 0 0 cm Q"))
    limits = LIMITS.with_values({"document.time": "10s", "document.memory": "512MiB"})
    codes: set[str] = set()
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + chance.randrange(40)]
                case 2:
                    data[at:at] = data[at : at + chance.randrange(200)]
                case _:
                    data[at : at + 1] = str(chance.choice([0, -1, 7, 2**31, 2**63])).encode()
        with opened(bytes(data)) as source:
            try:
                facts = await workers.open_document(source, limits)
                for page in range(min(facts.pages, 4)):
                    await workers.page_text(source, page, limits)
                    await workers.page_image(source, page, limits, long_side=64)
            except CuttlefishError as error:
                codes.add(error.code)
    assert codes <= {"document_invalid", "document_password", "document_crashed", "limit_exceeded"}
    await check_next_works(workers)


async def test_every_cancelled_moment_leaves_the_pool_usable(files: ExitStack) -> None:
    """Cancelled at the n-th checkpoint, until a run comes through."""
    source = files.enter_context(opened(GOOD))
    async with open_document_workers(1) as workers:
        for checkpoints in (int(1.6**n) for n in range(40)):  # a start takes some thousands
            with trio.CancelScope() as scope:
                trio.lowlevel.spawn_system_task(cancel_after, scope, checkpoints)
                await workers.page_text(source, 0, LIMITS)
            if not scope.cancelled_caught:
                break
            assert workers._pool.at_rest
        else:
            pytest.fail("no run came through")
        await check_next_works(workers)


async def cancel_after(scope: trio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_source_whose_descriptor_is_closed_is_our_own_mistake_and_hurts_nobody(workers: DocumentWorkers) -> None:
    await check_next_works(workers)
    with opened(GOOD) as source:
        closed = os.dup(source.fd)
        os.close(closed)
        with pytest.raises(OSError, match="Bad file descriptor"):
            await workers.page_text(DocumentSource(closed, source.device, source.inode, source.size, "x.pdf"), 0, LIMITS)
    await check_next_works(workers)
