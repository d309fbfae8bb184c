"""Small guests for tests, as WebAssembly text: a case fits on one screen."""

import json
from functools import cache

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


@cache
def echo() -> BlockBytes:
    """A block that gives the commands of its input, a list, one after another; its result is the list of all events it was told.

    So a test sees exactly what a block sees. It is one module for all lists, compiled once.
    """
    return from_wat(_ECHO, "echo.wasm")


# The host's buffers are given one behind the other, so that the events already lie as the result needs them: only the commas
# are written. The input lies at 1024, behind it `{"cmd":"done","result":[` and the events.
_ECHO = r"""(module
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"cmd\":\"done\",\"result\":[")
  (global $at (mut i32) (i32.const 1024))    ;; where the next command is looked for
  (global $stop (mut i32) (i32.const 1024))  ;; the end of the input, where the result starts
  (global $end (mut i32) (i32.const 1024))   ;; the end of what is written
  (func (export "cf_alloc") (param $len i32) (result i32)
    (local $more i32)
    (local.set $more (i32.sub
      (i32.add (i32.add (global.get $end) (local.get $len)) (i32.const 1024)) (i32.mul (memory.size) (i32.const 65536))))
    (if (i32.gt_s (local.get $more) (i32.const 0))
      (then (drop (memory.grow (i32.add (i32.div_u (local.get $more) (i32.const 65536)) (i32.const 1))))))
    (global.get $end))
  (func (export "cf_init") (param $ptr i32) (param $len i32) (result i32)
    (global.set $stop (i32.add (local.get $ptr) (local.get $len)))
    (memory.copy (global.get $stop) (i32.const 16) (i32.const 24))
    (global.set $end (i32.add (global.get $stop) (i32.const 24)))
    (call $command))
  (func (export "cf_step") (param $ptr i32) (param $len i32) (result i32)
    (global.set $end (i32.add (local.get $ptr) (local.get $len)))
    (i32.store8 (global.get $end) (i32.const 0x2c))
    (global.set $end (i32.add (global.get $end) (i32.const 1)))
    (call $command))
  (func $command (result i32)
    (local $byte i32) (local $depth i32) (local $quoted i32)
    (block $no_more (loop $next
      (br_if $no_more (i32.ge_u (global.get $at) (global.get $stop)))
      (local.set $byte (i32.load8_u (global.get $at)))
      (if (local.get $quoted)
        (then
          (if (i32.eq (local.get $byte) (i32.const 0x5c)) (then (global.set $at (i32.add (global.get $at) (i32.const 1)))))
          (if (i32.eq (local.get $byte) (i32.const 0x22)) (then (local.set $quoted (i32.const 0)))))
        (else
          (if (i32.eq (local.get $byte) (i32.const 0x22)) (then (local.set $quoted (i32.const 1))))
          (if (i32.eq (local.get $byte) (i32.const 0x7b)) (then
            (if (i32.eqz (local.get $depth)) (then (i32.store (i32.const 0) (global.get $at))))
            (local.set $depth (i32.add (local.get $depth) (i32.const 1)))))
          (if (i32.eq (local.get $byte) (i32.const 0x7d)) (then
            (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))
            (if (i32.eqz (local.get $depth)) (then
              (global.set $at (i32.add (global.get $at) (i32.const 1)))
              (i32.store (i32.const 4) (i32.sub (global.get $at) (i32.load (i32.const 0))))
              (return (i32.const 0))))))))
      (global.set $at (i32.add (global.get $at) (i32.const 1)))
      (br $next)))
    (if (i32.eq (i32.load8_u (i32.sub (global.get $end) (i32.const 1))) (i32.const 0x2c))
      (then (global.set $end (i32.sub (global.get $end) (i32.const 1)))))
    (i32.store16 (global.get $end) (i32.const 0x7d5d))
    (i32.store (i32.const 0) (global.get $stop))
    (i32.store (i32.const 4) (i32.sub (i32.add (global.get $end) (i32.const 2)) (global.get $stop)))
    (i32.const 0)))"""


def from_wat(wat: str, name: str = "test.wasm") -> BlockBytes:
    """A block from WebAssembly text."""
    return BlockBytes(name, bytes(wasmtime.wat2wasm(wat)))


SPIN = "(loop $forever (br $forever))"
"""Instructions that never end."""


def _escape(data: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in data)
