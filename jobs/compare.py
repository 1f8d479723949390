"""`dpiframe compare`: runs side by side."""

from __future__ import annotations

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN_A RUN_B [...]")
@click.option("--mlflow-uri", help="MLflow store; default: sqlite:///mlflow.db.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with everything that differs.")
def command(runs: tuple[str, ...], mlflow_uri: str | None, as_json: bool) -> None:
    """Compare runs: each is an output folder, an MLflow run id, or the name of an MLflow run."""
    import json

    from pipeline.tracking.compare import compare, format_comparison, load_runs

    if len(runs) < 2:
        raise click.UsageError("name at least two runs")
    comparison = compare(load_runs(list(runs), mlflow_uri))
    click.echo(json.dumps(comparison, indent=1) if as_json else format_comparison(comparison))
