"""Guests for tests of data flow: their result is their input, with some JSON around it."""

from cuttlefish import BlockBytes
from guests import from_wat

PAGE = 65_536


def passing(signature: str, before: str = "", after: str = "", name: str = "passing.wasm") -> BlockBytes:
    """A block that gives its input back at once, as JSON between `before` and `after`.

    `passing("text -> {a: text}", '{"a":', "}")` wraps a text in a record.
    """
    return choosing(signature, 0, (before, after), (before, after), name)


def choosing(signature: str, most: int, short: tuple[str, str], long: tuple[str, str], name: str = "choosing.wasm") -> BlockBytes:
    """As `passing`, with `short` around an input of at most so many bytes, and `long` around a longer one."""
    heads = [b'{"cmd":"done","result":' + before.encode() for before, _ in (short, long)]
    tails = [after.encode() + b"}" for _, after in (short, long)]
    takes, _, gives = signature.partition(" -> ")
    told = f'{{"input":"{takes}","output":"{gives}"}}'.encode()
    start = PAGE + 1024
    short_wrap, long_wrap = (
        f"(call $wrap (local.get $len) (i32.const {1024 * (1 + n)}) (i32.const {len(heads[n])}) "
        f"(i32.const {1024 * (3 + n)}) (i32.const {len(tails[n])}))"
        for n in (0, 1)
    )
    return from_wat(
        f"""(module
        (memory (export "memory") 64)
        (data (i32.const 1024) "{_escape(heads[0])}")
        (data (i32.const 2048) "{_escape(heads[1])}")
        (data (i32.const 3072) "{_escape(tails[0])}")
        (data (i32.const 4096) "{_escape(tails[1])}")
        (data (i32.const 8) "{_escape((8192).to_bytes(4, "little") + len(told).to_bytes(4, "little"))}")
        (data (i32.const 8192) "{_escape(told)}")
        (func (export "cf_alloc") (param i32) (result i32) (i32.const {start}))
        (func (export "cf_signature") (result i32) (i32.const 8))
        (func $wrap (param $len i32) (param $head i32) (param $headlen i32) (param $tail i32) (param $taillen i32) (result i32)
          (memory.copy (i32.sub (i32.const {start}) (local.get $headlen)) (local.get $head) (local.get $headlen))
          (memory.copy (i32.add (i32.const {start}) (local.get $len)) (local.get $tail) (local.get $taillen))
          (i32.store (i32.const 0) (i32.sub (i32.const {start}) (local.get $headlen)))
          (i32.store (i32.const 4) (i32.add (local.get $len) (i32.add (local.get $headlen) (local.get $taillen))))
          (i32.const 0))
        (func (export "cf_init") (param $at i32) (param $len i32) (result i32)
          (if (result i32) (i32.gt_u (local.get $len) (i32.const {most}))
            (then {long_wrap})
            (else {short_wrap})))
        (func (export "cf_step") (param i32 i32) (result i32) (i32.const 0)))""",
        name,
    )


def _escape(data: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in data)
