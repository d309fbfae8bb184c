"""A folder with blocks and pipeline files, for tests of pipelines."""

from pathlib import Path

from flow_guests import passing

from cuttlefish import BlockBytes, Host
from cuttlefish.pipeline.graph import Graph
from cuttlefish.pipeline.spec import PipelineError

__all__ = ["Folder"]


class Folder:
    """A folder that a test fills. Pipelines in it are called by their path from there, which is the current folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def block(self, name: str, block: BlockBytes | str, before: str = "", after: str = "") -> None:
        """Write `NAME.wasm`: these bytes, or a block of this signature which gives its input back between `before` and `after`."""
        made = passing(block, before, after, f"{name}.wasm") if isinstance(block, str) else block
        (self.path / f"{name}.wasm").write_bytes(made.wasm)

    def file(self, name: str, text: str | bytes) -> Path:
        """Write a file, and the folders to it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    async def problems(self, host: Host, text: str) -> list[str]:
        """What `p.toml` with this text is told, warnings too."""
        self.file("p.toml", text)
        try:
            graph: Graph = await host.check("p.toml")
        except PipelineError as error:
            return list(map(str, error.problems))
        return list(map(str, graph.warnings))
