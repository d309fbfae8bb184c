"""One model in llama.cpp's embedded server: load it, run one request, close it. Everything here blocks; nothing knows Trio.

What the engine does that this file is built around (xllamacpp 2026.10):
- it loads while holding the GIL, so every thread of the process waits, about 0.4 s for 100 MB;
- closing it before its own loop has begun hangs for ever (10 of 65 tries), GIL held, so a server first answers one token;
- leaving it to the interpreter's exit has been seen to hang too, so what is still open then is closed by `atexit`;
- a callback's exception is swallowed and stops the reply, so it is kept and raised again;
- it always opens an HTTP listener on the loopback, so it gets a free port and a key that nobody knows.
"""

import atexit
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuttlefish.errors import InferenceFailed, ModelLoadFailed
from cuttlefish.inference.backend import Prompt
from cuttlefish.inference.chat_form import user_message
from cuttlefish.inference.engine_schema import engine_schema

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads drop to 0.3 tokens/s beside one busy process; read at import

import xllamacpp  # after the variable above is set

__all__ = ["LlamaServer"]

BATCH_TOKENS = 128  # a prompt can be stopped between batches: 0.2 to 0.8 s at this size, 13 s at the engine's own 2048
EXIT_WAIT_S = 10.0
MOST_BYTES_PER_TOKEN = 256  # no vocabulary that we know has longer words

_open_servers: "set[LlamaServer]" = set()


class LlamaServer:
    """A loaded model. `generate` may run in `slots` threads at once; more would queue where a stop does not reach them."""

    def __init__(
        self,
        model: Path,
        projector: Path | None,
        label: str,
        *,
        slots: int,
        context: int,
        threads: int,
        for_vectors: bool = False,
        metrics: bool = False,
    ) -> None:
        """Load the model. Blocking, and it holds the GIL while the file is read. `for_vectors` it can do nothing but `embed`.

        `metrics` lets its own listener tell what its slots do, for who has the key.

        Raises:
            ModelLoadFailed: the engine cannot use the file.
        """
        self._label = label
        self._context = context
        self._running: set[threading.Event] = set()
        self._idle = threading.Condition()
        self._closed = False
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        if projector is not None:
            params.mmproj.path = str(projector)
        params.n_parallel, params.n_ctx = slots, context * slots  # the engine shares n_ctx out among the slots
        params.n_batch = params.n_ubatch = context if for_vectors else BATCH_TOKENS  # a vector needs its whole text in one batch
        if for_vectors:
            params.embedding = True
            params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        self._key = os.urandom(16).hex()
        params.port, params.api_keys, params.ui = 0, [self._key], False
        params.endpoint_slots = params.endpoint_metrics = metrics
        params.cache_ram_mib = 0  # its own cache of old prompts would take up to 8 GiB
        params.warmup, params.verbosity = False, 0
        try:
            self._server: Any = xllamacpp.Server(params)  # Any: the package has no types
        except RuntimeError as e:
            beside = f' together with the image reader "{projector.name}" beside it' if projector is not None else ""
            raise ModelLoadFailed(
                f'model "{label}": the engine cannot load "{model.name}"{beside}. '
                "The file is damaged, too big for this machine's memory, or of a kind that the engine does not know"
            ) from e
        _open_servers.add(self)
        if for_vectors:
            self._server.handle_embeddings({"input": ["a"]})
        else:
            self._server.handle_completions({"prompt": "a", "n_predict": 1, "cache_prompt": False})

    @property
    def listener(self) -> tuple[str, str]:
        """The address of the engine's own listener, and its key."""
        return self._server.listening_address, self._key

    def embed(self, text: str) -> tuple[list[float], int]:
        """The vector of one text, and its number of tokens. Not to be stopped: it takes one batch.

        Raises:
            InferenceFailed: the text is too long, or the engine broke off.
        """
        self._check_length("text", text)
        with self._using(threading.Event()):
            try:
                answer = self._server.handle_embeddings({"input": [text]})
            except (RuntimeError, ValueError) as e:
                raise _refusal(self._label, None) from e
            if "error" in answer:
                raise _failure(self._label, answer["error"], None)
            vector = list(answer["data"][0]["embedding"])
            if not all(map(math.isfinite, vector)):
                raise InferenceFailed(f'model "{self._label}" broke off: its engine gave a vector that is none')
            return vector, int(answer["usage"]["prompt_tokens"])

    def generate(self, prompt: Prompt, on_chunk: Callable[[Mapping[str, Any]], None], stop: threading.Event) -> None:
        """Run one prompt to its end, or until `stop` is set, which is seen at the next token or prompt batch.

        `on_chunk` gets the engine's own chunks, in this thread; what it raises ends the reply and is raised here.

        Raises:
            InferenceFailed: the engine refused the prompt or broke off.
        """
        self._check_length("prompt", prompt.text)
        with self._using(stop):
            self._run(prompt, on_chunk, stop)

    def _check_length(self, what: str, text: str) -> None:
        """Refuse what cannot fit: the engine takes a second for a megabyte before it says so, and cannot be stopped meanwhile."""
        size = len(text.encode())
        if size > self._context * MOST_BYTES_PER_TOKEN:
            raise InferenceFailed(
                f'the {what} has {size} bytes; the context of model "{self._label}" is {self._context} tokens, '
                "which cannot hold as many. Give it less text at a time"
            )

    @contextmanager
    def _using(self, stop: threading.Event) -> Iterator[None]:
        """While the engine is used it is not closed, and closing asks for a stop."""
        with self._idle:
            if self._closed:
                raise InferenceFailed(f'model "{self._label}" is closed')
            self._running.add(stop)
        try:
            yield
        finally:
            with self._idle:
                self._running.discard(stop)
                self._idle.notify_all()

    def _run(self, prompt: Prompt, on_chunk: Callable[[Mapping[str, Any]], None], stop: threading.Event) -> None:
        trouble: list[BaseException] = []

        def callback(chunk: Mapping[str, Any]) -> bool:
            try:
                if "error" in chunk:
                    trouble.append(_failure(self._label, chunk["error"], prompt))
                else:
                    on_chunk(chunk)
            except BaseException as e:  # noqa: BLE001  # raised again below; the engine would swallow it
                trouble.append(e)
            return stop.is_set() or bool(trouble)

        try:  # no local name for the server: a kept traceback would keep it alive past `close`
            answer = self._server.handle_chat_completions(_request(prompt), callback)
        except (RuntimeError, ValueError) as e:
            raise _refusal(self._label, prompt) from e
        if trouble:
            raise trouble[0]
        if isinstance(answer, dict) and "error" in answer:
            raise _failure(self._label, answer["error"], prompt)

    def close(self) -> None:
        """Stop what runs, wait for it, and free the model. Calling it again does nothing."""
        with self._idle:
            self._closed = True
            for stop in self._running:
                stop.set()
            self._idle.wait_for(lambda: not self._running, EXIT_WAIT_S)
            self._server = None
        _open_servers.discard(self)


