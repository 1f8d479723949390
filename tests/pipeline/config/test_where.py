from __future__ import annotations

import pytest

from pipeline.config.where import Value, meets, parse_where
from pipeline.planning.partitions import typed_conditions

TYPES = {"date": "string", "hour": "int32", "a b": "string"}


def holds(text: str, **values: Value) -> bool:
    conditions = typed_conditions(parse_where(text), TYPES)  # type: ignore[arg-type]
    return meets(conditions, {name.replace("_", " "): value for name, value in values.items()})


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("date = 2026-11-19", True),
        ("date >= 2026-11-01 and date <= 2026-11-19", True),
        ("date > 2026-11-19", False),
        ("date != 2026-11-19", False),
        ("hour = 05", True),
        ("hour<10 AND hour>4", True),  # as numbers, not as texts
        ("hour in (4, 5)", True),
        ("hour not in (4,5)", False),
        ("hour is null", False),
        ("hour Is Not Null", True),
        ("date = '2026-11-19'", True),
        ("\"a b\" = 'it''s (x), y'", True),
    ],
)
def test_conditions(text: str, met: bool) -> None:
    assert holds(text, date="2026-11-19", hour=5, a_b="it's (x), y") is met


@pytest.mark.parametrize("text", ["hour = 5", "hour != 5", "hour < 9", "hour in (5)"])
def test_null_meets_only_is_null(text: str) -> None:
    assert not holds(text, hour=None)
    assert not holds(text.replace("in", "not in"), hour=None)
    assert holds("hour is null", hour=None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a column at character 1, got its end"),
        ("hour", "expected one of ="),
        ("hour =", "expected a value at character 7, got its end"),
        ("hour = 5 or hour = 6", "expected and at character 10"),
        ("hour == 5", "expected a value at character 7"),
        ("hour = 5 6", "expected and"),
        ("hour in 5", "expected '('"),
        ("hour in ()", "expected a value"),
        ("hour in (5", "expected ')'"),
        ("hour is 5", "expected null"),
        ("hour not = 5", "expected in"),
        ("hour = 'x", "expected a name, a value or a sign"),
        ("(hour = 5)", "expected a column"),
    ],
)
def test_broken_texts(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"character") as caught:
        parse_where(text)
    assert problem in str(caught.value)


def test_columns_and_types_must_fit() -> None:
    with pytest.raises(ValueError, match=r"day is no partition column .*has: date, hour, a b"):
        holds("day = 3")
    with pytest.raises(ValueError, match=r"hour is compared with 'x', but holds whole numbers"):
        holds("hour = x")
