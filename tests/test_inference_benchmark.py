"""The inference benchmark runs. What it finds is for people to judge: a test on a shared machine says nothing about speed."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OURS, ENGINE = "cuttlefish", "bare xllamacpp"
WANTED = {
    "rate": {(f"{count} at once", who) for count in ("1 job", "2 jobs", "4 jobs", "8 jobs") for who in (OURS, ENGINE)}
    | {("longer by the clock, per token", OURS), ("more processor time, per token", OURS)},
    "pieces": {
        ("from the engine to the verdict", OURS),
        ("from the engine to the verdict", f"{ENGINE}, hops alone"),
        ("the asking thread held, per message", OURS),
        ("longest stall of the event loop", OURS),
        ("longest stall of the event loop", f"{ENGINE} on threads"),
    },
    "prefix": {(case, who) for case in ("first job", "second job, same beginning") for who in (OURS, ENGINE)},
}


def test_a_quick_run_writes_every_number_of_every_contestant(tmp_path: Path) -> None:
    results = tmp_path / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "inference", "--quick", "--json", str(results)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(results.read_text(encoding="utf-8"))
    assert report["quick"] is True
    assert {part["name"]: {(row["case"], row["peer"]) for row in part["rows"]} for part in report["parts"]} == WANTED
    assert report["parts"][0]["same_output"] == [OURS, ENGINE]
    assert report["machine"]["xllamacpp"] != "not installed"
    assert all(target["text"] in done.stdout for part in report["parts"] for target in part["targets"])
