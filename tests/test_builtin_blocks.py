"""Blocks that read and ask, with nothing faked: real files, the public host, a real small model. Structure, never prose."""

from pathlib import Path
from typing import Any

import pytest
from odd.writer import pages_pdf, written

from cuttlefish import Envelope, JobStatus, Progress, open_host

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
MODEL = "llama-cpp:smollm2"


def block(name: str) -> Path:
    return ROOT / "blocks" / name / f"{name}.wasm"


async def run(name: str, value: object, *, folder: Path = EXAMPLES, model: str | None = None) -> tuple[Envelope, list[object]]:
    async with open_host() as host:
        job = host.start(block(name), value, read=[folder], base_dir=folder, model=model)
        progress = [update.value async for update in job if isinstance(update, Progress)]
        return await job.envelope(), progress


async def result_of(name: str, value: object, *, folder: Path = EXAMPLES, model: str | None = None) -> Any:
    envelope, _ = await run(name, value, folder=folder, model=model)
    assert envelope.status is JobStatus.COMPLETED, envelope.error
    return envelope.result


# Read-document


async def test_a_pdf_becomes_one_text_for_each_page() -> None:
    result = await result_of("read-document", {"path": "night-sky-survey.pdf"})
    assert (result["path"], result["kind"]) == ("night-sky-survey.pdf", "document")
    assert [page["page"] for page in result["pages"]] == [0, 1, 2, 3]
    assert all(len(page["text"]) > 500 and page["error"] == "" for page in result["pages"])


async def test_a_text_file_becomes_its_parts_between_form_feeds() -> None:
    result = await result_of("read-document", {"path": "night-sky.txt"})
    parts = (EXAMPLES / "night-sky.txt").read_text(encoding="utf-8").split("\f")
    assert result["kind"] == "text"
    assert [page["text"] for page in result["pages"]] == parts


async def test_a_scanned_page_says_that_it_has_no_text_and_how_to_get_it() -> None:
    result = await result_of("read-document", {"path": "scanned-note.pdf"})
    [page] = result["pages"]
    assert page["text"] == ""
    assert page["error"].startswith("no_text: ")
    assert '"ocr": true' in page["error"]


async def test_a_scanned_page_is_shown_to_a_model_that_reads_images_if_the_input_says_so() -> None:
    result = await result_of("read-document", {"path": "scanned-note.pdf", "ocr": True}, model="stub:LENDING LIST")
    [page] = result["pages"]
    assert page["text"].endswith("LENDING LIST")
    assert page["error"] == ""


@pytest.mark.usefixtures("models_folder")
async def test_a_model_that_reads_no_images_is_named_as_the_reason() -> None:
    envelope, _ = await run("read-document", {"path": "scanned-note.pdf", "ocr": True}, model=MODEL)
    assert envelope.error is not None
    assert envelope.error.code == "unsupported"


async def test_a_page_that_cannot_be_read_costs_no_other_page(tmp_path: Path) -> None:
    torn = pages_pdf(written("first"), written("third"), kids="4 0 R 99 0 R 6 0 R", count=3)
    (tmp_path / "torn.pdf").write_bytes(torn)
    result = await result_of("read-document", {"path": "torn.pdf"}, folder=tmp_path)
    assert [page["text"].strip() for page in result["pages"]] == ["first", "", "third"]
    errors = [page["error"] for page in result["pages"]]
    assert (errors[0], errors[2]) == ("", "")
    assert errors[1].startswith("document_invalid: ")


async def test_the_pages_of_a_document_go_on_to_chunk_and_join() -> None:
    document = await result_of("read-document", {"path": "night-sky-survey.pdf"})
    chunks = (await result_of("chunk", {"pages": document["pages"], "max_chars": 700}))["chunks"]
    assert {chunk["page"] for chunk in chunks} == {0, 1, 2, 3}
    joined = await result_of("join", {"items": chunks, "separator": " "})
    assert joined["count"] == len(chunks) > 8
    assert joined["text"].split() == " ".join(page["text"] for page in document["pages"]).split()


# Classify and extract

NOTICE = "Invoice 17. Please pay 30 euros to Ann Baker by the end of May."


