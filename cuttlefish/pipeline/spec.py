"""From a pipeline's file to its model (`forms.py`), with every mistake of form in the author's words and at its line."""

import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cuttlefish.pipeline.forms import Chain, Families, FamilyForm, InputField, Node, Pipeline, Repeat
from cuttlefish.pipeline.places import Places, Problem
from cuttlefish.pipeline.rules import RULE_WORDS
from cuttlefish_abi import ErrorCode
from cuttlefish_abi.strict_json import show, suggest

__all__ = [
    "Chain",
    "LoadedPipeline",
    "Node",
    "Pipeline",
    "PipelineError",
    "Repeat",
    "load_pipeline",
    "read_file",
    "read_form",
    "read_pipeline",
]

MOST_FILE_BYTES = 16 << 20

Location = tuple[str | int, ...]

Form = TypeVar("Form", bound=BaseModel)


class PipelineError(ValueError):
    """A pipeline that cannot be used. `problems` has everything that is wrong with it, in the order of its file.

    Of several files, one after the other.
    """

    def __init__(self, problems: list[Problem]) -> None:
        files = list(dict.fromkeys(problem.file for problem in problems))
        self.problems = sorted(problems, key=lambda problem: (files.index(problem.file), problem.line or 0))
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def code(self) -> str:
        """What a job fails with: the code of all that is wrong where that is one, else `schema_validation_failed`."""
        codes = {problem.code for problem in self.problems if not problem.is_warning}
        return codes.pop() if len(codes) == 1 else ErrorCode.SCHEMA_VALIDATION_FAILED


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """A pipeline, the folder that its paths are relative to, and where it was written."""

    pipeline: Pipeline
    folder: Path
    file: str | None = None
    places: Places | None = None

    def problem(
        self, message: str, *path: str | int, is_warning: bool = False, code: str = ErrorCode.SCHEMA_VALIDATION_FAILED
    ) -> Problem:
        """A problem at a key of the file."""
        line = self.places.line(path) if self.places else None
        return Problem(message, self.file, line, is_warning, code)


def load_pipeline(file: str | Path) -> LoadedPipeline:
    """Read a pipeline file. Blocking, but never for a FIFO.

    Raises:
        PipelineError: the file cannot be read, or does not have the form of a pipeline. Everything that is wrong, with its line.
    """
    path = Path(file)
    return read_pipeline(read_file(path, str(file)), path.parent, str(file))


def read_file(path: Path, file: str) -> str:
    """The text of a file that an author wrote; `file` is what problems call it.

    Raises:
        PipelineError: it cannot be read, or is no UTF-8 text of at most 16 MiB.
    """
    try:
        # Not blocking: opening a FIFO would wait for its other end.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise PipelineError([Problem("is no regular file", file)])
            data = stream.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        message = f"cannot be read: {(error.strerror or 'no reason given').lower()}"
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        code = ErrorCode.NOT_FOUND if absent else ErrorCode.SCHEMA_VALIDATION_FAILED
        raise PipelineError([Problem(message, file, code=code)]) from None
    if len(data) > MOST_FILE_BYTES:
        raise PipelineError([Problem(f"is larger than a pipeline may be, {MOST_FILE_BYTES >> 20} MiB", file)])
    try:
        return data.decode("utf-8-sig")  # some editors put a mark before the text
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PipelineError([Problem("is not UTF-8 text", file, line)]) from None


def read_pipeline(text: str, folder: Path, file: str) -> LoadedPipeline:
    """Read a pipeline from the text of a file.

    Raises:
        PipelineError: see `load_pipeline`.
    """
    pipeline, places = read_form(text, file, Pipeline)
    return LoadedPipeline(pipeline, Path(os.path.abspath(folder)), file, places)


def read_form(text: str, file: str, form: type[Form]) -> tuple[Form, Places]:
    """Read a text in TOML that has the form of a model.

    Raises:
        PipelineError: with everything that is wrong, each at its line.
    """
    places = Places(text)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(list(_not_toml(str(error), text, places, file))) from None
    except RecursionError:
        raise PipelineError([Problem("is nested too deeply", file)]) from None
    try:
        return form.model_validate(table), places
    except ValidationError as error:
        problems = [Problem(told, file, places.line(path)) for one in error.errors() for path, told in _told(one, form)]
        raise PipelineError(problems) from None


