"""Families of pipelines: a file `family.toml` beside them, which their `family` refers to.

```toml
[papers]
description = "Reads the papers of this folder."
model = "llama-cpp:smollm2"
```
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cuttlefish.pipeline.forms import Families, FamilyForm
from cuttlefish.pipeline.spec import read_file, read_form

__all__ = ["FAMILY_FILE", "LoadedFamilies", "load_families"]

FAMILY_FILE = "family.toml"


@dataclass(frozen=True, slots=True)
class LoadedFamilies:
    """The families of a file, and the folder that their paths are relative to."""

    families: Mapping[str, FamilyForm]
    folder: Path


def load_families(file: Path) -> LoadedFamilies:
    """Read a file of families. Blocking.

    Raises:
        PipelineError: the file cannot be read, or does not have this form. Everything that is wrong, with its line.
    """
    families, _ = read_form(read_file(file, str(file)), str(file), Families)
    return LoadedFamilies(families.root, file.parent.absolute())
