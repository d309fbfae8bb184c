"""Rules about what a job is given, beyond its types: `[[rules]]` in a pipeline's file, or the same made in Python.

```toml
[[rules]]
rule = "range"
field = "max_words"
min = 20
max = 500
```

A field is a path: `max_words`, `config.timeout`, `pages[2]`, `pages[*]` for each item. What is absent, or null, is not judged by
the rules on one field: whether it must be there is said by the types.
"""

import difflib
import logging
import math
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from cuttlefish.errors import CuttlefishError
from cuttlefish.pipeline.field_paths import FieldPath, values_at
from cuttlefish.pipeline.patterns import MOST_SUBJECT_CHARS, check_pattern, matches
from cuttlefish.pipeline.violations import Violation, shorten
from cuttlefish_abi import ErrorCode
from cuttlefish_abi.strict_json import show

__all__ = [
    "RULE_WORDS",
    "AllOf",
    "AnyOf",
    "AtLeastOne",
    "Custom",
    "ExactlyOne",
    "Length",
    "Not",
    "OneOf",
    "Range",
    "Regex",
    "Rule",
    "custom_rule_problems",
    "evaluate",
    "fields_of",
]

_log = logging.getLogger(__name__)

CUSTOM_RULES = "cuttlefish.rules"
"""The group of entry points in which packages offer rules."""


def evaluate(rules: Sequence["Rule"], arguments: Mapping[str, JsonValue]) -> list[Violation]:
    """Everything that the rules find wrong with the arguments; nothing if they may pass.

    Blocking where a custom rule blocks. Patterns are tried by an engine without backtracking, on 16,384 characters at most: a
    longer text breaks the rule. No text can make one take long.

    Raises:
        CuttlefishError: a custom rule broke.
    """
    return [violation for rule in rules for violation in rule.judge(arguments) or ()]


def _same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(part, other[key]) for key, part in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _between(least: float | None, most: float | None) -> str:
    """`from 1 to 5`, `at least 1`, `at most 5`."""
    if least is not None and most is not None:
        return f"exactly {least}" if least == most else f"from {least} to {most}"
    return f"at least {least}" if least is not None else f"at most {most}"


def _bounds(least: float | None, most: float | None) -> dict[str, JsonValue]:
    return {name: value for name, value in (("min", least), ("max", most)) if value is not None}


def _whole(number: float) -> float:
    """20 where it would be 20.0: people and programs see the number as it was written."""
    return int(number) if number.is_integer() else number


Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_whole)]
Count = Annotated[int, Field(ge=0)]


class _Rule(BaseModel):
    """What all rules have. `message` wins over the sentence that a rule would make itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    message: Annotated[str, Field(min_length=1)] | None = None

    @abstractmethod
    def judge(self, arguments: Mapping[str, JsonValue]) -> list[Violation] | None:
        """What it finds wrong; None where there is nothing that it could judge."""

    @abstractmethod
    def describe(self) -> str:
        """What it demands, as the end of a sentence for agents: `max_words is from 20 to 500`."""

    @abstractmethod
    def expected(self) -> JsonValue:
        """What it demands, for programs."""


class _FieldRule(_Rule):
    """A rule on one field."""

    field: FieldPath

    def judge(self, arguments: Mapping[str, JsonValue]) -> list[Violation] | None:
        """See `_Rule.judge`."""
        found = list(values_at(self.field, dict(arguments)))
        return [self._violation(place, value) for place, value in found if not self.accepts(value)] if found else None

    @abstractmethod
    def accepts(self, value: JsonValue) -> bool:
        """Whether the field may have this value."""

    @abstractmethod
    def demand(self) -> str:
        """What the field must be, as the end of a sentence: `from 20 to 500`."""

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return f"{self.field} is {self.demand()}"

    def _violation(self, place: str, value: JsonValue) -> Violation:
        message = self.message or f"{place} must be {self.demand()}, found {show(value)}"
        return Violation(place, _word(self), message, self.expected(), shorten(value), has_got=True)


def _word(rule: _Rule) -> str:
    return str(getattr(rule, "rule"))  # noqa: B009  # each rule's own `Literal`; a field here would widen it


class Range(_FieldRule):
    """A number between two bounds, both included."""

    rule: Literal["range"] = "range"
    min: Finite | None = None
    max: Finite | None = None

    @model_validator(mode="after")
    def _bounds_make_sense(self) -> Self:
        _check_bounds(self.min, self.max)
        return self

    def accepts(self, value: JsonValue) -> bool:
        """See `_FieldRule.accepts`."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def demand(self) -> str:
        """See `_FieldRule.demand`."""
        return _between(self.min, self.max)

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return _bounds(self.min, self.max)


