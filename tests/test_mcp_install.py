"""`cuttlefish mcp install`: other people's configuration is changed in one place, once it was shown, or not at all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cuttlefish.cli import main
from cuttlefish.cli.main import CLIENT_NAMES
from cuttlefish.mcp.install import CLIENTS, Change, InstallError, plan_change, server_entry, write_change

CURSOR = CLIENTS["cursor"]
ENTRY = server_entry(CURSOR, ["/pipelines"], {})


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "p.toml"
    path.write_text('name = "p"\nblock = "word-count"\n')
    return path


def install(*words: str | Path) -> int:
    return main(["mcp", "install", *map(str, words)])


def test_the_command_line_knows_every_client() -> None:
    assert set(CLIENT_NAMES) == set(CLIENTS)


def test_print_shows_the_entry_and_writes_nothing(
    pipeline: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUTTLEFISH_MODELS", "CUTTLEFISH_CACHE", "CUTTLEFISH_LOG_DIR", "CUTTLEFISH_BLOCKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUTTLEFISH_MODELS", "models")
    monkeypatch.chdir(tmp_path)
    code = install(
        "p.toml", "--client", "vscode", "--print", "--read", ".", "--model", "stub:x", "--limit", "job.time=60", "--allow-pipelines"
    )
    entry = json.loads(capsysbinary.readouterr().out)["servers"]["cuttlefish"]
    arguments = ["-m", "cuttlefish", "mcp", str(pipeline), "--model", "stub:x", "--read", str(tmp_path), "--limit", "job.time=60"]
    assert (code, entry) == (
        0,
        {
            "type": "stdio",
            "command": sys.executable,
            "args": [*arguments, "--allow-pipelines"],
            "env": {"CUTTLEFISH_MODELS": str(tmp_path / "models")},
        },
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.toml"]


def test_other_entries_stay_and_the_old_file_is_kept(
    pipeline: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "mcp.json"
    old = '{"theme": "ö", "mcpServers": {"other": {"command": "x"}, "cuttlefish": {"command": "old"}}}'
    file.write_text(old)
    file.chmod(0o640)
    assert install(pipeline, "--client", "cursor", "--file", file, "--yes") == 0
    told = capsysbinary.readouterr().out.decode()
    assert '+      "command": ' in told
    backup = tmp_path / "mcp.json.before-cuttlefish"
    assert told.endswith(f"written; what it was is in {backup}. Start Cursor anew to see the tools\n")
    new = json.loads(file.read_text())
    assert (new["theme"], new["mcpServers"]["other"]) == ("ö", {"command": "x"})
    assert new["mcpServers"]["cuttlefish"]["args"][:4] == ["-m", "cuttlefish", "mcp", str(pipeline)]
    assert (backup.read_text(), file.stat().st_mode & 0o777) == (old, 0o640)
    assert install(pipeline, "--client", "cursor", "--file", file, "--yes") == 0
    assert capsysbinary.readouterr().out.decode() == f"{file} has it already\n"
    assert backup.read_text() == old


def test_the_installed_entry_starts_a_server(pipeline: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "mcp.json"
    assert install(pipeline, "--client", "claude", "--file", file, "--yes") == 0
    entry = json.loads(file.read_text())["mcpServers"]["cuttlefish"]
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    ask = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}).encode()
    done = subprocess.run([entry["command"], *entry["args"]], input=ask, capture_output=True, timeout=60)
    assert json.loads(done.stdout)["result"]["tools"][0]["name"] == "p"


def test_without_yes_nothing_is_written_where_nobody_can_be_asked(pipeline: Path, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    command = [sys.executable, "-m", "cuttlefish", "mcp", "install", str(pipeline), "--client", "cursor", "--file", str(file)]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (2, "cuttlefish: nothing is written yet: give --yes if this is meant\n")
    assert not file.exists()


CANNOT = {
    "comments": ("{// mine\n}", "it is no plain JSON (comments, perhaps); put the entry in by hand, --print shows it"),
    "a list": ("[]", '"mcpServers" should be a table of servers'),
    "no table": ('{"mcpServers": []}', '"mcpServers" should be a table of servers'),
}


@pytest.mark.parametrize(("text", "told"), CANNOT.values(), ids=CANNOT)
def test_a_file_that_is_not_understood_is_left_as_it_is(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(text)
    with pytest.raises(InstallError) as failure:
        plan_change(CURSOR, file, "cuttlefish", ENTRY)
    assert str(failure.value) == f"{file} is left as it is: {told}"
    assert file.read_text() == text


def test_a_file_that_changes_after_it_was_shown_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    change = plan_change(CURSOR, file, "cuttlefish", ENTRY)
    file.write_text("{}")
    with pytest.raises(InstallError, match="was changed by something else meanwhile; try again"):
        write_change(change)
    assert file.read_text() == "{}"


def test_a_failed_write_leaves_the_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{}")
    change = Change(file, b"{}", b"new")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cuttlefish.mcp.install.os.fsync", fail)
    with pytest.raises(InstallError, match="cannot be written: no space left on device"):
        write_change(change)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mcp.json", "{}")]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "mcp.json"
    real.write_text("{}")
    link.symlink_to(real)
    write_change(plan_change(CURSOR, link, "cuttlefish", ENTRY))
    assert link.is_symlink()
    assert json.loads(real.read_text())["mcpServers"]["cuttlefish"] == ENTRY
