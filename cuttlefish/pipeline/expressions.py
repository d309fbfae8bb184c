"""What a node's input is made of: references to other nodes' outputs, literals, and records and lists of them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Expression", "ListOf", "Literal", "RecordOf", "Reference", "parse", "references"]

JOB, ITEM = "job", "item"
"""What a reference may start with beside a node's name: the job's input, and the item of a node that runs `over` many."""

_REFERENCE = re.compile(r"(?:(?P<item>item)|(?P<node>[^\s.?]+)\.(?P<what>out|input))(?P<fields>(?:\.[^\s.?]+)*)(?P<optional>\?)?")


@dataclass(frozen=True, slots=True)
class Reference:
    """`other.out`, `other.out.field`, `job.input`, `item.field`; with `?` at the end it may be absent."""

    source: str
    """A node's name, `job` or `item`."""
    fields: tuple[str, ...] = ()
    optional: bool = False

    def __str__(self) -> str:
        head = {JOB: "job.input", ITEM: "item"}.get(self.source, f"{self.source}.out")
        return ".".join((head, *self.fields)) + ("?" if self.optional else "")


@dataclass(frozen=True, slots=True)
class Literal:
    """A value written in the file."""

    value: object
    is_marked: bool = False
    """Written as `{ literal = value }`: no text in it is meant as a reference, whatever it looks like."""


@dataclass(frozen=True, slots=True)
class RecordOf:
    """A record whose fields come from expressions."""

    fields: tuple[tuple[str, "Expression"], ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose items come from expressions."""

    items: tuple["Expression", ...]


Expression = Reference | Literal | RecordOf | ListOf


def parse(value: object, *, has_item: bool) -> Expression:
    """Read an input as it is written: a text of a reference's form is a reference, all else stands for itself.

    `{ literal = value }`, with no other field, is the value as it stands; so a text can be given that has a reference's form.
    Without `has_item` (in a node that runs once) the one word `item` is a text like any other.
    """
    match value:
        case str() if found := _REFERENCE.fullmatch(value):
            source = ITEM if found["item"] else found["node"]
            path = tuple(found["fields"].split(".")[1:])
            if (source == JOB) != (found["what"] == "input") or (source == ITEM and not (has_item or path)):
                return Literal(value)
            return Reference(source, path, found["optional"] is not None)
        case {"literal": whole, **others} if not others:
            return Literal(whole, is_marked=True)
        case dict():
            fields = {str(name): parse(part, has_item=has_item) for name, part in value.items()}
            literals = {name: part.value for name, part in fields.items() if isinstance(part, Literal) and not part.is_marked}
            return Literal(literals) if len(literals) == len(fields) else RecordOf(tuple(fields.items()))
        case list() | tuple():
            items = tuple(parse(part, has_item=has_item) for part in value)
            values = [part.value for part in items if isinstance(part, Literal) and not part.is_marked]
            return Literal(values) if len(values) == len(items) else ListOf(items)
    return Literal(value)


def references(expression: Expression) -> Iterator[Reference]:
    """Every reference in an expression."""
    match expression:
        case Reference():
            yield expression
        case RecordOf(fields):
            for _, part in fields:
                yield from references(part)
        case ListOf(items):
            for part in items:
                yield from references(part)
