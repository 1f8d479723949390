"""Statements that repeat, as loops: what a model does for each of 50 items is compiled once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_TURNS = 4
MOST_PERIOD = 64  # statements of a turn
OFFSET = re.compile(r"(?<= \+ )\d+\b(?![.\w])")  # an offset behind an address


@dataclass(frozen=True)
class _Statement:
    """A statement: its text, that text without offsets and remarks, and the offsets."""

    text: str
    form: str
    offsets: tuple[int, ...]

    @staticmethod
    def of(text: str) -> _Statement:
        if text.startswith("//"):
            return _Statement(text, "//", ())
        offsets = tuple(int(offset) for offset in OFFSET.findall(text))
        return _Statement(text, OFFSET.sub("#", text), offsets)


def rolled(statements: Sequence[str]) -> list[str]:
    """The same with a loop for each run of statements that repeat but for offsets, which grow by
    the same number each turn.
    """
    waiting = [_Statement.of(text) for text in statements]
    found: list[str] = []
    at = 0
    while at < len(waiting):
        period, turns = _repeats(waiting, at)
        first, second = waiting[at : at + period], waiting[at + period : at + 2 * period]
        if turns == 1:
            found.append(waiting[at].text)
        else:
            found.append(f"DPIF_ROLLED for (int turn = 0; turn < {turns}; ++turn) {{")
            found += [f"  {_at_turn(*pair)}" for pair in zip(first, second, strict=True)]
            found.append("}")
        at += period * turns
    return found


def _repeats(statements: Sequence[_Statement], at: int) -> tuple[int, int]:
    """Statements of a turn, and turns, from a place on: 1 and 1 where nothing repeats."""
    best = (1, 1)
    for period in range(1, min(MOST_PERIOD, (len(statements) - at) // LEAST_TURNS) + 1):
        turns = 1
        while _continues(statements, at, period, turns):
            turns += 1
        if turns >= LEAST_TURNS and period * (turns - 1) > best[0] * (best[1] - 1):
            best = period, turns
    return best


def _continues(statements: Sequence[_Statement], at: int, period: int, turns: int) -> bool:
    """Whether what follows so many turns is another."""
    begin = at + period * turns
    if begin + period > len(statements):
        return False
    for number in range(period):
        first, second = statements[at + number], statements[at + period + number]
        last, then = statements[begin - period + number], statements[begin + number]
        if then.form != first.form or _steps(last, then) != _steps(first, second):
            return False
    return True


def _steps(one: _Statement, other: _Statement) -> list[int]:
    """By how much offsets grow."""
    return [b - a for a, b in zip(one.offsets, other.offsets, strict=True)]


def _at_turn(first: _Statement, second: _Statement) -> str:
    """The statement with offsets that depend on the turn."""
    steps = iter(_steps(first, second))

    def offset(found: re.Match[str]) -> str:
        step = next(steps)
        return f"{found[0]} {'-' if step < 0 else '+'} {abs(step)} * turn" if step else found[0]

    return OFFSET.sub(offset, first.text)
