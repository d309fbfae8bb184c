"""What holds for every model, whoever provides it: `open_backend` puts this around each.

The reply to a prompt with a schema is judged here, by the schema itself and in a process that can be killed, because engines
keep to a schema only as far as they understand it.
"""

import json
import logging
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import trio

from cuttlefish.errors import BadCommand, CuttlefishError, InferenceFailed, TimedOut, Unsupported
from cuttlefish.inference.backend import Backend, Embedder, Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.child import TooMuchOutput, run_child
from cuttlefish_abi import BadJson, parse_json

__all__ = ["CheckedBackend", "CheckedEmbedder"]

_log = logging.getLogger(__name__)

JUDGE = (sys.executable, "-P", "-m", "cuttlefish.inference.schema_worker")
OUT_OF_MEMORY = 3  # its status; not imported, because the worker's own imports have no place in this process
JUDGE_TIME_S = 10.0
JUDGE_MEMORY_BYTES = 1 << 30
JUDGE_OUT_BYTES = 64 << 10
MOST_SCHEMA_BYTES = 64 << 10
NO_SEED = 2**32 - 1  # llama.cpp, which several providers run, takes this one for "any"; two seeds may well mean the same


class CheckedBackend:
    """Keeps the promises of `Backend` that need no knowledge of the model."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._good_schemas: set[str] = set()

    @property
    def name(self) -> str:
        """See `Backend.name`."""
        return self._inner.name

    @property
    def accepts_images(self) -> bool:
        """See `Backend.accepts_images`."""
        return self._inner.accepts_images

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """See `Backend.infer`."""
        if not _is_text(prompt.text):
            raise InferenceFailed(f'model "{self.name}" cannot read the prompt: it holds half of a surrogate pair')
        if prompt.images and not self.accepts_images:
            raise Unsupported(
                f'model "{self.name}" reads text only, and the prompt has {len(prompt.images)} image(s). '
                "Choose a model that reads images; for llama-cpp, its mmproj file belongs beside it"
            )
        if prompt.seed == NO_SEED:
            prompt = replace(prompt, seed=NO_SEED - 1)
        schema_text = None if prompt.schema is None else await self._check_schema(prompt.schema)
        if prompt.max_tokens < 1:  # some engines would make one, others as many as they like
            await trio.lowlevel.checkpoint()
            reply = Reply("", "length")
        else:
            reply = await self._inner.infer(prompt, sink, meter)
        if schema_text is not None and reply.finish != "stopped_by_block":
            await self._check_reply(prompt, schema_text, reply)
        return reply

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._inner.aclose()

    async def _check_schema(self, schema: Mapping[str, Any]) -> str:
        """Before the model is asked: a schema that is none must cost no token. Gives its text."""
        text = await trio.to_thread.run_sync(_schema_text, schema, abandon_on_cancel=True)  # it may be large
        if text in self._good_schemas:
            return text
        verdict = await _judge(f'{{"schema":{text}}}')
        if "schema_wrong" in verdict:
            raise BadCommand(f"the schema for the reply is no JSON Schema: {verdict['schema_wrong']}")
        if len(self._good_schemas) < 1_000:
            self._good_schemas.add(text)
        return text

    async def _check_reply(self, prompt: Prompt, schema_text: str, reply: Reply) -> None:
        cut = reply.finish == "length"
        short = (
            f'the reply of model "{self.name}" was cut after {prompt.max_tokens} tokens, before its JSON was whole. '
            "Allow more tokens, or ask for less"
        )
        try:
            await trio.to_thread.run_sync(parse_json, reply.text.encode(), abandon_on_cancel=True)
        except BadJson as e:
            raise InferenceFailed(short if cut else f'the reply of model "{self.name}" is no JSON: {e}. Ask again') from None
        verdict = await _judge(f'{{"schema":{schema_text},"value":{reply.text}}}')
        if "schema_wrong" in verdict:
            raise BadCommand(f"the schema for the reply cannot be used: {verdict['schema_wrong']}")
        if "value_wrong" in verdict:
            raise InferenceFailed(
                short if cut else f'the reply of model "{self.name}" does not fit the schema at {verdict["value_wrong"]}. Ask again'
            )


class CheckedEmbedder:
    """Keeps the promises of `Embedder` that need no knowledge of the model."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """See `Embedder.name`."""
        return self._inner.name

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        """See `Embedder.embed`."""
        for number, text in enumerate(texts):
            if not text:
                raise BadCommand(f"embed.texts[{number}] is empty: a text without words has no vector")
            if not _is_text(text):
                raise InferenceFailed(f'model "{self.name}" cannot read embed.texts[{number}]: it holds half of a surrogate pair')
        if not texts:
            await trio.lowlevel.checkpoint()
            return []
        vectors = await self._inner.embed(texts, meter)
        if len(vectors) != len(texts):
            raise InferenceFailed(f'model "{self.name}" gave {len(vectors)} vectors for {len(texts)} texts. Ask another model')
        if not all(0 < len(vector) == len(vectors[0]) for vector in vectors):
            raise InferenceFailed(f'model "{self.name}" gave vectors of unlike lengths, or empty ones. Ask another model')
        return vectors

    async def aclose(self) -> None:
        """See `Embedder.aclose`."""
        await self._inner.aclose()


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _schema_text(schema: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        parse_json(text.encode())
    except (TypeError, ValueError, RecursionError) as e:
        why = str(e) if isinstance(e, BadJson) else "it holds something that JSON cannot say"
        raise BadCommand(f"the schema for the reply is no JSON Schema: {why}") from None
    if len(text) > MOST_SCHEMA_BYTES:
        raise BadCommand(f"the schema for the reply has {len(text)} characters; at most {MOST_SCHEMA_BYTES} can be used")
    return text


async def _judge(asked: str) -> dict[str, str]:
    """The worker's verdict.

    Raises:
        BadCommand: the schema takes more memory than the judge has, or what is wrong with it cannot be told.
        TimedOut: no verdict in time. A schema can do that, and so can a machine that is busy.
        CuttlefishError: the worker could not be started or broke down, which no block is to blame for. The log has the rest.
    """
    try:
        result = await run_child(
            JUDGE, asked.encode(), time_s=JUDGE_TIME_S, out_bytes=JUDGE_OUT_BYTES, memory_bytes=JUDGE_MEMORY_BYTES
        )
    except trio.TooSlowError:
        raise TimedOut(
            f"the schema for the reply takes longer than {JUDGE_TIME_S:g} s to apply: simplify its patterns and references, "
            "or ask again when the machine is less busy"
        ) from None
    except TooMuchOutput:
        raise BadCommand("the schema for the reply cannot be used: what is wrong with it is too long to tell") from None
    except OSError as e:
        raise _judge_broke(f"could not be started ({e.strerror})", b"") from None
    if result.code == OUT_OF_MEMORY:
        raise BadCommand("the schema for the reply cannot be used: applying it takes more memory than there is. Simplify it")
    if result.code != 0:
        raise _judge_broke(f"ended with status {result.code} before it had", result.err)
    try:
        verdict: dict[str, str] = json.loads(result.out)
    except ValueError:
        raise _judge_broke("gave no verdict that can be read", result.err) from None
    return verdict


def _judge_broke(how: str, last_words: bytes) -> CuttlefishError:
    reference = secrets.token_hex(4)
    _log.error("error %s: the judge of schemas %s: %r", reference, how, last_words[-2_000:])
    return CuttlefishError(
        f"the process that judges JSON by its schema {how}. The block and the model are not to blame; ask again, "
        f"and if it happens again, report it with what the log says under {reference}"
    )
