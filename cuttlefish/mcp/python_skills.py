"""Plain Python functions as skills: the operator's own code, which runs in this process and without a sandbox.

```python
from typing import Annotated

from pydantic import Field

from cuttlefish.mcp.python_skills import Context, skill


@skill(description="Counts the words of a text.", use_cases=["To see whether a text fits on a page"])
async def count_words(text: Annotated[str, Field(description="The text to count")], context: Context) -> int:
    context.progress("counting", done=0, total=1)
    return len(text.split())
```
"""

import importlib.util
import inspect
import json
import logging
import os
import secrets
import sys
import traceback
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TypeVar

import trio
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from cuttlefish.errors import CuttlefishError
from cuttlefish.host import Host, JobOptions, Runnable
from cuttlefish.inference.backend import TokenMeter
from cuttlefish.jobs.execution import Costs
from cuttlefish.jobs.job import Job
from cuttlefish.jobs.turns import Client
from cuttlefish.mcp.checking import check_arguments
from cuttlefish.mcp.large_numbers import with_large_numbers
from cuttlefish.mcp.pydantic_errors import violations_of
from cuttlefish.mcp.schemas import envelope_schema
from cuttlefish.mcp.skill import (
    MOST_DESCRIPTION_CHARS,
    NAME,
    Annotations,
    Availability,
    Checked,
    Example,
    Family,
    Probe,
    Ready,
    Skill,
)
from cuttlefish.pipeline.places import Problem
from cuttlefish.pipeline.rules import RULE_WORDS, Rule
from cuttlefish.pipeline.spec import PipelineError
from cuttlefish_abi import Envelope, ErrorCode
from cuttlefish_abi.strict_json import show

__all__ = ["Context", "SkillDefinition", "bind", "definitions_in", "enter_shared", "load_module", "shared", "shared_types", "skill"]

_log = logging.getLogger(__name__)

MOST_MESSAGE_CHARS = 1_000
END_S = 10.0  # for what a shared state does after its yield: a server that is ended has to come to its end

Function = TypeVar("Function", bound=Callable[..., Any])


class Context:
    """What a running skill may use beside its arguments: a parameter annotated with `Context` is given it."""

    def __init__(self, host: Host, job: Job, costs: Costs, client: Client, options: JobOptions) -> None:
        self._host = host
        self._job = job
        self._costs = costs
        self._client = client
        self._options = options

    @property
    def job_id(self) -> str:
        """The job that this call is."""
        return self._job.id

    def progress(self, message: str | None = None, *, done: float | None = None, total: float | None = None) -> None:
        """Tell how far the work is: `done` of `total`, whatever is counted. Returns at once."""
        told = {"message": message and message[:MOST_MESSAGE_CHARS], "done": done, "total": total}
        value = {name: part for name, part in told.items() if part is not None}
        self._job.progress(value, len(json.dumps(value)))

    async def run(self, what: Runnable, input: object) -> Envelope:
        """Run a block or a pipeline under the operator's grants and wait for its Envelope; what it cost is added to this job's.

        Cancelling the wait cancels it.
        """
        envelope = await self._host.run(what, input, client=self._client, **self._options)
        usage = envelope.usage
        self._costs.meters.append(TokenMeter(usage.tokens_in, usage.tokens_out))
        if usage.model is not None:
            self._costs.models[usage.model] = None
        return envelope


@dataclass(frozen=True, slots=True)
class SkillDefinition:
    """What `skill` notes of a function, before it has a host."""

    function: Callable[..., Awaitable[object]]
    name: str
    description: str
    examples: tuple[Example, ...]
    use_cases: tuple[str, ...]
    rules: tuple[Rule, ...]
    family: Family | None
    annotations: Annotations
    probe: Probe | None
    line: int
    file: str = field(default="")


def skill(
    *,
    name: str | None = None,
    description: str | None = None,
    examples: Sequence[Example] = (),
    use_cases: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    family: Family | None = None,
    annotations: Annotations | None = None,
    probe: Probe | None = None,
) -> Callable[[Function], Function]:
    """Make an async function with typed parameters a skill. The function itself stays as it is and can be called.

    Its parameters are the arguments (whatever pydantic can read from JSON), but for those annotated with `Context` or with the type
    of something `shared`. It is called as the function unless `name` is given, and described by the first paragraph of its
    docstring unless `description` is. What it returns has to have the annotated type. To fail, it raises a `CuttlefishError` with
    a code of its own. It runs on Trio's thread: blocking work belongs into `trio.to_thread.run_sync`.

    Without `annotations` a client is told that it may change things and reach beyond this machine: the host cannot know.
    """

    def note(function: Function) -> Function:
        definition = SkillDefinition(
            function=function,
            name=name or function.__name__,
            description=description or inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
            examples=tuple(examples),
            use_cases=tuple(use_cases),
            rules=tuple(rules),
            family=family,
            annotations=annotations or Annotations(read_only=False, destructive=True, idempotent=False, open_world=True),
            probe=probe,
            line=function.__code__.co_firstlineno,
            file=function.__code__.co_filename,
        )
        setattr(function, _MARK, definition)
        return function

    return note


