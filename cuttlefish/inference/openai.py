"""Any server that speaks OpenAI's chat protocol: llama.cpp's own, vLLM, LM Studio, a hosted one.

The form is `openai:URL#MODEL`, for example `openai:http://127.0.0.1:8080/v1#qwen3`. Its key is the value of an environment
variable that `?key=NAME` names (`openai:https://host/v1?key=MY_KEY#model`): without it, none for a server on this machine and
`OPENAI_API_KEY` for any other. The key is sent to that server and shown nowhere.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cuttlefish.errors import CuttlefishError, InferenceFailed, ModelLoadFailed, TimedOut
from cuttlefish.inference.addresses import local_addresses, loopback_of
from cuttlefish.inference.backend import Finish, Missing, Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.chat_form import user_message
from cuttlefish.inference.connecting import missing_server, open_server
from cuttlefish.inference.remote import Chunk, ModelServer, Timeouts, told_count
from cuttlefish.inference.response_lines import ResponseLines
from cuttlefish.inference.server_errors import broke_off, context_exceeded, scrubbed, unknown_end

__all__ = ["missing_openai", "open_openai", "open_openai_embedder"]

DEFAULT_KEY = "OPENAI_API_KEY"
PROBE_S = 15.0
MOST_WHOLE_BYTES = 1 << 20
MOST_STOPS = 4  # that hosted servers take; the others are found in the reply by us, as all are
FORM = "openai:URL#MODEL, for example openai:http://127.0.0.1:8080/v1#qwen3"
FINISHED: Mapping[str, Finish] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "stop_token", "complete", "completed"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "max_completion_tokens", "model_length"), "length"),
}


async def open_openai(target: str, *, local_only: bool = False, timeouts: Timeouts | None = None) -> "OpenAIBackend":
    """Reach a server, and learn whether it is llama.cpp's, which tells more than others.

    Raises:
        ModelLoadFailed: a target that is not of the form, a variable for the key that is not set, no server there, a key that it
            refuses, or (with `local_only`) a server on another machine.
    """
    server, key_variable = await _open(target, local_only, timeouts or Timeouts())
    try:
        is_llama_cpp, accepts_images = await _probe(server, key_variable)
    except (InferenceFailed, TimedOut) as e:
        await server.aclose()
        raise ModelLoadFailed(e.message) from e
    except BaseException:  # a cancel too: nobody else can close it yet
        await server.aclose()
        raise
    return OpenAIBackend(server, key_variable, is_llama_cpp, accepts_images)


async def missing_openai(target: str, *, local_only: bool = False) -> Missing | None:
    """Whether the key is set, and the server is there if it is to be on this machine."""
    try:
        address = _read_target(target)
        if address.key_variable is not None:
            _read_key(address.key_variable, address.model, must=True)
    except ModelLoadFailed as error:
        return Missing(error.message)
    return await missing_server(address.url, local_only=local_only, start="Start it, or name another model")


class OpenAIBackend:
    """Keeps the promises of `Backend` with a server's `/chat/completions`.

    Leaving a reply early closes its connection; llama.cpp's server stops within one or two tokens of that, and while it reads the
    prompt at its next batch.
    """

    def __init__(self, server: ModelServer, key_variable: str | None, is_llama_cpp: bool, accepts_images: bool) -> None:
        self.name = server.model
        self.accepts_images = accepts_images
        self._server = server
        self._key_variable = key_variable
        self._is_llama_cpp = is_llama_cpp
        self._limit_name = "max_tokens"

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """See `Backend.infer`."""
        while True:
            limit_name = self._limit_name
            try:
                body, explain = partial(self._body, prompt, limit_name), partial(self._explain, limit_name)
                return await self._server.converse("/chat/completions", body, prompt, sink, meter, self._next_chunk, explain)
            except _OtherLimitName:  # before anything was served
                self._limit_name = "max_completion_tokens"

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._server.aclose()

    def _body(self, prompt: Prompt, limit_name: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [user_message(prompt)],
            limit_name: prompt.max_tokens,
            "temperature": prompt.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if prompt.seed is not None:
            body["seed"] = prompt.seed
        if prompt.stop and not self._is_llama_cpp:  # when the tokens run out, that one swallows what only begins like a stop text
            body["stop"] = list(prompt.stop[:MOST_STOPS])
        if prompt.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": prompt.schema}}
        if self._is_llama_cpp:
            body["return_progress"] = True  # without it a prompt is read to its end before a closed connection is seen
            body["cache_prompt"] = prompt.seed is None
        return body

    async def _next_chunk(self, lines: ResponseLines) -> Chunk | None:
        data = await _next_event(lines)
        if data is None:
            return None
        if data.strip() == b"[DONE]":
            return Chunk(end=True)
        return self._server.understand(data, lines, self._read)

    def _read(self, said: Any) -> Chunk:
        """One message. Whatever it holds that it should not raises, and is told as such."""
        if said.get("error") or ("choices" not in said and said.get("message")):
            return Chunk(failure=self._failure_inside(said))
        text, thought, finish = "", False, None
        for choice in said.get("choices") or ():
            if choice.get("index"):
                continue  # a second reply, which nobody asked for
            delta = choice.get("delta") or choice.get("message") or {}
            text += delta.get("content") or ""
            thought = thought or bool(delta.get("reasoning_content") or delta.get("reasoning"))
            if reason := choice.get("finish_reason"):
                finish = FINISHED.get(str(reason).lower())
                if finish is None:
                    return Chunk(text, thought, failure=self._failed_end(str(reason)))
        usage = said.get("usage")
        read = max(told_count(usage, "prompt_tokens"), told_count(said.get("prompt_progress"), "processed"))
        return Chunk(text, thought, finish, in_total=read, out_total=told_count(usage, "completion_tokens"))

    def _failure_inside(self, said: Any) -> CuttlefishError:
        data = json.dumps(said).encode()
        return context_exceeded(self.name, data) or broke_off(self._server.place, self._server.words(data))

    def _failed_end(self, reason: str) -> InferenceFailed:
        """The error for an end of which we do not know that it was the proper one."""
        known = _UNUSUAL_ENDS.get(reason.lower())
        return unknown_end(self._server.place, reason) if known is None else InferenceFailed(f"{self._server.place} {known}")

    def _explain(self, limit_name: str, status: int, data: bytes) -> CuttlefishError | None:
        if status == 400 and limit_name == "max_tokens" and b"max_completion_tokens" in data:
            return _OtherLimitName("the server wants the limit under its newer name")
        return _explain(self._server, self._key_variable, status, data)


class OpenAIEmbedder:
    """Keeps the promises of `Embedder` with a server's `/embeddings`."""

    def __init__(self, server: ModelServer, key_variable: str | None) -> None:
        self.name = server.model
        self._server = server
        self._key_variable = key_variable

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        """See `Embedder.embed`."""
        explain = partial(_explain, self._server, self._key_variable)
        return await self._server.vectors("/embeddings", texts, meter, self._body, _read_vectors, explain)

    def _body(self, texts: Sequence[str]) -> Mapping[str, Any]:
        return {"model": self.name, "input": list(texts)}

    async def aclose(self) -> None:
        """See `Embedder.aclose`."""
        await self._server.aclose()