class OneOf(_FieldRule):
    """One of some values, exactly."""

    rule: Literal["one_of"] = "one_of"
    values: Annotated[list[Any], Field(min_length=1)]

    @model_validator(mode="after")
    def _values_are_json(self) -> Self:
        for value in self.values:
            if not isinstance(value, str | int | float | dict | list | None) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise ValueError(f"values has {value}, which is no JSON value")
        return self

    def accepts(self, value: JsonValue) -> bool:
        """See `_FieldRule.accepts`."""
        return any(_same(value, one) for one in self.values)

    def demand(self) -> str:
        """See `_FieldRule.demand`."""
        return f"one of {', '.join(show(value) for value in self.values)}"

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return {"one_of": list(self.values)}

    def _violation(self, place: str, value: JsonValue) -> Violation:
        violation = super()._violation(place, value)
        if self.message is None and isinstance(value, str) and len(value) <= 60:
            near = difflib.get_close_matches(value, [one for one in self.values if isinstance(one, str) and len(one) <= 60], 1, 0.6)
            if near:
                return Violation(
                    violation.field,
                    violation.rule,
                    f"{violation.message}; did you mean {show(near[0])}?",
                    violation.expected,
                    violation.got,
                    has_got=True,
                )
        return violation


class Regex(_FieldRule):
    """A text in which a pattern is found; `^…$` makes it the whole text. No look-around, no back references."""

    rule: Literal["regex"] = "regex"
    pattern: Annotated[str, AfterValidator(check_pattern)]
    summary: Annotated[str, Field(min_length=1)] | None = None
    """What the pattern means, such as `a date like 2026-01-31`."""

    def accepts(self, value: JsonValue) -> bool:
        """See `_FieldRule.accepts`."""
        return isinstance(value, str) and matches(self.pattern, value)

    def demand(self) -> str:
        """See `_FieldRule.demand`."""
        return f"{self.summary} ({self.pattern})" if self.summary else f"a text that matches {self.pattern}"

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        told: dict[str, JsonValue] = {"pattern": self.pattern}
        return told | {"summary": self.summary} if self.summary else told

    def _violation(self, place: str, value: JsonValue) -> Violation:
        if isinstance(value, str) and len(value) > MOST_SUBJECT_CHARS:
            message = f"{place} may have {MOST_SUBJECT_CHARS} characters, because a pattern is tried on it; found {len(value)}"
            return Violation(place, "regex", message, self.expected(), shorten(value), has_got=True)
        return super()._violation(place, value)


class Length(_FieldRule):
    """The number of characters of a text, or of items of a list."""

    rule: Literal["length"] = "length"
    min: Count | None = None
    max: Count | None = None

    @model_validator(mode="after")
    def _bounds_make_sense(self) -> Self:
        _check_bounds(self.min, self.max)
        return self

    def accepts(self, value: JsonValue) -> bool:
        """See `_FieldRule.accepts`."""
        return isinstance(value, str | list) and (self.min or 0) <= len(value) <= (self.max if self.max is not None else math.inf)

    def demand(self) -> str:
        """See `_FieldRule.demand`."""
        return f"a text or list of {_between(self.min, self.max)} characters or items"

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return f"the length of {self.field} is {_between(self.min, self.max)}"

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return _bounds(self.min, self.max)

    def _violation(self, place: str, value: JsonValue) -> Violation:
        if self.message is None and isinstance(value, str | list):
            what = "characters" if isinstance(value, str) else "items"
            message = f"{place} must have {_between(self.min, self.max)} {what}, found {len(value)}"
            return Violation(place, "length", message, self.expected(), shorten(value), has_got=True)
        return super()._violation(place, value)


