"""What is no Kubernetes manifest: a Slurm script, an Airflow DAG, a `ray up` file, a container."""

from __future__ import annotations

import base64
import json
import shlex

import yaml

from pipeline.deploy.settings import RAY_VERSION, Deployment

SLURM = r"""#!/bin/bash
#SBATCH --job-name=@NAME@
#SBATCH --nodes=@NODES@
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=@CPUS@
#SBATCH --time=@HOURS@:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --output=%x-%j.log
#SBATCH --dependency=singleton
@GPUS@set -euo pipefail

# Credentials of stores and MLflow come with the environment of sbatch, or are exported here.
config=$(mktemp --tmpdir dpiframe-job.XXXXXX)
trap 'rm -f "$config"' EXIT
cat > "$config" <<'JOB'
@CONFIG@JOB

export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN
address=$(hostname -I | awk '{print $1}'):$((20000 + SLURM_JOB_ID % 20000))
folder=$(mktemp -d --tmpdir ray.XXXXXX)
options=(--num-cpus "$SLURM_CPUS_PER_TASK" --disable-usage-stats --block)

# The head runs on the first node of the allocation, where this script does.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" \
  ray start --head --node-ip-address "${address%:*}" --port "${address#*:}" \
  --temp-dir "$folder" --include-dashboard false "${options[@]}" &
ray=($!)
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
  srun --overlap --nodes="$others" --ntasks="$others" --exclude="$SLURMD_NODENAME" \
    bash -c 'sleep 10; exec "$@"' start ray start --address "$address" "${options[@]}" &
  ray+=($!)
fi
python - "$address" "$SLURM_JOB_NUM_NODES" <<'WAIT'
import sys, time
import ray
for _ in range(60):
    try:
        ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
        break
    except Exception:
        time.sleep(1)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(1)
WAIT

@COMMAND@ "ray_address=$address" &
job=$!
# scancel and the time limit let the job publish what it has in hand.
trap 'kill -TERM "$job" 2> /dev/null' TERM
code=0
wait "$job" || code=$?
if kill -0 "$job" 2> /dev/null; then code=0; wait "$job" || code=$?; fi
kill -TERM "${ray[@]}" 2> /dev/null || true
wait "${ray[@]}" || true
rm -rf "$folder"
exit "$code"
"""

AIRFLOW = '''"""@NAME@: made by `dpiframe deploy airflow` for Airflow 3, standard provider."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

CONFIG = @CONFIG@
ENCODED = base64.b64encode(CONFIG.encode()).decode()
LASTING = (2, 3)  # exit codes that a retry does not mend

with DAG(
    dag_id=@ID@,
    schedule=CronDataIntervalTimetable(@SCHEDULE@, timezone=@ZONE@),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
) as dag:
    # One output, one writer: exit code 5 says that another run is at it.
    BashOperator(
        task_id="score",
        bash_command=f"echo {ENCODED} | base64 -d > job.yaml && exec " + @COMMAND@,
        append_env=True,
        skip_on_exit_code=[5],
        execution_timeout=timedelta(hours=@HOURS@),
    )
'''

CONTAINER = """# docker build -t @IMAGE@ -f Containerfile . (in the project's folder)
FROM @BUILD@ AS build
RUN apt-get update && apt-get install -y --no-install-recommends \\
    g++ make python3 python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/dpiframe
ENV PATH=/opt/dpiframe/bin:$PATH
COPY requirements.txt /src/
RUN pip install --no-cache-dir -r /src/requirements.txt
COPY . /src
RUN DPIFRAME_CUDA=@CUDA@ pip install --no-cache-dir --no-build-isolation --no-deps /src

FROM @BASE@
RUN apt-get update && apt-get install -y --no-install-recommends \\
    libzstd1 python3 wget && rm -rf /var/lib/apt/lists/* && useradd --create-home scorer
COPY --from=build /opt/dpiframe /opt/dpiframe
ENV PATH=/opt/dpiframe/bin:$PATH MIMALLOC_PURGE_DELAY=-1
USER scorer
WORKDIR /home/scorer
ENTRYPOINT []
CMD ["dpiframe", "--help"]
"""


