"""The pipeline benchmark runs. What it finds is for people to judge: a test on a shared machine says nothing about speed."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OURS, ALONE, TRIO, HAMILTON = "cuttlefish", "the same blocks alone", "plain trio", "hamilton"
SHAPES = ("chain", "wide")
WANTED = {
    "check": {(shape, peer) for shape in SHAPES for peer in (OURS, HAMILTON)},
    "nodes": {(f"{shape}, blocks", peer) for shape in SHAPES for peer in (OURS, ALONE, TRIO)}
    | {(f"{shape}, nothing", peer) for shape in SHAPES for peer in (OURS, TRIO, HAMILTON)},
}


def test_a_quick_run_writes_every_number_of_every_contestant(tmp_path: Path) -> None:
    results = tmp_path / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "pipeline", "--quick", "--json", str(results)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(results.read_text(encoding="utf-8"))
    assert report["quick"] is True
    assert {part["name"]: {(row["case"], row["peer"]) for row in part["rows"]} for part in report["parts"]} == WANTED
    assert report["parts"][1]["same_output"] == [OURS, ALONE, TRIO, HAMILTON]
    assert all(target["text"] in done.stdout for part in report["parts"] for target in part["targets"])


def test_the_committed_results_are_of_a_full_run() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "pipeline.json").read_text(encoding="utf-8"))
    assert report["quick"] is False
    assert [part["name"] for part in report["parts"]] == list(WANTED)


def test_a_part_of_another_suite_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "pipeline", "--only", "walk"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pipeline has no part walk; it has check, nodes" in done.stderr