class _FieldsRule(_Rule):
    """A rule on which of some fields are there."""

    fields: Annotated[list[FieldPath], Field(min_length=2)]

    def judge(self, arguments: Mapping[str, JsonValue]) -> list[Violation] | None:
        """See `_Rule.judge`."""
        given = [path for path in self.fields if any(values_at(path, dict(arguments)))]
        if self.accepts(len(given)):
            return []
        message = self.message or f"{self.describe()}; given: {' and '.join(given) if given else 'none'}"
        return [Violation(", ".join(self.fields), _word(self), message, self.expected(), list(given), has_got=True)]

    @abstractmethod
    def accepts(self, given: int) -> bool:
        """Whether so many of the fields may be there."""

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return {_word(self): list(self.fields)}


class ExactlyOne(_FieldsRule):
    """Exactly one of some fields is there."""

    rule: Literal["exactly_one"] = "exactly_one"

    def accepts(self, given: int) -> bool:
        """See `_FieldsRule.accepts`."""
        return given == 1

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return f"exactly one of {', '.join(self.fields)} must be given"


class AtLeastOne(_FieldsRule):
    """At least one of some fields is there."""

    rule: Literal["at_least_one"] = "at_least_one"

    def accepts(self, given: int) -> bool:
        """See `_FieldsRule.accepts`."""
        return given >= 1

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return f"at least one of {', '.join(self.fields)} must be given"


class AllOf(_Rule):
    """All of some rules hold; with a message of its own for them together."""

    rule: Literal["all_of"] = "all_of"
    of: Annotated[list["Rule"], Field(min_length=1)]

    def judge(self, arguments: Mapping[str, JsonValue]) -> list[Violation] | None:
        """See `_Rule.judge`."""
        judged = [rule.judge(arguments) for rule in self.of]
        broken = [violation for violations in judged for violation in violations or ()]
        if broken:
            return [_together(self, broken, " and ".join(violation.message for violation in broken))]
        return None if all(violations is None for violations in judged) else []

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return " and ".join(rule.describe() for rule in self.of)

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return {"all_of": [rule.expected() for rule in self.of]}


class AnyOf(_Rule):
    """At least one of some rules holds. Those that have nothing to judge, because a field is absent, count for neither side."""

    rule: Literal["any_of"] = "any_of"
    of: Annotated[list["Rule"], Field(min_length=2)]

    def judge(self, arguments: Mapping[str, JsonValue]) -> list[Violation] | None:
        """See `_Rule.judge`."""
        judged = [rule.judge(arguments) for rule in self.of]
        if any(violations == [] for violations in judged):
            return []
        if all(violations is None for violations in judged):
            return None
        broken = [violation for violations in judged for violation in violations or ()]
        return [_together(self, broken, "one of these must be mended: " + "; ".join(one.message for one in broken))]

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return ", or ".join(rule.describe() for rule in self.of)

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return {"any_of": [rule.expected() for rule in self.of]}


class Not(_Rule):
    """A rule does not hold. It is content where that rule has nothing to judge."""

    rule: Literal["not"] = "not"
    of: "Rule"

    def judge(self, arguments: Mapping[str, JsonValue]) -> list[Violation] | None:
        """See `_Rule.judge`."""
        judged = self.of.judge(arguments)
        if judged is None or judged:
            return None if judged is None else []
        message = self.message or f"this may not be: {self.of.describe()}"
        paths = self.of.field if isinstance(self.of, _FieldRule) else ", ".join(dict.fromkeys(fields_of(self.of)))
        return [Violation(paths, "not", message, self.expected())]

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return f"not: {self.of.describe()}"

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return {"not": self.of.expected()}


