"""What several rooms' tests share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.running import RunningServer, model_server

from cuttlefish.inference.models.folder import models_folder as default_folder
from cuttlefish.inference.models.pull import pull

# Never there: the catalogue of whoever runs the tests takes no part in them. Before any test module reads the environment.
os.environ["CUTTLEFISH_BLOCKS"] = str(Path(__file__).parent / "no-blocks")


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real test model in it. `scripts/test` sets `CUTTLEFISH_MODELS`; without it each session pulls anew."""
    folder = default_folder() if os.environ.get("CUTTLEFISH_MODELS") else tmp_path_factory.mktemp("models")
    pull("smollm2", folder=folder, report=print)
    return folder


@pytest.fixture(scope="session")
def colour_model(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads images: the real test model, and beside it a toy image reader that tells plain colours."""
    folder = tmp_path_factory.mktemp("colour")
    model = folder / "colour.gguf"
    model.symlink_to(models_folder / "smollm2.gguf")
    script = Path(__file__).parent / "servers" / "colour_projector.py"
    # In a child: numpy and gguf stay out of this process, where warnings are errors.
    subprocess.run([sys.executable, str(script), str(model), str(folder / "colour-mmproj.gguf")], check=True)
    return model


@pytest.fixture(scope="session")
def text_server(models_folder: Path) -> Iterator[RunningServer]:
    """The real test model behind OpenAI's and Ollama's protocols, in a child process."""
    with model_server(models_folder / "smollm2.gguf") as server:
        yield server


@pytest.fixture(scope="session")
def vector_server(models_folder: Path) -> Iterator[RunningServer]:
    """The same for vectors."""
    with model_server(models_folder / "smollm2.gguf", "--vectors") as server:
        yield server


@pytest.fixture(scope="session")
def colour_server(colour_model: Path) -> Iterator[RunningServer]:
    """The same with the toy image reader."""
    with model_server(colour_model, "--projector", str(colour_model.parent / "colour-mmproj.gguf")) as server:
        yield server
