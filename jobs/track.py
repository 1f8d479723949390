"""`dpiframe track`: send tracking records that MLflow did not get."""

from __future__ import annotations

import click


@click.command()
@click.argument("output")
@click.option("--mlflow-uri", help="Store to send to; default: the one that the job was told.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds to try.")
def command(output: str, mlflow_uri: str | None, timeout: float) -> None:
    """Send the tracking records that wait in OUTPUT. What was sent before is not sent again."""
    from pipeline.tracking.mlflow_store.replay import replay

    result = replay(output, mlflow_uri, timeout)
    click.echo(str(result))
