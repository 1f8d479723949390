"""`dpiframe deploy`: manifests for schedulers and clusters."""

from __future__ import annotations

import sys
from typing import Any

import click

KINDS = (
    "ray-job",
    "kuberay-job",
    "kuberay-cronjob",
    "cronjob",
    "airflow",
    "slurm",
    "ray-up",
    "container",
)


@click.command("deploy")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("config", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--date", metavar="DATE", help="As of score; default: yesterday, or last-hour.")
@click.option("--name", help="Name of what is made; default: dpiframe- and that of CONFIG.")
@click.option("--image", default="dpiframe:latest", help="Container image with this package.")
@click.option("--namespace", default="default", help="Namespace of Kubernetes.")
@click.option("--schedule", default="0 3 * * *", help="When, as cron writes it.")
@click.option("--workers", default=1, type=click.IntRange(1, 1000), help="Machines that score.")
@click.option("--gpus", default=0, type=click.IntRange(0, 16), help="GPUs of each.")
@click.option("--cpus", default=8, type=click.IntRange(1, 1024), help="Cores of each.")
@click.option("--memory", default="64Gi", help="Memory of each.")
@click.option("--hours", default=6, type=click.IntRange(1, 240), help="That a run may take.")
@click.option("--submit", is_flag=True, help="ray-job: run it, show its log, end as it ends.")
@click.option("--address", help="--submit: the cluster's dashboard; default: RAY_ADDRESS.")
@click.option("--wait", is_flag=True, help="--submit: follow the same job if it runs already.")
def command(
    kind: str,
    config: str,
    overrides: tuple[str, ...],
    date: str | None,
    name: str | None,
    submit: bool,
    address: str | None,
    wait: bool,
    **options: Any,
) -> None:
    """Print the KIND of manifest that runs the job of CONFIG: one page each in docs/deploy."""
    from pipeline.deploy.kinds import KINDS as MAKERS
    from pipeline.deploy.settings import deployment

    job = deployment(config, overrides, date, name, **options)
    if not submit:
        click.echo(MAKERS[kind](job), nl=False)
        return
    if kind != "ray-job":
        raise click.UsageError("--submit is of ray-job alone")
    from pipeline.deploy.ray_jobs import submit as run

    sys.exit(run(job, address, lambda text: click.echo(text, nl=False), wait))