def _not_toml(reason: str, text: str, places: Places, file: str) -> Iterator[Problem]:
    """Keys that stand twice, each with both lines; else what the parser met first."""
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", reason)
    line = int(found[1]) if found and found[1] else max(1, len(text.splitlines()))
    what = reason[: found.start()] if found else reason
    twice = places.twice() if re.match(r"Cannot|Duplicate", what) else []
    for path, lines in twice:
        for again in lines[1:]:
            yield Problem(f'"{path}" stands here and already in line {lines[0]}', file, again)
    if not twice:
        what = "a text is not closed where its line ends" if what == r"Illegal character '\n'" else f"{what[:1].lower()}{what[1:]}"
        yield Problem(f"is not TOML: {what}", file, line)


def _told(error: Any, form: type[BaseModel]) -> Iterator[tuple[Location, str]]:
    """Where an error of pydantic is, and our words for it. `Any`: pydantic's own form, a dictionary."""
    location: Location = error["loc"]
    match error["type"]:
        case "limits":
            for path, told in error["ctx"]["wrong"]:
                yield ("limits", *path), told
        case "value_error" if not location:
            yield ("block",), str(error["ctx"]["error"])
        case _:
            location = tuple(part for part in location if part != "[key]")
            known = _keys_at(form, location)
            location = _without_tags(location)
            yield location, _describe(error["type"], location, error["input"], error.get("ctx", {}), error["msg"], known)


def _describe(kind: str, location: Location, found: object, context: dict[str, Any], message: str, known: Iterable[str]) -> str:
    place = ".".join(map(str, location))
    match kind:
        case "extra_forbidden" | "callable_type":
            return f"unknown key {show(location[-1])}; {suggest(str(location[-1]), known)}"
        case "union_tag_invalid":
            return f"{place}.rule is {show(context['tag'])}; {suggest(context['tag'], RULE_WORDS)}"
        case "union_tag_not_found":
            return f"{place} has no rule; it says which one it is: {', '.join(RULE_WORDS)}"
        case "missing":
            return f"{place} is missing"
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return f"{place} must be {context['expected'].replace(chr(39), chr(34))}, found {show(found)}"
        case "string_type":
            return f"{place} must be text, found {show(found)}"
        case "list_type" if "branch" in location[2:3]:
            return f"{place} must be the name of a node or a list of names, found {show(found)}"
        case "list_type":
            return f"{place} must be a list, found {show(found)}"
        case "bool_type":
            return f"{place} must be true or false, found {show(found)}"
        case "model_type" if location[0] == "input" and len(location) == 2:
            return f"{place} must be text or a table, found {show(found)}"
        case "too_short" if context.get("min_length", 1) > 1:
            return f"{place} must have {context['min_length']} items at least, found {len(found) if isinstance(found, list) else 0}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"{place} must be a table, found {show(found)}"
        case "string_too_short" | "too_short":
            return f"{place} is empty"
        case (
            "int_type"
            | "int_from_float"
            | "float_type"
            | "finite_number"
            | "greater_than"
            | "greater_than_equal"
            | "less_than_equal"
        ):
            what = (
                _NUMBERS[str(location[-1])]
                if location[0] != "rules"
                else "a number"
                if "float" in kind
                else "a whole number from 0"
            )
            return f"{place} must be {what}, found {show(found)}"
    return f"{place}: {message[:1].lower()}{message[1:]}"


_NUMBERS = {
    "timeout": "a number of seconds above 0",
    "max": "a whole number from 1 to 1000000",
    "concurrency": "a whole number from 1 to 1000",
    "retry": "a whole number from 0 to 100",
}


def _keys_at(form: type[BaseModel], location: Location) -> Collection[str]:
    """The keys that may stand where the last one does; `location` as pydantic gives it."""
    if form is Families:
        return FamilyForm.model_fields
    match location:
        case ("nodes", _, _):
            return Node.model_fields
        case ("nodes", *_):
            return Repeat.model_fields
        case ("input", _, _):
            return InputField.model_fields
        case ("rules", *_):
            word = next((part for part in reversed(location[:-1]) if part in RULE_WORDS), None)
            return [key for key in RULE_WORDS[str(word)].model_fields if key != "check"] if word else ()
    return Pipeline.model_fields


def _without_tags(location: Location) -> Location:
    """Where something stands in the file: pydantic puts the kind of a rule into the way to it."""
    if location[0] != "rules":
        return location
    pairs = zip(location, (None, *location), strict=False)
    return tuple(part for part, before in pairs if not (part in RULE_WORDS and (isinstance(before, int) or before == "of")))
