"""Models through whole jobs: what a block may ask of one, and where a job's data may go."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from cuttlefish import Envelope, Node, Pipeline, TokenPiece, open_host
from cuttlefish.engine.guest import Guest
from cuttlefish.inference.backend import Prompt, Reply, TokenMeter, TokenSink
from guests import SPIN, echo, scripted

MODEL = "llama-cpp:smollm2"


def infer(prompt: str, max_tokens: int, **options: object) -> dict[str, object]:
    return {"cmd": "infer", "prompt": prompt, "max_tokens": max_tokens, "options": options}


async def told(*commands: object, **options: object) -> list[dict[str, object]]:
    """What a block hears in answer to these commands."""
    async with open_host() as host:
        envelope = await host.run(echo(), list(commands), **options)  # type: ignore[arg-type]  # the tests' own keywords
    assert envelope.error is None
    events = envelope.result
    assert isinstance(events, list)
    return events  # type: ignore[return-value]  # JSON objects, as the contract says


def error_of(envelope: Envelope) -> tuple[str, str]:
    assert envelope.error is not None
    return envelope.error.code, envelope.error.message


async def test_a_reply_says_who_ended_it() -> None:
    whole, cut = await told(infer("p", 9), infer("p", 1), model="stub:one two")
    assert whole == {"event": "infer_done", "text": "one two", "tokens_out": 2, "finish_reason": "stop"}
    assert cut == {"event": "infer_done", "text": "one", "tokens_out": 1, "finish_reason": "length"}


async def test_a_stop_text_ends_the_reply_before_it() -> None:
    (event,) = await told(infer("p", 9, stop=["three"]), model="stub:one two three four")
    assert (event["text"], event["finish_reason"]) == ("one two ", "stop")


@pytest.mark.usefixtures("models_folder")
async def test_with_a_schema_the_real_models_reply_is_json_that_fits_it() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["squid", "crab"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    (event,) = await told(infer("Name an animal as JSON.", 64, schema=schema, seed=1), model=MODEL)
    assert json.loads(str(event["text"]))["name"] in ("squid", "crab")
    async with open_host() as host:
        short = await host.run(echo(), [infer("Name an animal as JSON.", 1, schema=schema, seed=1)], model=MODEL)
    code, message = error_of(short)
    assert code == "inference_failed"
    assert "was cut after 1 tokens, before its JSON was whole" in message


@pytest.mark.usefixtures("models_folder")
async def test_texts_become_vectors_by_the_embedding_model() -> None:
    (event,) = await told({"cmd": "embed", "texts": ["a cat", "a kitten", "quarterly revenue"]}, embedding_model=MODEL)
    vectors = event["vectors"]
    assert isinstance(vectors, list)
    cat, kitten, revenue = vectors
    assert len({len(vector) for vector in vectors}) == 1

    def alike(one: list[float], other: list[float]) -> float:
        lengths = sum(x * x for x in one) * sum(y * y for y in other)
        return float(sum(x * y for x, y in zip(one, other, strict=True)) / lengths**0.5)

    assert alike(cat, kitten) > alike(cat, revenue)


@pytest.mark.usefixtures("models_folder")
@pytest.mark.parametrize("how", ["cancelled", "timeout"])
async def test_a_block_that_spins_over_a_token_of_the_real_model_is_ended_and_the_model_serves_the_next_job(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block computes in the thread that asked the engine, which is neither Trio's nor the guest's."""
    spinning = scripted(infer("Write a story.", 200), {"cmd": "done", "result": 1}, on_token=f"{SPIN} (i32.const 0)")
    heard, on_token = trio.Event(), Guest.on_token

    def tell(guest: Guest, piece: bytes) -> bool:
        trio.from_thread.run_sync(heard.set)
        return on_token(guest, piece)

    monkeypatch.setattr(Guest, "on_token", tell)
    async with open_host() as host:
        job = host.start(spinning, {}, model=MODEL, limits={"guest.step_time": 0.2 if how == "timeout" else 600})
        with trio.fail_after(60):
            await heard.wait()
            if how == "cancelled":
                job.cancel()
            envelope = await job.envelope()
        assert error_of(envelope)[0] == how
        assert envelope.usage.tokens_out >= 1
        assert (await host.run(echo(), [infer("Hello", 2)], model=MODEL)).error is None


