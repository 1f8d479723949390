"""Whole numbers that are computed of several columns, such as the hashes of crossed features.

Scores are computed in float32, which holds whole numbers up to 2^24. (a * 40503 + b) % 100000 is
the same of remainders, (a * 40503 % 100000 + b % 100000) % 100000, whose parts are functions of one
column each and so are exact: numbers of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpiframe_core.frontend.values import Dim, Fixed, Made, Value
from dpiframe_core.program.expression import Expression
from dpiframe_core.program.tensor_ops import MOST_ELEMENTS

MOST_WHOLE = MOST_ELEMENTS  # float32 holds all whole numbers up to this one


@dataclass(frozen=True)
class JoinedParts:
    """Values side by side along a dimension, and the whole."""

    parts: tuple[Value, ...]
    dim: int
    made: Value


@dataclass(frozen=True)
class WholeBits:
    """Whole numbers below 2**`bits` that an operation makes bit by bit: `of(bits)` is its
    expression for values of so many bits.
    """

    of: Callable[[int], Expression]
    bits: int
    values: tuple[Value, ...]
    made: Value


@dataclass(frozen=True)
class WholeSum:
    """What a module makes of whole numbers by sums and products."""

    expression: Expression
    values: tuple[Value, ...]
    made: Value


class WholeSums:
    """Those of a building, by the names of their modules."""

    def __init__(self) -> None:
        self._known: dict[str, WholeSum] = {}
        self._joined: dict[str, JoinedParts] = {}
        self._bits: dict[str, WholeBits] = {}

    def note(self, expression: Expression, values: Sequence[Value], made: Value) -> None:
        """A module's result, if it is one."""
        is_sum = largest(expression, [1.0] * len(values)) is not None
        if isinstance(made.source, Made) and is_sum and all(map(_is_whole, values)):
            self._known[made.source.module] = WholeSum(expression, tuple(values), made)

    def note_join(self, parts: Sequence[Value], dim: int, made: Value) -> None:
        """A module's result that is others side by side."""
        assert isinstance(made.source, Made)
        self._joined[made.source.module] = JoinedParts(tuple(parts), dim, made)

    def note_bits(self, made: Value, bits: WholeBits) -> None:
        """A module's result, which an operation on bits made."""
        if isinstance(made.source, Made) and all(map(_is_whole, bits.values)):
            self._bits[made.source.module] = bits

    def bits_of(self, value: Value) -> WholeBits | None:
        """The operation on bits that made this very value."""
        known = self._bits.get(value.source.module) if isinstance(value.source, Made) else None
        return known if known and _same(known.made, value) else None

    def of(self, value: Value) -> WholeSum | None:
        """The sum that made this very value, and not a part of one; dimensions of one place do not
        matter.
        """
        known = self._known.get(value.source.module) if isinstance(value.source, Made) else None
        return known if known and _same(known.made, value) else None

    def parts_of(self, value: Value) -> JoinedParts | None:
        """What this very value joins."""
        known = self._joined.get(value.source.module) if isinstance(value.source, Made) else None
        same = known and (known.made.dims, known.made.offset) == (value.dims, value.offset)
        return known if same else None


def _same(made: Value, value: Value) -> bool:
    return made.offset == value.offset and solid(made.dims) == solid(value.dims)


def solid(dims: Sequence[Dim]) -> list[Dim]:
    """Dimensions without those of one place."""
    return [dim for dim in dims if dim]


def _is_whole(value: Value) -> bool:
    if isinstance(value.source, Fixed):
        numbers = value.source.numbers
        return bool((numbers == numbers.round()).all())
    return value.is_integer


def largest(expression: Expression, of: Sequence[float]) -> float | None:
    """The largest that sums and products of whole numbers can be, whose largest are `of`; None
    where it is another expression.
    """
    if isinstance(expression, str):
        return of[int(expression[1:])]
    if isinstance(expression, float):
        return abs(expression) if expression.is_integer() else None
    name, *parts = expression
    found = [largest(part, of) for part in parts]
    sizes = [size for size in found if size is not None]
    if len(sizes) < len(found) or name not in ("add", "sub", "neg", "mul"):
        return None
    return math.prod(sizes) if name == "mul" else sum(sizes)
