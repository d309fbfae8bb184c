"""Which providers of models there are, and opening one by the name that a user writes: `provider:target`.

A provider's module is imported when it is first used, so what it needs may be missing until then.
"""

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from cuttlefish.errors import ModelLoadFailed
from cuttlefish.inference.backend import Backend

__all__ = ["Provider", "open_backend", "providers"]


@dataclass(frozen=True, slots=True)
class Provider:
    """One way to reach a model. `extra` is the optional part of this package that it needs, if any."""

    name: str
    form: str
    help: str
    module: str
    opener: str
    extra: str | None = None


_PROVIDERS = (
    Provider(
        "llama-cpp",
        "llama-cpp:NAME or llama-cpp:PATH.gguf",
        "a model on this machine, by its name in the models folder or its file",
        "cuttlefish.inference.llama_cpp",
        "open_llama_cpp",
        "local",
    ),
    Provider(
        "stub",
        "stub:REPLY",
        "no model: always the same reply, for trying a pipeline out",
        "cuttlefish.inference.stub",
        "open_stub",
    ),
)


def providers() -> tuple[Provider, ...]:
    """All providers, by name."""
    return _PROVIDERS


async def open_backend(model: str) -> Backend:
    """Open the model `provider:target`; the caller closes it with `aclose`.

    Reading a model may take seconds and cannot be cut short: a cancel takes effect afterwards, at the caller's next wait.

    Raises:
        ModelLoadFailed: no such provider (the message lists them), a package that it needs is not installed (the message
            names the extra), or the model is missing or damaged.
    """
    name, _, target = model.partition(":")
    provider = next((p for p in _PROVIDERS if p.name == name), None)
    if provider is None:
        known = "; ".join(f"{p.form} ({p.help})" for p in _PROVIDERS)
        raise ModelLoadFailed(f'model "{model}": there is no provider "{name}". Write one of: {known}')
    opener = await trio.to_thread.run_sync(_import_opener, provider, model)
    return await opener(target)


def _import_opener(provider: Provider, model: str) -> Callable[[str], Awaitable[Backend]]:
    """Blocking: an engine's library may be a hundred megabytes."""
    try:
        opener: Callable[[str], Awaitable[Backend]] = getattr(importlib.import_module(provider.module), provider.opener)
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
    return opener
