"""Indices of elements as sums of variables, taken apart without division where that is exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Index:
    """constant + sum of variable x factor; no factor and no variable is negative."""

    constant: int = 0
    factors: Mapping[str, int] = field(default_factory=dict)

    def plus(self, other: Index | int) -> Index:
        """The sum."""
        if isinstance(other, int):
            return Index(self.constant + other, self.factors)
        total = dict(self.factors)
        for name, factor in other.factors.items():
            total[name] = total.get(name, 0) + factor
        return Index(self.constant + other.constant, total)

    def times(self, factor: int) -> Index:
        """The product with a number."""
        if factor == 0:
            return Index()
        return Index(self.constant * factor, {n: f * factor for n, f in self.factors.items()})

    def __str__(self) -> str:
        parts = [n if f == 1 else f"{n} * {f}" for n, f in self.factors.items()]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


def variable(name: str) -> Index:
    """One variable."""
    return Index(0, {name: 1})


@dataclass(frozen=True)
class Load:
    """A load of device memory: an expression of C++, its type and the registers that it takes."""

    text: str
    type: str
    registers: int


class Scope:
    """A block of C++: its variables with their extents (each is below), its statements.

    Variables in `varying` change inside the block's last expression: nothing may be computed of
    them ahead (`VaryingError`). In a `packed` block elements are pairs of 16 bits, u is a pair's
    number, and one operation at most may round (`rounds`). Loads of device memory are `ahead` of
    the block where that is a list, and not among its statements.
    """

    def __init__(
        self,
        extents: Mapping[str, int],
        varying: frozenset[str] = frozenset(),
        packed: bool = False,
        ahead: list[Load] | None = None,
    ) -> None:
        self.extents = dict(extents)
        self.varying, self.packed, self.rounds = varying, packed, 0
        self.ahead = ahead
        self.lines: list[str] = []
        self._known: dict[str, str] = {}
        self._made_of: dict[str, frozenset[str]] = {}

    def behind(self) -> Scope:
        """A scope behind this one's statements: it knows their variables, and none varies."""
        scope = Scope(self.extents)
        scope._known, scope._made_of = dict(self._known), dict(self._made_of)
        return scope

    def largest(self, index: Index) -> int:
        """The largest value of an index."""
        return index.constant + sum(f * (self.extents[n] - 1) for n, f in index.factors.items())

    def let(self, text: str, extent: int, uses: Index) -> Index:
        """A new variable for an expression over the variables of `uses`."""
        if any(name in self.varying for name in uses.factors):
            raise VaryingError
        if text not in self._known:
            name = f"v{len(self._known)}"
            self._known[text] = name
            self.extents[name] = extent
            self._made_of[name] = self.depends_on(uses)
            self.lines.append(f"const int {name} = {text};")
        return variable(self._known[text])

    def pick(self, table: str, extent: int, place: Index) -> Index:
        """A new variable for an entry of a table of indices; in a loop's block over neighbours u,
        where their entries are read at once, it varies with u. (In a reduction that is slower.)
        """
        if self.ahead is None or "u" not in self.varying or "u" not in place.factors:
            return self.let(f"{table}[{place}]", extent, place)
        width = self.extents["u"]
        base = Index(place.constant, {n: f for n, f in place.factors.items() if n != "u"})
        if self.packed or place.factors["u"] != 1 or self.varying & base.factors.keys():
            raise VaryingError
        if base.constant % width or any(f % width for f in base.factors.values()):
            raise VaryingError
        text = f"{table} + {base}"
        if text not in self._known:
            name = f"v{len(self._known)}"
            self.lines.append(f"int {name}[{width}]; load_places<{width}>({text}, {name});")
            self._known[text] = f"{name}[u]"
        name = self._known[text]
        self.varying |= {name}
        self.extents[name] = extent
        self._made_of[name] = self.depends_on(place)
        return variable(name)

    def load_ahead(self, load: Load) -> str:
        """The name in the block of what is loaded ahead of it."""
        assert self.ahead is not None
        if load not in self.ahead:
            self.ahead.append(load)
        return f"loads.l{self.ahead.index(load)}"

    def index_lines(self) -> list[str]:
        """The statements that make variables of indices."""
        return [line for line in self.lines if line.split()[2] in self._made_of]

    def depends_on(self, index: Index) -> frozenset[str]:
        """The variables that an index is made of in the end, those given at the start."""
        found = (self._made_of.get(name, frozenset({name})) for name in index.factors)
        return frozenset().union(*found)

    def split_lines(self, inside: str) -> tuple[list[str], list[str]]:
        """The statements before a block over one variable, and those in it, loads among them."""
        before: list[str] = []
        within: list[str] = []
        for line in self.lines:
            depends = self._made_of.get(line.split()[2], frozenset({inside}))
            (within if inside in depends else before).append(line)
        return before, within

    def divided(self, index: Index, by: int) -> tuple[Index, Index]:
        """Quotient and remainder."""
        if by == 1:
            return index, Index()
        whole = {n: f // by for n, f in index.factors.items() if f % by == 0}
        rest = Index(index.constant % by, {n: f for n, f in index.factors.items() if f % by != 0})
        quotient = Index(index.constant // by, whole)
        most = self.largest(rest)
        if most < by:
            return quotient, rest
        if not rest.factors:
            return quotient.plus(rest.constant // by), Index(rest.constant % by)
        unit = math.gcd(by, *(f for n, f in rest.factors.items() if n not in self.varying))
        within = Index(
            rest.constant % unit, {n: f for n, f in rest.factors.items() if n in self.varying}
        )
        if 1 < unit < by and self.largest(within) < unit:
            units = {n: f // unit for n, f in rest.factors.items() if n not in self.varying}
            more, left = self.divided(Index(rest.constant // unit, units), by // unit)
            return quotient.plus(more), left.times(unit).plus(within)
        value = self.let(str(rest), most + 1, rest)
        more = self.let(f"quotient<{by}>({value})", most // by + 1, value)
        left = self.let(f"remainder<{by}>({value})", by, value)
        return quotient.plus(more), left

    def split(self, index: Index, shape: Sequence[int]) -> list[Index]:
        """An index of the row-major order as one along each axis."""
        found: list[Index] = []
        for size in reversed(shape[1:]):
            index, place = self.divided(index, size)
            found.append(place)
        if shape:
            found.append(index)
        return found[::-1]


class VaryingError(Exception):
    """A block has no such form: something would have to be computed ahead of a variable that it
    depends on, or pairs would be computed otherwise than single elements.
    """


def size_of(shape: Sequence[int]) -> int:
    """Elements of a shape."""
    return math.prod(shape)
