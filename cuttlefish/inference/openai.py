"""Any server that speaks OpenAI's chat protocol: llama.cpp's own, vLLM, LM Studio, a hosted one.

The form is `openai:URL#MODEL`, for example `openai:http://127.0.0.1:8080/v1#qwen3`. Its key is the value of an environment
variable that `?key=NAME` names (`openai:https://host/v1?key=MY_KEY#model`): without it, none for a server on this machine and
`OPENAI_API_KEY` for any other. The key is sent to that server and shown nowhere.
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cuttlefish.errors import CuttlefishError, InferenceFailed, ModelLoadFailed, TimedOut
from cuttlefish.inference.addresses import local_addresses
from cuttlefish.inference.backend import Finish, Missing, Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.remote import Chunk, Lines, ModelServer, Timeouts, context_exceeded, missing_server, open_server, scrubbed

__all__ = ["missing_openai", "open_openai", "open_openai_embedder"]

DEFAULT_KEY = "OPENAI_API_KEY"
PROBE_S = 15.0
EMBED_AT_ONCE = 128
FORM = "openai:URL#MODEL, for example openai:http://127.0.0.1:8080/v1#qwen3"
FINISHED: Mapping[str, Finish] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
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
    except BaseException:
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
                return await self._server.converse(
                    "/chat/completions", self._body(prompt, limit_name), prompt, sink, meter, self._next_chunk, self._explain
                )
            except _OtherLimitName:  # before anything was served
                self._limit_name = "max_completion_tokens"
                if limit_name == self._limit_name:
                    raise

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._server.aclose()

    def _body(self, prompt: Prompt, limit_name: str) -> dict[str, Any]:
        content: str | list[dict[str, Any]] = prompt.text
        if prompt.images:
            urls = [f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}" for image in prompt.images]
            content = [{"type": "image_url", "image_url": {"url": url}} for url in urls] + [{"type": "text", "text": prompt.text}]
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [{"role": "user", "content": content}],
            limit_name: prompt.max_tokens,
            "temperature": prompt.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if prompt.seed is not None:
            body["seed"] = prompt.seed
        if prompt.stop and not self._is_llama_cpp:  # when the tokens run out, that one swallows what only begins like a stop text
            body["stop"] = list(prompt.stop)
        if prompt.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": prompt.schema}}
        if self._is_llama_cpp:
            body["return_progress"] = True  # without it a prompt is read to its end before a closed connection is seen
            body["cache_prompt"] = prompt.seed is None
        return body

    async def _next_chunk(self, lines: Lines) -> Chunk | None:
        data = await _next_event(lines)
        if data is None:
            return None
        if data.strip() == b"[DONE]":
            return Chunk(end=True)
        try:
            return self._read(json.loads(data.decode()))
        except UnicodeDecodeError:
            raise self._server.nonsense("bytes that are no UTF-8") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self._server.nonsense("something that is no chat reply") from None

    def _read(self, said: Any) -> Chunk:
        """One message. Whatever it holds that it should not raises, and is told as such."""
        if said.get("error"):
            return Chunk(failure=self._failure_inside(said))
        text, thought, finish = "", False, None
        for choice in said.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or {}
            text += delta.get("content") or ""
            thought = thought or bool(delta.get("reasoning_content") or delta.get("reasoning"))
            reason = choice.get("finish_reason")
            if reason in ("content_filter", "error", "abort", "tool_calls", "function_call"):
                return Chunk(failure=InferenceFailed(_UNUSUAL_ENDS[reason].format(place=self._server.place)))
            if reason:
                finish = FINISHED.get(str(reason), "stop")
        usage, progress = said.get("usage") or {}, said.get("prompt_progress") or {}
        read = max(int(usage.get("prompt_tokens") or 0), int(progress.get("processed") or 0))
        return Chunk(text, thought, finish, in_total=read, out_total=int(usage.get("completion_tokens") or 0))

    def _failure_inside(self, said: Any) -> CuttlefishError:
        data = json.dumps(said).encode()
        words = self._server.words(data)
        return context_exceeded(self.name, data) or InferenceFailed(
            f"{self._server.place} broke off in the middle of its reply" + (f": {words}" if words else ". Look at the server's log")
        )

    def _explain(self, status: int, data: bytes) -> CuttlefishError | None:
        if status == 400 and b"max_completion_tokens" in data:
            return _OtherLimitName(f"{self._server.place} refused the prompt (400: it takes no limit on tokens)")
        return _explain(self._server, self._key_variable, status, data)


class OpenAIEmbedder:
    """Keeps the promises of `Embedder` with a server's `/embeddings`."""

    def __init__(self, server: ModelServer, key_variable: str | None) -> None:
        self.name = server.model
        self._server = server
        self._key_variable = key_variable

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        """See `Embedder.embed`."""
        vectors: list[list[float]] = []
        for start in range(0, len(texts), EMBED_AT_ONCE):
            some = list(texts[start : start + EMBED_AT_ONCE])
            body = {"model": self.name, "input": some}

            def explain(status: int, data: bytes) -> CuttlefishError:
                return _explain(self._server, self._key_variable, status, data) or self._server.refusal(status, data)

            _, _, said = await self._server.ask("/embeddings", body, explain, self._server.timeouts.first_token_s)
            try:
                rows = sorted(said["data"], key=lambda row: int(row["index"]))
                vectors += [[float(x) for x in row["embedding"]] for row in rows]
                usage = said.get("usage") or {}
                meter.add(tokens_in=max(1, int(usage.get("prompt_tokens") or sum(len(t.encode()) for t in some) // 4)))
            except (TypeError, KeyError, ValueError, AttributeError):
                raise self._server.nonsense("something that is no list of vectors") from None
        return vectors

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


_UNUSUAL_ENDS = {
    "content_filter": "{place} withheld the reply: its content filter objects to it. Ask differently, or another model",
    "error": "{place} broke off in the middle of its reply. Look at the server's log, and ask again",
    "abort": "{place} broke off in the middle of its reply. Look at the server's log, and ask again",
    "tool_calls": "{place} answered with a call of a tool, and there are none. Use a model that answers in words",
    "function_call": "{place} answered with a call of a tool, and there are none. Use a model that answers in words",
}


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
    address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return _Address(address, parts.hostname or "", parts.port, model, options["key"][0] if "key" in options else None)


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
    _, headers, said = await server.ask("/models", None, explain, most_s)
    if headers.get("server") != "llama.cpp":
        return False, True
    rows = said.get("data") if isinstance(said, Mapping) else None
    row = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], Mapping) else {}
    architecture = row.get("architecture")
    kinds = architecture.get("input_modalities") if isinstance(architecture, Mapping) else None
    return True, "image" in kinds if isinstance(kinds, list) else True


def _explain(server: ModelServer, key_variable: str | None, status: int, data: bytes) -> CuttlefishError | None:
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


async def _next_event(lines: Lines) -> bytes | None:
    """The data of the next server-sent event. Comments, names and numbers of events say nothing to us."""
    data: list[bytes] = []
    while (line := await lines.next()) is not None:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            return b"\n".join(data)
    return b"\n".join(data) if data else None
