"""Models of an Ollama server, by its own protocol: `ollama:TAG`, for example `ollama:llama3.2:3b`.

The server is where `OLLAMA_HOST` says, in every form that Ollama's own program takes; without it, 127.0.0.1:11434.
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from cuttlefish.errors import CuttlefishError, InferenceFailed, ModelLoadFailed, TimedOut
from cuttlefish.inference.addresses import loopback_of
from cuttlefish.inference.backend import Finish, Missing, Prompt, Reply, TokenMeter, TokenSink
from cuttlefish.inference.connecting import missing_server, open_server
from cuttlefish.inference.remote import Chunk, ModelServer, Timeouts, told_count
from cuttlefish.inference.response_lines import ResponseLines
from cuttlefish.inference.server_errors import broke_off, context_exceeded, nonsense, unknown_end

__all__ = ["missing_ollama", "ollama_url", "open_ollama", "open_ollama_embedder"]

DEFAULT_PORT = 11434
PROBE_S = 15.0
FINISHED: Mapping[str, Finish] = {"stop": "stop", "length": "length"}


async def open_ollama(target: str, *, local_only: bool = False, timeouts: Timeouts | None = None) -> "OllamaBackend":
    """Reach the server and look at the model: whether it is there, and whether it reads images. It is loaded by the first prompt.

    Raises:
        ModelLoadFailed: no server, no such model, or (with `local_only`) a server or a model that runs on another machine.
    """
    server, facts = await _open(target, local_only, timeouts or Timeouts())
    return OllamaBackend(server, facts)


async def missing_ollama(target: str, *, local_only: bool = False) -> Missing | None:
    """Whether the server is there, if it is to be on this machine. Whether it has the model only it could say."""
    try:
        url = ollama_url(os.environ.get("OLLAMA_HOST", ""))
    except ModelLoadFailed as error:
        return Missing(error.message)
    return await missing_server(url, local_only=local_only, start="Start it: ollama serve")


class OllamaBackend:
    """Keeps the promises of `Backend` with a server's `/api/chat`."""

    def __init__(self, server: ModelServer, facts: "_Facts") -> None:
        self.name = server.model
        self.accepts_images = facts.reads_images
        self._server = server

    async def infer(self, prompt: Prompt, sink: TokenSink, meter: TokenMeter) -> Reply:
        """See `Backend.infer`."""
        body, explain = partial(self._body, prompt), partial(_explain, self._server)
        return await self._server.converse("/api/chat", body, prompt, sink, meter, self._next_chunk, explain)

    async def aclose(self) -> None:
        """See `Backend.aclose`."""
        await self._server.aclose()

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "user", "content": prompt.text}
        if prompt.images:
            message["images"] = [base64.b64encode(image.data).decode() for image in prompt.images]
        options: dict[str, Any] = {"num_predict": prompt.max_tokens, "temperature": prompt.temperature}
        if prompt.seed is not None:
            options["seed"] = prompt.seed
        if prompt.stop:
            options["stop"] = list(prompt.stop)
        # Left to itself, Ollama cuts a prompt that is too long and says nothing.
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [message],
            "stream": True,
            "truncate": False,
            "shift": False,
            "options": options,
        }
        if prompt.schema is not None:
            body["format"] = prompt.schema
        return body

    async def _next_chunk(self, lines: ResponseLines) -> Chunk | None:
        line: bytes | None = b""
        while line is not None and not line.strip():
            line = await lines.next()
        return None if line is None else self._server.understand(line, lines, self._read)

    def _read(self, said: Any) -> Chunk:
        """One message. Whatever it holds that it should not raises, and is told as such."""
        if said.get("error"):
            data = json.dumps(said).encode()
            return Chunk(failure=context_exceeded(self.name, data) or broke_off(self._server.place, self._server.words(data)))
        message = said.get("message") or {}
        text, thought = message.get("content") or "", bool(message.get("thinking"))
        if not isinstance(text, str):
            raise TypeError
        if not said.get("done"):
            return Chunk(text, thought)
        reason = said.get("done_reason") or "stop"  # older servers give none
        if reason not in FINISHED:
            return Chunk(text, thought, failure=unknown_end(self._server.place, str(reason)))
        return Chunk(
            text,
            thought,
            finish=FINISHED[reason],
            end=True,
            in_total=told_count(said, "prompt_eval_count"),
            out_total=told_count(said, "eval_count"),
        )


