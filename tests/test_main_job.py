"""The main job with nothing faked: a real PDF, the shipped block, a real model. Structure is asserted, never prose."""

from pathlib import Path

import pytest
import trio

from cuttlefish import Finished, JobStatus, Progress, TokenPiece, open_host
from guests import scripted

ROOT = Path(__file__).parent.parent
SUMMARIZE = ROOT / "blocks" / "summarize" / "summarize.wasm"
MODEL = "llama-cpp:smollm2"

pytestmark = pytest.mark.usefixtures("models_folder")


async def test_a_pdf_is_summarized_by_a_model_on_this_machine() -> None:
    async with open_host() as host:
        job = host.start(
            SUMMARIZE, {"path": "night-sky-survey.pdf"}, model=MODEL, read=[ROOT / "examples"], base_dir=ROOT / "examples"
        )
        updates = [update async for update in job]
    last = updates[-1]
    assert isinstance(last, Finished)
    envelope = last.envelope
    assert envelope.status is JobStatus.COMPLETED, envelope.error
    assert isinstance(envelope.result, dict)
    assert envelope.result["path"] == "night-sky-survey.pdf"
    summary = envelope.result["summary"]
    assert isinstance(summary, str)
    assert summary.strip() != ""
    pieces = [update.text for update in updates if isinstance(update, TokenPiece)]
    assert summary in "".join(pieces)  # the last reply, shown piece by piece before the job was over
    assert any(isinstance(update, Progress) for update in updates[: updates.index(TokenPiece(pieces[-1]))])
    usage = envelope.usage
    assert usage.model == "smollm2"
    assert usage.tokens_in > 1_000  # all pages of the PDF went through the model
    assert len(pieces) <= usage.tokens_out
    assert usage.duration_ms > 0


async def test_the_block_stops_a_real_model_and_what_it_cost_is_counted() -> None:
    block = scripted(
        {"cmd": "infer", "prompt": "Write a long story about the sea.", "max_tokens": 400},
        {"cmd": "done", "result": None},
        on_token="(global.set $seen (i32.add (global.get $seen) (i32.const 1))) (i32.ge_u (global.get $seen) (i32.const 5))",
        extra="(global $seen (mut i32) (i32.const 0))",
    )
    async with open_host() as host:
        job = host.start(block, None, model=MODEL)
        pieces = [update.text async for update in job if isinstance(update, TokenPiece)]
        envelope = await job.envelope()
    assert envelope.status is JobStatus.COMPLETED
    assert len(pieces) == 5
    assert 5 <= envelope.usage.tokens_out <= 8
    assert envelope.usage.tokens_in > 5


async def test_cancelling_in_the_middle_of_a_reply_stops_the_model_and_counts_what_it_made() -> None:
    block = scripted({"cmd": "infer", "prompt": "Write a long story about the sea.", "max_tokens": 4_000})
    async with open_host() as host:
        job = host.start(block, None, model=MODEL)
        seen = 0
        async for update in job:
            if isinstance(update, TokenPiece):
                seen += 1
                if seen == 3:
                    job.cancel()
        envelope = await job.envelope()
        assert envelope.status is JobStatus.CANCELLED
        assert 3 <= envelope.usage.tokens_out < 400
        assert envelope.usage.tokens_in > 5
        with trio.fail_after(60):  # the engine is free again
            after = await host.run(
                scripted({"cmd": "infer", "prompt": "Hello", "max_tokens": 2}, {"cmd": "done", "result": 1}), None, model=MODEL
            )
    assert after.status is JobStatus.COMPLETED
