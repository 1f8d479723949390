"""Functions of ids that repeat, against the functions themselves."""

from __future__ import annotations

import pytest
import torch

from dpiframe_core.frontend.operations.elementwise import truncated
from dpiframe_core.frontend.periods import Repeats, is_rounded, repeats
from dpiframe_core.program.expression import Expression, evaluate


def remainder(x: Expression, by: float) -> Expression:
    return ("mod", x, by)


def quotient(x: Expression, by: float) -> Expression:
    return ("floor", ("div", x, by))


def remainder_of_c(x: Expression, by: float) -> Expression:
    return ("sub", x, ("mul", by, truncated(("div", x, by))))


X, INT64 = "x0", 2**63 - 1
HASH = remainder(("add", ("mul", X, 31.0), 7.0), 500.0)
REPEATING: list[tuple[list[Expression], Repeats]] = [
    ([remainder(X, 12.0)], Repeats(0, 12)),
    ([HASH], Repeats(0, 500)),
    ([remainder(("mul", X, 6.0), 9.0)], Repeats(0, 3)),
    ([remainder(("mul", X, X), 8.0)], Repeats(0, 8)),
    ([remainder(quotient(X, 36.0), 24.0)], Repeats(0, 864)),
    ([remainder(quotient(X, 36.0), 24.0), remainder(quotient(X, 864.0), 7.0)], Repeats(0, 6048)),
    ([remainder(quotient(X, ("pow", 2.0, 3.0)), 16.0)], Repeats(0, 128)),
    ([quotient(remainder(X, 90.0), 7.0)], Repeats(0, 90)),
    ([remainder(remainder(X, 30.0), 4.0)], Repeats(0, 30)),
    ([remainder(remainder(X, 30.0), 15.0)], Repeats(0, 15)),
    ([("sin", remainder(X, 30.0))], Repeats(0, 30)),
    ([("where", ("gt", HASH, 9.0), 1.0, HASH)], Repeats(0, 500)),
    ([("gt", X, 0.0), remainder(X, 40.0)], Repeats(1, 40)),
    ([("eq", 3.0, X), ("ne", X, 17.5)], Repeats(18, 1)),
    ([remainder(("max", X, 4.0), 10.0), ("min", X, 20.0)], Repeats(21, 10)),
    ([remainder(("abs", X), 10.0), ("sign", X)], Repeats(1, 10)),
    ([remainder(("where", ("gt", X, 5.0), X, 3.0), 10.0)], Repeats(6, 10)),
    ([2.0], Repeats(0, 1)),
    ([remainder(truncated(("div", X, 36.0)), 24.0)], Repeats(1, 864)),
    ([remainder(truncated(("div", ("add", X, 5.0), 36.0)), 24.0)], Repeats(1, 864)),
    ([remainder_of_c(("mul", X, 3.0), 10.0)], Repeats(1, 10)),
]  # fmt: skip


@pytest.mark.parametrize(("functions", "expected"), REPEATING)
def test_what_repeats(functions, expected):
    found = repeats(functions, 10**6, INT64)
    assert found is not None
    assert found[:2] == expected[:2]
    first = found.start if found.start else -5000
    ids = torch.arange(first, 20_000, dtype=torch.float64)
    for function in functions:
        one, other = (evaluate(function, [x]).expand(len(ids)) for x in (ids, ids + found.period))
        assert torch.equal(one, other)


@pytest.mark.parametrize("function", [
    X,
    ("add", remainder(X, 5.0), X),
    quotient(X, 8.0),
    ("min", quotient(X, 8.0), 9.0),
    ("div", X, 3.0),
    ("sin", X),
    remainder(("mul", X, 0.5), 3.0),
    remainder(("mul", ("sin", remainder(X, 5.0)), X), 3.0),
    ("gt", X, float("-inf")),
    ("min", X, float("inf")),
    remainder(("div", X, 3.0), 3.0),
    remainder(X, 2.5),
    remainder(X, -7.0),
    remainder(("sin", X), 3.0),
    remainder(X, X),
    ("max", X, 5.0),
    remainder(truncated(("div", ("sub", X, 5.0), 36.0)), 24.0),
])  # fmt: skip
def test_what_does_not(function):
    assert repeats([remainder(X, 4.0), function], 10**6, INT64) is None


def test_what_a_type_does_not_hold_does_not_repeat():
    function = remainder(("mul", X, 2654435761.0), 1000.0)
    found = repeats([function], 2**31, INT64)
    assert found is not None
    assert (found.start, found.period) == (0, 1000)
    assert found.last is not None
    assert 2**31 < found.last < 2**32
    assert found.last * 2654435761 <= INT64 < (found.last + 2**13) * 2654435761
    assert repeats([function], 2**32, INT64) is None
    assert repeats([HASH], 2**25, 2**31 - 1) == Repeats(0, 500, (2**31 - 8) // 31)
    assert repeats([remainder(X, 7.0)], 2**25, 2**31 - 1) == Repeats(0, 7)


def test_what_a_type_rounds_before_a_jump():
    most = 2.0**24
    assert is_rounded(quotient(X, 3600.0), 10**9, most)
    assert is_rounded(HASH, 10**6, most) and not is_rounded(HASH, 10**5, most)
    assert not is_rounded(("log1p", X), 10**9, most)
    assert is_rounded(("add", ("eq", ("mul", X, X), 4.0), 1.0), 5000, most)