def shared(function: Function) -> Function:
    """Make what a function gives a shared state: made once when the server starts, given to skills by its type.

    The function has no parameters and an annotated return type. It may be a plain or an async one, or a generator of either kind
    that yields once; what stands after its `yield` is done when the server ends, however it does, within 10 seconds.
    """
    setattr(function, _SHARED_MARK, True)
    return function


_MARK = "__cuttlefish_skill__"
_SHARED_MARK = "__cuttlefish_shared__"


def load_module(file: Path) -> ModuleType | Problem:
    """Run a Python file of the operator's as a module. Blocking.

    Files beside it can be imported as from a script. Returns what is wrong where it cannot be run.
    """
    name = f"cuttlefish_skills_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        return Problem("there is no such Python file", str(file))
    module = importlib.util.module_from_spec(spec)
    folder = str(file.parent.absolute())
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # annotations are looked up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the operator's own code raises is told at its line
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if os.path.abspath(frame.filename) == os.path.abspath(file)
        ]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        return Problem(f"cannot be loaded: {type(error).__name__}: {error}", str(file), line)
    return module


def definitions_in(module: ModuleType) -> list[SkillDefinition]:
    """The skills of a module, in the order of their definition."""
    found = {id(one): one for value in vars(module).values() if (one := getattr(value, _MARK, None)) is not None}
    return [one for one in found.values() if isinstance(one, SkillDefinition)]


async def enter_shared(module: ModuleType, stack: AsyncExitStack) -> dict[Any, object]:
    """Make the shared states of a module, by type; leaving the stack ends them.

    Raises:
        PipelineError: one of them broke.
    """
    states: dict[Any, object] = {}
    for value in _shared_functions(module):
        try:
            states[_shared_type(value)] = await stack.enter_async_context(_entered(value))
        except (Exception, SystemExit) as error:
            what = f'shared "{value.__name__}" broke: {type(error).__name__}: {error}'
            raise PipelineError([Problem(what, value.__code__.co_filename, value.__code__.co_firstlineno)]) from error
    return states


def shared_types(module: ModuleType) -> tuple[dict[Any, str], list[Problem]]:
    """The types of the shared states of a module, each with its function's name; and what is wrong with them."""
    types: dict[Any, str] = {}
    problems: list[Problem] = []
    for value in _shared_functions(module):
        where = (value.__code__.co_filename, value.__code__.co_firstlineno)
        try:
            kind = _shared_type(value)
        except NameError as error:
            problems.append(Problem(f'the annotations of shared "{value.__name__}" cannot be read: {error}', *where))
            continue
        if kind is None:
            message = f'shared "{value.__name__}" has no return annotation, by which skills would ask for it'
            problems.append(Problem(message, *where))
            continue
        if kind in types:
            problems.append(Problem(f'shared "{value.__name__}" and "{types[kind]}" give the same type', *where))
        types[kind] = value.__name__
    return types, problems


def bind(
    host: Host, definition: SkillDefinition, types: Mapping[Any, str], states: Mapping[Any, object], options: JobOptions
) -> Skill | list[Problem]:
    """A definition as a skill of a host; or what is wrong with it. `states` is filled before the skill is first started."""
    try:
        form = _form_of(definition, types)
    except _Wrong as wrong:
        told = [f'skill "{definition.name}": {message}' for message in wrong.messages]
        return [Problem(message, definition.file, definition.line) for message in told]

    def start(values: Mapping[str, Any], client: Client = ()) -> Job:
        async def work(job: Job, costs: Costs) -> object:
            given = dict(values)
            for name, kind in form.injected.items():
                given[name] = Context(host, job, costs, client, options) if kind is Context else states[kind]
            try:
                return form.write(await definition.function(**given))
            except* SystemExit as group:  # which would end the server
                raise RuntimeError(f"the skill {definition.name} called sys.exit") from group

        return host.start_task(definition.name, work, client=client)

    bound = Skill(
        name=definition.name,
        description=definition.description,
        input_schema=form.input_schema,
        result_schema=form.result_schema,
        output_schema=envelope_schema(form.result_schema),
        annotations=definition.annotations,
        examples=definition.examples,
        use_cases=definition.use_cases,
        rules=definition.rules,
        family=definition.family,
        probe=definition.probe or _ready,
        start=start,
        read=form.read,
    )
    problems = [Problem(f'skill "{bound.name}": {message}', definition.file, definition.line) for message in _wrong_examples(bound)]
    return problems or bound


