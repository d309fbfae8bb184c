"""The benchmarks run. What they find is for people to judge: a test on a shared machine says nothing about speed."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

OURS, FLOOR, QUICKEST, BARE, EXTISM = "cuttlefish", "unchecked floor", "unchecked, quickest", "bare wasmtime", "extism"
SIZES = ("64 B", "4 KB", "64 KB", "1 MB")

WANTED = {
    "step": {(size, peer) for size in SIZES for peer in (OURS, FLOOR, QUICKEST, BARE, EXTISM, "extism, call alone")},
    "walk": {(case, peer) for case in ("whole file", "slices per second") for peer in (OURS, BARE, FLOOR)}
    | {("private memory, peak beyond that of a tenth", OURS)},
    "tokens": {
        *(("token to verdict", who) for who in ("cuttlefish, block hears tokens", "cuttlefish, block does not")),
        ("token to verdict", "bare wasmtime on a worker thread"),
        *(("the call by itself, no hop", peer) for peer in (OURS, BARE, EXTISM)),
        *(("longest stall of the event loop", who) for who in ("cuttlefish, block hears tokens", "cuttlefish, block does not")),
        ("longest stall of the event loop", "nothing to do"),
    },
    "start": {(f"{how}, echo.wasm", peer) for how in ("cold", "cached") for peer in (OURS, BARE, EXTISM)}
    | {(f"{how}, word-count.wasm", peer) for how in ("cold", "cached") for peer in (OURS, BARE)}
    | {("cached, a whole job", OURS)},
    "cancel": {("spinning guest", peer) for peer in (OURS, BARE, EXTISM)},
    "memory": {("private memory after 100 jobs", peer) for peer in (OURS, BARE, EXTISM)}
    | {("descriptors left", OURS), ("threads left", OURS)},
}

SAME_OUTPUT = {
    "step": [OURS, FLOOR, QUICKEST, BARE, EXTISM],
    "walk": [OURS, BARE, FLOOR],
    "tokens": ["cuttlefish, block hears tokens", "cuttlefish, block does not"],
    "start": [OURS, BARE, EXTISM],
    "cancel": [],
    "memory": [],
}

PDFIUM = "bare pypdfium2"
WANTED_OF_DOCUMENTS = {
    "text": {("whole text", peer) for peer in (OURS, PDFIUM, "bare pypdfium2, opening it anew")},
    "pages": {("page by page", peer) for peer in (OURS, PDFIUM, "cuttlefish, a whole job")},
    "images": {(case, peer) for case in ("a page of text", "a photograph") for peer in (OURS, PDFIUM)},
    "together": {("two documents", peer) for peer in (OURS, "cuttlefish, one after the other")},
}
PEERS_WHERE_INSTALLED = {"pdftotext": shutil.which("pdftotext"), "PyMuPDF": importlib.util.find_spec("pymupdf")}


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a quick run prints, and the JSON that it writes."""
    results = tmp_path_factory.mktemp("benchmarks") / "quick.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "guest", "--quick", "--json", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(results.read_text(encoding="utf-8"))


def test_a_quick_run_writes_every_number_of_every_contestant(quick_run: tuple[str, dict[str, Any]]) -> None:
    _, report = quick_run
    found = {part["name"]: {(row["case"], row["peer"]) for row in part["rows"]} for part in report["parts"]}
    assert found == WANTED


def test_the_contestants_of_a_quick_run_give_the_same_output(quick_run: tuple[str, dict[str, Any]]) -> None:
    _, report = quick_run
    assert {part["name"]: part["same_output"] for part in report["parts"]} == SAME_OUTPUT


def test_a_quick_run_says_what_it_ran_on_and_prints_what_it_writes(quick_run: tuple[str, dict[str, Any]]) -> None:
    printed, report = quick_run
    assert report["quick"] is True
    assert {"cores", "python", "cuttlefish", "wasmtime", "extism"} <= report["machine"].keys()
    for part in report["parts"]:
        assert f"\n{part['name']}: {part['what']}\n" in printed
        assert all(target["text"] in printed for target in part["targets"])


def test_a_contestant_that_answers_differently_ends_the_run() -> None:
    from benchmarks import step
    from benchmarks.peers import Live

    def live(answer: bytes) -> Live:
        return Live(init=bytes, step=lambda _: answer, read=bytes, on_token=bytes)

    with pytest.raises(AssertionError, match="answer 4 bytes differently"):
        step.compare({OURS: live(b"same"), BARE: live(b"othr")}, b"1234")


def test_a_quick_run_on_documents_writes_every_number_of_every_contestant_and_all_of_them_read_the_same(tmp_path: Path) -> None:
    results = tmp_path / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "documents", "--quick", "--json", str(results)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(results.read_text(encoding="utf-8"))
    assert report["quick"] is True
    assert "pypdfium2" in report["machine"]
    wanted = {name: set(rows) for name, rows in WANTED_OF_DOCUMENTS.items()}
    wanted["text"] |= {("whole text", peer) for peer, there in PEERS_WHERE_INSTALLED.items() if there}
    assert {part["name"]: {(row["case"], row["peer"]) for row in part["rows"]} for part in report["parts"]} == wanted
    for part in report["parts"]:
        assert set(part["same_output"]) == {row["peer"] for row in part["rows"]}
        assert all(target["text"] in done.stdout for target in part["targets"])


async def test_a_reader_that_finds_other_words_ends_the_run_and_one_that_breaks_lines_elsewhere_does_not() -> None:
    from benchmarks import documents
    from benchmarks.report import Part

    async def compared(theirs: str) -> list[str]:
        async def read(text: str) -> str:
            return text

        part = Part("text", "", rows=[], targets=[])
        await documents.compare(part, {OURS: lambda: read(theirs), PDFIUM: lambda: read("two words")}, documents.words)
        return part.same_output

    assert await compared("two\nwords\n") == [OURS, PDFIUM]
    with pytest.raises(AssertionError, match="text: cuttlefish gives something else"):
        await compared("two word")


@pytest.mark.parametrize(("suite", "parts"), [("guest", list(WANTED)), ("documents", list(WANTED_OF_DOCUMENTS))])
def test_the_committed_results_are_of_a_full_run(suite: str, parts: list[str]) -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / f"{suite}.json").read_text(encoding="utf-8"))
    assert report["quick"] is False
    assert [part["name"] for part in report["parts"]] == parts


def test_a_quick_run_on_agents_calls_a_tool_beside_the_library_and_times_a_start(tmp_path: Path) -> None:
    results = tmp_path / "quick.json"
    command = [sys.executable, "-m", "benchmarks", "agents", "--quick", "--json", str(results)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(results.read_text(encoding="utf-8"))
    found = {part["name"]: [row["case"] for row in part["rows"]] for part in report["parts"]}
    assert found == {"calls": ["one call"] * 2, "ready": ["start to first answer", "end of input to exit"]}
