"""Rewrites a module so that it starts with a given memory: what an instance has computed becomes data of a module like any other.

For modules as clang links them: one memory, no start function, and one global that changes, the stack pointer, which between two
calls is where it was at the start. The same module and memory give the same bytes.
"""

from collections.abc import Collection, Iterable, Iterator

__all__ = ["with_memory"]

PAGE_BYTES = 65_536
MEMORY_SECTION, GLOBAL_SECTION, EXPORT_SECTION, START_SECTION, DATA_SECTION, DATA_COUNT_SECTION = 5, 6, 7, 8, 11, 12
MOST_SEGMENTS = 10_000  # wasmtime reads 100,000 at most
GRAINS = (64, 4_096, PAGE_BYTES)
"""Runs of so many zero bytes separate two pieces of data; the larger ones where small ones would give too many pieces."""


def with_memory(wasm: bytes, memory: bytes, *, without: Collection[str]) -> bytes:
    """The module `wasm`, with `memory` as what it starts with, and without some of its exports. Blocking: 20 ms for 4 MiB."""
    segments = _segments(memory)
    out = bytearray(wasm[:8])
    for kind, content in _sections(wasm):
        if kind == MEMORY_SECTION:
            assert content[0] == 1  # one memory
            _, after_minimum = _read_number(content, 2)
            content = bytes([1, content[1]]) + _number(len(memory) // PAGE_BYTES) + content[after_minimum:]
        elif kind == GLOBAL_SECTION:
            assert _mutable_globals(content) <= 1
        elif kind == EXPORT_SECTION:
            content = _vector([export for name, export in _exports(content) if name not in without])
        elif kind == DATA_SECTION:
            content = _vector(segments)
        elif kind == DATA_COUNT_SECTION:
            content = _number(len(segments))
        assert kind != START_SECTION  # it would run again
        out += bytes([kind]) + _number(len(content)) + content
    return bytes(out)


def _segments(memory: bytes) -> list[bytes]:
    """The pieces of memory that are not zero, each as an active data segment."""
    runs: list[tuple[int, int]] = []
    for grain in GRAINS:
        runs = list(_runs(memory, grain))
        if len(runs) <= MOST_SEGMENTS:
            break
    return [_segment(memory, begin, end) for begin, end in runs]


def _runs(memory: bytes, grain: int) -> Iterator[tuple[int, int]]:
    """Where memory is not zero, as ranges made of whole grains."""
    zero_page, zero = bytes(PAGE_BYTES), bytes(grain)
    begin: int | None = None
    for page in range(0, len(memory), PAGE_BYTES):
        if memory[page : page + PAGE_BYTES] == zero_page:  # most of a memory; looked at in one go
            if begin is not None:
                yield begin, page
                begin = None
            continue
        for at in range(page, min(page + PAGE_BYTES, len(memory)), grain):
            if memory[at : at + grain] == zero:
                if begin is not None:
                    yield begin, at
                    begin = None
            elif begin is None:
                begin = at
    if begin is not None:
        yield begin, len(memory)


def _segment(memory: bytes, begin: int, end: int) -> bytes:
    data = memory[begin:end].rstrip(b"\0")
    end = begin + len(data)
    data = data.lstrip(b"\0")
    address = end - len(data)
    return b"\0\x41" + _signed_number(address if address < 1 << 31 else address - (1 << 32)) + b"\x0b" + _number(len(data)) + data


def _sections(wasm: bytes) -> Iterator[tuple[int, bytes]]:
    at = 8
    while at < len(wasm):
        size, begin = _read_number(wasm, at + 1)
        yield wasm[at], wasm[begin : begin + size]
        at = begin + size


def _exports(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Each export's name, and all of its bytes."""
    count, at = _read_number(content, 0)
    for _ in range(count):
        length, begin = _read_number(content, at)
        _, end = _read_number(content, begin + length + 1)
        yield content[begin : begin + length].decode(), content[at:end]
        at = end


def _mutable_globals(content: bytes) -> int:
    count, at = _read_number(content, 0)
    mutable = 0
    for _ in range(count):
        mutable += content[at + 1]
        assert content[at + 2] in (0x41, 0x42)  # its value is a constant
        _, at = _read_number(content, at + 3)
        at += 1  # the end of the expression
    return mutable


def _vector(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return _number(len(items)) + b"".join(items)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """A LEB128 number, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed_number(value: int) -> bytes:
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value & 127)
    return bytes(out)
