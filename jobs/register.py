"""`dpiframe register`: a bundle in MLflow's model registry."""

from __future__ import annotations

import click


@click.command("register")
@click.argument("bundle", type=click.Path())
@click.argument("name")
@click.option("--alias", "aliases", multiple=True, help="Alias to move to this version.")
@click.option("--mlflow-uri", help="MLflow store; default: sqlite:///mlflow.db.")
@click.option("--experiment", default="dpiframe", help="Experiment that keeps the model.")
def command(
    bundle: str, name: str, aliases: tuple[str, ...], mlflow_uri: str | None, experiment: str
) -> None:
    """Register BUNDLE as a version of the model NAME; jobs take it as models:/NAME@alias.

    A bundle that is a version already is not logged again. Exit codes: 0 done, 2 no bundle, or
    MLflow refuses.
    """
    from pipeline.tracking.mlflow_store.register import register

    found = register(bundle, name, aliases, mlflow_uri, experiment)
    said = "registered" if found.is_new else "was registered before"
    click.echo(f"models:/{found.name}/{found.version} {said} in {found.uri} ({found.digest[:16]})")
    for alias in aliases:
        click.echo(f"models:/{found.name}@{alias}")