class OllamaEmbedder:
    """Keeps the promises of `Embedder` with a server's `/api/embed`."""

    def __init__(self, server: ModelServer) -> None:
        self.name = server.model
        self._server = server

    async def embed(self, texts: Sequence[str], meter: TokenMeter) -> list[list[float]]:
        """See `Embedder.embed`."""
        explain = partial(_explain, self._server)
        return await self._server.vectors("/api/embed", texts, meter, self._body, _read_vectors, explain)

    def _body(self, texts: Sequence[str]) -> Mapping[str, Any]:
        return {"model": self.name, "input": list(texts), "truncate": False}

    async def aclose(self) -> None:
        """See `Embedder.aclose`."""
        await self._server.aclose()


async def open_ollama_embedder(target: str, *, local_only: bool = False, timeouts: Timeouts | None = None) -> OllamaEmbedder:
    """Reach the server and see whether it has the model.

    Raises:
        ModelLoadFailed: as `open_ollama` says.
    """
    server, _ = await _open(target, local_only, timeouts or Timeouts())
    return OllamaEmbedder(server)


def ollama_url(value: str) -> str:
    """The address that a value of `OLLAMA_HOST` means, read as Ollama's own program reads it.

    >>> [ollama_url(v) for v in ("", "0.0.0.0", ":8080", "box", "https://box/ollama/", "[::1]:9")]
    ['http://127.0.0.1:11434', 'http://127.0.0.1:11434', 'http://127.0.0.1:8080', 'http://box:11434', 'https://box:443/ollama', 'http://[::1]:9']

    Raises:
        ModelLoadFailed: a value that is no address, or of a scheme other than http and https.
    """
    value = value.strip().strip("\"'").strip()
    scheme, found, rest = value.partition("://")
    if not found:
        scheme, rest = "http", value
    port = DEFAULT_PORT if not found else 443 if scheme == "https" else 80
    place, _, path = rest.partition("/")
    if place.count(":") > 1 and not place.startswith("["):
        place = f"[{place}]"  # a bare IPv6 address
    try:
        parts = urlsplit(f"//{place}")
        host, given = parts.hostname or "", parts.port
        valid = scheme in ("http", "https") and parts.username is None
    except ValueError:
        valid, host, given = False, "", None
    if not valid:
        raise ModelLoadFailed("the variable OLLAMA_HOST holds no address. Write it as host:port or http://host:port, or unset it")
    host = loopback_of(host)
    host = f"[{host}]" if ":" in host else host
    path = path.strip("/")
    return f"{scheme}://{host}:{given if given is not None else port}" + (f"/{path}" if path else "")


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a server says about a model."""

    reads_images: bool
    runs_elsewhere: bool


async def _open(target: str, local_only: bool, timeouts: Timeouts) -> tuple[ModelServer, _Facts]:
    if not target:
        raise ModelLoadFailed("ollama: names no model. Write ollama:TAG, for example ollama:llama3.2")
    url = ollama_url(os.environ.get("OLLAMA_HOST", ""))
    server = await open_server(url, model=target, headers={}, secret=None, local_only=local_only, timeouts=timeouts)
    try:
        facts = await _look_at(server)
        if local_only and facts.runs_elsewhere:
            raise ModelLoadFailed(
                f'model "{target}" runs in Ollama\'s cloud, and the pipeline is local_only. Use one that runs here'
            )
    except (InferenceFailed, TimedOut) as e:
        await server.aclose()
        raise ModelLoadFailed(f"{e.message} (Ollama: ollama serve)") from e
    except BaseException:  # a cancel too: nobody else can close it yet
        await server.aclose()
        raise
    return server, facts


def _read_vectors(said: Any) -> tuple[list[list[Any]], int]:
    return said["embeddings"], told_count(said, "prompt_eval_count")


async def _look_at(server: ModelServer) -> _Facts:
    def explain(status: int, data: bytes) -> CuttlefishError:
        return _explain(server, status, data) or server.refusal(status, data)

    body = {"model": server.model}
    _, said = await server.look("/api/show", body, explain, min(PROBE_S, server.timeouts.first_token_s))
    if not isinstance(said, Mapping):
        raise nonsense(server.place, "something that is no description of a model")
    kinds = said.get("capabilities")
    elsewhere = bool(said.get("remote_host") or said.get("remote_model")) or server.model.endswith(("-cloud", ":cloud"))
    return _Facts("vision" in kinds if isinstance(kinds, list) else True, elsewhere)  # older servers do not say


def _explain(server: ModelServer, status: int, data: bytes) -> CuttlefishError | None:
    if status == 404:
        return ModelLoadFailed(f'{server.place} has no model "{server.model}" (404). Get it with: ollama pull {server.model}')
    if status in (401, 403):
        return ModelLoadFailed(f"{server.place} refuses to answer ({status}). Sign in to it, or see who stands before it")
    return None
