"""What several rooms' tests share."""

import os
from pathlib import Path

import pytest

from cuttlefish.inference import models


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real test model in it. `scripts/test` sets `CUTTLEFISH_MODELS`; without it each session pulls anew."""
    folder = models.models_folder() if os.environ.get("CUTTLEFISH_MODELS") else tmp_path_factory.mktemp("models")
    models.pull("smollm2", folder=folder, report=print)
    return folder