@pytest.mark.usefixtures("models_folder")
async def test_a_model_chooses_one_of_the_labels_or_the_block_says_that_it_did_not() -> None:
    labels = ["invoice", "letter", "poem"]
    envelope, progress = await run("classify", {"text": NOTICE, "labels": labels}, model=MODEL)
    if envelope.status is JobStatus.COMPLETED:
        assert isinstance(envelope.result, dict)
        assert envelope.result["route"] == envelope.result["label"]
        assert envelope.result["label"] in labels
    else:
        assert envelope.error is not None
        assert envelope.error.code == "no_label"
        assert progress == [{"stage": "asking again", "done": 1, "of": 2}]
    assert envelope.usage.tokens_out > 0


@pytest.mark.usefixtures("models_folder")
async def test_a_long_text_is_cut_for_the_prompt_and_progress_says_so() -> None:
    text = (EXAMPLES / "night-sky.txt").read_text(encoding="utf-8").strip()
    value = {"text": text, "labels": ["report", "poem"], "max_chars": 600}
    envelope, progress = await run("classify", value, model=MODEL)
    assert progress[0] == {"stage": "cutting", "done": 600, "of": len(text)}
    assert envelope.error is None or envelope.error.code == "no_label"
    assert envelope.usage.tokens_in < 800  # two tries at most


@pytest.mark.usefixtures("models_folder")
async def test_even_a_small_model_fills_the_fields_because_it_is_held_to_a_schema() -> None:
    fields = {"payee": "who gets the money", "total": {"type": "number", "description": "the sum to pay"}, "paid": {"type": "bool"}}
    values = (await result_of("extract", {"text": NOTICE, "fields": fields}, model=MODEL))["values"]
    assert list(values) == ["payee", "total", "paid"]
    assert values["payee"] is None or isinstance(values["payee"], str)
    assert values["total"] is None or isinstance(values["total"], int | float)
    assert values["paid"] in (None, True, False)


REPLIES = {
    "classify": ("poem", {"text": NOTICE, "labels": ["invoice", "poem"]}, {"route": "poem", "label": "poem"}),
    "extract": ('{"payee": null}', {"text": NOTICE, "fields": {"payee": ""}}, {"values": {"payee": None}}),
    "extract without a schema": (
        'Here: {"payee": null}',
        {"text": NOTICE, "fields": {"payee": ""}, "schema": False},
        {"values": {"payee": None}},
    ),
    "summarize": ("Pay Ann. ", {"path": "night-sky.txt"}, {"path": "night-sky.txt", "summary": "Pay Ann."}),
    "summarize with a reply that is cut": (
        "It was dark. " + "Nobody knew it. " * 100,
        {"path": "scanned-note.pdf"},
        {
            "path": "scanned-note.pdf",
            "summary": "[1 image(s)] It was dark. Nobody knew it.",
            "left_out": "the end of the model's reply, cut off as too long",
        },
    ),
}


@pytest.mark.parametrize("name", REPLIES)
async def test_the_models_reply_becomes_the_result(name: str) -> None:
    reply, value, expected = REPLIES[name]
    assert await result_of(name.partition(" ")[0], value, model=f"stub:{reply}") == expected


async def test_a_summary_that_is_cut_within_its_first_sentence_is_a_failure() -> None:
    envelope, progress = await run("summarize", {"path": "scanned-note.pdf"}, model="stub:" + "on and " * 300)
    assert envelope.error is not None
    assert envelope.error.code == "cut_off"
    assert {"stage": "asking again", "done": 1, "of": 1} in progress
    assert envelope.usage.tokens_out == 96 + 192


async def test_a_reply_that_does_not_fit_the_schema_made_of_the_fields_is_the_hosts_failure() -> None:
    _, value, _ = REPLIES["extract"]
    envelope, _ = await run("extract", value, model='stub:{"payee": 7}')
    assert envelope.error is not None
    assert envelope.error.code == "inference_failed"


@pytest.mark.parametrize(("name", "code"), [("classify", "no_label"), ("extract", "no_json")])
async def test_a_reply_that_cannot_be_used_is_quoted_after_a_second_try(name: str, code: str) -> None:
    _, value, _ = REPLIES[name if name == "classify" else f"{name} without a schema"]
    envelope, progress = await run(name, value, model="stub:I cannot say")
    assert envelope.error is not None
    assert envelope.error.code == code
    assert envelope.error.message.startswith('asked twice, the model answered "I cannot say"')
    assert progress == [{"stage": "asking again", "done": 1, "of": 2}]
    assert envelope.usage.tokens_out == 6
