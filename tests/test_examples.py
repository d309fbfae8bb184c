"""The pipelines of examples/, with a real model. Structure is asserted, never prose."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from cuttlefish import Host, JobStatus, open_host

EXAMPLES = Path(__file__).parent.parent / "examples"
INVOICE, SURVEY = {"path": "notes/03-invoice.pdf"}, {"path": "night-sky-survey.pdf"}

pytestmark = pytest.mark.usefixtures("models_folder")


async def run(host: Host, file: str, value: object) -> tuple[Any, dict[str, str]]:
    """The result, and what became of each node."""
    job = host.start(EXAMPLES / file, value)
    envelope = await job.envelope()
    assert envelope.status is JobStatus.COMPLETED, envelope.error
    assert envelope.usage.model == "smollm2"
    assert envelope.usage.tokens_out > 0
    return envelope.result, {name: record.status for name, record in job.nodes.items()}


async def test_one_block_sums_a_file_up() -> None:
    async with open_host() as host:
        result, _ = await run(host, "summary.toml", INVOICE)
    assert result["path"] == "notes/03-invoice.pdf"
    assert result["summary"].strip()


async def test_a_chain_sets_a_title_above_the_summary() -> None:
    async with open_host() as host:
        result, nodes = await run(host, "summary-page.toml", INVOICE)
    assert nodes == {"summary": "finished", "page": "finished"}
    assert result["text"].startswith("SUMMARY\n\n")
    assert result["items"][0]["summary"].strip() in result["text"]


@pytest.mark.parametrize("value", [INVOICE, SURVEY], ids=["invoice", "survey"])
async def test_what_the_model_decides_picks_one_way_and_both_ways_join_again(value: dict[str, str]) -> None:
    async with open_host() as host:
        result, nodes = await run(host, "letter-or-report.toml", value)
    label = result["items"][0]
    assert label in ("report", "letter", "invoice")
    assert result["count"] == 2
    assert result["text"].startswith(f"{value['path']}\n\n{label}\n\n")
    way, other = ("summary", "whole") if label == "report" else ("whole", "summary")
    assert nodes.pop(way) == "finished"
    assert nodes.pop(other) == "skipped"
    assert set(nodes.values()) == {"finished"}


async def test_nine_of_ten_files_are_summed_up_and_the_broken_one_is_recorded_in_its_place() -> None:
    files = [f"notes/{path.name}" for path in sorted((EXAMPLES / "notes").iterdir())]
    assert len(files) == 10
    async with open_host() as host:
        result, _ = await run(host, "ten-notes.toml", {})
    assert (result["succeeded"], result["failed"]) == (9, 1)
    assert [one["item"] for one in result["results"]] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [one["value"]["path"] for one in result["results"]] == files[:5] + files[6:]
    assert [(one["item"], one["code"]) for one in result["failures"]] == [(5, "document_invalid")]


async def test_every_example_is_checked_without_a_warning_and_names_an_input_of_its_own_type() -> None:
    async with open_host() as host:
        for file in sorted(EXAMPLES.glob("*.toml")):
            graph = await host.check(file)
            assert graph.warnings == (), file.name
            assert graph.loaded.pipeline.examples, file.name
            for example in graph.loaded.pipeline.examples_told():
                assert graph.input.mismatch(example.input) is None, file.name


def test_an_outcome_is_told_in_a_line() -> None:
    from cuttlefish import Envelope
    from cuttlefish_abi import JobError, Usage

    told = runpy.run_path(str(EXAMPLES / "run_all.py"))["told"]
    usage = Usage(tokens_in=3, tokens_out=4, duration_ms=1, model="m")
    assert told(Envelope(status=JobStatus.COMPLETED, result="x", usage=usage)) == "completed, 3 + 4 tokens"
    failed = Envelope(status=JobStatus.FAILED, error=JobError(code="timeout", message="too long"), usage=usage)
    assert told(failed) == "failed: timeout: too long"
