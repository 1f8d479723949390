"""Manifests for Kubernetes: a plain CronJob, and KubeRay's RayJob and RayCronJob."""

from __future__ import annotations

from typing import Any

import yaml

from pipeline.deploy.settings import RAY_VERSION, WEBHOOK, Deployment

CONFIG = "/etc/dpiframe/job.yaml"
GRACE_SECONDS = 30  # a stopped job needs ten
# Exit codes that a retry does not mend: configuration, contract, an output in use.
LASTING = [2, 3, 5]
RETRIES = 3


def cronjob(job: Deployment) -> str:
    """A CronJob of one pod, in which the job starts a local Ray; runs never overlap."""
    hook = [f"notify_webhook=$({WEBHOOK})"] if job.webhook else []
    command = [*job.arguments(CONFIG, "ray_address=local", "tracking_wait=20"), *hook]
    container = {**_container(job, "score", job.gpus), "command": command}
    pod = {**_pod(job, container), "restartPolicy": "Never"}
    rule = {"containerName": "score", "operator": "In", "values": LASTING}
    spec = {
        "schedule": job.schedule,
        "timeZone": job.zone,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 7,
        "jobTemplate": {
            "spec": {
                "backoffLimit": RETRIES,
                "activeDeadlineSeconds": job.hours * 3600,
                "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": rule}]},
                "template": {"spec": pod},
            }
        },
    }
    return _documents(job, _object(job, "batch/v1", "CronJob", spec))


def ray_job(job: Deployment) -> str:
    """A RayJob: a Ray cluster for this job alone, which goes when it has ended."""
    return _documents(job, _object(job, "ray.io/v1", "RayJob", _ray_job_spec(job)))


def ray_cron_job(job: Deployment) -> str:
    """A RayCronJob, which creates such a RayJob by schedule."""
    spec = {"schedule": job.schedule, "timeZone": job.zone, "jobTemplate": _ray_job_spec(job)}
    return _documents(job, _object(job, "ray.io/v1", "RayCronJob", spec))


def _ray_job_spec(job: Deployment) -> dict[str, Any]:
    head = {**_container(job, "ray-head", 0), "resources": _resources(2, "8Gi", 0)}
    worker = _container(job, "ray-worker", job.gpus)
    group = {
        "groupName": "scorers",
        "replicas": job.workers,
        "minReplicas": job.workers,
        "maxReplicas": job.workers,
        "rayStartParams": {},
        "template": {"spec": _pod(job, worker)},
    }
    return {
        "entrypoint": job.shell(CONFIG, "ray_address=auto"),
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "activeDeadlineSeconds": job.hours * 3600,
        "backoffLimit": RETRIES,
        "rayClusterSpec": {
            "rayVersion": RAY_VERSION,
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                # No scorer beside the head's own processes.
                "rayStartParams": {"num-cpus": "0"},
                "template": {"spec": _pod(job, head)},
            },
            "workerGroupSpecs": [group],
        },
    }


def _container(job: Deployment, name: str, gpus: int) -> dict[str, Any]:
    return {
        "name": name,
        "image": job.image,
        # Credentials of stores and MLflow, and the webhook: kubectl create secret generic.
        "envFrom": [{"secretRef": {"name": f"{job.name}-secrets", "optional": True}}],
        "resources": _resources(job.cpus, job.memory, gpus),
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/dpiframe"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def _pod(job: Deployment, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": job.name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _resources(cpus: int, memory: str, gpus: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": memory}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {"requests": amounts, "limits": dict(amounts)}


def _object(job: Deployment, version: str, kind: str, content: Any, key: str = "spec") -> Any:
    labels = {"app.kubernetes.io/name": "dpiframe", "app.kubernetes.io/instance": job.name}
    metadata = {"name": job.name, "namespace": job.namespace, "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, key: content}


def _documents(job: Deployment, manifest: Any) -> str:
    config = _object(job, "v1", "ConfigMap", {"job.yaml": job.text}, key="data")
    return yaml.safe_dump_all([config, manifest], sort_keys=False, width=100)
