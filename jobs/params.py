"""Parameter types that several commands share."""

from __future__ import annotations

import click


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1 to `most`, such as 400,400,400."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers as integers."""
        parts = [part.strip() for part in value.split(",")]
        if not all(p.isdecimal() and 1 <= int(p) <= self.most for p in parts):
            self.fail(f"{value!r} is no list of numbers from 1 to {self.most}", param, ctx)
        return tuple(map(int, parts))


WIDTHS = Numbers("H1,H2,...", 65536)
COUNTS = Numbers("N1,N2,...", 65536)


class Pair(click.ParamType[tuple[str, str]]):
    """Two words with an equals sign between them, called such as NAME=COLUMN."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Both words."""
        name, _, other = value.partition("=")
        if not (name and other):
            self.fail(f"{value!r} is not {self.name}", param, ctx)
        return name, other
