"""Jobs through the Jobs API of a cluster with token authentication: their exit codes, their ends,
and what is left when drivers, nodes and the head are killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job_cases import damage, read_scores, tiny_bundle, write_config, write_shards
from ray_heads import RayHeads, drivers

from pipeline.publishing.verify import verify_output

pytest.importorskip("aiohttp_cors", reason="needs ray[default]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTERS" not in os.environ, reason="make check-clusters runs it"),
]

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 200


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHeads]:
    with RayHeads() as found:
        yield found


def submit(cluster: RayHeads, config: Path, *options: str) -> subprocess.Popen[str]:
    arguments = ["deploy", "ray-job", str(config), *options, "--submit"]
    arguments += ["--address", cluster.address]
    code = f"import sys; sys.argv[1:] = {arguments!r}; from jobs.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=cluster.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ended(job: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = job.communicate(timeout=SECONDS)
    return job.returncode, text


def wait_for(what: Callable[[], Any], seconds: float = SECONDS) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def make_case(folder: Path, rows: int, unit_rows: int) -> Path:
    folder.mkdir()
    tiny_bundle(folder / "bundle")
    write_shards(folder / "input", 2, rows, unit_rows)
    return write_config(folder, unit_rows=unit_rows)


def missing_metrics(cluster: RayHeads) -> set[str]:
    """Names on the page of metrics that the head does not export."""
    page = (ROOT / "docs/metrics.md").read_text()
    names = set(re.findall(r"^\| `(\w+)` \|", page, re.M)) - {"ray_dpiframe_rows_rejected_total"}
    assert len(names) == 3
    address = f"http://127.0.0.1:{cluster.metrics}/metrics"
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    return {name for name in names if not re.search(rf"^{name}{{.*output=", text, re.M)}


def check_whole(folder: Path, rows: int) -> None:
    assert verify_output(folder / "output").problems == []
    assert read_scores(folder / "output").column("row_id").to_pylist() == list(range(rows))


@pytest.mark.timeout(600)
def test_a_submission_ends_as_its_job_ends(cluster: RayHeads, tmp_path: Path) -> None:
    config = make_case(tmp_path / "job", 111, 19)
    code, text = ended(submit(cluster, config))
    assert code == 0 and "scored" in text, text
    check_whole(tmp_path / "job", 222)
    damage(tmp_path / "job/input/shard-001.parquet", 2, 3)
    code, text = ended(submit(cluster, config, "overwrite=true"))
    assert code == 3 and "shard-001.parquet" in text, text


@pytest.mark.timeout(600)
def test_kills_lose_nothing_and_no_driver_outlives_its_job(
    cluster: RayHeads, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    config = make_case(folder, 5000, 10)
    units = folder / "output/_units"

    first = submit(cluster, config)
    wait_for(lambda: len(list(units.glob("u*.json"))) >= 5)
    wait_for(lambda: not missing_metrics(cluster), 60)
    # The schedule fires again.
    code, text = ended(submit(cluster, config))
    assert code == 5 and "runs already" in text, text
    first.send_signal(signal.SIGTERM)
    code, text = ended(first)
    assert code == 4 and "stopped by SIGTERM" in text, text
    wait_for(lambda: not drivers(), 20)

    # It goes on under the same id; a node joins, and the head is killed.
    again = submit(cluster, config)
    before = len(list(units.glob("u*.json")))
    wait_for(lambda: len(list(units.glob("u*.json"))) > before + 5)
    cluster.add()
    cluster.kill(cluster.processes[0])
    wait_for(lambda: not drivers(), 60)
    again.kill()
    again.wait()
    for node in cluster.processes[1:]:
        cluster.kill(node)

    cluster.start_head()
    code, text = ended(submit(cluster, config))
    assert code == 0, text
    check_whole(folder, 10_000)
    assert not drivers()
