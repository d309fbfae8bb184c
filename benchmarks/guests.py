"""The guests that are measured, as WebAssembly text, and the messages that are moved through them."""

import json

import wasmtime

from cuttlefish import BlockBytes

__all__ = ["ECHO", "ECHO_EXTISM", "ECHO_OVERHEAD", "SPIN_EXTISM", "echo_event", "scripted"]

EVENT_HEAD, EVENT_TAIL = b'{"event":"sliced","text":"', b'","next_offset":0}'
COMMAND_HEAD, COMMAND_TAIL = b'{"cmd":"fail","code":"echo-it","message":"', b'"}'

ECHO_OVERHEAD = len(EVENT_HEAD) + len(EVENT_TAIL)
assert len(COMMAND_HEAD) + len(COMMAND_TAIL) == ECHO_OVERHEAD  # so that as many bytes come out as went in

IN, OUT = 1 << 16, 2 << 20  # buffers in the guest's memory; OUT starts with COMMAND_HEAD
PAGES = 64


def echo_event(size: int) -> bytes:
    """A `sliced` event of exactly `size` bytes, its text plain letters."""
    return EVENT_HEAD + b"x" * (size - ECHO_OVERHEAD) + EVENT_TAIL


def _text(data: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in data)


# The guest's own work is next to nothing: it moves the text of a `sliced` event into the message of a `fail` command, at the
# speed of memory. So what is measured is the way in and out.
_ANSWER = f"""
  (func $answer (param $at i32) (param $len i32) (result i32)
    (local $text i32)
    (local.set $text (i32.sub (local.get $len) (i32.const {ECHO_OVERHEAD})))
    (memory.copy
      (i32.const {OUT + len(COMMAND_HEAD)})
      (i32.add (local.get $at) (i32.const {len(EVENT_HEAD)}))
      (local.get $text))
    (i32.store16
      (i32.add (i32.const {OUT + len(COMMAND_HEAD)}) (local.get $text))
      (i32.const {int.from_bytes(COMMAND_TAIL, "little")}))
    (i32.store (i32.const 1024) (i32.const {OUT}))
    (i32.store (i32.const 1028) (local.get $len))
    (i32.const 1024))
"""

ECHO = BlockBytes(
    "echo.wasm",
    bytes(
        wasmtime.wat2wasm(f"""(module
  (memory (export "memory") {PAGES})
  (data (i32.const {OUT}) "{_text(COMMAND_HEAD)}")
  {_ANSWER}
  (func (export "cf_alloc") (param i32) (result i32) (i32.const {IN}))
  (func (export "cf_init") (param i32 i32) (result i32) (call $answer (local.get 0) (local.get 1)))
  (func (export "cf_step") (param i32 i32) (result i32) (call $answer (local.get 0) (local.get 1)))
  (func (export "cf_on_token") (param i32 i32) (result i32) (i32.const 0)))""")
    ),
)
"""A block that answers each event of `echo_event` with a `fail` command of the same size and text."""

