"""`dpiframe score`: run a scoring job."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from jobs.json_output import errors_as_json, print_json

if TYPE_CHECKING:
    from pipeline.config.job import JobConfig


@click.command("score")
@click.argument("config", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--date",
    metavar="DATE",
    help="Day or hour that {date} and {hour} in CONFIG mean: 2026-11-19, 2026-11-19T05, today, "
    "yesterday, last-hour.",
)
@click.option("--wait", is_flag=True, help="Wait for an output that another job writes.")
@click.option("--dry-run", is_flag=True, help="Print plan, sizes, expected time; touch nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, errors included.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="json: a JSON line an event on standard error.",
)
@click.option("--verbose", is_flag=True, help="Show the logs of Ray and of the workers.")
def command(
    config: str,
    overrides: tuple[str, ...],
    date: str | None,
    wait: bool,
    dry_run: bool,
    as_json: bool,
    log_format: str,
    verbose: bool,
) -> None:
    """Score the parquet files named in CONFIG (YAML): exactly one published score a row.

    KEY=VALUE overrides a key of CONFIG. A job that was stopped or killed goes on where it was when
    the same command runs again. Exit codes: 0 done, 2 config, 3 contract, 4 stopped and resumable,
    5 output locked by another job (without --wait).
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exit code 4 from the start on
    if log_format == "json":
        from pipeline.reporting.json_lines import log_as_json

        log_as_json()
    with errors_as_json(as_json, log_format == "json"):
        from pipeline.imports import no_collections

        with no_collections():
            from pipeline.config.job import load_config

        job = load_config(config, overrides, date)
        if dry_run:
            _dry_run(job, as_json)
            return
        with no_collections():
            from pipeline.scoring.job import run_job
            from pipeline.scoring.summary import summary

        result = run_job(job, verbose, own_process=True, wait=wait)
        if as_json:
            print_json(result.summary())
        elif log_format == "text":
            click.echo(summary(result))


def _dry_run(job: JobConfig, as_json: bool) -> None:
    from pipeline.planning.plan import make_plan
    from pipeline.scoring.dry_run import dry_run, dry_run_data

    plan = make_plan(job)
    if as_json:
        print_json(dry_run_data(plan))
    else:
        click.echo(dry_run(plan, job.unit_rows))
