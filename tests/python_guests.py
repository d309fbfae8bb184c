"""The interpreter of Python blocks by itself: an author's file is loaded and stepped, with no host and no compiling of its own."""

import json
import struct
from functools import cache
from typing import Any

import wasmtime

from cuttlefish.engine.calls import choose_calls
from cuttlefish.engine.python_block import interpreter_path
from cuttlefish.engine.settings import new_engine

MEMORY_BYTES = 256 << 20


@cache
def _artefact() -> bytes:
    return bytes(wasmtime.Module(new_engine(), interpreter_path().read_bytes()).serialize())


class PythonGuest:
    """A fresh interpreter. `close` it, or use it as a context manager."""

    def __init__(self, source: str, *, memory_bytes: int = MEMORY_BYTES, name: str = "block.py") -> None:
        engine = new_engine()
        self.store = wasmtime.Store(engine)
        self.store.set_limits(memory_size=memory_bytes)
        self.store.set_epoch_deadline(1)
        with wasmtime.Module.deserialize(engine, _artefact()) as module:
            self.exports = wasmtime.Instance(self.store, module, []).exports(self.store)
        self.memory = self.exports["memory"]
        self.exports["_initialize"](self.store)
        calls = choose_calls()(self.store, self.memory)  # the quick way: tests take hundreds of thousands of steps
        self.alloc, self.next_step = calls.bind(self.exports["cf_alloc"], 1), calls.bind(self.exports["cf_step"], 2)
        self.bytes = calls.memory
        self.loaded = self.read(self.send("cf_load", f"{name}\0{source}".encode()))

    def __enter__(self) -> "PythonGuest":
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def send(self, name: str, message: bytes) -> int:
        address = self.exports["cf_alloc"](self.store, len(message)) & 0xFFFFFFFF
        assert address
        self.memory.write(self.store, message, address)
        return int(self.exports[name](self.store, address, len(message)))

    def step_raw(self, event: bytes) -> int:
        """A step as quick as the host's own."""
        address = self.alloc(len(event))
        self.bytes()[address : address + len(event)] = event
        return self.next_step(address, len(event))

    def payload(self, descriptor: int) -> bytes:
        descriptor &= 0xFFFFFFFF
        address, length = struct.unpack("<II", self.memory.read(self.store, descriptor, descriptor + 8))
        return bytes(self.memory.read(self.store, address, address + length))

    def read(self, descriptor: int) -> Any:
        return json.loads(self.payload(descriptor))

    def init(self, value: object = None) -> Any:
        return self.read(self.send("cf_init", json.dumps(value, ensure_ascii=False).encode()))

    def step(self, event: object) -> Any:
        return self.read(self.send("cf_step", json.dumps(event, ensure_ascii=False).encode()))

    def signature(self) -> Any:
        return self.read(self.exports["cf_signature"](self.store))

    def log(self) -> str:
        return self.payload(self.exports["cf_log"](self.store)).decode()

    def hear(self, token: str) -> bool:
        """Whether the block wants to stop."""
        return self.send("cf_on_token", token.encode()) != 0

    def memory_bytes(self) -> int:
        return int(self.memory.data_len(self.store))


def result_of(source: str, value: object = None) -> Any:
    """What a block gives at once."""
    with PythonGuest(source) as guest:
        assert "cmd" not in guest.loaded, guest.loaded
        command = guest.init(value)
    assert command["cmd"] == "done", command
    return command["result"]
