"""The type language of seams: what a block takes and gives, in a form that can be checked before anything runs."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from cuttlefish_abi.base import CONTRACT
from cuttlefish_abi.strict_json import BadJson, clip, parse_json, show, suggest

__all__ = ["MAX_TYPE_CHARS", "MAX_TYPE_DEPTH", "Signature", "Ty", "TyError", "decode_signature"]

MAX_TYPE_CHARS = 1 << 20
"""Characters in the text of one type; a longer one is refused before it is read."""

MAX_TYPE_DEPTH = 64
"""Levels of lists and records in one type; a deeper one is refused rather than walked."""

Scalar = Literal["text", "number", "bool", "bytes", "image", "document", "json"]

_SCALARS: tuple[Scalar, ...] = get_args(Scalar)

_TEXT_OF_A_TYPE: dict[str, Any] = {"type": "string", "examples": ["{path: text, pages: [image]}"]}

_MARKS = re.compile(r"[\[\]{},]")


class TyError(ValueError):
    """A type or signature that cannot be read. The text names the piece that is wrong."""


class Ty(BaseModel):
    """One type: a scalar, a list of one type, or a record of named types.

    `Ty.parse` reads it, `describe` writes it in its one canonical text. On the wire and in pydantic models a type is that text.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    kind: Scalar | Literal["list", "record"]
    item: "Ty | None" = None
    """What a list holds."""
    fields: tuple[tuple[str, "Ty"], ...] = ()
    """What a record holds, sorted by name."""

    @classmethod
    def list_of(cls, item: "Ty") -> Self:
        """`[item]`.

        Raises:
            TyError: nested deeper than `MAX_TYPE_DEPTH`.
        """
        _check_depth(item._levels() + 1)
        return cls(kind="list", item=item)

    @classmethod
    def record(cls, fields: dict[str, "Ty"]) -> Self:
        """`{name: type, …}`.

        Raises:
            TyError: nested deeper than `MAX_TYPE_DEPTH`, or a name that the text of a type cannot hold.
        """
        for name, ty in fields.items():
            _check_name(name)
            _check_depth(ty._levels() + 1)
        return cls(kind="record", fields=tuple(sorted(fields.items())))

    @model_validator(mode="after")
    def _parts_fit_the_kind(self) -> Self:
        if (self.item is not None) != (self.kind == "list") or (self.fields and self.kind != "record"):
            raise ValueError(f'the parts do not fit the kind "{self.kind}"; use Ty.parse, Ty.list_of or Ty.record')
        names = [name for name, _ in self.fields]
        if names != sorted(set(names)):
            raise ValueError("the fields of a record are sorted by name, each once; use Ty.record")
        return self

    def _levels(self) -> int:
        inner = [self.item] if self.item is not None else [ty for _, ty in self.fields]
        return 1 + max((ty._levels() for ty in inner), default=0) if self.kind in ("list", "record") else 0

    @classmethod
    def parse(cls, text: str) -> "Ty":
        """Read a type. White space around any part and one trailing comma are fine.

        Raises:
            TyError: naming the piece that is wrong, a nesting deeper than `MAX_TYPE_DEPTH`, or more than `MAX_TYPE_CHARS`.

        >>> Ty.parse("{b:[text], a:json}").describe()
        '{a: json, b: [text]}'
        """
        if len(text) > MAX_TYPE_CHARS:
            raise TyError(f"a type may have {MAX_TYPE_CHARS} characters, not {len(text)}")
        return _parse_piece(text, 0, len(text), 0, _find_groups(text))

    def describe(self) -> str:
        """The canonical text: fields sorted, one space after each colon and comma."""
        if self.item is not None:
            return f"[{self.item.describe()}]"
        if self.kind == "record":
            return "{" + ", ".join(f"{name}: {ty.describe()}" for name, ty in self.fields) + "}"
        return self.kind

    def assignable_to(self, wanted: "Ty") -> bool:
        """Whether a value of this type may be fed where `wanted` is needed.

        Anything may be fed to `json`; `json` only to `json`. Lists go by their items; a record needs each wanted field, and may
        have more. Everything else must be equal.
        """
        if wanted.kind == "json":
            return True
        if self.item is not None and wanted.item is not None:
            return self.item.assignable_to(wanted.item)
        if self.kind == "record" and wanted.kind == "record":
            own = dict(self.fields)
            return all(name in own and own[name].assignable_to(ty) for name, ty in wanted.fields)
        return self.kind == wanted.kind

    def matches(self, value: object, handle_kind: "Callable[[int], str | None] | None" = None) -> bool:
        """Whether a JSON value has this type. See `mismatch`."""
        return self.mismatch(value, handle_kind=handle_kind) is None

    def mismatch(
        self, value: object, *, place: str = "value", handle_kind: "Callable[[int], str | None] | None" = None
    ) -> str | None:
        """Say where and how a JSON value differs from this type; None when it fits.

        `image` and `document` are handles. `handle_kind` tells what a handle of the job names ("image", "document", …), or None for
        a handle that it does not hold; without it any handle number passes.
        """
        match self.kind:
            case "json":
                return None
            case "text":
                fits, wanted = isinstance(value, str), "text"
            case "number":
                fits, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
            case "bool":
                fits, wanted = isinstance(value, bool), "true or false"
            case "bytes":
                fits, wanted = isinstance(value, str) and _is_base64(value), "bytes in base64"
            case "image" | "document":
                fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32
                if fits and handle_kind is not None:
                    assert isinstance(value, int)
                    fits = handle_kind(value) == self.kind
                wanted = f"a handle of {'an image' if self.kind == 'image' else 'a document'}"
            case "list":
                assert self.item is not None
                if isinstance(value, list):
                    inner = (self.item.mismatch(v, place=f"{place}[{i}]", handle_kind=handle_kind) for i, v in enumerate(value))
                    return next((m for m in inner if m is not None), None)
                fits, wanted = False, f"a list, {clip(self.describe(), 200)}"
            case "record":
                if isinstance(value, dict):
                    return next(self._field_mismatches(value, place, handle_kind), None)
                fits, wanted = False, f"a record, {clip(self.describe(), 200)}"
        return None if fits else f"{place} must be {wanted}, found {show(value)}"

    def _field_mismatches(
        self, value: dict[str, object], place: str, handle_kind: "Callable[[int], str | None] | None"
    ) -> Iterator[str]:
        for name, ty in self.fields:
            if name not in value:
                near = f" ({suggest(name, value)})" if value else ""
                yield f"{place}.{name} is missing; it must be {clip(ty.describe(), 200)}{near}"
            elif (found := ty.mismatch(value[name], place=f"{place}.{name}", handle_kind=handle_kind)) is not None:
                yield found

    def __str__(self) -> str:
        return self.describe()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the text of a type wherever a type is expected, and write it as that text."""
        model = handler(source)
        from_text = core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema(strict=True))
        return core_schema.json_or_python_schema(
            json_schema=from_text,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), from_text, model]),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.describe, return_schema=core_schema.str_schema()),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Say that a type is a string."""
        return dict(_TEXT_OF_A_TYPE)