async def open_openai_embedder(target: str, *, local_only: bool = False, timeouts: Timeouts | None = None) -> OpenAIEmbedder:
    """Reach a server for vectors. It is first asked when there is a text.

    Raises:
        ModelLoadFailed: as `open_openai` says, but for what only a question shows.
    """
    return OpenAIEmbedder(*await _open(target, local_only, timeouts or Timeouts()))


class _OtherLimitName(InferenceFailed):
    """The server wants the limit on tokens under its newer name."""


_WITHHELD = "withheld the reply: its content filter objects to it. Ask differently, or another model"
_TOOL = "answered with a call of a tool, and there are none. Use a model that answers in words"
_UNUSUAL_ENDS = {
    "content_filter": _WITHHELD,
    "sensitive": _WITHHELD,
    "safety": _WITHHELD,
    "tool_calls": _TOOL,
    "function_call": _TOOL,
}


def _read_vectors(said: Any) -> tuple[list[list[Any]], int]:
    rows = sorted((int(row.get("index", at)), row["embedding"]) for at, row in enumerate(said["data"]))
    if [index for index, _ in rows] != list(range(len(rows))):
        raise ValueError("a text has no vector, or two")
    return [row for _, row in rows], told_count(said.get("usage"), "prompt_tokens")


@dataclass(frozen=True, slots=True)
class _Address:
    """What a target says."""

    url: str
    host: str
    port: int | None
    model: str
    key_variable: str | None
    """The variable that the target names for the key."""


