"""`where`: conditions on partition columns, all of which a file's folder names must meet.

    where      = condition {"and" condition}
    condition  = column ("=" | "!=" | "<" | "<=" | ">" | ">=") value
               | column ["not"] "in" "(" value {"," value} ")"
               | column "is" ["not"] "null"
    column     = name | "name in double quotes"
    value      = text without spaces, commas, brackets, quotes and = < > ! | 'text in single quotes'

As in SQL, null meets no condition but `is null`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Value = int | str | None

_TOKEN = re.compile(
    r"""\s*(?:(?P<op>!=|<=|>=|=|<|>|\(|\)|,)|"(?P<column>[^"]+)"|'(?P<text>(?:[^']|'')*)'"""
    r"""|(?P<bare>[^\s(),'"=<>!]+))"""
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """One condition; `op` is a sign, "in", "not in", "is null" or "is not null"."""

    column: str
    op: str
    values: tuple[str, ...] = ()

    def typed(self, kind: str) -> Condition:
        """The same for a column of the type "int32" or "string". ValueError: a value that is none
        of the type.
        """
        if kind != "int32":
            return self
        try:
            values: tuple[Any, ...] = tuple(int(value) for value in self.values)
        except ValueError:
            text = ", ".join(map(repr, self.values))
            raise ValueError(
                f"{self.column} is compared with {text}, but holds whole numbers"
            ) from None
        return Condition(self.column, self.op, values)

    def meets(self, value: Value) -> bool:
        """Whether a value of the column, typed alike, meets it."""
        if self.op in ("is null", "is not null"):
            return (value is None) == (self.op == "is null")
        if value is None:
            return False
        if self.op in _COMPARE:
            return _COMPARE[self.op](value, self.values[0])
        return (value in self.values) == (self.op == "in")


def parse_where(text: str) -> tuple[Condition, ...]:
    """The conditions of a text; ValueError says what is wrong, and where."""
    return _Parser(text).conditions()


def meets(conditions: tuple[Condition, ...], values: Mapping[str, Value]) -> bool:
    """Whether the values of partition columns (null where missing) meet all conditions."""
    return all(condition.meets(values.get(condition.column)) for condition in conditions)


class _Parser:
    """Tokens of kinds op, column, text, bare; keywords are bare."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._tokens: list[tuple[str, str, int]] = []
        end = len(text.rstrip())
        while self._at < end:
            found = _TOKEN.match(text, self._at)
            if not found:
                self._fail("a name, a value or a sign", self._at)
            assert found is not None and found.lastgroup is not None
            kind = found.lastgroup
            value = found[kind].replace("''", "'") if kind == "text" else found[kind]
            self._tokens.append((kind, value, found.start(kind)))
            self._at = found.end()

    def conditions(self) -> tuple[Condition, ...]:
        found = [self._condition()]
        while self._tokens:
            if not self._keyword("and"):
                self._fail("and")
            found.append(self._condition())
        return tuple(found)

    def _condition(self) -> Condition:
        column = self._take("a column", "column", "bare")
        if self._keyword("is"):
            no = self._keyword("not")
            if not self._keyword("null"):
                self._fail("null")
            return Condition(column, "is not null" if no else "is null")
        if self._keyword("not"):
            if not self._keyword("in"):
                self._fail("in")
            return Condition(column, "not in", self._values())
        if self._keyword("in"):
            return Condition(column, "in", self._values())
        sign = self._take("one of = != < <= > >= in, not in, is", "op")
        if sign not in _COMPARE:
            self._fail("one of = != < <= > >=")
        return Condition(column, sign, (self._value(),))

    def _values(self) -> tuple[str, ...]:
        self._sign("(")
        values = [self._value()]
        while self._tokens and self._tokens[0][:2] == ("op", ","):
            self._sign(",")
            values.append(self._value())
        self._sign(")")
        return tuple(values)

    def _value(self) -> str:
        return self._take("a value", "text", "bare")

    def _sign(self, sign: str) -> None:
        if not self._tokens or self._tokens[0][:2] != ("op", sign):
            self._fail(repr(sign))
        self._tokens.pop(0)

    def _keyword(self, word: str) -> bool:
        is_next = bool(self._tokens) and self._tokens[0][0] == "bare"
        if is_next and self._tokens[0][1].lower() == word:
            self._tokens.pop(0)
            return True
        return False

    def _take(self, what: str, *kinds: str) -> str:
        if not self._tokens or self._tokens[0][0] not in kinds:
            self._fail(what)
        return self._tokens.pop(0)[1]

    def _fail(self, expected: str, at: int | None = None) -> None:
        if at is None:
            at = self._tokens[0][2] if self._tokens else len(self._text)
        found = repr(self._text[at : at + 20]) if at < len(self._text) else "its end"
        raise ValueError(f"expected {expected} at character {at + 1}, got {found}: {self._text!r}")
