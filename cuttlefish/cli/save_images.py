"""`cuttlefish run --save-images`: the images of a result as files."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cuttlefish.cli.exits import UsageError
from cuttlefish.jobs.result_images import ResultImage

__all__ = ["make_folder", "save_images"]

OPTION = "--save-images"
SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg"}


def make_folder(folder: Path) -> None:
    """Make the folder unless it is there, before a job runs for nothing.

    Raises:
        UsageError: it cannot be made, or is no folder.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f'{OPTION}: there can be no folder "{folder}": {(error.strerror or str(error)).lower()}') from None


def save_images(images: Sequence[ResultImage], folder: Path) -> bool:
    """Write images as `1-cover.png`, `2-pages.0.jpg`: their number, and their place in the result. Tell on standard error.

    What stands there under such a name is replaced. Returns whether all of them are written.
    """
    wrong = [f"{image.place} is not written: {image.problem}" for image in images if image.problem is not None]
    written = 0
    for number, image in enumerate(images, 1):
        if image.problem is not None:
            continue
        place = image.place.removeprefix("result.").replace("[", ".").replace("]", "")
        name = f"{number}-{re.sub(r'[^A-Za-z0-9._-]', '_', place)[:100]}{SUFFIXES[image.media_type]}"
        try:
            (folder / name).write_bytes(image.data)
            written += 1
        except OSError as error:
            wrong.append(f'"{folder / name}" is not written: {(error.strerror or str(error)).lower()}')
    told = f"{written} image{'' if written == 1 else 's'} written to {folder}" if images else "the result has no images in it"
    for line in [*wrong, told]:
        print(f"cuttlefish: {line}", file=sys.stderr)
    return not wrong
