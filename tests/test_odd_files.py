"""Every odd file gives a block exactly what is written beside it in `tests/odd`, and leaves a host that works."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from odd import ODD_FILES
from odd.expected import OddFile
from odd.observe import differences, of_page, opening, recording, told

from cuttlefish import Host, open_host
from guests import echo

SCRIPT = Path(__file__).parent.parent / "scripts" / "make-odd-files"
AT_ONCE = 2  # files of different kinds, so that none disturbs another


async def _look_at_all(files: list[OddFile], folder: Path) -> dict[str, list[str]]:
    """What is wrong with each of them."""
    found: dict[str, list[str]] = {}
    remaining = list(reversed(files))
    (folder / "good.pdf").write_bytes(ODD_FILES["plain.pdf"].make())
    with recording() as shown:

        async def work(host: Host) -> None:
            while remaining:
                file = remaining.pop()
                (folder / file.name).write_bytes(file.make())
                found[file.name] = await differences(host, folder, file, shown)
                good = await told(host, folder, opening("good.pdf"), of_page("page_text", 0))
                if not isinstance(good, list) or good[-1]["text"] != "good":
                    found[file.name].append(f"the good document after it: {good}")

        async with open_host() as host, trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(work, host)
    return found


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is wrong with each file whose test was chosen, all through one host: a host for each would take ten times as long."""
    test = test_an_odd_file_gives_exactly_what_is_expected_of_it
    chosen = {item.callspec.params["name"] for item in request.session.items if getattr(item, "function", None) is test}
    files = [file for file in ODD_FILES.values() if file.name in chosen]
    return trio.run(_look_at_all, files, tmp_path_factory.mktemp("odd"))


@pytest.mark.parametrize("name", ODD_FILES)
def test_an_odd_file_gives_exactly_what_is_expected_of_it(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == []


@pytest.mark.parametrize("name", [file.name for file in ODD_FILES.values() if file.password])
async def test_a_locked_file_opens_with_its_password_and_with_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = ODD_FILES[name]
    (tmp_path / name).write_bytes(file.make())
    commands = [opening(name), of_page("page_text", 0)]
    async with open_host() as host:
        for password, seen in ((file.password, "secret words"), ("another", None), (file.password, "secret words")):
            monkeypatch.setenv("ODD_PASSWORD", str(password))
            envelope = await host.run(echo(), commands, read=[tmp_path], base_dir=tmp_path, password_env="ODD_PASSWORD")
            if seen is None:
                assert envelope.error is not None
                assert envelope.error.code == "document_password"
                assert password not in envelope.error.message
            else:
                assert isinstance(envelope.result, list), envelope.error
                assert envelope.result[-1]["text"] == seen  # type: ignore[index,call-overload]  # an event


def test_the_script_writes_every_odd_file_with_what_is_expected_and_always_the_same(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], check=True, capture_output=True)
    expected = json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))
    assert len(expected) >= 80
    assert {path.name for path in tmp_path.iterdir()} == {*expected, "expected.json"}
    assert expected["locked-aes-256.pdf"] == {
        "outcome": "refused",
        "code": "document_password",
        "says": "is locked with a password, and none was given",
        "password": "pass",
    }
    changed = [name for name, file in ODD_FILES.items() if (tmp_path / name).read_bytes() != file.make()]
    assert changed == []