@pytest.mark.usefixtures("models_folder")
async def test_a_block_that_has_seen_enough_of_the_real_models_reply_gets_what_it_saw() -> None:
    counting = "(global.set $seen (i32.add (global.get $seen) (i32.const 1))) (i32.ge_u (global.get $seen) (i32.const 3))"
    block = scripted(
        infer("Write a story.", 200),
        {"cmd": "done", "result": 1},
        extra="(global $seen (mut i32) (i32.const 0))",
        on_token=counting,
    )
    async with open_host() as host:
        job = host.start(block, {}, model=MODEL)
        pieces = [update.text async for update in job if isinstance(update, TokenPiece)]
        envelope = await job.envelope()
    assert envelope.error is None
    assert len(pieces) == 3
    assert 3 <= envelope.usage.tokens_out <= 5


async def test_without_an_embedding_model_the_error_says_how_to_name_one() -> None:
    async with open_host() as host:
        envelope = await host.run(echo(), [{"cmd": "embed", "texts": ["a"]}], model="stub:x")
    assert error_of(envelope) == (
        "model_load_failed",
        'the block asks for vectors and the job names no embedding model; give one, such as "llama-cpp:smollm2"',
    )


@pytest.mark.parametrize("kind", ["model", "embedding_model"])
async def test_a_pipeline_that_stays_local_refuses_a_server_elsewhere_before_any_byte_leaves(tmp_path: Path, kind: str) -> None:
    """The address is one that is reserved for examples: a connection to it would only end by its time limit."""
    (tmp_path / "echo.wasm").write_bytes(echo().wasm)
    elsewhere = {kind: "openai:http://192.0.2.1:9/v1#m"}
    command = infer("p", 1) if kind == "model" else {"cmd": "embed", "texts": ["a"]}
    pipeline = Pipeline(name="p", nodes={"n": Node(block="./echo.wasm")}, **elsewhere)  # type: ignore[arg-type]  # one of two keys
    async with open_host() as host:
        envelope = await host.run(pipeline, [command], base_dir=tmp_path)
    code, message = error_of(envelope)
    assert code == "model_load_failed"
    assert "192.0.2.1" in message
    assert "local_only" in message


class Closing:
    """A model that remembers that it was closed, and an embedder too. It breaks down over it if it is told to."""

    accepts_images = False

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name = name
        self.closed = closed

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        await trio.lowlevel.checkpoint()
        return Reply("word", "stop")

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        await trio.lowlevel.checkpoint()
        return [[1.0] for _ in texts]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed.append(self.name)
        if self.name == "breaks":
            raise OSError("it cannot be closed")


async def test_leaving_the_host_closes_every_model_also_when_one_breaks_down_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def open_model(model: str, *, local_only: bool) -> Closing:
        await trio.lowlevel.checkpoint()
        return Closing(model, closed)

    monkeypatch.setattr("cuttlefish.jobs.resources.open_backend", open_model)
    monkeypatch.setattr("cuttlefish.jobs.resources.open_embedder", open_model)
    commands = [infer("p", 1), {"cmd": "embed", "texts": ["x"]}]

    async def jobs() -> None:
        async with open_host() as host:
            for model in ("first", "breaks", "last", "last"):
                assert (await host.run(echo(), commands, model=model, embedding_model="vectors")).error is None
            assert closed == []

    with pytest.raises(OSError, match="it cannot be closed"):
        await jobs()
    assert sorted(closed) == ["breaks", "first", "last", "vectors"]
