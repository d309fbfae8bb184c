"""Every limit: how it is set, and that the error which it causes names it."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from odd.writer import pages_pdf, written

from cuttlefish import BlockBytes, Dropped, JobStatus, open_host
from cuttlefish.limits import Limits, limit_settings, limits_from_environment
from guests import SPIN, from_wat, scripted

DONE = {"cmd": "done", "result": None}
OPEN_TEXT = {"cmd": "open", "path": "a.txt"}
OPEN_PDF = {"cmd": "open", "path": "a.pdf"}


def infer_image(path: str) -> BlockBytes:
    return scripted({"cmd": "open", "path": path}, {"cmd": "infer", "prompt": "", "max_tokens": 1, "images": [0]}, DONE)


def png(width: int, height: int) -> bytes:
    """The header of a picture of this size, and hardly any data."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


ERRORS: dict[str, tuple[object, Callable[[], BlockBytes], str]] = {
    "guest.memory": ("1MiB", lambda: scripted(DONE, pages=32), "guest.memory is 1048576 bytes; the block asked for 2097152"),
    "guest.module": (64, lambda: scripted(DONE), 'guest.module is 64 bytes; "scripted.wasm" has '),
    "guest.exports": (3, lambda: scripted(DONE), 'guest.exports is 3; "scripted.wasm" has 4'),
    "guest.table": (
        10,
        lambda: scripted(DONE, extra="(table 11 funcref)"),
        'guest.table is 10; "scripted.wasm" asked for more',
    ),
    "guest.compile_time": (
        "0.001s",
        lambda: from_wat('(module (memory (export "memory") 7))', "x.wasm"),
        'guest.compile_time is 0.001 seconds; "x.wasm" took longer to compile',
    ),
    "guest.step_time": (0.1, lambda: scripted(DONE, init=SPIN), "(guest.step_time is 0.1 seconds)"),
    "guest.commands": (
        2,
        lambda: scripted({"cmd": "emit", "progress": 1}),
        'guest.commands is 2; "scripted.wasm" gave one more and is not done',
    ),
    "guest.message": (
        100,
        lambda: scripted({"cmd": "done", "result": "x" * 100}),
        'guest.message is 100 bytes; "scripted.wasm" answered with 1',
    ),
    "guest.json_depth": (
        4,
        lambda: scripted({"cmd": "done", "result": [[[[0]]]]}),
        'command 1 of "scripted.wasm": nested deeper than 4 levels (guest.json_depth is 4 levels)',
    ),
    "guest.json_values": (
        100,
        lambda: scripted({"cmd": "done", "result": [[]] * 100}),
        'guest.json_values is 100; command 1 of "scripted.wasm" holds more, in 427 bytes',
    ),
    "job.time": (0.2, lambda: scripted(DONE, init=SPIN), "the job took longer than it may (job.time is 0.2 seconds)"),
    "job.handles": (2, lambda: scripted(OPEN_TEXT), 'job.handles is 2; open "a.txt" would be one more'),
    "job.progress": (
        100,
        lambda: scripted({"cmd": "emit", "progress": "x" * 100}),
        'job.progress is 100 bytes; "scripted.wasm" told its progress in 131',
    ),
    "image.pixels": (1_000_000, lambda: infer_image("wide.png"), "image.pixels is 1000000 pixels; "),
    "image.bytes": (100, lambda: infer_image("large.png"), "image.bytes is 100 bytes; "),
    "page.pixels": (
        10_000,
        lambda: scripted(OPEN_PDF, {"cmd": "page_image", "handle": 0, "page": 0}),
        "page.pixels is 10000 pixels; ",
    ),
    "document.memory": (
        "64MiB",
        lambda: scripted({"cmd": "open", "path": "bomb.pdf"}, {"cmd": "page_text", "handle": 0, "page": 0}),
        "document.memory is 67108864 bytes; ",
    ),
    "document.time": (
        0.05,
        lambda: scripted({"cmd": "open", "path": "bomb.pdf"}, {"cmd": "page_text", "handle": 0, "page": 0}),
        "document.time is 0.05 seconds; ",
    ),
    "infer.tokens": (
        10,
        lambda: scripted({"cmd": "infer", "prompt": "", "max_tokens": 11}),
        "infer.tokens is 10 tokens; the block asked for 11",
    ),
}

