"""The blocks that are written with each SDK, compiled for the tests and kept by what went into them."""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import trio
import wasmtime

from cuttlefish import open_host
from cuttlefish.authoring.rust import DEBIAN_CARGO
from cuttlefish.authoring.toolchains import LANGUAGES, Language, build
from cuttlefish.engine.compiler import Compiler
from cuttlefish.engine.guest import Guest as EngineGuest
from cuttlefish.engine.module import BlockBytes
from cuttlefish.limits import Limits

ROOT = Path(__file__).resolve().parent.parent
GUESTS = ROOT / "abi" / "guests"
KEPT = ROOT / "build" / "sdks"
MEMORY_BYTES = 256 << 20

CONFORMANCE = {
    "python": GUESTS / "python" / "conformance" / "conformance.py",
    "zig": GUESTS / "zig" / "conformance" / "conformance.zig",
    "c": GUESTS / "c" / "conformance" / "conformance.c",
    "rust": GUESTS / "rust" / "conformance" / "conformance.rs",
    "assemblyscript": GUESTS / "assemblyscript" / "conformance" / "conformance.ts",
}
WORD_COUNT = {
    "python": GUESTS / "python" / "examples" / "word_count.py",
    "zig": ROOT / "blocks" / "word-count" / "word_count.zig",
    "c": GUESTS / "c" / "examples" / "word_count.c",
    "rust": GUESTS / "rust" / "examples" / "word_count.rs",
    "assemblyscript": GUESTS / "assemblyscript" / "examples" / "word_count.ts",
}


def languages_there() -> list[str]:
    """Those whose conformance block is there."""
    return [name for name, source in CONFORMANCE.items() if source.is_file()]


def compiled(name: str, source: Path) -> bytes:
    """The block's bytes: built as users build it, or kept from the last time that all it is made of was the same."""
    if name == "python":
        return build_python(source)
    language = LANGUAGES[name]
    digest = hashlib.sha256()
    makers = sorted((ROOT / "cuttlefish" / "authoring").glob("*.py"))
    for file in [source, *language.sdk.values(), *makers, ROOT / "pyproject.toml"]:
        digest.update(file.read_bytes())
    kept = KEPT / f"{name}-{source.stem}-{digest.hexdigest()[:16]}.wasm"
    if not kept.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        wasm = build_block(language, source)
        new = kept.with_suffix(f".{os.getpid()}")  # test processes may build side by side
        new.write_bytes(wasm)
        new.replace(kept)
    return kept.read_bytes()


def build_block(language: Language, source: Path, cache: Path = ROOT / "build" / "cache") -> bytes:
    """As `cuttlefish.authoring` builds it, with Debian's Rust where there is one: it needs no network."""
    changed = {"CUTTLEFISH_CACHE": str(cache)} | ({"CARGO": str(DEBIAN_CARGO)} if DEBIAN_CARGO.is_file() else {})
    with patch.dict(os.environ, changed):
        return trio.run(build, language, source)


def build_python(source: Path) -> bytes:
    """As the host builds a Python block, which keeps it by its content."""

    async def build_it() -> bytes:
        async with open_host(cache_dir=ROOT / "build" / "cache") as host:
            return (await host.build(source)).wasm

    return trio.run(build_it)


@dataclass(frozen=True)
class Compiled:
    """Held by fixtures and not by a module: wasmtime cannot free what is left when the interpreter ends."""

    engine: wasmtime.Engine
    module: wasmtime.Module
    wasm: bytes


def load(wasm: bytes) -> Compiled:
    engine = wasmtime.Engine()
    return Compiled(engine, wasmtime.Module(engine, wasm), wasm)


class Guest:
    """A block and nothing else: no files, no model, no limit but memory."""

    def __init__(self, block: Compiled) -> None:
        self.store = wasmtime.Store(block.engine)
        self.store.set_limits(memory_size=MEMORY_BYTES)
        self.exports = wasmtime.Instance(self.store, block.module, []).exports(self.store)
        self.memory = self.exports["memory"]
        if "_initialize" in self.exports:
            self.exports["_initialize"](self.store)

    def call(self, name: str, *arguments: int) -> int:
        return self.exports[name](self.store, *arguments) & 0xFFFFFFFF

    def send(self, name: str, message: bytes) -> int:
        address = self.call("cf_alloc", len(message))
        assert address != 0
        self.memory.write(self.store, message, address)
        return self.call(name, address, len(message))

    def payload(self, descriptor: int) -> bytes:
        address, length = struct.unpack("<II", self.memory.read(self.store, descriptor, descriptor + 8))
        return bytes(self.memory.read(self.store, address, address + length))

    def init(self, message: bytes) -> bytes:
        return self.payload(self.send("cf_init", message))

    def step(self, message: bytes) -> bytes:
        return self.payload(self.send("cf_step", message))

    def hear(self, piece: str) -> bool:
        """Hand over a piece of a reply; whether the block wants to stop. Afterwards the buffer is the host's again."""
        data = piece.encode()
        address = self.call("cf_alloc", len(data))
        self.memory.write(self.store, data, address)
        verdict = self.call("cf_on_token", address, len(data))
        self.memory.write(self.store, b"\xff" * len(data), address)
        return verdict != 0

    def memory_bytes(self) -> int:
        return self.memory.data_len(self.store)


class QuickGuest(EngineGuest):
    """The host's own instance, with its low-level calls: for many steps."""

    def memory_bytes(self) -> int:
        return len(self._alive().calls.memory())


@contextmanager
def live(wasm: bytes) -> Iterator[QuickGuest]:
    """A started instance of a block."""
    with TemporaryDirectory() as folder:
        module = trio.run(Compiler(Path(folder)).compile, BlockBytes("block.wasm", wasm), Limits())
        with closing(QuickGuest(module, Limits())) as guest:
            guest.start()
            yield guest


def utf8(value: object) -> bytes:
    """JSON as the host writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def escaped(value: object) -> bytes:
    """The same with all that is not ASCII as \\uXXXX, and a solidus as \\/."""
    return json.dumps(value).replace("/", "\\/").encode()


def spread(value: object) -> bytes:
    """The same with white space wherever it may stand, and all fields in the opposite order."""

    def turned(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: turned(part[key]) for key in reversed(part)}
        return [turned(item) for item in part] if isinstance(part, list) else part

    text = json.dumps(turned(value), ensure_ascii=False, indent="\r\t", separators=(" \n,", "\t: "))
    return f"\n {text}\t\r\n ".encode()
