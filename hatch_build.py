"""Puts the blocks that ship into the wheel, each as `cuttlefish/builtin/NAME.wasm`. A block needs no line in pyproject.toml."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShipBlocks(BuildHookInterface[Any]):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled blocks; an editable installation finds them where they are built."""
        if version != "editable":
            for path in sorted(Path(self.root, "blocks").glob("*/*.wasm")):
                build_data["force_include"][str(path)] = f"cuttlefish/builtin/{path.name}"
