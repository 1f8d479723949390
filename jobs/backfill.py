"""`dpiframe backfill`: score many dates."""

from __future__ import annotations

import sys

import click


@click.command("backfill")
@click.argument("config", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--from", "first", required=True, metavar="DATE", help="First date, or yesterday.")
@click.option("--to", "last", required=True, metavar="DATE", help="Last date, included.")
@click.option("--hourly", is_flag=True, help="A run for every hour, not for every day.")
@click.option("--parallel", type=click.IntRange(1, 256), default=1, help="Runs at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line a date, not a table.")
def command(
    config: str,
    overrides: tuple[str, ...],
    first: str,
    last: str,
    hourly: bool,
    parallel: int,
    as_json: bool,
) -> None:
    """Run `dpiframe score CONFIG --date DATE` for every date, each in a process of its own.

    Finished dates are skipped, begun ones are resumed, a failing one stops no other. Ctrl-C stops
    all; the same command goes on. Exit code: the worst of the dates' own (1, 2, 3, 4, 5, then 0).
    """
    from pipeline.own_module import own_module
    from pipeline.schedule.backfill import (
        Backfill,
        DateResult,
        dates_between,
        run_backfill,
        table,
        worst_code,
    )

    def tell(result: DateResult) -> None:
        if as_json:
            click.echo(result.model_dump_json())

    dates = dates_between(config, overrides, first, last, hourly)
    score = [*own_module("jobs.cli"), "score", config, *overrides]
    results = run_backfill(Backfill(config, overrides, dates, score, parallel), tell)
    if not as_json:
        click.echo(table(results))
    sys.exit(worst_code(results))
