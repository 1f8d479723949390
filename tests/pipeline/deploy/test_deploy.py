"""Manifests of one configuration: each as strictly as its own tool reads it."""

from __future__ import annotations

import ast
import base64
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from jobs.cli import root
from jobs.deploy import KINDS
from pipeline.deploy import kinds
from pipeline.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
SECRET = "hooks.example.com/T0SECRET"
KEYS: dict[str, Any] = {
    "bundle": "/mnt/models/ctr",
    "input": "/mnt/impressions/date={date}",
    "output": "/mnt/scores/{date}",
    "key_columns": ["row_id"],
    "time_zone": "Europe/Berlin",
    "mlflow_uri": "https://scoring:pw-9Xk2@mlflow.example.com",
    "notify_webhook": f"https://{SECRET}",
}
# What KubeRay 1.7 knows of (ray-operator/apis/ray/v1): a field -> its type, or its own fields.
POD = {"spec": dict}
CLUSTER = {
    "rayVersion": str,
    "authOptions": {"mode": str, "secretName": str},
    "headGroupSpec": {"rayStartParams": dict, "template": POD, "serviceType": str},
    "workerGroupSpecs": [
        {
            "groupName": str,
            "replicas": int,
            "minReplicas": int,
            "maxReplicas": int,
            "rayStartParams": dict,
            "template": POD,
        }
    ],
}
RAY_JOB = {
    "entrypoint": str,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "submissionMode": str,
    "rayClusterSpec": CLUSTER,
}
RAY_CRON_JOB = {"schedule": str, "timeZone": str, "suspend": bool, "jobTemplate": RAY_JOB}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "Nightly_CTR.yaml"
    path.write_text(yaml.safe_dump(KEYS))
    return path


def printed(kind: str, config: Path, *options: str) -> str:
    done = CliRunner().invoke(root, ["deploy", kind, str(config), *options])
    assert done.exit_code == 0, done.output
    return done.output


def misfits(value: Any, schema: Any, where: str = "spec") -> list[str]:
    """Fields of another type, or of no name in the schema."""
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where} is {value!r}"]
    if isinstance(schema, list):
        return [m for i, v in enumerate(value) for m in misfits(v, schema[0], f"{where}[{i}]")]
    unknown = [f"{where}.{key} is unknown" for key in value.keys() - schema.keys()]
    known = [k for k in value if k in schema]
    return unknown + [m for k in known for m in misfits(value[k], schema[k], f"{where}.{k}")]


@pytest.mark.parametrize("kind", KINDS)
def test_no_manifest_holds_a_secret_and_each_is_the_same_twice(config: Path, kind: str) -> None:
    text = printed(kind, config, "--gpus", "1", "--workers", "3")
    assert text == printed(kind, config, "--gpus", "1", "--workers", "3")
    found = text + "".join(
        base64.b64decode(part).decode(errors="replace")
        for part in re.findall(r"[A-Za-z0-9+/=]{80,}", text)
    )
    assert SECRET not in found and "pw-9Xk2" not in found
    if kind != "container":
        assert "--date" in found and "NOTIFY_WEBHOOK" in found
        assert "/mnt/impressions/date={date}" in found


def test_the_kinds_of_the_command_are_those_that_are_made() -> None:
    assert list(KINDS) == list(kinds.KINDS)
    pages = {page.stem for page in (ROOT / "docs/deploy").glob("*.md")}
    assert pages == {*KINDS, "README"}


@pytest.mark.parametrize("gpus", ["0", "2"])
def test_a_cronjob_is_valid_to_kubernetes(config: Path, gpus: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    documents = list(yaml.safe_load_all(printed("cronjob", config, "--gpus", gpus)))
    for document in documents:
        validate.validate(document, validate.latest_version(), strict=True)
    spec = documents[1]["spec"]
    assert (spec["concurrencyPolicy"], spec["timeZone"]) == ("Forbid", "Europe/Berlin")
    (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["dpiframe", "score", "/etc/dpiframe/job.yaml"]
    assert yaml.safe_load(documents[0]["data"]["job.yaml"])["output"] == KEYS["output"]
    broken = spec["jobTemplate"]["spec"]
    broken["backofLimit"] = broken.pop("backoffLimit")
    with pytest.raises(validate.ValidationError):
        validate.validate(documents[1], validate.latest_version(), strict=True)


@pytest.mark.parametrize("kind", ["kuberay-job", "kuberay-cronjob"])
def test_kuberay_knows_every_field(config: Path, kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    text = printed(kind, config, "--workers", "3", "--gpus", "1")
    settings, found = yaml.safe_load_all(text)
    assert found["kind"] == {"kuberay-job": "RayJob", "kuberay-cronjob": "RayCronJob"}[kind]
    schema = RAY_JOB if kind == "kuberay-job" else RAY_CRON_JOB
    assert misfits(found["spec"], schema) == []
    job = found["spec"].get("jobTemplate", found["spec"])
    cluster = job["rayClusterSpec"]
    assert cluster["workerGroupSpecs"][0]["replicas"] == 3
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": settings["metadata"],
            "spec": group["template"]["spec"],
        }
        validate.validate(pod, validate.latest_version(), strict=True)


def test_the_dag_is_python_that_scores_a_data_interval(config: Path) -> None:
    text = printed("airflow", config, "--schedule", "0 5 * * *")
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [getattr(call.func, "id", "") for call in calls]
    assert "DAG" in names and "BashOperator" in names
    assert "data_interval_start.in_timezone('Europe/Berlin')" in text
    assert "'0 5 * * *'" in text or '"0 5 * * *"' in text


def test_the_cluster_is_valid_to_ray_up(config: Path) -> None:
    from ray.autoscaler._private.util import fillout_defaults, validate_config

    found = yaml.safe_load(printed("ray-up", config, "--workers", "4"))
    validate_config(fillout_defaults(found))
    found["available_node_types"]["scorers"]["min_worker"] = 4
    with pytest.raises(Exception, match="min_worker"):
        validate_config(fillout_defaults(found))


def test_the_slurm_script_is_shell(config: Path) -> None:
    text = printed("slurm", config, "--workers", "2", "--gpus", "4", "--cpus", "16")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "#SBATCH --nodes=2" in text and "#SBATCH --gpus-per-node=4" in text


def test_a_submission_has_the_same_id_for_the_same_job_and_date(config: Path) -> None:
    def submission(*options: str) -> Any:
        return yaml.safe_load(printed("ray-job", config, *options))

    found = submission("--date", "2026-11-19")
    assert found["submission_id"].startswith("dpiframe-nightly-ctr-2026-11-19-")
    assert found == submission("--date", "2026-11-19")
    others = [submission("--date", "2026-11-20"), submission("output=/mnt/o/{date}")]
    assert len({found["submission_id"], *(o["submission_id"] for o in others)}) == 3


def test_wrong_jobs_and_names_are_refused(config: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'unit_rows'"):
        CliRunner().invoke(
            root, ["deploy", "cronjob", str(config), "unit_row=7"], catch_exceptions=False
        )
    with pytest.raises(ConfigError, match="--name must be"):
        CliRunner().invoke(
            root, ["deploy", "cronjob", str(config), "--name", "A_b"], catch_exceptions=False
        )
