"""Reading the text in images with the real Tesseract."""

import io
import os
import stat
from pathlib import Path

import pytest
import trio
from PIL import Image, ImageDraw, ImageFont

from cuttlefish.errors import InferenceFailed, ModelLoadFailed, TimedOut, Unsupported
from cuttlefish.inference import child, tesseract
from cuttlefish.inference.backend import ImageInput, Prompt, TokenMeter
from cuttlefish.inference.child import TooMuchOutput, run_child
from cuttlefish.inference.registry import open_backend, providers
from cuttlefish_abi import TokenAction

LINES = ["The night sky survey", "found 412 stars", "and three comets."]


def page(lines: list[str] = LINES) -> ImageInput:
    """A page as a scanner would give it: black on white."""
    image = Image.new("L", (900, 80 + 70 * len(lines)), 255)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(40)
    for number, line in enumerate(lines):
        draw.text((40, 40 + 70 * number), line, 0, font)
    out = io.BytesIO()
    image.save(out, "PNG")
    return ImageInput(out.getvalue(), "image/png")


class Listener:
    def __init__(self, stop_after: int | None = None) -> None:
        self.pieces: list[str] = []
        self._stop_after = stop_after

    async def __call__(self, piece: str) -> TokenAction:
        self.pieces.append(piece)
        return TokenAction.STOP if len(self.pieces) == self._stop_after else TokenAction.CONTINUE


async def test_the_text_of_each_image_comes_line_by_line_whatever_the_prompt_says() -> None:
    reader, listener, meter = await open_backend("tesseract:", local_only=True), Listener(), TokenMeter()
    reply = await reader.infer(Prompt("Summarise in one word.", 100, (page(), page(["Last page"]))), listener, meter)
    assert reply.finish == "stop"
    assert [line for line in reply.text.splitlines() if line] == [*LINES, "Last page"]
    assert "".join(listener.pieces) == reply.text
    assert len(listener.pieces) >= 4
    assert meter == TokenMeter(2, 4 + 3 + 3 + 2)
    assert reader.name == "tesseract:eng"
    await reader.aclose()


async def test_closing_ends_a_reading_and_refuses_later_ones() -> None:
    reader, heard = await open_backend("tesseract:"), trio.Event()

    async def sink(piece: str) -> TokenAction:
        heard.set()
        await trio.sleep_forever()
        raise AssertionError

    async def read() -> None:
        with pytest.raises(InferenceFailed, match='model "tesseract:eng" is closed'):
            await reader.infer(Prompt("", 100, (page(),)), sink, TokenMeter())

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await heard.wait()
            await reader.aclose()
    with pytest.raises(InferenceFailed, match="is closed"):
        await reader.infer(Prompt("", 100, (page(),)), Listener(), TokenMeter())


async def test_words_are_tokens_and_a_stop_or_a_limit_ends_the_reading() -> None:
    reader, meter = await open_backend("tesseract:eng"), TokenMeter()
    reply = await reader.infer(Prompt("", 5, (page(), page())), Listener(), meter)
    assert (reply.text.split(), reply.finish) == ([*LINES[0].split(), "found"], "length")
    assert meter == TokenMeter(1, 5)
    reply = await reader.infer(Prompt("", 50, (page(), page())), Listener(stop_after=1), TokenMeter())
    assert (reply.text.strip(), reply.finish) == (LINES[0], "stopped_by_block")
    reply = await reader.infer(Prompt("", 50, (page(),), stop=("412",)), Listener(), TokenMeter())
    assert (reply.text.split(), reply.finish) == ([*LINES[0].split(), "found"], "stop")


async def test_it_says_plainly_that_it_reads_text_and_ignores_the_prompt() -> None:
    reader = await open_backend("tesseract:eng")
    with pytest.raises(Unsupported) as caught:
        await reader.infer(Prompt("Who are you?", 9), Listener(), TokenMeter())
    assert caught.value.message == (
        'model "tesseract:eng" only reads the text in images, and the prompt has none. Use a language model'
    )
    with pytest.raises(Unsupported, match="cannot answer in a form"):
        await reader.infer(Prompt("", 9, (page(),), schema={"type": "object"}), Listener(), TokenMeter())
    help = next(p.help for p in providers() if p.name == "tesseract")
    assert "no language model" in help
    assert "prompt is ignored" in help