class Custom(_Rule):
    """A rule in Python: an entry point of the group `cuttlefish.rules`, or `check` itself where rules are made in Python.

    It is called with all arguments and gives None, or a sentence that says what is wrong. It is the operator's own code.
    """

    rule: Literal["custom"] = "custom"
    name: Annotated[str, Field(min_length=1)]
    summary: Annotated[str, Field(min_length=1)]
    """What it demands, for agents."""
    field: FieldPath | None = None
    """The field that it is about, if it is one."""
    check: Callable[[Mapping[str, JsonValue]], str | None] | None = Field(default=None, exclude=True, repr=False)

    def judge(self, arguments: Mapping[str, JsonValue]) -> list[Violation] | None:
        """See `_Rule.judge`."""
        try:
            check = self.check or _entry_points()[self.name].load()
            wrong = check(dict(arguments))
            if wrong is not None and not isinstance(wrong, str):
                raise TypeError(f"a rule gives None or a sentence, not {type(wrong).__name__}")
        except (Exception, SystemExit) as error:
            reference = secrets.token_hex(4)
            _log.exception("custom rule %s broke: %s", self.name, reference)
            message = f'the rule "{self.name}" broke, which is a fault of its package; the log says more under {reference}'
            raise CuttlefishError(message, code=ErrorCode.INTERNAL) from error
        if wrong is None:
            return []
        found = list(values_at(self.field, dict(arguments))) if self.field else []
        got = shorten(found[0][1]) if found else None
        return [Violation(self.field or "", "custom", self.message or wrong, self.expected(), got, has_got=bool(found))]

    def describe(self) -> str:
        """See `_Rule.describe`."""
        return self.summary

    def expected(self) -> JsonValue:
        """See `_Rule.expected`."""
        return {"custom": self.name, "summary": self.summary}


Rule = Annotated[
    Range | OneOf | Regex | Length | ExactlyOne | AtLeastOne | AllOf | AnyOf | Not | Custom,
    Field(discriminator="rule"),
]
"""One rule, of any kind; in a file its `rule` says which."""

RULE_WORDS: dict[str, type[_Rule]] = {
    "range": Range,
    "one_of": OneOf,
    "regex": Regex,
    "length": Length,
    "exactly_one": ExactlyOne,
    "at_least_one": AtLeastOne,
    "all_of": AllOf,
    "any_of": AnyOf,
    "not": Not,
    "custom": Custom,
}

for _kind in (AllOf, AnyOf, Not):
    _kind.model_rebuild()


def custom_rule_problems(rule: "Rule", *before: str | int) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    """For each custom rule within a rule that no package offers: what is wrong, and the keys at which it stands."""
    match rule:
        case Custom(name=name, check=None) if name not in (known := _entry_points()):
            offered = f"; there are: {', '.join(sorted(known))}" if known else "; no package that is installed offers any"
            yield f'there is no custom rule "{name}"{offered} (entry points of the group {CUSTOM_RULES})', (*before, "name")
        case AllOf(of=inner) | AnyOf(of=inner):
            for index, one in enumerate(inner):
                yield from custom_rule_problems(one, *before, "of", index)
        case Not(of=one):
            yield from custom_rule_problems(one, *before, "of")


@lru_cache(maxsize=1)
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=CUSTOM_RULES)}


def _check_bounds(least: float | None, most: float | None) -> None:
    if least is None and most is None:
        raise ValueError("a rule of this kind has min, max or both; this one has neither")
    if least is not None and most is not None and least > most:
        raise ValueError(f"min is {least} and max {most}: no value fits both")


def fields_of(rule: "Rule") -> Iterator[str]:
    """The paths that a rule reads, as far as it says."""
    match rule:
        case AllOf(of=inner) | AnyOf(of=inner):
            for one in inner:
                yield from fields_of(one)
        case Not(of=one):
            yield from fields_of(one)
        case ExactlyOne(fields=fields) | AtLeastOne(fields=fields):
            yield from fields
        case Custom(field=field):
            if field is not None:
                yield field
        case _:
            yield rule.field


def _together(rule: "AllOf | AnyOf", broken: list[Violation], message: str) -> Violation:
    paths = ", ".join(dict.fromkeys(violation.field for violation in broken))
    only = broken[0] if len(broken) == 1 else None
    got = only.got if only else None
    return Violation(paths, rule.rule, rule.message or message, rule.expected(), got, has_got=bool(only and only.has_got))
