"""What a job of a pipeline may be given: what its nodes take, and what its `[input]` table, rules and examples add to that."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue

from cuttlefish.errors import CuttlefishError, SchemaMismatch
from cuttlefish.pipeline.expressions import JOB, Expression, references
from cuttlefish.pipeline.forms import InputField, Pipeline
from cuttlefish.pipeline.rules import Rule, custom_rule_problems, evaluate, fields_of
from cuttlefish.pipeline.seams import JSON
from cuttlefish_abi import Ty
from cuttlefish_abi.strict_json import suggest

__all__ = ["WHOLE", "InputForm", "arguments_of", "check_examples", "find_form", "prepare_input"]

WHOLE = "input"
"""What an input that is no record is called where fields have names: in `[input]`, in rules, and by agents."""

Wrong = tuple[str, tuple[str | int, ...]]
"""What is wrong, and at which keys."""


@dataclass(frozen=True, slots=True)
class InputForm:
    """What a job may be given."""

    type: Ty
    """What must be there when defaults are filled in."""
    optional: Mapping[str, Ty] = field(default_factory=dict)
    """Fields that may be there."""
    is_used: bool = True
    """Whether any node looks at the input."""

    @property
    def is_record(self) -> bool:
        """Whether it is a record of fields that are known."""
        return self.type.kind == "record" or bool(self.optional)


def find_form(taken: Ty, inputs: Iterable[Expression], pipeline: Pipeline) -> tuple[InputForm, list[Wrong]]:
    """What a job may be given, where its nodes take `taken` by their signatures; and what is wrong with `[input]` and rules."""
    used = [reference for expression in inputs for reference in references(expression) if reference.source == JOB]
    fields, wrong = dict(taken.fields), list[Wrong]()
    optional = {one.fields[0]: JSON for one in used if one.optional and one.fields and one.fields[0] not in fields}
    is_whole = taken.kind not in ("record", "json")
    for name, said in pipeline.input.items():
        known = {WHOLE: taken} if is_whole else {**optional, **fields}
        ty = Ty.parse(said.type) if said.type is not None else known.get(name)
        if ty is None or (not used and name not in known) or (is_whole and name != WHOLE):
            wrong.append((_unknown(name, said, known, taken if is_whole else None, is_used=bool(used)), ("input", name)))
            continue
        if name in known and not ty.assignable_to(known[name]) and known[name] != JSON:
            wrong.append((f'type is {ty}, and nodes take "{name}" as {known[name]}', ("input", name, "type")))
        elif is_whole or name in fields:
            if said.optional and not said.has_default:
                message = f'"{name}" cannot be optional: a node needs it. Give it a default, or leave optional out'
                wrong.append((message, ("input", name, "optional")))
            if not is_whole:
                fields[name] = ty
        elif name in optional or said.optional or said.has_default:
            optional[name] = ty
        else:
            fields[name] = ty
        wrong += _wrong_values(name, said, ty)
    form = InputForm(Ty.record(fields) if fields else taken, optional, bool(used))
    for index, rule in enumerate(pipeline.rules):
        wrong += custom_rule_problems(rule, "rules", index)
        wrong += _unknown_fields(rule, {WHOLE} if is_whole else {*fields, *optional} if form.is_record or not used else None, index)
    return form, wrong


def _unknown_fields(rule: Rule, known: Collection[str] | None, index: int) -> Iterator[Wrong]:
    """The fields of a rule that no input has; where those of an input are not known, nothing can be said."""
    for path in dict.fromkeys(fields_of(rule)):
        name = re.split(r"[.\[]", path)[0]
        if known is not None and name not in known:
            near = f"; {suggest(name, known)}" if known else ""
            yield f'the rule reads "{path}", and the input has no field "{name}"{near}', ("rules", index)


def _unknown(name: str, said: InputField, known: Mapping[str, Ty], whole: Ty | None, *, is_used: bool) -> str:
    if not is_used:
        return f'"{name}" is described, and no node reads the job\'s input'
    if whole is not None:
        return f'"{name}" is described, and the input is no record but {whole}; describe it as "{WHOLE}"'
    near = f"; {suggest(name, known)}" if known else ""
    return f'no node takes a field "{name}", and what blocks read beside that needs its type here{near}'


def _wrong_values(name: str, said: InputField, ty: Ty) -> Iterator[Wrong]:
    for key, value in (("default", said.default), ("example", said.example)):
        if key in said.model_fields_set and (wrong := _mismatch(ty, value, key)) is not None:
            yield f'{wrong} (the type of "{name}")', ("input", name, key)


def check_examples(form: InputForm, pipeline: Pipeline) -> list[Wrong]:
    """What is wrong with the examples, from which an agent would learn. Blocking where a custom rule blocks."""
    wrong: list[Wrong] = []
    for index, example in enumerate(pipeline.examples_told()):
        try:
            prepare_input(form, pipeline, example.input, place="the example")
        except CuttlefishError as error:
            wrong.append((error.message, ("examples", index)))
    return wrong


def arguments_of(form: InputForm, value: JsonValue) -> dict[str, JsonValue]:
    """An input by the names of its fields, as rules and agents see it."""
    return value if isinstance(value, dict) and form.type.kind in ("record", "json") else {WHOLE: value}


def prepare_input(form: InputForm, pipeline: Pipeline, value: object, *, place: str = "input") -> object:
    """The input with defaults filled in. Blocking where a custom rule blocks.

    Raises:
        SchemaMismatch: it does not have the type, or breaks a rule.
        CuttlefishError: a custom rule broke.
    """
    filled = value
    if isinstance(value, dict):
        filled = value | {name: said.default for name, said in pipeline.input.items() if said.has_default and name not in value}
    if (wrong := _mismatch(form.type, filled, place)) is not None:
        raise SchemaMismatch(
            f"{place if place != 'input' else 'the input'} does not fit what the pipeline takes, {form.type}: {wrong}"
        )
    if isinstance(filled, dict):
        for name, ty in form.optional.items():
            if name in filled and (wrong := _mismatch(ty, filled[name], f"{place}.{name}")) is not None:
                raise SchemaMismatch(wrong)
    if pipeline.rules:
        broken = evaluate(pipeline.rules, arguments_of(form, cast("JsonValue", value)))
        if broken:
            raise SchemaMismatch("; ".join(violation.message for violation in broken))
    return filled


def _mismatch(ty: Ty, value: object, place: str) -> str | None:
    # No handle fits: an input comes from outside, where there are none.
    return ty.mismatch(value, place=place, handle_kind=lambda _: None)
