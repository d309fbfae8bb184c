"""Locked documents: opened by the password that came with the job, which is seen nowhere else."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from odd.locked import Method, locked_pdf
from odd.writer import opened, pages_pdf, written

from cuttlefish import open_host
from cuttlefish.errors import CuttlefishError, DocumentPassword
from cuttlefish.limits import Limits
from cuttlefish.media.documents import DocumentSource, DocumentWorkers, PageText, open_document_workers

LIMITS = Limits()
SECRET = "correct horse"
HOW = '--password-env NAME, or password_env="NAME" in Python'


@pytest.fixture
async def workers() -> AsyncIterator[DocumentWorkers]:
    async with open_document_workers(1) as workers:
        yield workers


@pytest.fixture
def files() -> Iterator[ExitStack]:
    with ExitStack() as files:
        yield files


@pytest.mark.parametrize("method", get_args(Method))
async def test_the_users_password_opens_each_kind_of_lock(workers: DocumentWorkers, files: ExitStack, method: Method) -> None:
    source = replace(files.enter_context(opened(locked_pdf(SECRET.encode(), method))), password=SECRET)
    assert (await workers.open_document(source, LIMITS)).pages == 1
    assert await workers.page_text(source, 0, LIMITS) == PageText("secret words")
    assert await workers.document_text(source, LIMITS) == "secret words"
    assert (await workers.page_image(source, 0, LIMITS)).height == 1024


@pytest.mark.parametrize("method", ["rc4-40", "rc4-128", "aes-128"])
async def test_the_owners_password_opens_too(workers: DocumentWorkers, files: ExitStack, method: Method) -> None:
    source = replace(files.enter_context(opened(locked_pdf(SECRET.encode(), method))), password="owner")
    assert await workers.page_text(source, 0, LIMITS) == PageText("secret words")


@pytest.mark.parametrize(("method", "coding"), [("rc4-128", "latin-1"), ("aes-256", "utf-8")])
async def test_a_password_may_have_letters_beyond_ascii(
    workers: DocumentWorkers, files: ExitStack, method: Method, coding: str
) -> None:
    source = replace(files.enter_context(opened(locked_pdf("schlüssel".encode(coding), method))), password="schlüssel")
    assert await workers.page_text(source, 0, LIMITS) == PageText("secret words")


async def test_a_missing_and_a_wrong_password_are_told_apart_with_what_to_do(workers: DocumentWorkers, files: ExitStack) -> None:
    source = files.enter_context(opened(locked_pdf(SECRET.encode())))
    with pytest.raises(DocumentPassword) as error:
        await workers.open_document(source, LIMITS)
    assert error.value.message == (
        'open: "x.pdf" is locked with a password, and none was given; put it into an environment variable and name that: ' + HOW
    )
    for wrong in ("wrong", "", "wrong\udcff", "日" * 10_000):
        with pytest.raises(DocumentPassword) as error:
            await workers.open_document(replace(source, password=wrong), LIMITS)
        assert error.value.message == (
            'open: "x.pdf" is locked with a password, and the one that was given does not open it; '
            f"check the environment variable that is named with {HOW}"
        )


async def test_a_password_that_is_not_needed_changes_nothing(workers: DocumentWorkers, files: ExitStack) -> None:
    for data, text in ((pages_pdf(written("plain")), "plain"), (locked_pdf(b""), "secret words")):
        source = replace(files.enter_context(opened(data)), password="anything")
        assert await workers.page_text(source, 0, LIMITS) == PageText(text)


async def test_who_has_no_password_does_not_get_what_another_opened(workers: DocumentWorkers, files: ExitStack) -> None:
    """The worker still has the document open, and pages of it were read ahead."""
    source = files.enter_context(opened(locked_pdf(SECRET.encode())))
    knowing = replace(source, password=SECRET)
    for _ in range(3):
        assert await workers.page_text(knowing, 0, LIMITS) == PageText("secret words")
        for ignorant in (source, replace(source, password="wrong")):
            for command in ("open_document", "document_text"):
                with pytest.raises(DocumentPassword):
                    await getattr(workers, command)(ignorant, LIMITS)
            with pytest.raises(DocumentPassword):
                await workers.page_text(ignorant, 0, LIMITS)


async def test_the_password_is_seen_in_no_message_log_argument_or_environment(
    workers: DocumentWorkers, files: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source = replace(files.enter_context(opened(locked_pdf(b"another"))), password=SECRET)
    assert SECRET not in repr(source) + str(source)
    with pytest.raises(CuttlefishError) as error:
        await workers.page_text(source, 0, LIMITS)
    assert SECRET not in repr(error.value)
    (worker,) = workers._pool.workers
    for file in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{worker.process.pid}/{file}").read_bytes()
    assert SECRET not in caplog.text
    assert not hasattr(DocumentSource, "__dict__") or SECRET not in str(vars(DocumentSource))


async def test_a_pipeline_names_the_variable_that_holds_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked.pdf").write_bytes(locked_pdf(SECRET.encode()))
    (tmp_path / "p.toml").write_text('name = "p"\nblock = "read-document"\nread = ["."]\npassword_env = "NOTES_PASSWORD"\n')
    monkeypatch.setenv("NOTES_PASSWORD", SECRET)
    async with open_host() as host:
        opened_by_it = await host.run(tmp_path / "p.toml", {"path": "locked.pdf"})
        monkeypatch.delenv("NOTES_PASSWORD")
        without = await host.run(tmp_path / "p.toml", {"path": "locked.pdf"})
    assert opened_by_it.error is None
    assert "secret words" in opened_by_it.model_dump_json()
    assert SECRET not in opened_by_it.model_dump_json()
    assert without.error is not None
    assert (without.error.code, without.error.message) == (
        "document_password",
        "the documents' password is in the environment variable NOTES_PASSWORD, which is not set",
    )
