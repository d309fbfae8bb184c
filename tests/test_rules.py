"""Rules on what a job is given: what each accepts, how it says no, and that no text makes one hang."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter, ValidationError

from cuttlefish.errors import CuttlefishError
from cuttlefish.pipeline.patterns import MOST_SUBJECT_CHARS
from cuttlefish.pipeline.rules import Custom, Rule, evaluate

RULES: TypeAdapter[list[Rule]] = TypeAdapter(list[Rule])


def judge(rule: dict[str, Any], arguments: dict[str, JsonValue]) -> list[dict[str, JsonValue]]:
    return [violation.as_json() for violation in evaluate(RULES.validate_python([rule]), arguments)]


FIVE: JsonValue = {"min": 1, "max": 5}
KINDS: JsonValue = {"one_of": ["letter", "invoice", 1]}
RANGE = {"rule": "range", "field": "n", "min": 1, "max": 5}
ONE_OF = {"rule": "one_of", "field": "kind", "values": ["letter", "invoice", 1]}
DATE = {"rule": "regex", "field": "day", "pattern": r"^\d{4}-\d\d-\d\d$", "summary": "a date like 2026-01-31"}
LENGTH = {"rule": "length", "field": "items", "min": 1, "max": 2}
SOURCE = {"rule": "exactly_one", "fields": ["path", "text"]}
ANY = {"rule": "any_of", "of": [LENGTH, {"rule": "length", "field": "title", "min": 1}]}


@pytest.mark.parametrize(
    ("rule", "arguments", "told"),
    [
        pytest.param(RANGE, {"n": 0}, ("n", "range", "n must be from 1 to 5, found 0", {"min": 1, "max": 5}, 0), id="below"),
        pytest.param(RANGE, {"n": True}, ("n", "range", "n must be from 1 to 5, found true", FIVE, True), id="true"),
        pytest.param(
            {**RANGE, "field": "config.pages[1].n"},
            {"config": {"pages": [{"n": 9}, {"n": 9}]}},
            ("config.pages[1].n", "range", "config.pages[1].n must be from 1 to 5, found 9", {"min": 1, "max": 5}, 9),
            id="path",
        ),
        pytest.param(
            {**RANGE, "field": "list[*]"},
            {"list": [1, 6]},
            ("list[1]", "range", "list[1] must be from 1 to 5, found 6", {"min": 1, "max": 5}, 6),
            id="every item",
        ),
        pytest.param(
            ONE_OF,
            {"kind": "leter"},
            (
                "kind",
                "one_of",
                'kind must be one of "letter", "invoice", 1, found "leter"; did you mean "letter"?',
                {"one_of": ["letter", "invoice", 1]},
                "leter",
            ),
            id="nearest",
        ),
        pytest.param(
            ONE_OF,
            {"kind": True},
            (
                "kind",
                "one_of",
                'kind must be one of "letter", "invoice", 1, found true',
                {"one_of": ["letter", "invoice", 1]},
                True,
            ),
            id="true is not one",
        ),
        pytest.param(
            DATE,
            {"day": "tomorrow"},
            (
                "day",
                "regex",
                r'day must be a date like 2026-01-31 (^\d{4}-\d\d-\d\d$), found "tomorrow"',
                {"pattern": r"^\d{4}-\d\d-\d\d$", "summary": "a date like 2026-01-31"},
                "tomorrow",
            ),
            id="pattern",
        ),
        pytest.param(
            LENGTH,
            {"items": []},
            ("items", "length", "items must have from 1 to 2 items, found 0", {"min": 1, "max": 2}, "[]"),
            id="items",
        ),
        pytest.param(
            LENGTH,
            {"items": "abc"},
            ("items", "length", "items must have from 1 to 2 characters, found 3", {"min": 1, "max": 2}, "abc"),
            id="characters",
        ),
        pytest.param(
            SOURCE,
            {"path": "a", "text": "b"},
            (
                "path, text",
                "exactly_one",
                "exactly one of path, text must be given; given: path and text",
                {"exactly_one": ["path", "text"]},
                ["path", "text"],
            ),
            id="both",
        ),
        pytest.param(
            {**SOURCE, "rule": "at_least_one"},
            {"path": None},
            (
                "path, text",
                "at_least_one",
                "at least one of path, text must be given; given: none",
                {"at_least_one": ["path", "text"]},
                [],
            ),
            id="null is absent",
        ),
        pytest.param(
            {"rule": "all_of", "of": [RANGE, ONE_OF], "message": "that does not go together"},
            {"n": 7, "kind": "letter"},
            (
                "n",
                "all_of",
                "that does not go together",
                {"all_of": [{"min": 1, "max": 5}, {"one_of": ["letter", "invoice", 1]}]},
                7,
            ),
            id="all",
        ),
    ],
)
def test_what_breaks_a_rule_is_told_whole(
    rule: dict[str, Any], arguments: dict[str, JsonValue], told: tuple[str, str, str, JsonValue, JsonValue]
) -> None:
    expected = dict(zip(("field", "rule", "message", "expected", "got"), told, strict=True))
    assert judge(rule, arguments) == [expected]


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        (RANGE, {"n": 1}),
        (RANGE, {"n": 5.0}),
        ({"rule": "range", "field": "n", "min": 1}, {"n": 10**30}),
        (ONE_OF, {"kind": 1.0}),
        (DATE, {"day": "2026-01-31"}),
        (LENGTH, {"items": "ab"}),
        (SOURCE, {"text": "b", "path": None}),
        (ANY, {"items": [], "title": "T"}),
        (ANY, {}),
        ({"rule": "not", "of": ONE_OF}, {"kind": "other"}),
    ],
)
def test_what_keeps_to_a_rule_is_not_told(rule: dict[str, Any], arguments: dict[str, JsonValue]) -> None:
    assert judge(rule, arguments) == []


@pytest.mark.parametrize("rule", [RANGE, ONE_OF, DATE, LENGTH, {"rule": "not", "of": ONE_OF}], ids=lambda rule: rule["rule"])
@pytest.mark.parametrize("arguments", [{}, {"n": None, "kind": None, "day": None, "items": None}], ids=["absent", "null"])
def test_a_field_that_is_absent_breaks_no_rule_about_its_value(rule: dict[str, Any], arguments: dict[str, JsonValue]) -> None:
    assert judge(rule, arguments) == []


def test_any_of_is_broken_where_the_only_rule_that_has_something_to_judge_is() -> None:
    (told,) = judge(ANY, {"items": []})
    assert (told["field"], told["rule"]) == ("items", "any_of")
    assert told["message"] == "one of these must be mended: items must have from 1 to 2 items, found 0"


def test_a_not_that_has_nothing_to_judge_does_not_help_in_any_of() -> None:
    rule = {"rule": "any_of", "of": [{"rule": "not", "of": ONE_OF}, LENGTH]}
    assert [one["rule"] for one in judge(rule, {"items": []})] == ["any_of"]
    assert judge(rule, {"items": [], "kind": "other"}) == []


def test_not_names_the_field_and_what_it_may_not_be() -> None:
    assert judge({"rule": "not", "of": ONE_OF}, {"kind": "letter"}) == [
        {
            "field": "kind",
            "rule": "not",
            "message": 'this may not be: kind is one of "letter", "invoice", 1',
            "expected": {"not": {"one_of": ["letter", "invoice", 1]}},
        }
    ]


def test_what_was_given_is_cut_short_and_large_numbers_are_text() -> None:
    long = judge({"rule": "length", "field": "t", "max": 1}, {"t": "x" * 100_000})[0]
    assert long["got"] == "x" * 199 + "…"
    assert judge(RANGE, {"n": 2**53})[0]["got"] == "9007199254740992"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": "range", "field": "n"}, "a rule of this kind has min, max or both; this one has neither"),
        ({"rule": "length", "field": "n", "min": 3, "max": 2}, "min is 3 and max 2: no value fits both"),
        (
            {"rule": "regex", "field": "n", "pattern": "(?=a)"},
            "look-around, including look-ahead",
        ),
        ({"rule": "regex", "field": "n", "pattern": "a{1000}{1000}"}, "it is too large"),
        ({"rule": "regex", "field": "n", "pattern": "a" * 1001}, "pattern may have 1000 characters, found 1001"),
        ({"rule": "range", "field": "a..b", "min": 1}, "is no path of a field"),
        ({"rule": "one_of", "field": "a", "values": [float("nan")]}, "values has nan, which is no JSON value"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_when_it_is_read(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=r".") as caught:
        RULES.validate_python([rule])
    assert message in str(caught.value)


def test_no_text_makes_a_pattern_hang() -> None:
    """Python's own engine needs longer than the world has existed for the first one."""
    slow = {"rule": "regex", "field": "t", "pattern": "^(a+)+$"}
    began = time.monotonic()
    assert judge(slow, {"t": "a" * (MOST_SUBJECT_CHARS - 1) + "b"})
    assert time.monotonic() - began < 10
    assert not judge(slow, {"t": "a" * MOST_SUBJECT_CHARS})
    (told,) = judge(slow, {"t": "a" * (MOST_SUBJECT_CHARS + 1)})
    assert told["message"] == "t may have 16384 characters, because a pattern is tried on it; found 16385"


