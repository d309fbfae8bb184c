"""Damaged files of every kind: a known outcome for each, and a host that goes on. `scripts/fuzz` runs more of them by hand."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


def test_damaged_files_have_known_outcomes_within_their_limits_and_the_next_job_is_right() -> None:
    """In a process of its own, because memory is measured."""
    command = [sys.executable, "-W", "error", str(SCRIPTS / "fuzz"), "--seeds", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.startswith("200 files: ")
