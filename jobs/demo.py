"""`dpiframe demo`: the whole path on synthetic rows."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("demo")
@click.option("--output", "-o", default="demo_out", type=click.Path(path_type=Path), help="Folder.")
@click.option("--rows", type=click.IntRange(200_000), default=1_000_000, help="Rows in all.")
@click.option(
    "--train-rows", type=click.IntRange(10_000), default=300_000, help="Those trained on."
)
def command(output: Path, rows: int, train_rows: int) -> None:
    """Synthesise rows, train a DeepFM on some, score the rest by the job, verify, track.

    An earlier demo in the output folder is replaced; its MLflow runs are kept.
    """
    if train_rows + 100_000 > rows:
        raise click.UsageError("--rows must exceed --train-rows by 100,000 or more")
    from pipeline.demo import run_demo, show

    click.echo(show(run_demo(output, rows, train_rows, click.echo)))
