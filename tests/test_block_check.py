"""`cuttlefish block check`: what it finds in blocks that are well and in ones that are not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from cuttlefish import BlockBytes, open_host
from cuttlefish.authoring.check import Finding, check_block
from cuttlefish.authoring.sources import find_source
from cuttlefish.limits import Limits
from guests import SPIN, scripted

EMIT = {"cmd": "emit", "progress": 1}
EMITTED = {"event": "emitted"}
DONE = {"cmd": "done", "result": 3}
CASE = [{"input": {}}, {"command": EMIT}, {"event": EMITTED}, {"command": DONE}]
SIGNATURE = "json -> number"
ROOT = Path(__file__).resolve().parent.parent


def write(folder: Path, block: BlockBytes, *case: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "own.wasm").write_bytes(block.wasm)
    (folder / "cases").mkdir(exist_ok=True)
    if case:
        (folder / "cases" / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in case))
    return folder


def findings(folder: Path, **limits: object) -> dict[str, Finding]:
    async def check() -> dict[str, Finding]:
        async with open_host(limits=limits) as host:
            found = check_block(host, find_source(folder), Limits().with_values(limits))
            return {finding.check: finding async for finding in found}

    return trio.run(check)


def anew(*commands: object, **parts: Any) -> BlockBytes:
    """A block that starts anew with its input, unlike `scripted` by itself."""
    return scripted(*commands, init="(global.set $next (i32.const 0))", **parts)


def test_a_block_that_is_well_has_nothing_but_well_findings(tmp_path: Path) -> None:
    found = findings(write(tmp_path, anew(EMIT, DONE, signature=SIGNATURE), *CASE))
    assert [(check, finding.verdict) for check, finding in found.items()] == [
        (check, "well") for check in ("load", "signature", "cases", "determinism", "memory", "step time")
    ]
    assert found["memory"].message.startswith("stays at 192 KiB over 5,0")


def test_a_block_that_ships_is_well() -> None:
    found = findings(ROOT / "blocks" / "join" / "join.wasm")
    assert {finding.verdict for finding in found.values()} == {"well"}


def test_what_does_not_load_is_the_only_finding(tmp_path: Path) -> None:
    found = findings(write(tmp_path, BlockBytes("own.wasm", b"\0asm\x01\0\0\0"), *CASE))
    assert found == {
        "load": Finding(
            "load", "wrong", 'unsupported: "own.wasm" has no export "memory"; a block exports its memory under that name'
        )
    }


@pytest.mark.parametrize(
    ("signature", "message"), [(None, "it exports none, which means json -> json"), ("json -> json", "json -> json")]
)
def test_a_signature_that_says_nothing_is_a_warning(tmp_path: Path, signature: str | None, message: str) -> None:
    finding = findings(write(tmp_path, anew(EMIT, DONE, signature=signature), *CASE))["signature"]
    assert (finding.verdict, finding.message) == ("warning", message)
    assert finding.advice


def test_a_block_without_cases_is_told_how_to_record_one(tmp_path: Path) -> None:
    found = findings(write(tmp_path, anew(DONE)))
    assert list(found) == ["load", "signature", "cases"]
    assert found["cases"].verdict == "warning"
    assert found["cases"].advice == f"record one: cuttlefish run {tmp_path}/own.wasm --input … --record {tmp_path}/cases/NAME.jsonl"


def test_cases_that_do_not_pass_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, anew(EMIT, DONE, signature=SIGNATURE), *CASE)
    (folder / "cases" / "two.jsonl").write_text('{"input": 1}\n{"command": {"cmd": "done", "result": 4}}\n')
    (folder / "cases" / "odd.jsonl").write_text("odd")
    finding = findings(folder)["cases"]
    assert (finding.verdict, finding.message) == ("wrong", "2 of 3 cases do not pass: odd, two")
    assert finding.advice == f"cuttlefish block test {tmp_path} shows where"


def test_an_instance_that_remembers_is_a_warning(tmp_path: Path) -> None:
    """`scripted` goes on where it was, and says `done` at once when it is started again."""
    finding = findings(write(tmp_path, scripted(EMIT, DONE, signature=SIGNATURE), *CASE))["determinism"]
    assert (finding.verdict, finding.message) == ("warning", "one: an instance that ran before answers otherwise than a fresh one")


GROW_AT_TIMES = """
  (global $steps (mut i32) (i32.const 0))
  (func $grow_at_times
    (global.set $steps (i32.add (global.get $steps) (i32.const 1)))
    (if (i32.eqz (i32.and (global.get $steps) (i32.const 63))) (then (drop (memory.grow (i32.const 1))))))"""


def test_memory_that_grows_is_a_warning(tmp_path: Path) -> None:
    block = anew(EMIT, DONE, signature=SIGNATURE, step="(call $grow_at_times)", extra=GROW_AT_TIMES)
    finding = findings(write(tmp_path, block, *CASE))["memory"]
    assert (finding.verdict, finding.message[:7]) == ("warning", "grows: ")


def test_a_block_that_breaks_down_is_told_and_ends_no_check(tmp_path: Path) -> None:
    found = findings(write(tmp_path, anew(EMIT, DONE, signature=SIGNATURE, step="unreachable"), *CASE))
    assert (found["cases"].verdict, found["determinism"].verdict, found["memory"].verdict) == ("wrong", "well", "warning")
    assert "stopped itself (unreachable code) in cf_step" in found["memory"].message


def test_a_block_that_spins_is_stopped(tmp_path: Path) -> None:
    found = findings(write(tmp_path, anew(EMIT, DONE, signature=SIGNATURE, step=SPIN), *CASE), **{"guest.step_time": 0.1})
    assert (found["cases"].verdict, found["memory"].verdict) == ("wrong", "warning")


WORK = """
  (func $work (local $n i32)
    (local.set $n (i32.const 300000000))
    (loop $more (local.set $n (i32.sub (local.get $n) (i32.const 1))) (br_if $more (local.get $n))))"""


def test_a_step_that_takes_a_tenth_of_its_limit_is_a_warning(tmp_path: Path) -> None:
    block = anew(EMIT, DONE, signature=SIGNATURE, extra=WORK, step="(call $work)")
    finding = findings(write(tmp_path, block, *CASE), **{"guest.step_time": 0.5})["step time"]
    assert finding.verdict == "warning"
    assert finding.message.endswith("; a host allows 0.5 s (guest.step_time)")


def check(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cuttlefish", "block", "check", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_the_command_shows_each_finding_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "own", anew(DONE, signature="json -> text"), {"input": 1}, {"command": DONE})
    done = check("own", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert lines[1] == "well     signature    json -> text"
    assert lines[2:4] == [
        "wrong    cases        1 of 1 case does not pass: one",
        "                      → cuttlefish block test own shows where",
    ]
    report = json.loads(check("own", "--json", cwd=tmp_path).stdout)
    assert (report["block"], report["ok"]) == ("own", False)
    assert report["findings"][1] == {"check": "signature", "verdict": "well", "message": "json -> text", "advice": None}


def test_a_warning_alone_is_no_failure_and_no_block_is_wrong_use(tmp_path: Path) -> None:
    write(tmp_path / "own", anew(DONE))
    assert check("own", cwd=tmp_path).returncode == 0
    done = check("onw", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", 'cuttlefish: there is no "onw"; did you mean "own"?\n')
