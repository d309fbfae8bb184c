"""Puts what lies outside the package into the wheel. A block or a language of an SDK needs no line in pyproject.toml.

Each block that ships becomes `cuttlefish/builtin/NAME.wasm`. SDKs and templates become `cuttlefish/guests/LANGUAGE/…`, and the
interpreter of Python blocks `cuttlefish/interpreters/python.wasm`.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SDKS = {  # what an author's block is made of; the rest of abi/guests is for this project's own tests
    "python": ("prelude.py", "template"),
    "zig": ("cuttlefish.zig", "template"),
    "c": ("cuttlefish.h", "template"),
    "rust": ("cuttlefish-block", "template"),
    "assemblyscript": ("cuttlefish.ts", "template"),
}


class ShipBlocks(BuildHookInterface[Any]):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files; an editable installation finds them where they are.

        Raises:
            FileNotFoundError: the interpreter was not built.
        """
        if version == "editable":
            return
        for path in sorted(Path(self.root, "blocks").glob("*/*.wasm")):
            build_data["force_include"][str(path)] = f"cuttlefish/builtin/{path.name}"
        guests = Path(self.root, "abi", "guests")
        for language, parts in SDKS.items():
            for part in parts:
                if (guests / language / part).exists():
                    build_data["force_include"][str(guests / language / part)] = f"cuttlefish/guests/{language}/{part}"
        interpreter = Path(self.root, "build", "python-guest")
        for name in ("python.wasm", "LICENSE.micropython.txt"):
            if not (interpreter / name).is_file():
                raise FileNotFoundError(
                    f"build/python-guest/{name} is missing, the interpreter of Python blocks, which a wheel carries. "
                    "Run once, in this folder: scripts/prepare dev && scripts/build-python-guest"
                )
            build_data["force_include"][str(interpreter / name)] = f"cuttlefish/interpreters/{name}"