async def test_an_image_that_is_none_fails_and_the_next_prompt_is_served() -> None:
    reader = await open_backend("tesseract:eng")
    for data in (b"", b"no picture", page().data[:100]):
        with pytest.raises(InferenceFailed) as caught:
            await reader.infer(Prompt("", 9, (ImageInput(data, "image/png"),)), Listener(), TokenMeter())
        assert caught.value.message == (
            'model "tesseract:eng" cannot read image 1 of 1: it is no picture that Tesseract knows, or too large'
        )
    assert (await reader.infer(Prompt("", 9, (page(),)), Listener(), TokenMeter())).text


@pytest.mark.parametrize("language", ["xyz", "eng+xyz", "-l", "../eng"])
async def test_a_language_that_is_not_there_is_told_with_how_to_get_it(language: str) -> None:
    with pytest.raises(ModelLoadFailed, match=r"Install it, e\.g\. on Debian: apt-get install tesseract-ocr-") as caught:
        await open_backend(f"tesseract:{language}")
    assert "eng" in caught.value.message


async def test_a_machine_without_the_program_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelLoadFailed) as caught:
        await open_backend("tesseract:eng")
    assert caught.value.message == (
        'model "tesseract:eng": there is no program "tesseract" on this machine. '
        "Install it, e.g. on Debian: apt-get install tesseract-ocr; on macOS: brew install tesseract"
    )


def script(folder: Path, text: str) -> None:
    path = folder / "tesseract"
    path.write_text(f"#!/bin/sh\ncase $1 in --list-langs) echo head; echo eng; exit;; esac\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def own_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is searched for the program first."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


async def test_a_program_that_never_ends_or_never_stops_talking_is_killed(
    own_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(own_program, "echo $$ >pid; exec sleep 1000")
    monkeypatch.chdir(own_program)
    reader = await open_backend("tesseract:eng")
    monkeypatch.setattr(tesseract, "PAGE_TIME_S", 0.5)
    with pytest.raises(TimedOut, match=r"did not read image 1 of 1 within 0\.5 s"):
        await reader.infer(Prompt("", 9, (page(),)), Listener(), TokenMeter())
    assert not Path(f"/proc/{int((own_program / 'pid').read_text())}").exists()
    monkeypatch.setattr(tesseract, "PAGE_TIME_S", 60)
    script(own_program, "exec yes")
    with pytest.raises(InferenceFailed, match="found more than 4 MiB of text in image 1 of 1"):
        await reader.infer(Prompt("", 9, (page(),)), Listener(), TokenMeter())


async def test_a_cancel_kills_the_program(own_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(own_program, "echo $$ >pid; mv pid started; exec sleep 1000")
    monkeypatch.chdir(own_program)
    reader = await open_backend("tesseract:eng")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.infer, Prompt("", 9, (page(),)), Listener(), TokenMeter())
        with trio.fail_after(60):
            while not (own_program / "started").exists():
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert not Path(f"/proc/{int((own_program / 'started').read_text())}").exists()


# The child process below it


async def test_a_child_gets_its_input_and_gives_its_output_and_how_it_ended() -> None:
    data = os.urandom(300_000)
    result = await run_child(["sh", "-c", "cat; echo no >&2; exit 3"], data, time_s=60, out_bytes=1 << 20, memory_bytes=1 << 30)
    assert result == child.ChildResult(3, data, b"no\n")


async def test_a_child_that_does_not_read_its_input_is_no_failure() -> None:
    result = await run_child(["true"], bytes(1 << 20), time_s=60, out_bytes=10, memory_bytes=1 << 30)
    assert result.code == 0


async def test_a_child_with_too_much_output_or_memory_is_stopped() -> None:
    with pytest.raises(TooMuchOutput):
        await run_child(["yes"], b"", time_s=60, out_bytes=1000, memory_bytes=1 << 30)
    big = ["sh", "-c", "read x; exec dd if=/dev/zero of=/dev/null bs=512M count=1"]
    result = await run_child(big, b"go\n", time_s=60, out_bytes=1000, memory_bytes=100 << 20)
    assert result.code != 0


async def test_a_program_that_is_not_there_is_told_as_such() -> None:
    with pytest.raises(FileNotFoundError):
        await run_child(["no-such-program-here"], b"", time_s=60, out_bytes=10, memory_bytes=1 << 30)
