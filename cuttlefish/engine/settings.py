"""How WebAssembly is run here. Two artefacts made under different settings never meet: all of them go into the cache key."""

import hashlib
import importlib.metadata
import json
import platform
import sys

import wasmtime

__all__ = ["SETTINGS_KEY", "new_engine"]

_SETTINGS = {
    "epoch_interruption": True,  # any thread can stop a guest
    "cranelift_nan_canonicalization": True,  # the same events give the same commands on every machine
    "wasm_threads": False,
    "wasm_memory64": False,
    "wasm_relaxed_simd": False,
    "wasm_component_model": False,
    "wasm_exceptions": True,  # interpreters compiled to wasm need them for setjmp
    "max_wasm_stack": 512 << 10,  # bytes; well below the smallest thread stack this runs on, as an overflow there is a crash
}

SETTINGS_KEY = hashlib.sha256(
    json.dumps([_SETTINGS, importlib.metadata.version("wasmtime"), platform.machine(), sys.platform], sort_keys=True).encode()
).hexdigest()[:16]
"""Names these settings together with the compiler's version and the machine's architecture."""


def new_engine() -> wasmtime.Engine:
    """A new engine. Each guest has its own, so that advancing its epoch interrupts that guest and no other (about 14 µs)."""
    config = wasmtime.Config()  # used up by the engine, so it cannot be kept
    for name, value in _SETTINGS.items():
        setattr(config, name, value)
    return wasmtime.Engine(config)
