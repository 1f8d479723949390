"""The Slurm script under a real Slurm: one controller, one node, both of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from job_cases import tiny_bundle, write_config, write_shards
from running_job import Case, wait_for
from weed_server import free_ports

from jobs.cli import root
from pipeline.publishing.verify import verify_output

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTERS" not in os.environ, reason="make check-clusters runs it"),
]

LIVES = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch")
PATHS = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
SLURM = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Slurm of this test's own; the environment that finds it."""
    if os.geteuid() != 0 or any(shutil.which(tool, path=PATHS) is None for tool in TOOLS):
        pytest.skip("needs root and Slurm (Debian: apt-get install slurm-wlm munge)")
    folder = tmp_path / "slurm"
    for name in ("", "state", "spool"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    settings = {"host": socket.gethostname(), "folder": folder, "cpus": os.cpu_count()}
    ports = dict(zip(("controller", "node"), free_ports(2), strict=True))
    conf.write_text(SLURM.format(**settings, **ports))
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    bin_folder = str(Path(sys.executable).parent)
    environment = os.environ | {"SLURM_CONF": str(conf)}
    environment["PATH"] = os.pathsep.join([bin_folder, PATHS])
    with contextlib.ExitStack() as stack:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
            log = stack.enter_context((folder / f"{command[0]}.out").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            time.sleep(1)
        yield environment


def state(environment: dict[str, str], job: str) -> dict[str, str]:
    shown = subprocess.run(
        ["scontrol", "show", "job", job], env=environment, capture_output=True, text=True
    ).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def sbatch(environment: dict[str, str], config: Path) -> str:
    """Queue the script of the job; its number."""
    options = ["--cpus", "2", "--hours", "1", "--name", "ctr"]
    script = CliRunner().invoke(root, ["deploy", "slurm", str(config), *options]).output
    done = subprocess.run(
        ["sbatch", "--parsable"],
        input=script,
        env=environment,
        cwd=config.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ended(environment: dict[str, str], job: str, folder: Path) -> tuple[str, str]:
    """State and exit code, once it has ended, and its log."""
    until = time.monotonic() + 280
    while (found := state(environment, job))["JobState"] in LIVES:
        assert time.monotonic() < until, found
        time.sleep(0.5)
    return f"{found['JobState']} {found['ExitCode']}", (folder / f"ctr-{job}.log").read_text()


def test_the_script_scores_under_slurm(tmp_path: Path, slurm: dict[str, str]) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 2, 111, 19)
    config = write_config(tmp_path, unit_rows=40)
    found, log = ended(slurm, sbatch(slurm, config), tmp_path)
    assert found == "COMPLETED 0:0", log
    assert verify_output(tmp_path / "output").problems == []


@pytest.mark.parametrize(
    ("words", "end"),
    [(["--signal=TERM", "--batch"], "FAILED 4:0"), ([], "CANCELLED 0:")],
    ids=["signal", "plain"],
)
def test_a_job_that_scancel_stops_goes_on(
    tmp_path: Path, slurm: dict[str, str], words: list[str], end: str
) -> None:
    case = Case(tmp_path, "local", shards=2, rows=10_000, unit_rows=10)
    job = sbatch(slurm, case.config)
    wait_for(lambda: len(case.published()) >= 5, "units", poll=0.1)
    subprocess.run(["scancel", *words, job], env=slurm, check=True)
    found, log = ended(slurm, job, tmp_path)
    assert found.startswith(end), log
    untouched = case.published()
    assert len(untouched) < 100

    found, log = ended(slurm, sbatch(slurm, case.config), tmp_path)

    assert found == "COMPLETED 0:0", log
    case.check_finished(untouched)