def slurm(job: Deployment) -> str:
    """A batch script that starts a Ray of its own on the nodes of its allocation."""
    command = job.shell("CONFIG").replace("CONFIG", '"$config"', 1)
    gpus = f"#SBATCH --gpus-per-node={job.gpus}\n" if job.gpus else ""
    return _filled(
        SLURM,
        NAME=job.name,
        NODES=job.workers,
        CPUS=job.cpus,
        HOURS=job.hours,
        GPUS=gpus,
        CONFIG=job.text,
        COMMAND=command,
    )


def airflow(job: Deployment) -> str:
    """A DAG that scores the data interval of each of its runs."""
    command = job.shell("job.yaml")
    if job.date:
        form = "%Y-%m-%dT%H" if job.date == "last-hour" else "%Y-%m-%d"
        moment = f"{{{{ data_interval_start.in_timezone('{job.zone}').strftime('{form}') }}}}"
        if job.date in ("yesterday", "last-hour"):
            command = command.replace(f"--date {job.date}", f'--date "{moment}"')
    return _filled(
        AIRFLOW,
        NAME=job.name,
        CONFIG=json.dumps(job.text),
        ID=json.dumps(job.name),
        SCHEDULE=json.dumps(job.schedule),
        ZONE=json.dumps(job.zone),
        COMMAND=json.dumps(command),
        HOURS=job.hours,
    )


def ray_up(job: Deployment) -> str:
    """A cluster for `ray up` on AWS; other clouds differ in `provider` and `node_config`."""
    machine = {"resources": {}, "node_config": {"InstanceType": "m6i.2xlarge"}}
    kind = "p5.4xlarge" if job.gpus else "m6i.8xlarge"
    scorers = {
        "resources": {},
        "min_workers": job.workers,
        "max_workers": job.workers,
        "node_config": {"InstanceType": kind},
    }
    cluster = {
        "cluster_name": job.name,
        "max_workers": job.workers,
        "idle_timeout_minutes": 5,
        "provider": {"type": "aws", "region": "us-east-1", "cache_stopped_nodes": False},
        "auth": {"ssh_user": "ubuntu"},
        "docker": {"image": job.image, "container_name": "dpiframe", "pull_before_run": True},
        "available_node_types": {"head": machine, "scorers": scorers},
        "head_node_type": "head",
        "head_start_ray_commands": [
            "ray stop",
            "ray start --head --port 6379 --num-cpus 0 "
            "--autoscaling-config ~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": ["ray stop", "ray start --address $RAY_HEAD_IP:6379"],
    }
    encoded = base64.b64encode(job.text.encode()).decode()
    command = shlex.quote(
        f"echo {encoded} | base64 -d > job.yaml && {job.shell('job.yaml', 'ray_address=auto')}"
    )
    steps = f"# ray up cluster.yaml && ray exec cluster.yaml {command} && ray down cluster.yaml\n"
    return steps + yaml.safe_dump(cluster, sort_keys=False, width=100)


def container(job: Deployment) -> str:
    """A Containerfile of this project: for CPUs, or with the CUDA part."""
    cuda, plain = "nvidia/cuda:12.8.1-{}-ubuntu24.04", "ubuntu:24.04"
    return _filled(
        CONTAINER,
        IMAGE=job.image,
        BUILD=cuda.format("devel") if job.gpus else plain,
        BASE=cuda.format("base") if job.gpus else plain,
        CUDA="ON" if job.gpus else "OFF",
    )


def ray_job_submission(job: Deployment) -> str:
    """What `--submit` hands to the Ray Jobs API."""
    data = {"submission_id": job.submission_id, "entrypoint": entrypoint(job)}
    note = f"# ray {RAY_VERSION}; dpiframe deploy ray-job CONFIG --submit\n"
    return note + yaml.safe_dump(data, sort_keys=False, width=100)


def entrypoint(job: Deployment) -> str:
    """The shell command of a Ray job, which becomes the driver itself, and gets the configuration
    on its standard input.
    """
    return f"exec {job.shell('/dev/stdin', 'ray_address=auto')} <<'JOB'\n{job.text}JOB\n"


def _filled(template: str, **values: object) -> str:
    for name, value in values.items():
        template = template.replace(f"@{name}@", str(value))
    return template