def _wrong_examples(skill: Skill) -> Iterator[str]:
    """What is wrong with the examples, from which an agent would learn."""
    for example in skill.examples:
        try:
            violations = check_arguments(skill, example.arguments).violations
        except CuttlefishError as error:
            yield f"its example {show(example.title)} cannot be checked: {error.message}"
            continue
        if violations:
            yield f"its example {show(example.title)} is wrong: {'; '.join(violation.message for violation in violations)}"


async def _ready() -> Availability:
    await trio.lowlevel.checkpoint()
    return Ready()


class _Wrong(Exception):
    """A function that cannot be a skill."""

    def __init__(self, *messages: str) -> None:
        self.messages = messages


@dataclass(frozen=True, slots=True)
class _Form:
    """How arguments become parameters, and what is returned a result."""

    model: type[BaseModel]
    parameters: Sequence[str]
    """What each of the model's fields is called by the function."""
    injected: Mapping[str, Any]
    """The parameters that are no arguments, with their types."""
    result: TypeAdapter[Any]
    input_schema: dict[str, JsonValue]
    result_schema: dict[str, JsonValue]

    def read(self, arguments: Mapping[str, JsonValue]) -> Checked:
        """The arguments as the function's types have them; or what these find wrong that the schema cannot say.

        Raises:
            CuttlefishError: a validator broke, which is a fault of the function's module.
        """
        try:
            model = self.model.model_validate_json(json.dumps(dict(arguments)), strict=True)
        except ValidationError as error:
            return Checked(arguments, violations_of(error, arguments))
        except (Exception, SystemExit) as error:
            reference = secrets.token_hex(4)
            _log.exception("a validator of %s broke: %s", self.model.__name__, reference)
            message = (
                f'"{self.model.__name__}" broke on its arguments, which is a fault in its code; the log says more under {reference}'
            )
            raise CuttlefishError(message, code=ErrorCode.INTERNAL) from error
        return Checked({name: getattr(model, field) for name, field in zip(self.parameters, type(model).model_fields, strict=True)})

    def write(self, result: object) -> object:
        """The result as JSON has it. A result of another type than the annotated one is a fault of the function.

        Raises:
            ValidationError: it is.
        """
        return self.result.dump_python(self.result.validate_python(result, strict=True), mode="json")


def _form_of(definition: SkillDefinition, types: Mapping[Any, str]) -> _Form:
    function, wrong = definition.function, list[str]()
    if not NAME.fullmatch(definition.name):
        wrong.append("its name may have letters, digits, - and _, 64 at most")
    if not definition.description:
        wrong.append("it has no description: give one, or write a docstring")
    if len(definition.description) > MOST_DESCRIPTION_CHARS:
        wrong.append(f"its description may have {MOST_DESCRIPTION_CHARS} characters, and has {len(definition.description)}")
    wrong += _no_parts(definition)
    if not inspect.iscoroutinefunction(function):
        wrong.append("it must be an async function; blocking work belongs into trio.to_thread.run_sync")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise _Wrong(*wrong, f"its annotations cannot be read: {error}") from None
    fields: dict[str, Any] = {}
    parameters: list[str] = []
    injected: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in hints or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            wrong.append(f'its parameter "{name}" must be a single one with an annotation')
        elif hints[name] is Context or any(hints[name] == kind for kind in types):
            injected[name] = hints[name]
        else:
            default = ... if parameter.default is parameter.empty else parameter.default
            own = default if isinstance(default, FieldInfo) else FieldInfo.from_annotation(hints[name])
            hint = hints[name] if own.alias or own.validation_alias else Annotated[hints[name], Field(alias=name)]
            # A field of the model has a name of ours: "json" or "_x" would not do, and are good names of parameters.
            fields[f"argument_{len(fields)}"] = (hint, default)
            parameters.append(name)
    if "return" not in hints:
        wrong.append("it must say what it returns, by an annotation")
    for name in parameters:
        if not _is_json(hints[name], "validation"):
            shared_here = f"; shared are: {', '.join(map(_type_name, types))}" if types else ""
            wrong.append(f'its parameter "{name}" has a type that cannot be read from JSON, {_type_name(hints[name])}{shared_here}')
    if "return" in hints and not _is_json(hints["return"], "serialization"):
        wrong.append(f"it returns a type that cannot be written as JSON, {_type_name(hints['return'])}")
    if wrong:
        raise _Wrong(*wrong)
    model = create_model(definition.name, __config__=ConfigDict(extra="forbid"), **fields)
    if wrong := list(_wrong_defaults(model, parameters)):
        raise _Wrong(*wrong)
    result: TypeAdapter[Any] = TypeAdapter(hints["return"])
    taken = _plain(model.model_json_schema())
    given = _plain(result.json_schema(mode="serialization"))
    return _Form(model, parameters, injected, result, taken, with_large_numbers(given))


