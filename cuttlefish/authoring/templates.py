"""New blocks: a language's template with a name put in."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from cuttlefish.authoring.toolchains import LANGUAGES, guests_folder
from cuttlefish.errors import Unsupported

__all__ = ["BadName", "new_block"]

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 60
_LEFT_BY_BUILDS = {"__pycache__", "node_modules", "target"}


class BadName(ValueError):
    """A name that cannot be a block's, or that is taken. The text says what would be right."""


def new_block(name: str, language: str, parent: Path) -> list[Path]:
    """Make the folder `parent/name` from the template of a language, and return its files. Nothing is overwritten. Blocking.

    Raises:
        BadName: the name is no name for a block, or there is such a folder already and it is not empty.
        Unsupported: this installation has no template for the language.
        OSError: the folder cannot be written; it names the folder, and nothing is left of it.
    """
    if _NAME.fullmatch(name) is None or len(name) > _LONGEST:
        wanted = f'words of a to z and digits with "-" between, such as {_better(name)}'
        raise BadName(f'"{name}" cannot be a block\'s name: it is {wanted}')
    template = guests_folder() / language / "template"
    if not template.is_dir():
        raise Unsupported(f"this installation has no template for {language}")
    folder = parent / name
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise BadName(f'"{folder}" is there already; take another name, or another place with --dir')
    try:
        return [*_copy_template(template, folder, name), *_copy_sdk(language, folder)]
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # half a block would only be in the way of another try
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _copy_template(template: Path, folder: Path, name: str) -> Iterator[Path]:
    for source in sorted(template.rglob("*")):
        if source.is_file() and not _LEFT_BY_BUILDS & set(source.parts):
            target = folder / _named(str(source.relative_to(template)), name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_named(source.read_text(encoding="utf-8"), name), encoding="utf-8")
            yield target


def _copy_sdk(language: str, folder: Path) -> Iterator[Path]:
    for place, source in (LANGUAGES[language].sdk if language in LANGUAGES else {}).items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        yield target


def _named(text: str, name: str) -> str:
    return text.replace("my-block", name).replace("my_block", name.replace("-", "_"))


def _better(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
    better = "-".join(words)[:_LONGEST].strip("-")
    return better if _NAME.fullmatch(better) else "count-words"