@atexit.register
def _close_all() -> None:
    """For a program that ends without closing its backends, e.g. by an error nobody caught."""
    for server in list(_open_servers):
        server.close()


def _request(prompt: Prompt) -> dict[str, Any]:
    """The engine's form of a prompt.

    What a slot has read of an earlier prompt is used again where the prompts begin alike: 900 tokens cost 60 ms in place of 5 s.
    That changes the shapes of batches, and with them now and then a close choice; so a prompt with a seed is read anew. The stop
    texts are not the engine's matter: what looks like one when the tokens run out, it swallows.
    """
    body: dict[str, Any] = {
        "messages": [user_message(prompt)],
        "max_tokens": prompt.max_tokens,
        "temperature": prompt.temperature,
        "cache_prompt": prompt.seed is None,
        "stream": True,
        "return_progress": True,  # without it a prompt is read to its end before a stop is seen
        "timings_per_token": True,  # the count of tokens that have been made, also those that are no piece yet
        "stream_options": {"include_usage": True},
    }
    if prompt.seed is not None:
        body["seed"] = prompt.seed
    if prompt.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": engine_schema(prompt.schema)}}
    return body


def _failure(label: str, error: Mapping[str, Any], prompt: Prompt | None) -> InferenceFailed:
    """Our words for the engine's error object."""
    kind = error.get("type", "an unknown error")
    if kind == "exceed_context_size_error":
        return InferenceFailed(
            f'the prompt has {error.get("n_prompt_tokens")} tokens; the context of model "{label}" is {error.get("n_ctx")}, '
            "for prompt and reply together. Give it less text at a time"
        )
    batch = re.fullmatch(r"input \((\d+) tokens\) is too large.*\(current batch size: (\d+)\)", str(error.get("message")))
    if batch is not None:
        return InferenceFailed(
            f'the text has {batch[1]} tokens; model "{label}" turns at most {batch[2]} at once into a vector. Give it shorter texts'
        )
    if kind == "invalid_request_error":
        return _refusal(label, prompt)
    return InferenceFailed(f'model "{label}" broke off: its engine reported {kind}')


def _refusal(label: str, prompt: Prompt | None) -> InferenceFailed:
    """The engine does not say which part of a prompt it cannot read, so we say what can be wrong with it."""
    if prompt is not None and prompt.images:
        what = f"one of its {len(prompt.images)} image(s) cannot be read; the engine reads PNG, JPEG, GIF and BMP"
    elif prompt is not None and prompt.schema is not None:
        what = "its engine cannot keep to the schema for the reply. Simplify it"
    else:
        what = "its text holds something that is not Unicode text"
    return InferenceFailed(f'model "{label}" refused the prompt: {what}')