NO_ERRORS = {"text.window", "job.updates"}
"""The first gives shorter windows, the second drops updates and says how many."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "a.pdf").write_bytes(pages_pdf(written("a page")))
    (tmp_path / "wide.png").write_bytes(png(2_000, 1_000))
    (tmp_path / "large.png").write_bytes(png(1, 1) + bytes(200))
    operators = zlib.compress(b"BT /F1 12 Tf 50 700 Td (x) Tj ET\n" * 1_500_000, 9)
    stream = b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (len(operators), operators)
    (tmp_path / "bomb.pdf").write_bytes(pages_pdf(stream))
    return tmp_path


@pytest.mark.parametrize("name", ERRORS)
async def test_the_error_that_a_limit_causes_names_it_its_value_and_what_was_needed(name: str, folder: Path) -> None:
    value, block, sentence = ERRORS[name]
    async with open_host() as host:
        envelope = await host.run(block(), None, limits={name: value}, read=[folder], base_dir=folder, model="stub:x")
    assert envelope.status is JobStatus.FAILED
    assert envelope.error is not None
    assert sentence in envelope.error.message


def test_no_limit_is_left_out_here() -> None:
    assert {setting.name for setting in limit_settings()} == set(ERRORS) | NO_ERRORS


async def test_a_longer_slice_than_the_window_is_answered_with_fewer_bytes(folder: Path) -> None:
    block = scripted(OPEN_TEXT, {"cmd": "slice", "handle": 0, "offset": 0, "len": 9}, DONE)
    async with open_host() as host:
        envelope = await host.run(block, None, limits={"text.window": 4}, read=[folder], base_dir=folder)
    assert envelope.status is JobStatus.COMPLETED


async def test_updates_beyond_the_limit_are_dropped_and_counted() -> None:
    async with open_host() as host:
        job = host.start(scripted(*[{"cmd": "emit", "progress": n} for n in range(9)], DONE), None, limits={"job.updates": 4})
        await job.envelope()
        assert await anext(aiter(job)) == Dropped(6)


async def test_a_jobs_own_limit_wins_over_the_hosts_and_that_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTTLEFISH_LIMIT_GUEST_COMMANDS", "5")
    endless = scripted({"cmd": "emit", "progress": 1})

    async def commands(host_limits: dict[str, object], job_limits: dict[str, object]) -> str:
        async with open_host(limits=host_limits) as host:
            envelope = await host.run(endless, None, limits=job_limits)
        assert envelope.error is not None
        return envelope.error.message.partition(";")[0]

    assert await commands({}, {}) == "guest.commands is 5"
    assert await commands({"guest.commands": 7}, {}) == "guest.commands is 7"
    assert await commands({"guest.commands": 7}, {"guest.commands": 9}) == "guest.commands is 9"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("guest.memory", "512MiB", 512 << 20),
        ("guest.memory", "1.5 GiB", 3 << 29),
        ("guest.memory", "65536", 65_536),
        ("guest.step_time", "2.5s", 2.5),
        ("guest.commands", "1_000", 1_000),
        ("job.time", "none", None),
    ],
)
def test_a_limit_is_read_as_people_write_it(name: str, text: str, value: object) -> None:
    setting = next(s for s in limit_settings() if s.name == name)
    assert getattr(Limits().with_values({name: text}), setting.field) == value
    assert getattr(limits_from_environment({setting.variable: text}), setting.field) == value


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("guest.memroy", 1, 'there is no limit named "guest.memroy". Did you mean "guest.memory"?'),
        ("guest.memory", "much", 'guest.memory needs a number of bytes, found "much"'),
        ("guest.memory", "3s", 'guest.memory needs a number of bytes, found "3s"'),
        ("guest.memory", "5GiB", "guest.memory may be 4294967296 bytes at most, found '5GiB'"),
        ("guest.commands", "2MiB", 'guest.commands needs a number, found "2MiB"'),
        ("guest.commands", 0, "guest.commands needs a positive number, found 0"),
        ("guest.commands", 1.5, "guest.commands needs a whole number, found 1.5"),
        ("guest.commands", True, "guest.commands needs a positive number, found True"),
        ("guest.commands", None, "guest.commands cannot be switched off; give it a number"),
        ("guest.json_depth", 201, "guest.json_depth may be 200 levels at most, found 201"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused(name: str, value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Limits().with_values({name: value})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("GUEST_MEMROY", "CUTTLEFISH_LIMIT_GUEST_MEMROY names no limit. Did you mean CUTTLEFISH_LIMIT_GUEST_MEMORY?"),
        ("X", "CUTTLEFISH_LIMIT_X names no limit"),
        ("JOB_TIME", 'CUTTLEFISH_LIMIT_JOB_TIME: job.time needs a number of seconds, found "soon"'),
    ],
)
def test_a_variable_that_sets_no_limit_is_refused_and_not_passed_over(variable: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        limits_from_environment({f"CUTTLEFISH_LIMIT_{variable}": "soon"})
    assert str(caught.value) == f"the environment variable {sentence}"


def test_an_empty_variable_counts_as_unset() -> None:
    assert limits_from_environment({"CUTTLEFISH_LIMIT_GUEST_MEMORY": ""}) == Limits()
