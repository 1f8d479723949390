"""Functions of whole numbers that repeat, such as remainders (the hashing trick) and hours of days.

A column whose ids have no end needs no table of all of them where all that a model computes of an
id repeats: (x * 31 + 7) % 50000 is the same of x and of x + 50000, and x // 3600 % 24 of x and of
x + 86400. x > 0 is the same for all ids from 1 on.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

from dpiframe_core.program.expression import Expression, call, rebuilt

_JUMPS = {"mod", "floor", "ceil", "round", "eq", "ne"}
_COMPARED = {"eq", "ne", "lt", "le", "gt", "ge"}


# What has been found of a part that several others share.
_once = lru_cache(maxsize=2**16)


class Repeats(NamedTuple):
    """f(x + period) = f(x) for all whole numbers x, or, where `start` is not 0, for those from it
    on; `last`: up to this magnitude, where the type of x does not hold what is made of larger ones.
    """

    start: int
    period: int
    last: int | None = None

    @property
    def rows(self) -> int:
        """The ids that have all results."""
        return self.start + self.period


def repeats(functions: Iterable[Expression], largest: int, most: int) -> Repeats | None:
    """How functions of x0 repeat together; None where that is not known, or where a type of numbers
    up to `most` is too small for what they make of numbers up to the largest.
    """
    given = [rebuilt(function, lambda part: part) for function in functions]
    floored = [_floored(function) for function in given]
    found = _all([_repeats(function, None) for function in floored])
    if found is not None and floored != given:  # of ids that are not negative
        found = found._replace(start=max(found.start, 1))
    last = bisect.bisect_left(range(most), True, key=lambda x: not _fits(given, x, most)) - 1
    if found is None or last < largest:
        return None
    return found._replace(last=last) if last < most - 1 else found


def _floored(function: Expression) -> Expression:
    """The function with floors and remainders in the place of what is truncated towards 0, and x0
    in that of its maximum with 0, where these are the same of all x0 but negative ones.
    """
    return rebuilt(function, _floor_of)


def _floor_of(function: Expression) -> Expression:
    """A function whose parts have been looked at."""
    if not isinstance(function, tuple):
        return function
    name, *parts = function
    if name == "max" and "x0" in parts and any(isinstance(p, float) and p <= 0 for p in parts):
        return "x0"
    if name == "mul" and isinstance(parts[0], tuple) and parts[0][0] == "sign":
        quotient = parts[0][1]
        is_truncated = parts[1] == ("floor", ("abs", quotient))
        found = _quotient(quotient) if is_truncated else None
        if found is not None and _is_never_negative(found[0]):
            return call("floor", quotient)
    if name == "sub" and isinstance(parts[1], tuple) and parts[1][0] == "mul":
        _, by, whole = parts[1]
        if whole == ("floor", ("div", parts[0], by)):
            return call("mod", parts[0], by)
    return function


@_once
def _is_never_negative(function: Expression) -> bool:
    """Of x0 that are not negative."""
    if isinstance(function, float):
        return function >= 0
    if isinstance(function, str):
        return True
    name, *parts = function
    return name in ("add", "mul", "mod", "floor", "abs") and all(map(_is_never_negative, parts))


@_once
def is_rounded(function: Expression, largest: int, most: float) -> bool:
    """Whether of x0 up to the largest it takes a remainder, a floor or equality of numbers above
    `most`, which the type of these rounds: one that is a little off makes a wrong one.
    """
    if not isinstance(function, tuple):
        return False
    name, *parts = function
    if name in ("eq", "ne") and "x0" in parts and any(isinstance(p, float) for p in parts):
        return any(isinstance(p, float) and abs(p) > most for p in parts)  # others are told apart
    if name in _JUMPS and any(_bounds(part, float(largest))[1] > most for part in parts):
        return True
    return any(is_rounded(part, largest, most) for part in parts)


def _fits(functions: Iterable[Expression], largest: int, most: int) -> bool:
    return all(_bounds(function, float(largest))[1] <= float(most) for function in functions)


def _all(found: Sequence[Repeats | None]) -> Repeats | None:
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    start = max((each.start for each in known), default=0)
    return Repeats(start, reduce(math.lcm, (each.period for each in known), 1))


@_once
def _repeats(function: Expression, modulus: int | None) -> Repeats | None:
    """The same of one function; with a modulus of its remainder by it."""
    if isinstance(function, float) or (modulus == 1 and _is_whole(function)):
        return Repeats(0, 1)
    if isinstance(function, str):
        return None if modulus is None else Repeats(0, modulus)
    name, *parts = function
    by = parts[1] if len(parts) == 2 else None
    whole = int(by) if isinstance(by, float) and by > 0 and by.is_integer() else None
    if name == "mod" and whole:
        inner = whole if modulus is None or whole % modulus else modulus
        return _repeats(parts[0], inner)
    if by is not None and (end := _end(parts)) is not None:
        if name in _COMPARED or name == "min":
            return Repeats(end, 1)
        if name == "max" and modulus is not None:
            return Repeats(end, modulus)
    if name in ("sign", "abs") and parts == ["x0"]:
        period = 1 if name == "sign" else modulus
        return Repeats(1, period) if period else None
    if modulus is not None:
        if name in ("add", "sub", "neg"):
            return _all([_repeats(part, modulus) for part in parts])
        if name == "mul":
            return _product(parts, modulus)
        if name == "where":
            exact = _repeats(parts[0], None)
            return _all([exact, *(_repeats(part, modulus) for part in parts[1:])])
        if name == "floor" and (found := _quotient(parts[0])) is not None:
            part, divisor = found
            return _repeats(part, divisor * modulus)
    return _all([_repeats(part, None) for part in parts])


@_once
def _is_whole(function: Expression) -> bool:
    """Whether it is a whole number of every whole number."""
    if isinstance(function, float):
        return function.is_integer()
    if isinstance(function, str):
        return True
    name, *parts = function
    if name in ("floor", "sign") or name in _COMPARED:
        return True
    return name in ("add", "sub", "neg", "mul", "mod", "abs") and all(map(_is_whole, parts))


def _end(parts: Sequence[Expression]) -> int | None:
    """From where on x0 is above the number beside it; None where these are not the two."""
    a, b = parts
    number = b if a == "x0" else a if b == "x0" else None
    if not isinstance(number, float) or not abs(number) < 2.0**53:
        return None
    return max(1, math.floor(number) + 1)


def _product(parts: Sequence[Expression], modulus: int) -> Repeats | None:
    a, b = parts
    if isinstance(b, float):
        a, b = b, a
    if not isinstance(a, float):
        within = modulus if _is_whole(a) and _is_whole(b) else None
        return _all([_repeats(a, within), _repeats(b, within)])
    if not a.is_integer():
        return _repeats(b, None)
    return _repeats(b, modulus // math.gcd(int(a), modulus))


def _quotient(part: Expression) -> tuple[Expression, int] | None:
    """What a division by a whole number divides, and that number."""
    if not isinstance(part, tuple) or part[0] != "div":
        return None
    divisor = part[2]
    if isinstance(divisor, tuple) and divisor[0] == "pow":
        base, exponent = divisor[1:]
        if isinstance(base, float) and isinstance(exponent, float):
            divisor = base**exponent
    if not isinstance(divisor, float) or divisor < 1 or not divisor.is_integer():
        return None
    return part[1], int(divisor)


@_once
def _bounds(function: Expression, largest: float) -> tuple[float, float]:
    """The largest magnitude of a function of numbers up to the largest, and on the way to it."""
    if isinstance(function, float):
        return abs(function), abs(function)
    if isinstance(function, str):
        return largest, largest
    name, *parts = function
    found = [_bounds(part, largest) for part in parts]
    sizes = [size for size, _ in found]
    if name in _COMPARED:
        size = 1.0
    elif name == "mul":
        size = math.prod(sizes)
    elif name == "div" and isinstance(parts[1], float) and abs(parts[1]) >= 1:
        size = sizes[0] / abs(parts[1])
    else:
        size = sizes[1] if name == "mod" else sum(sizes)
    return size, max(size, *(peak for _, peak in found))
