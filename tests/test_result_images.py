"""Images that a result names, which outlive their job for whoever asked for them."""

import io
import json
import random
from pathlib import Path

import pytest
from odd.writer import pages_pdf
from PIL import Image

from cuttlefish import Job, JobStatus, ResultImage, open_host
from cuttlefish.cli.main import main

SHOW = """
SIGNATURE = "{files: [text]} -> {cover: image, all: [image], rest: json}"

def run(input):
    images = []
    for path in input["files"]:
        file = yield open(path)
        if file.kind == "document":
            images.append((yield page_image(file.handle, 0)).handle)
        else:
            images.append(file.handle)
    return {"cover": images[0], "all": images, "rest": images}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "show.toml").write_text('name = "show"\nblock = "./show.py"\nread = ["."]\n')
    Image.new("RGB", (60, 40), "red").save("red.png")
    Image.new("CMYK", (30, 20), (255, 0, 255, 0)).save("green.tiff")
    (tmp_path / "page.pdf").write_bytes(pages_pdf(b"BT /F1 24 Tf 100 700 Td (Hello) Tj ET"))
    whole = (tmp_path / "red.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path


async def run(what: str, *files: str, keep_images: bool = True, **limits: object) -> Job:
    async with open_host() as host:
        job = host.start(what, {"files": list(files)}, read=["."], keep_images=keep_images, limits=limits)
        envelope = await job.envelope()
        assert envelope.status == JobStatus.COMPLETED, envelope.error
        return job


def picture(image: ResultImage) -> Image.Image:
    assert image.problem is None
    opened = Image.open(io.BytesIO(image.data), formats=[image.media_type.removeprefix("image/")])
    return opened.convert("RGB")


@pytest.mark.parametrize("what", ["show.py", "show.toml"])
async def test_the_images_of_a_result_are_there_after_the_job_once_each_and_as_a_model_would_see_them(
    what: str, folder: Path
) -> None:
    job = await run(what, "red.png", "green.tiff", "page.pdf")
    assert [image.place for image in job.images] == ["result.cover", "result.all[1]", "result.all[2]"]
    red, green, page = map(picture, job.images)
    assert (red.size, red.getpixel((0, 0))) == ((60, 40), (255, 0, 0))
    assert green.size == (30, 20)
    colour = green.getpixel((0, 0))
    assert isinstance(colour, tuple)
    assert colour[1] > 2 * max(colour[0], colour[2])
    assert max(page.size) == 1024


async def test_nothing_is_kept_unless_it_is_asked_for(folder: Path) -> None:
    assert (await run("show.py", "red.png", keep_images=False)).images == ()


async def test_an_image_that_cannot_be_kept_says_why_in_its_place_and_costs_no_other(folder: Path) -> None:
    job = await run("show.py", "cut.png", "red.png")
    cut, red = job.images
    assert (cut.place, cut.data) == ("result.cover", b"")
    assert cut.problem is not None
    assert cut.problem.startswith('document_invalid: "cut.png"')
    assert picture(red).size == (60, 40)


async def test_images_that_are_too_many_or_too_large_together_are_told_and_left_out(folder: Path) -> None:
    noise = random.Random(1)
    for name in ("a", "b"):
        Image.frombytes("RGB", (100, 100), noise.randbytes(30_000)).save(f"{name}.png")
    first, second, red = (await run("show.py", "a.png", "b.png", "red.png", **{"image.bytes": 40_000})).images
    assert first.problem is None
    assert second.problem is not None
    assert second.problem.startswith("limit_exceeded: ")
    assert red.problem is None
    many = (await run("show.py", *101 * ["red.png"])).images
    assert [image.problem is None for image in many] == [*100 * [True], False]
    assert "1 more" in (many[-1].problem or "")


def test_the_command_line_writes_them_as_files(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["run", "show.toml", "--save-images", "out", "--input"]
    assert main([*command, json.dumps({"files": ["red.png", "page.pdf"]})]) == 0
    assert "2 images written to out" in capfd.readouterr().err
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["1-cover.png", "2-all.1.png"]
    with Image.open("out/1-cover.png") as image:
        assert image.size == (60, 40)
    assert main([*command, json.dumps({"files": ["cut.png", "red.png"]})]) == 1
    told = capfd.readouterr().err
    assert "result.cover is not written: document_invalid" in told
    assert "1 image written to out" in told
    assert main(["run", "word-count", "--read", ".", "--save-images", "out", "--input", "path=show.py"]) == 0
    assert "the result has no images in it" in capfd.readouterr().err


def test_a_folder_that_cannot_be_is_told_before_anything_runs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "show.toml", "--input", '{"files": []}', "--save-images", "red.png"]) == 2
    assert '--save-images: there can be no folder "red.png"' in capfd.readouterr().err
