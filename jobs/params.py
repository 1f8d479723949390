"""Parameter types that several commands share."""

from __future__ import annotations

import click

MAX_WIDTH = 65536


class Widths(click.ParamType[tuple[int, ...]]):
    """Widths of layers, such as 400,400,400."""

    name = "H1,H2,..."

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The widths as integers."""
        parts = [part.strip() for part in value.split(",")]
        if not all(p.isdecimal() and 1 <= int(p) <= MAX_WIDTH for p in parts):
            self.fail(f"{value!r} is no list of numbers from 1 to {MAX_WIDTH}", param, ctx)
        return tuple(map(int, parts))


WIDTHS = Widths()
