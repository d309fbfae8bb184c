"""Which providers of models there are, and opening one by the name that a user writes: `provider:target`.

To add one, write a file with an opener and name both here. An opener takes the target and `local_only`, and gives a `Backend` or
an `Embedder`; a provider that never leaves this machine need not look at `local_only`. Its module is imported when it is first
used, so what it needs may be missing until then.
"""

import difflib
import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import trio

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.backend import Backend, Embedder, Missing
from cuttlefish.inference.checked import CheckedBackend, CheckedEmbedder

__all__ = ["Provider", "find_missing", "open_backend", "open_embedder", "providers"]


@dataclass(frozen=True, slots=True)
class Provider:
    """One way to reach a model. `extra` is the optional part of this package that it needs, if any."""

    name: str
    form: str
    help: str
    module: str
    opener: str
    embedder: str | None = None
    """The opener for vectors, if it has them."""
    extra: str | None = None
    package: str | None = None
    """What `extra` installs and the module imports."""
    missing: str | None = None
    """`module:function` that tells what a model lacks on this machine, `async (target, *, local_only) -> Missing | None`.

    It is quick, loads no model and calls nothing beyond this machine.
    """
    calls_a_server: bool = False
    """Whether what it is given goes to a server, which may be on another machine."""


_PROVIDERS = (
    Provider(
        "llama-cpp",
        "llama-cpp:NAME or llama-cpp:PATH.gguf",
        "a model on this machine, by its name in the models folder or its file",
        "cuttlefish.inference.llama_cpp",
        "open_llama_cpp",
        "open_llama_cpp_embedder",
        extra="local",
        package="xllamacpp",
        missing="cuttlefish.inference.models.installed:missing_model",
    ),
    Provider(
        "openai",
        "openai:URL#MODEL",
        "a server with OpenAI's protocol: llama.cpp, vLLM, LM Studio, a hosted one; ?key=NAME names the variable with its key",
        "cuttlefish.inference.openai",
        "open_openai",
        "open_openai_embedder",
        extra="http",
        package="httpx2",
        missing="cuttlefish.inference.openai:missing_openai",
        calls_a_server=True,
    ),
    Provider(
        "ollama",
        "ollama:TAG",
        "a model of the Ollama server that OLLAMA_HOST names, or of this machine's",
        "cuttlefish.inference.ollama",
        "open_ollama",
        "open_ollama_embedder",
        extra="http",
        package="httpx2",
        missing="cuttlefish.inference.ollama:missing_ollama",
        calls_a_server=True,
    ),
    Provider(
        "tesseract",
        "tesseract:LANG",
        "no language model: the text that stands in the images, read by Tesseract; the prompt is ignored",
        "cuttlefish.inference.tesseract",
        "open_tesseract",
        missing="cuttlefish.inference.tesseract:missing_tesseract",
    ),
    Provider(
        "stub",
        "stub:REPLY",
        "no model: always the same reply, for trying a pipeline out",
        "cuttlefish.inference.stub",
        "open_stub",
        "open_stub_embedder",
    ),
)


def providers() -> tuple[Provider, ...]:
    """All providers, in the order of an explanation."""
    return _PROVIDERS


async def open_backend(model: str, *, local_only: bool = False) -> Backend:
    """Open the model `provider:target`; the caller closes it with `aclose`.

    With `local_only` a model that is not on this machine is refused; a server is judged by the addresses that its name has, and
    only those are called.

    Reading a model may take seconds and cannot be cut short: a cancel takes effect afterwards, at the caller's next wait.

    Raises:
        ModelLoadFailed: no such provider (the message lists them), a package that it needs is not installed (the message
            names the extra), the model is missing or damaged, its server cannot be reached, or it is not on this machine.
    """
    provider, target = _find(model, _PROVIDERS)
    opener = await trio.to_thread.run_sync(_import_opener, provider, provider.opener, model)
    return CheckedBackend(await opener(target, local_only=local_only))


async def open_embedder(model: str, *, local_only: bool = False) -> Embedder:
    """Open the model `provider:target` for vectors; the caller closes it with `aclose`. Otherwise as `open_backend`."""
    provider, target = _find(model, tuple(p for p in _PROVIDERS if p.embedder is not None))
    assert provider.embedder is not None
    opener = await trio.to_thread.run_sync(_import_opener, provider, provider.embedder, model)
    return CheckedEmbedder(await opener(target, local_only=local_only))


async def find_missing(model: str, *, local_only: bool = False) -> Missing | None:
    """What `open_backend` would lack on this machine, as far as can be told without opening the model; None if nothing.

    Quick. Of servers only those on this machine are looked for, and only where their address needs no name service.
    """
    try:
        provider, target = _find(model, _PROVIDERS)
    except ModelLoadFailed as error:
        return Missing(error.message)
    if provider.package is not None and importlib.util.find_spec(provider.package) is None:
        reason = f"{provider.name} needs a package that is not installed"
        return Missing(reason, f"Run: pip install 'cuttlefish[{provider.extra}]'")
    if provider.missing is None:
        return None
    module, _, function = provider.missing.partition(":")
    found = await trio.to_thread.run_sync(importlib.import_module, module)
    missing: Missing | None = await getattr(found, function)(target, local_only=local_only)
    return missing


def _find(model: str, among: tuple[Provider, ...]) -> tuple[Provider, str]:
    name, colon, target = model.partition(":")
    provider = next((p for p in among if p.name == name), None)
    if provider is not None and colon:
        return provider, target
    known = "; ".join(f"{p.form} ({p.help}{_needs(p)})" for p in among)
    if not colon:
        meant = f'"{name}:…"' if provider else f'"llama-cpp:{model}", if it is a model on this machine' if model else "one of these"
        raise ModelLoadFailed(f'model "{model}": a model is named PROVIDER:TARGET; write {meant}. There are: {known}')
    if any(p.name == name for p in _PROVIDERS):
        raise ModelLoadFailed(f'model "{model}": {name} gives no vectors. Write one of: {known}')
    near = difflib.get_close_matches(name, [p.name for p in among], 1)
    hint = f'did you mean "{near[0]}:{target}"? ' if near else ""
    raise ModelLoadFailed(f'model "{model}": there is no provider "{name}"; {hint}there are: {known}')


def _needs(provider: Provider) -> str:
    return "" if provider.extra is None else f"; needs pip install 'cuttlefish[{provider.extra}]'"


def _import_opener(provider: Provider, opener_name: str, model: str) -> Any:
    """Blocking: an engine's library may be a hundred megabytes. `Any`, because it is looked up by name."""
    try:
        return getattr(importlib.import_module(provider.module), opener_name)
    except ImportError as e:
        if provider.extra is None or (e.name or "").partition(".")[0] in ("cuttlefish", "cuttlefish_abi"):
            raise  # a bug of ours, not something that the user can install
        install = f"pip install 'cuttlefish[{provider.extra}]'"
        if isinstance(e, ModuleNotFoundError):
            raise ModelLoadFailed(f'model "{model}": {provider.name} needs a package that is not installed. Run: {install}') from e
        raise ModelLoadFailed(
            f'model "{model}": the package that {provider.name} needs does not load on this machine. '
            f"Install it again: {install} --force-reinstall"
        ) from e