def _read_target(target: str) -> _Address:
    url, _, model = target.partition("#")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(model) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise ModelLoadFailed(f'"{scrubbed(target.partition("?")[0], None)}" is no address of a model. Write {FORM}')
    if parts.username is not None or parts.password is not None:
        raise ModelLoadFailed(
            "the address of a model holds a name or password. Put the key into a variable: openai:URL?key=NAME#MODEL"
        )
    options = parse_qs(parts.query, keep_blank_values=True)
    if set(options) - {"key"} or len(options.get("key", [""])) != 1:
        raise ModelLoadFailed(f'the address of model "{model}" may have one option, key=NAME of a variable, and has others')
    host = loopback_of(parts.hostname or "")
    place = (f"[{host}]" if ":" in host else host) + (f":{parts.port}" if parts.port else "")
    address = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
    return _Address(address, host, parts.port, model, options["key"][0] if "key" in options else None)


def _read_key(variable: str, model: str, *, must: bool) -> str | None:
    key = os.environ.get(variable, "").strip() or None
    if must and key is None:
        raise ModelLoadFailed(f'the variable "{variable}", which should hold the key for model "{model}", is not set')
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ModelLoadFailed(f'the variable "{variable}" holds something that is no key: it has more than plain characters')
    return key


async def _open(target: str, local_only: bool, timeouts: Timeouts) -> tuple[ModelServer, str | None]:
    address = _read_target(target)
    model, variable = address.model, address.key_variable
    if variable is None and not await _is_local(address.host, address.port or 80):
        variable = DEFAULT_KEY
    key = None if variable is None else _read_key(variable, model, must=address.key_variable is not None)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    server = await open_server(address.url, model=model, headers=headers, secret=key, local_only=local_only, timeouts=timeouts)
    return server, variable


async def _is_local(host: str, port: int) -> bool:
    try:
        return bool(await local_addresses(host, port))
    except (OSError, UnicodeError):
        return False


async def _probe(server: ModelServer, key_variable: str | None) -> tuple[bool, bool]:
    """Whether it is llama.cpp's server, and whether it reads images. Others are only asked whether they are there."""

    def explain(status: int, data: bytes) -> CuttlefishError | None:
        return _explain(server, key_variable, status, data) if status in (401, 403) else None

    most_s = min(PROBE_S, server.timeouts.first_token_s)
    headers, said = await server.look("/models", None, explain, most_s)
    if headers.get("server") != "llama.cpp":
        return False, True
    rows = said.get("data") if isinstance(said, Mapping) else None
    row = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], Mapping) else {}
    architecture = row.get("architecture")
    kinds = architecture.get("input_modalities") if isinstance(architecture, Mapping) else None
    return True, "image" in kinds if isinstance(kinds, list) else True


def _explain(server: ModelServer, key_variable: str | None, status: int, data: bytes) -> CuttlefishError | None:
    if status == 403 and (words := server.words(data)):
        return ModelLoadFailed(f'{server.place} does not allow the use of model "{server.model}" (403: {words})')
    if status in (401, 403):
        if key_variable is None:
            return ModelLoadFailed(
                f"{server.place} wants a key ({status}). Put it into an environment variable and name it: openai:URL?key=NAME#MODEL"
            )
        return ModelLoadFailed(
            f"{server.place} refused the key in the variable {key_variable} ({status}). See whether it is set and valid"
        )
    if status == 404:
        return ModelLoadFailed(
            f'{server.place} has no model "{server.model}", or nothing at that address (404). '
            "See which models it lists, and whether the address should end in /v1"
        )
    return None


async def _next_event(lines: ResponseLines) -> bytes | None:
    """The data of the next server-sent event. Comments, names and numbers of events say nothing to us.

    Of an answer that is no stream, all of it: a server that does not stream has its whole reply there, or what went wrong.
    """
    data: list[bytes] = []
    while (line := await lines.next()) is not None:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            break
        elif not data and line.lstrip().startswith((b"{", b"<")):  # as no line of a stream does
            return line + b"\n" + await lines.rest(MOST_WHOLE_BYTES)
    return b"\n".join(data) if data else None