def _no_parts(definition: SkillDefinition) -> Iterator[str]:
    """What was given for a part of the definition and is none: types are not checked where Python is written."""
    given: list[tuple[str, str, Any, Iterable[object]]] = [  # `Any`: types as `isinstance` takes them
        ("each of its examples", "an Example", Example, definition.examples),
        ("each of its use cases", "text", str, definition.use_cases),
        ("each of its rules", "a rule, such as Range", tuple(RULE_WORDS.values()), definition.rules),
        ("its family", "a Family", Family | None, [definition.family]),
        ("its annotations", "Annotations", Annotations, [definition.annotations]),
        ("its probe", "an async function", Callable | None, [definition.probe]),
    ]
    for name, kind, types, parts in given:
        yield from (f"{name} must be {kind}, found {show(part)}" for part in parts if not isinstance(part, types))


def _wrong_defaults(model: type[BaseModel], parameters: Sequence[str]) -> Iterator[str]:
    """What is wrong with the defaults: the function would be given them as they are."""
    for name, (key, info) in zip(parameters, model.model_fields.items(), strict=True):
        if info.is_required() or info.default_factory is not None:
            continue
        try:
            model.__pydantic_validator__.validate_assignment(model.model_construct(), key, info.default)
        except (Exception, SystemExit):  # noqa: BLE001  # what a validator of the author's raises, too, says that the default does not do
            yield f'its parameter "{name}" has a default that is not of its type, {show(info.default)}'


def _is_json(hint: Any, mode: Literal["validation", "serialization"]) -> bool:
    """Whether pydantic knows the JSON of a type; `Any`: whatever stands in an annotation."""
    try:
        create_model("Any", value=(hint, ...)).model_json_schema(mode=mode)
    except (PydanticUserError, NameError):  # its many kinds of refusal are of the one, or a name within is not there
        return False
    return True


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _plain(schema: object) -> Any:
    """A schema without the titles that pydantic makes of names, which say nothing to an agent. `Any`: a JSON Schema."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: part for key, part in schema.items() if not (key == "title" and isinstance(part, str))}
    named = ("properties", "$defs", "patternProperties")
    return {
        key: {name: _plain(inner) for name, inner in part.items()} if key in named and isinstance(part, dict) else _plain(part)
        for key, part in kept.items()
    }


def _shared_functions(module: ModuleType) -> list[Any]:
    """Each once, under however many names; `Any`: functions of any form."""
    return list(
        dict.fromkeys(value for value in vars(module).values() if inspect.isfunction(value) and hasattr(value, _SHARED_MARK))
    )


def _shared_type(function: Any) -> Any:
    """The type that a shared function gives; `Any`, because it is whatever stands in an annotation."""
    hint = typing.get_type_hints(function).get("return")
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    arguments = typing.get_args(hint)
    return arguments[0] if is_generator and arguments else hint


@asynccontextmanager
async def _entered(function: Any) -> AsyncIterator[object]:
    """What a shared function gives, for as long as the block lasts; `Any`: a function of one of four kinds.

    Unlike with a context manager, what stands after its `yield` is done however the block ends, a cancelled server's too.
    """
    made = function()
    if inspect.isawaitable(made):
        made = await made
    if not inspect.isgenerator(made) and not inspect.isasyncgen(made):
        yield made
        return
    steps = made if inspect.isasyncgen(made) else _in_async(made)
    state = await anext(steps, _NOTHING)
    if state is _NOTHING:
        raise ValueError("it yields nothing")
    try:
        yield state
    finally:
        with trio.move_on_after(END_S, shield=True):
            await anext(steps, None)
            await steps.aclose()


async def _in_async(generator: Iterator[object]) -> AsyncGenerator[object]:
    for state in generator:
        yield state


_NOTHING = object()
