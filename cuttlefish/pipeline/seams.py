"""Checks what flows between nodes: each expression against the type that a block takes, with the nearest fix."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cuttlefish.pipeline.expressions import Expression, ListOf, Literal, RecordOf, Reference
from cuttlefish_abi import Ty
from cuttlefish_abi.strict_json import show, suggest

__all__ = ["JSON", "Finding", "TypeOf", "check_input", "merge", "select"]

JSON = Ty(kind="json")

TypeOf = Callable[[Reference], "Ty | None"]
"""The type of what a reference names; None where that is not known, or where the reference is told to be wrong already."""

Place = tuple[str | int, ...]

_LOOKS_LIKE_A_REFERENCE = re.compile(r"[A-Za-z][\w-]*\.(?:outputs?|in|inputs?|results?)(?:\.[\w.-]+)?\??|job\.out(?:\.[\w.-]+)?\??")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at one place of an input."""

    place: Place
    message: str
    is_warning: bool = False


def check_input(expression: Expression, wanted: Ty, type_of: TypeOf) -> Iterator[Finding]:
    """Everything that is wrong with giving a block that takes `wanted` this input. Every item of a list is looked at."""
    if isinstance(expression, Reference) and expression.optional:
        message = f'input is "{expression}", which may be absent, and a block cannot run without an input'
        yield Finding(("input",), message)
    else:
        yield from _check(expression, wanted, type_of, ("input",))


def _check(expression: Expression, wanted: Ty, type_of: TypeOf, place: Place) -> Iterator[Finding]:
    match expression:
        case Literal(value, is_marked):
            yield from _check_literal(value, wanted, place, is_marked=is_marked)
        case Reference():
            found = type_of(expression)
            if found is not None:
                yield from _check_reference(expression, found, wanted, place)
        case RecordOf(fields):
            yield from _check_record(dict(fields), wanted, type_of, place)
        case ListOf(items):
            if wanted.kind not in ("list", "json"):
                yield Finding(place, f"{_text(place)} must be {wanted}, and is written as a list")
            for index, part in enumerate(items):
                yield from _check(part, wanted.item or JSON, type_of, (*place, index))


def _check_record(given: dict[str, Expression], wanted: Ty, type_of: TypeOf, place: Place) -> Iterator[Finding]:
    types = dict(wanted.fields)
    if wanted.kind not in ("record", "json"):
        yield Finding(place, f"{_text(place)} must be {wanted}, and is written as a record")
    for name, ty in wanted.fields:
        if name not in given:
            yield Finding(place, f"{_text((*place, name))} is missing; it must be {ty} ({suggest(name, given)})")
    for name, part in given.items():
        if isinstance(part, Reference) and part.optional and name in types:
            what = f'{_text((*place, name))} is "{part}", which may be absent, and must be there as {types[name]}'
            yield Finding((*place, name), what)
        else:
            yield from _check(part, types.get(name, JSON), type_of, (*place, name))


def select(ty: Ty, fields: tuple[str, ...], reference: str) -> tuple[Ty | None, str | None]:
    """The type of a field within a type, or why there is none. `reference` is what messages call it."""
    for name in fields:
        if ty.kind == "json":
            return JSON, None
        own = dict(ty.fields)
        if name not in own:
            known = f"; {suggest(name, own)}" if own else ""
            return None, f'"{reference}" cannot be: {ty} has no field {show(name)}{known}'
        ty = own[name]
    return ty, None


def merge(one: Ty, other: Ty) -> Ty | None:
    """A type whose values fit both; None if there is none that can be written."""
    if one.assignable_to(other):
        return one
    if other.assignable_to(one):
        return other
    if one.kind == "record" and other.kind == "record":
        fields = dict(one.fields)
        for name, ty in other.fields:
            merged = merge(fields[name], ty) if name in fields else ty
            if merged is None:
                return None
            fields[name] = merged
        return Ty.record(fields)
    if one.item is not None and other.item is not None and (item := merge(one.item, other.item)):
        return Ty.list_of(item)
    return None


def _text(place: Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]


def _check_literal(value: object, wanted: Ty, place: Place, *, is_marked: bool) -> Iterator[Finding]:
    lost = [] if is_marked else list(_lost_references(value, place))
    yield from lost
    # No handle can be written down: there is none before something is opened.
    if not lost and (wrong := wanted.mismatch(value, place=_text(place), handle_kind=lambda _: None)) is not None:
        yield Finding(place, wrong)


def _lost_references(value: object, place: Place) -> Iterator[Finding]:
    """Texts that their author most likely took for references."""
    match value:
        case str() if _LOOKS_LIKE_A_REFERENCE.fullmatch(value):
            hint = 'refers to nothing: write "NODE.out", "NODE.out.field" or "job.input", or { literal = "…" } for the text itself'
            yield Finding(place, f"{_text(place)} is {show(value)}, which {hint}")
        case dict():
            for name, part in value.items():
                yield from _lost_references(part, (*place, name))
        case list():
            for index, part in enumerate(value):
                yield from _lost_references(part, (*place, index))


def _check_reference(reference: Reference, found: Ty, wanted: Ty, place: Place) -> Iterator[Finding]:
    if not found.assignable_to(wanted):
        fix = _nearest_fix(reference, found, wanted)
        yield Finding(place, f'{_text(place)} must be {wanted}, and "{reference}" gives {found}{fix}')
    elif found.kind == "json" and wanted.kind == "json":
        message = f'{_text(place)} takes json and "{reference}" gives json: nothing is checked here'
        yield Finding(place, message, is_warning=True)


def _nearest_fix(reference: Reference, found: Ty, wanted: Ty) -> str:
    """The smallest change that would make the seam fit."""
    fitting = [f'"{replace(reference, fields=(*reference.fields, name))}"' for name, ty in found.fields if ty.assignable_to(wanted)]
    if fitting:
        return f": write {' or '.join(fitting[:3])} for the bare value"
    takers = [name for name, ty in wanted.fields if found.assignable_to(ty)]
    if len(takers) == 1:
        rest = [f"{name} = …" for name, _ in wanted.fields if name != takers[0]]
        parts = ", ".join([f'{takers[0]} = "{reference}"', *rest])
        return f": write {{ {parts} }} to wrap it"
    if wanted.item is not None and found.assignable_to(wanted.item):
        return f': write ["{reference}"] for a list of one'
    if found.item is not None and found.item.assignable_to(wanted):
        return ": a list, where one value is needed"
    if wanted.kind == "record" and found.kind == "record":
        own = dict(found.fields)
        missing = [name for name, ty in wanted.fields if name not in own]
        if missing:
            return f": {show(missing[0])} is missing; {suggest(missing[0], own)}"
        differing = next(name for name, ty in wanted.fields if not own[name].assignable_to(ty))
        return f": {show(differing)} is {own[differing]}"
    if found.kind == "json":
        return ": json may be anything, so it cannot be relied on"
    return ""
