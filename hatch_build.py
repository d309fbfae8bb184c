"""Puts into the wheel what is compiled: the blocks that ship, each as `cuttlefish/builtin/NAME.wasm`, and the interpreter of Python
blocks, as `cuttlefish/interpreters/python.wasm`. A block needs no line in pyproject.toml.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShipBlocks(BuildHookInterface[Any]):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add what is compiled; an editable installation finds it where it is built.

        Raises:
            FileNotFoundError: the interpreter was not built.
        """
        if version == "editable":
            return
        included = build_data["force_include"]
        for path in sorted(Path(self.root, "blocks").glob("*/*.wasm")):
            included[str(path)] = f"cuttlefish/builtin/{path.name}"
        interpreter = Path(self.root, "build", "python-guest")
        for name in ("python.wasm", "LICENSE.micropython.txt"):
            if not (interpreter / name).is_file():
                raise FileNotFoundError(
                    f"build/python-guest/{name} is missing: run scripts/build-python-guest before making a wheel"
                )
            included[str(interpreter / name)] = f"cuttlefish/interpreters/{name}"
