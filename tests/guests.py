"""Small guests for tests, as WebAssembly text: a case fits on one screen."""

import json

import wasmtime

from cuttlefish import BlockBytes

PAGE = 65_536


def scripted(
    *commands: object,
    signature: str | None = None,
    on_token: str | None = None,
    start: str | None = None,
    alloc: str | None = None,
    init: str = "",
    step: str = "",
    pages: int = 0,
    extra: str = "",
    name: str = "scripted.wasm",
) -> BlockBytes:
    """A block that gives these commands one after another, whatever it is told, and the last one for ever.

    A command is bytes as they are, or a value that is written as JSON. `on_token`, `start`, `alloc`, `init` and `step` are
    instructions (of the type i32 for `on_token` and `alloc`, of none for the others, which run before the command is given).
    """
    payloads = [c if isinstance(c, bytes) else json.dumps(c, ensure_ascii=False).encode() for c in commands]
    if signature is not None:
        left, _, right = signature.partition(" -> ")
        payloads.append(json.dumps({"input": left, "output": right}).encode())
    at, descriptors, data = PAGE, [], []
    for payload in payloads:
        descriptors.append(at.to_bytes(4, "little") + len(payload).to_bytes(4, "little"))
        data.append(f'(data (i32.const {at}) "{_escape(payload)}")' if payload else "")
        at += len(payload)
    buffer = -(-at // PAGE) * PAGE
    last = len(commands) - 1
    wat = f"""(module
      (memory (export "memory") {max(pages, buffer // PAGE + 1)})
      (global $next (mut i32) (i32.const 0))
      (data (i32.const 1024) "{_escape(b"".join(descriptors))}")
      {" ".join(data)}
      {extra}
      (func $command (result i32)
        (local $now i32)
        (local.set $now (global.get $next))
        (if (i32.lt_u (local.get $now) (i32.const {last}))
          (then (global.set $next (i32.add (local.get $now) (i32.const 1)))))
        (i32.add (i32.const 1024) (i32.mul (local.get $now) (i32.const 8))))
      (func (export "cf_alloc") (param $len i32) (result i32) {alloc or _ROOM.format(buffer=buffer)})
      (func (export "cf_init") (param i32 i32) (result i32) {init} (call $command))
      (func (export "cf_step") (param i32 i32) (result i32) {step} (call $command))
      {f'(func (export "cf_on_token") (param $at i32) (param $len i32) (result i32) {on_token})' if on_token else ""}
      {f'(func (export "cf_signature") (result i32) (i32.const {1024 + 8 * len(commands)}))' if signature else ""}
      {f"(func $start {start}) (start $start)" if start else ""})"""
    return from_wat(wat, name)


_ROOM = """
  (if (i32.gt_u (i32.add (i32.const {buffer}) (local.get $len)) (i32.mul (memory.size) (i32.const 65536)))
    (then (drop (memory.grow (i32.add (i32.div_u (local.get $len) (i32.const 65536)) (i32.const 1))))))
  (i32.const {buffer})"""


def from_wat(wat: str, name: str = "test.wasm") -> BlockBytes:
    """A block from WebAssembly text."""
    return BlockBytes(name, bytes(wasmtime.wat2wasm(wat)))


SPIN = "(loop $forever (br $forever))"
"""Instructions that never end."""


def _escape(data: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in data)
