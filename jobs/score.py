"""`dpiframe score`: run a scoring job."""

from __future__ import annotations

import signal

import click


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
@click.option("--verbose", is_flag=True, help="Show the logs of Ray and of the workers.")
def command(
    config: str,
    overrides: tuple[str, ...],
    date: str | None,
    wait: bool,
    dry_run: bool,
    verbose: bool,
) -> None:
    """Score the parquet files named in CONFIG (YAML): exactly one published score a row.

    KEY=VALUE overrides a key of CONFIG. A job that was stopped or killed goes on where it was when
    the same command runs again. Exit codes: 0 done, 2 config, 3 contract, 4 stopped and resumable,
    5 output locked by another job (without --wait).
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # exit code 4 from the start on
    from pipeline.config.job import load_config

    job = load_config(config, overrides, date)
    if dry_run:
        from pipeline.planning.plan import make_plan
        from pipeline.scoring.dry_run import dry_run as describe

        click.echo(describe(make_plan(job), job.unit_rows))
        return
    from pipeline.scoring.job import run_job
    from pipeline.scoring.summary import summary

    click.echo(summary(run_job(job, verbose, own_process=True, wait=wait)))