# What comes in and goes out is copied between Extism's memory and the plugin's own in words of eight bytes, as the plugin kits of
# Extism do it: a plugin cannot see Extism's memory in any other way.
ECHO_EXTISM = bytes(
    wasmtime.wat2wasm(f"""(module
  (import "extism:host/env" "input_length" (func $input_length (result i64)))
  (import "extism:host/env" "input_load_u8" (func $input_load_u8 (param i64) (result i32)))
  (import "extism:host/env" "input_load_u64" (func $input_load_u64 (param i64) (result i64)))
  (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
  (import "extism:host/env" "store_u8" (func $store_u8 (param i64 i32)))
  (import "extism:host/env" "store_u64" (func $store_u64 (param i64 i64)))
  (import "extism:host/env" "output_set" (func $output_set (param i64 i64)))
  (memory {PAGES})
  (data (i32.const {OUT}) "{_text(COMMAND_HEAD)}")
  {_ANSWER}
  (func $load (result i32)
    (local $i i32) (local $len i32)
    (local.set $len (i32.wrap_i64 (call $input_length)))
    (block $words_done
      (loop $words
        (br_if $words_done (i32.gt_u (i32.add (local.get $i) (i32.const 8)) (local.get $len)))
        (i64.store (i32.add (i32.const {IN}) (local.get $i)) (call $input_load_u64 (i64.extend_i32_u (local.get $i))))
        (local.set $i (i32.add (local.get $i) (i32.const 8)))
        (br $words)))
    (block $bytes_done
      (loop $bytes
        (br_if $bytes_done (i32.ge_u (local.get $i) (local.get $len)))
        (i32.store8 (i32.add (i32.const {IN}) (local.get $i)) (call $input_load_u8 (i64.extend_i32_u (local.get $i))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $bytes)))
    (local.get $len))
  (func (export "step") (result i32)
    (local $i i32) (local $len i32) (local $to i64)
    (local.set $len (call $load))
    (drop (call $answer (i32.const {IN}) (local.get $len)))
    (local.set $to (call $alloc (i64.extend_i32_u (local.get $len))))
    (block $words_done
      (loop $words
        (br_if $words_done (i32.gt_u (i32.add (local.get $i) (i32.const 8)) (local.get $len)))
        (call $store_u64
          (i64.add (local.get $to) (i64.extend_i32_u (local.get $i)))
          (i64.load (i32.add (i32.const {OUT}) (local.get $i))))
        (local.set $i (i32.add (local.get $i) (i32.const 8)))
        (br $words)))
    (block $bytes_done
      (loop $bytes
        (br_if $bytes_done (i32.ge_u (local.get $i) (local.get $len)))
        (call $store_u8
          (i64.add (local.get $to) (i64.extend_i32_u (local.get $i)))
          (i32.load8_u (i32.add (i32.const {OUT}) (local.get $i))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $bytes)))
    (call $output_set (local.get $to) (i64.extend_i32_u (local.get $len)))
    (i32.const 0))
  (func (export "on_token") (result i32) (drop (call $load)) (i32.const 0)))""")
)
"""The same for Extism: `step` is `cf_step`, `on_token` is `cf_on_token`, each with all that moving the bytes takes."""

_SPIN = "(loop $forever (br $forever))"

SPIN_EXTISM = bytes(wasmtime.wat2wasm(f'(module (func (export "spin") (result i32) {_SPIN} (i32.const 0)))'))
"""An Extism plugin whose `spin` never ends."""


def scripted(
    *commands: object, name: str, hears_tokens: bool = False, spins: bool = False, signature: dict[str, str] | None = None
) -> BlockBytes:
    """A block that gives these commands one after another, whatever it is told; one that `spins` gives the first and never ends."""
    descriptors, data, at = b"", b"", 4096
    for command in (*commands, *([signature] if signature else [])):
        payload = json.dumps(command).encode()
        descriptors += at.to_bytes(4, "little") + len(payload).to_bytes(4, "little")
        data, at = data + payload, at + len(payload)
    return BlockBytes(
        name,
        bytes(
            wasmtime.wat2wasm(f"""(module
  (memory (export "memory") 2)
  (data (i32.const 1024) "{_text(descriptors)}")
  (data (i32.const 4096) "{_text(data)}")
  (global $next (mut i32) (i32.const 1024))
  (func (export "cf_alloc") (param i32) (result i32) (i32.const {IN}))
  (func (export "cf_init") (param i32 i32) (result i32) (global.get $next))
  (func (export "cf_step") (param i32 i32) (result i32)
    {_SPIN if spins else ""}
    (global.set $next (i32.add (global.get $next) (i32.const 8)))
    (global.get $next))
  {'(func (export "cf_on_token") (param i32 i32) (result i32) (i32.const 0))' if hears_tokens else ""}
  {f'(func (export "cf_signature") (result i32) (i32.const {1024 + 8 * len(commands)}))' if signature else ""})""")
        ),
    )
