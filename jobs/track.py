"""`dpiframe track`: send tracking records that MLflow did not get."""

from __future__ import annotations

import click


@click.command()
@click.argument("output", type=click.Path(exists=True, file_okay=False))
@click.option("--mlflow-uri", help="Store to send to; default: the one that the job was told.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds to try.")
def command(output: str, mlflow_uri: str | None, timeout: float) -> None:
    """Send the tracking records that wait in OUTPUT. What was sent before is not sent again."""
    from pathlib import Path

    from pipeline.tracking.mlflow_store.replay import replay

    result = replay(Path(output), mlflow_uri, timeout)
    click.echo(str(result))
