"""The process that compiles one module: WebAssembly on standard input, the artefact into the file named by the argument.

It runs no code of the block. It prints one line of JSON: null, the reason why the compiler refused, or `{"unwritten": REASON}` when
the artefact could not be written.
"""

import json
import resource
import sys
from pathlib import Path

import wasmtime

from cuttlefish.engine.settings import new_engine

MOST_ADDRESS_SPACE_BYTES = 8 << 30  # compiling the largest allowed module takes well below 2 GiB


def main() -> None:
    """Compile, write, report."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESS_SPACE_BYTES, MOST_ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wasm = sys.stdin.buffer.read()
    try:
        artefact = wasmtime.Module(new_engine(), wasm).serialize()
    except wasmtime.WasmtimeError as error:
        json.dump(str(error).strip().splitlines()[-1].strip(), sys.stdout)
        return
    try:
        Path(sys.argv[1]).write_bytes(artefact)
    except OSError as error:
        json.dump({"unwritten": (error.strerror or "no reason given").lower()}, sys.stdout)
        return
    json.dump(None, sys.stdout)


if __name__ == "__main__":
    main()
