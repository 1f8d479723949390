"""The kinds of manifests by the names that `dpiframe deploy` takes."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.deploy import kubernetes, scripts
from pipeline.deploy.settings import Deployment

KINDS: dict[str, Callable[[Deployment], str]] = {
    "ray-job": scripts.ray_job_submission,
    "kuberay-job": kubernetes.ray_job,
    "kuberay-cronjob": kubernetes.ray_cron_job,
    "cronjob": kubernetes.cronjob,
    "airflow": scripts.airflow,
    "slurm": scripts.slurm,
    "ray-up": scripts.ray_up,
    "container": scripts.container,
}