class Signature(BaseModel):
    """What a block takes and gives, `IN -> OUT`."""

    model_config = CONTRACT

    input: Annotated[Ty, WithJsonSchema(_TEXT_OF_A_TYPE)]
    output: Annotated[Ty, WithJsonSchema(_TEXT_OF_A_TYPE)]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `IN -> OUT`, split at the first ` -> `.

        Raises:
            TyError: naming the piece that is wrong.
        """
        left, arrow, right = text.partition(" -> ")
        if not arrow:
            raise TyError(f"a signature is IN -> OUT, found {show(text)}")
        return cls(input=Ty.parse(left), output=Ty.parse(right))

    def describe(self) -> str:
        """The canonical text."""
        return f"{self.input.describe()} -> {self.output.describe()}"

    def __str__(self) -> str:
        return self.describe()


def decode_signature(data: bytes, *, max_depth: int = 128) -> Signature:
    """Read what `cf_signature` gives, `{"input":TYPE,"output":TYPE}`, as strictly as a command.

    Raises:
        BadJson: not JSON, not an object, or a field that is missing or no text.
        TyError: a type that cannot be read; the text begins with the field's name.
    """
    value = parse_json(data, max_depth=max_depth)
    if not isinstance(value, dict):
        raise BadJson(f"a signature must be a JSON object, found {show(value)}")
    types: dict[str, Ty] = {}
    for name in ("input", "output"):
        if name not in value:
            raise BadJson(f"{name} is missing")
        if not isinstance(text := value[name], str):
            raise BadJson(f"{name} must be text, found {show(text)}")
        try:
            types[name] = Ty.parse(text)
        except TyError as error:
            raise TyError(f"{name}: {error}") from None
    return Signature(**types)


def _parse_piece(text: str, start: int, end: int, depth: int, groups: "dict[int, _Group]") -> Ty:
    """Read `text[start:end]`. Works on places in the whole text, so that time does not grow with length times depth."""
    _check_depth(depth)
    piece = text[start:end].strip()
    if piece in _SCALAR_TYPES:
        return _SCALAR_TYPES[piece]
    if not piece:
        raise TyError("a type is missing")
    start = text.index(piece[0], start)
    group = groups.get(start)
    if group is None or group.end != start + len(piece) - 1:
        raise TyError(f"{show(piece)} is no type; {suggest(piece, [*_SCALARS, '[TYPE]', '{NAME: TYPE}'])}")
    if piece[0] == "[":
        return Ty(kind="list", item=_parse_piece(text, start + 1, group.end, depth + 1, groups))
    fields: dict[str, Ty] = {}
    for at, until in _pieces(text, start, group):
        colon = text.find(":", at, until)
        name = text[at:colon].strip()
        if colon < 0 or not name:
            raise TyError(f"a field is NAME: TYPE, found {show(text[at:until].strip())} in {show(piece)}")
        if name in fields:
            raise TyError(f"the field {show(name)} stands twice in {show(piece)}")
        fields[name] = _parse_piece(text, colon + 1, until, depth + 1, groups)
    return Ty(kind="record", fields=tuple(sorted(fields.items())))


@dataclass(slots=True)
class _Group:
    """A pair of brackets: where it closes, and where the commas are that stand directly in it."""

    closer: str
    end: int = -1
    commas: list[int] = field(default_factory=list)


def _find_groups(text: str) -> dict[int, _Group]:
    """All pairs of brackets, by where they open."""
    groups: dict[int, _Group] = {}
    open_groups: list[_Group] = []
    for mark in _MARKS.finditer(text):
        char = mark[0]
        if char in "[{":
            group = groups[mark.start()] = _Group("]" if char == "[" else "}")
            open_groups.append(group)
        elif char == ",":
            if open_groups:
                open_groups[-1].commas.append(mark.start())
        elif open_groups and open_groups[-1].closer == char:
            open_groups.pop().end = mark.start()
        else:
            raise TyError(f"unbalanced brackets in {show(text)}")
    if open_groups:
        raise TyError(f"unbalanced brackets in {show(text)}")
    return groups


def _pieces(text: str, opening: int, group: _Group) -> Iterator[tuple[int, int]]:
    """Where the parts of a record stand, between the commas. None behind a trailing comma, and none in the empty record."""
    start = opening + 1
    for comma in group.commas:
        if not text[start:comma].strip():
            raise TyError(f"an empty piece between commas in {show(text[opening : group.end + 1])}")
        yield start, comma
        start = comma + 1
    if text[start : group.end].strip():
        yield start, group.end


def _check_depth(levels: int) -> None:
    if levels > MAX_TYPE_DEPTH:
        raise TyError(f"a type may be nested {MAX_TYPE_DEPTH} levels deep, not more")


def _check_name(name: str) -> None:
    """Refuse a field name that would read back as something else."""
    if not name or name != name.strip() or ":" in name or _has_loose_marks(name):
        raise TyError(f"{show(name)} cannot be the name of a field")


def _has_loose_marks(name: str) -> bool:
    """Whether a comma stands outside of brackets, or brackets are not balanced."""
    try:
        group = _find_groups(f"{{{name}}}")[0]
    except TyError:
        return True
    return bool(group.commas) or group.end != len(name) + 1


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_SCALAR_TYPES = {name: Ty(kind=name) for name in _SCALARS}