def test_a_custom_rule_says_what_is_wrong_in_its_own_words() -> None:
    rule = Custom(name="even", summary="n is even", field="n", check=lambda a: "n is odd" if a["n"] == 1 else None)
    assert [v.as_json() for v in evaluate([rule], {"n": 1})] == [
        {"field": "n", "rule": "custom", "message": "n is odd", "expected": {"custom": "even", "summary": "n is even"}, "got": 1}
    ]
    assert evaluate([rule], {"n": 2}) == []


@pytest.mark.parametrize("check", [lambda _: 1 / 0, lambda _: False], ids=["raises", "gives no sentence"])
def test_a_custom_rule_that_breaks_is_never_taken_for_a_yes(check: Any) -> None:
    with pytest.raises(CuttlefishError, match='the rule "bad" broke, which is a fault of its package') as caught:
        evaluate([Custom(name="bad", summary="bad", check=check)], {})
    assert caught.value.code == "internal"


NAMES = st.sampled_from(["n", "kind", "day", "items", "title", "path"])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab1é日", max_size=5)
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=10)


@given(st.dictionaries(NAMES, JSON))
def test_whatever_is_given_is_judged_and_the_answer_is_json(arguments: dict[str, JsonValue]) -> None:
    deep = {"rule": "range", "field": "items[*].n", "max": 3}
    rules = RULES.validate_python([RANGE, ONE_OF, DATE, LENGTH, SOURCE, ANY, deep, {"rule": "not", "of": ANY}])
    for violation in evaluate(rules, arguments):
        told = violation.as_json()
        assert TypeAdapter(dict[str, JsonValue]).dump_json(told)
        assert isinstance(violation.message, str)
        assert violation.field
