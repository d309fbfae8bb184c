"""Whole numbers beyond 2^53: strings of digits in answers, and accepted as such where a number is wanted."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import JsonValue

from cuttlefish.mcp.checking import check_shape
from cuttlefish.mcp.large_numbers import with_large_numbers, write_large_numbers

LARGE = 2**53 + 1
NUMBERS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "plain": {"type": "integer", "minimum": 0, "description": "How many", "default": 3},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/number"}},
        "named": {"type": "object", "additionalProperties": {"type": "integer"}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "small": {"type": "integer", "minimum": 0, "maximum": 100},
        "text": {"type": "string"},
        "any": {},
    },
    "$defs": {"number": {"type": "integer"}},
    "additionalProperties": False,
}


def read(schema: Mapping[str, JsonValue], **arguments: Any) -> object:
    checked = check_shape(schema, arguments)
    return [violation.message for violation in checked.violations] or checked.values


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "plain": st.integers(min_value=0),
            "maybe": st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
            "list": st.lists(st.integers()),
            "named": st.dictionaries(st.text(), st.integers()),
            "small": st.integers(0, 100),
        },
    )
)
def test_what_an_answer_holds_is_read_as_what_it_was(value: dict[str, Any]) -> None:
    written = write_large_numbers(value)
    assert isinstance(written, dict)
    assert check_shape(NUMBERS, written).values == value
    assert check_shape(NUMBERS, written).violations == []
    Draft202012Validator(with_large_numbers(NUMBERS)).validate(written)


def test_a_string_of_digits_stays_text_where_text_may_stand() -> None:
    digits = str(LARGE)
    assert read(NUMBERS, either=digits, text=digits, any=[digits]) == {"either": digits, "text": digits, "any": [digits]}


NO_NUMBERS = ["3", str(2**53), f"0{LARGE}", f"+{LARGE}", f"{LARGE}.0", "9e99", f" {LARGE}", "9" * 5_000, "٩" * 20]


@pytest.mark.parametrize("text", NO_NUMBERS, ids=range(len(NO_NUMBERS)))
def test_no_other_string_is_a_number(text: str) -> None:
    (message,) = read(NUMBERS, plain=text)  # type: ignore[misc]  # one sentence
    assert message.startswith("plain must be a whole number, found ")


def test_a_number_that_came_as_a_string_keeps_to_what_is_said_of_numbers() -> None:
    assert read(NUMBERS, plain=f"-{LARGE}") == [f"plain must be at least 0, found -{LARGE}"]
    assert read(NUMBERS, small=str(LARGE), plain="x") == [
        'plain must be a whole number, found "x"',
        f"small must be at most 100, found {LARGE}",
    ]


def test_arguments_are_left_as_they_came() -> None:
    arguments: dict[str, JsonValue] = {"list": [str(LARGE)]}
    assert check_shape(NUMBERS, arguments).values == {"list": [LARGE]}
    assert arguments == {"list": [str(LARGE)]}


def test_the_schema_says_where_a_string_may_stand_for_a_number() -> None:
    told: Any = with_large_numbers(NUMBERS)
    Draft202012Validator.check_schema(told)
    digits = {"type": "string", "pattern": "^-?[1-9][0-9]{15,}$"}
    plain = told["properties"]["plain"]
    assert plain == {"anyOf": [{"type": "integer", "minimum": 0}, digits], "description": "How many", "default": 3}
    assert told["$defs"]["number"] == {"anyOf": [{"type": "integer"}, digits]}
    assert told["properties"]["small"] == {"type": "integer", "minimum": 0, "maximum": 100}
    assert told["properties"]["text"] == {"type": "string"}
