"""Starting `model_server.py`, and asking it what its slots do."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEY = "sk-the-key-of-the-test-server"
KEY_VARIABLE = "CUTTLEFISH_TEST_KEY"


@dataclass(frozen=True)
class RunningServer:
    openai: str
    ollama: str

    @property
    def model(self) -> str:
        """The model by OpenAI's protocol; the variable must be set."""
        return f"openai:{self.openai}/v1?key={KEY_VARIABLE}#smollm2"

    def busy_slots(self) -> int:
        return busy_slots(self.openai, KEY)

    def tokens_made(self) -> int:
        return counter(self.openai, KEY, "tokens_predicted_total")


def counter(url: str, key: str, name: str) -> int:
    """One of an engine's own counters, such as the tokens it has made since it began. Blocking."""
    request = urllib.request.Request(f"{url}/metrics", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = re.search(rf"^llamacpp:{name} (\S+)", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def busy_slots(url: str, key: str) -> int:
    """How many prompts an engine works on, by its own word. Blocking."""
    request = urllib.request.Request(f"{url}/slots", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return sum(slot["is_processing"] for slot in json.load(answer))


@contextmanager
def model_server(model: Path, *options: str) -> Iterator[RunningServer]:
    """The server for as long as the block lasts."""
    command = [sys.executable, str(Path(__file__).parent / "model_server.py"), str(model), *options]
    env = {**os.environ, "MODEL_SERVER_KEY": KEY}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        where = json.loads(child.stdout.readline())
        yield RunningServer(where["openai"], where["ollama"])
        child.stdin.close()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
