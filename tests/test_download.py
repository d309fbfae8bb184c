"""Downloads that go on where they were cut short: from a real server on loopback that breaks down in every way we know."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from servers.wheel_index import (
    Fault,
    WheelIndex,
    answers,
    answers_without_length,
    drops_at,
    falls_silent_after,
    is_silent,
    knows_no_ranges,
    resets,
    sends_to,
    serves,
    wheel_index,
)

from cuttlefish.inference.models import download as module
from cuttlefish.inference.models.download import BrokenOff, Refused, download

WHEEL = bytes(i * i % 251 for i in range(300_000))
HALF = 150_000


class Stopped(Exception):
    pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelIndex]:
    monkeypatch.setattr(module, "WAITS_S", (0.0, 0.0, 0.0))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "file.whl"
    path.write_bytes(WHEEL)
    with wheel_index(path) as index:
        yield index


def fetch(index: WheelIndex, part: Path, lines: list[str] | None = None, shown: list[int] | None = None) -> bool:
    report = (lambda line: None) if lines is None else lines.append
    on_progress = (lambda done: None) if shown is None else shown.append
    return download(index.url, part, len(WHEEL), report=report, on_progress=on_progress, check=lambda: None)


def test_a_file_is_fetched_whole_and_its_progress_shown(index: WheelIndex, tmp_path: Path) -> None:
    shown: list[int] = []
    assert fetch(index, tmp_path / "part", shown=shown) is False
    assert (tmp_path / "part").read_bytes() == WHEEL
    assert shown == sorted(shown)
    assert shown[-1] == len(WHEEL)
    assert index.asked == [None]


def test_only_the_rest_of_a_part_is_asked_for_and_sent(index: WheelIndex, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(WHEEL[:HALF])
    assert fetch(index, part) is True
    assert part.read_bytes() == WHEEL
    assert (index.asked, index.sent) == ([f"bytes={HALF}-"], len(WHEEL) - HALF)


def test_a_whole_part_asks_nobody(index: WheelIndex, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(WHEEL)
    assert fetch(index, part) is True
    assert index.asked == []


def test_connections_that_drop_are_gone_on_from_where_they_ended(index: WheelIndex, tmp_path: Path) -> None:
    index.faults = [drops_at(100_000), resets, answers(503), drops_at(200_000)]
    lines: list[str] = []
    with pytest.raises(BrokenOff, match="the connection broke off at 0 of 0 MB"):
        fetch(index, tmp_path / "part", lines)
    assert index.asked == [None, "bytes=100000-", "bytes=100000-", "bytes=100000-"]
    assert index.sent == 200_000
    assert lines[1:] == [
        "the server was not reached; asking again in 0 s",
        "the server answered with status 503; asking again in 0 s",
    ]
    fetch(index, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == WHEEL
    assert index.sent == len(WHEEL)


def test_failures_are_counted_anew_after_enough_has_come(
    index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GAIN_BYTES", 30_000)
    index.faults = [drops_at(end) for end in range(30_000, 300_000, 30_000)]
    fetch(index, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == WHEEL
    assert index.sent == len(WHEEL)


def test_a_server_without_ranges_starts_at_the_beginning(index: WheelIndex, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"?" * HALF)
    index.faults = [knows_no_ranges]
    assert fetch(index, part) is False
    assert part.read_bytes() == WHEEL


@pytest.mark.parametrize(
    "fault",
    [answers(416), answers(206, b"abc", Content_Range="bytes 0-2/300000"), answers(206, b"abc")],
    ids=["416", "another place", "no place"],
)
def test_a_range_that_is_not_served_as_asked_is_fetched_from_the_beginning(index: WheelIndex, tmp_path: Path, fault: Fault) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"?" * HALF)
    index.faults = [fault]
    assert fetch(index, part) is False
    assert part.read_bytes() == WHEEL
    assert index.asked == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416, 206, 204])
def test_a_refusal_keeps_the_part_and_is_not_asked_again(index: WheelIndex, tmp_path: Path, status: int) -> None:
    index.faults = [answers(status)]
    with pytest.raises(Refused):
        fetch(index, tmp_path / "part")
    assert index.asked == [None]
    if status not in (206, 416):
        (tmp_path / "part").write_bytes(WHEEL[:HALF])
        index.faults = [answers(status)]
        with pytest.raises(Refused, match=f"status {status}"):
            fetch(index, tmp_path / "part")
        assert (tmp_path / "part").read_bytes() == WHEEL[:HALF]


@pytest.mark.parametrize("begun", [0, HALF])
@pytest.mark.parametrize("other", [WHEEL[:-1], WHEEL + b"?", b"Please log in to this network"], ids=["shorter", "longer", "login"])
def test_a_file_of_another_size_is_refused_before_a_byte_is_written(
    index: WheelIndex, tmp_path: Path, begun: int, other: bytes
) -> None:
    part = tmp_path / "part"
    part.write_bytes(WHEEL[:begun])
    index.faults = [serves(other) if len(other) > HALF else answers_without_length(200, other)]
    with pytest.raises(Refused, match="the server has another file there, going by its size"):
        fetch(index, part)
    assert part.read_bytes() == WHEEL[:begun]


def test_no_more_is_written_than_the_file_has_whatever_is_sent(index: WheelIndex, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(WHEEL[:HALF])
    index.faults = [answers_without_length(206, WHEEL[HALF:] + b"?" * HALF, Content_Range=f"bytes {HALF}-599999/*")]
    fetch(index, part)
    assert part.read_bytes() == WHEEL


def test_a_refusal_after_some_came_is_a_download_that_broke_off(index: WheelIndex, tmp_path: Path) -> None:
    index.faults = [drops_at(HALF), answers(403)]
    with pytest.raises(BrokenOff, match="status 403"):
        fetch(index, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == WHEEL[:HALF]


def test_a_server_that_falls_silent_is_asked_again(index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.faults = [falls_silent_after(HALF)]
    lines: list[str] = []
    patience = module.SILENCE_S

    def on_progress(done: int) -> None:
        if done == HALF:  # not before: a busy machine takes its time to connect
            monkeypatch.setattr(module, "SILENCE_S", 1.0)

    def report(line: str) -> None:
        monkeypatch.setattr(module, "SILENCE_S", patience)
        lines.append(line)

    part = tmp_path / "part"
    download(index.url, part, len(WHEEL), report=report, on_progress=on_progress, check=lambda: None)
    assert part.read_bytes() == WHEEL
    assert lines == ["the server was silent for 1 s; asking again in 0 s"]


@pytest.mark.parametrize("fault", [is_silent, falls_silent_after(HALF)], ids=["no answer", "in the middle"])
def test_a_download_that_is_stopped_keeps_its_part_and_leaves_no_connection(
    index: WheelIndex, tmp_path: Path, fault: Fault
) -> None:
    index.faults = [fault]
    part = tmp_path / "part"
    shown: list[int] = []

    def check() -> None:
        if (fault is is_silent and index.asked) or (shown and shown[-1] == HALF):
            raise Stopped

    with pytest.raises(Stopped):
        download(index.url, part, len(WHEEL), report=print, on_progress=shown.append, check=check)
    if fault is not is_silent:
        assert part.read_bytes() == WHEEL[:HALF]
        assert index.hung_up.wait(60)


def test_a_redirect_is_followed_with_the_range(index: WheelIndex, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(WHEEL[:HALF])
    index.faults = [sends_to(index.url)]
    fetch(index, part)
    assert part.read_bytes() == WHEEL
    assert index.asked == [f"bytes={HALF}-"] * 2


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x"])
def test_a_redirect_leads_to_nothing_but_http(index: WheelIndex, tmp_path: Path, url: str) -> None:
    index.faults = [sends_to(url)] * 2
    with pytest.raises(Refused):
        fetch(index, tmp_path / "part")
    assert not (tmp_path / "part").exists()


def test_a_server_that_is_not_there_is_soon_given_up(index: WheelIndex, tmp_path: Path) -> None:
    lines: list[str] = []
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x"
        with pytest.raises(Refused, match="the server was not reached"):
            download(url, tmp_path / "part", 2, report=lines.append, on_progress=print, check=lambda: None)
        assert lines == ["the server was not reached; asking again in 0 s"]
        (tmp_path / "part").write_bytes(b"?")  # so it was reached before
        with pytest.raises(Refused):
            download(url, tmp_path / "part", 2, report=lines.append, on_progress=print, check=lambda: None)
        assert len(lines) == 1 + len(module.WAITS_S)


def test_a_certificate_is_trusted_if_pip_trusts_it_and_else_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    (tmp_path / "file.whl").write_bytes(WHEEL)
    with wheel_index(tmp_path / "file.whl", tls) as index:
        with pytest.raises(Refused, match="the server's certificate is not trusted"):
            fetch(index, tmp_path / "part")
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
        fetch(index, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == WHEEL


def test_a_proxy_of_the_environment_is_used(index: WheelIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{index.port}")
    url = f"http://models.invalid/files/{index.name}"
    download(url, tmp_path / "part", len(WHEEL), report=print, on_progress=lambda done: None, check=lambda: None)
    assert (tmp_path / "part").read_bytes() == WHEEL
