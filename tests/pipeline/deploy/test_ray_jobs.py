"""A month's first days on a cluster of a head and two workers, by the Jobs API, from a store into
a store: whatever is killed or added meanwhile, each day's output is that of a job on this machine.
"""

from __future__ import annotations

import datetime
import io
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import boto3
import numpy as np
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, tiny_bundle, with_value, write_config
from ray_heads import RayHeads
from running_job import COMMAND, ROOT, wait_for
from s3_server import BUCKET
from weed_server import weed_server

from pipeline.publishing.output import open_output
from pipeline.publishing.scores import finished_manifest, open_scores
from pipeline.publishing.store import StoreOutput
from pipeline.publishing.verify import verify_output
from pipeline.scoring.ray_metrics import STAGES

pytest.importorskip("aiohttp_cors", reason="needs ray[default]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("CLUSTERS" not in os.environ, reason="make check-clusters runs it"),
]

FIRST = datetime.date(2026, 11, 1)
DAYS, ROWS, UNIT_ROWS, BAD_ROWS = 8, 4000, 20, (7, 1111)
LONG_DAY = 4  # eight times as long: a node starts meanwhile


class Case(NamedTuple):
    """One configuration for all days and both places, and the cluster."""

    config: Path
    cluster: RayHeads


class Day:
    """One day of the case, submitted as often as a test likes."""

    def __init__(self, case: Case, number: int) -> None:
        self.config, self.cluster = case
        self.date = str(FIRST + datetime.timedelta(days=number))
        self.output = f"s3://{BUCKET}/scores/date={self.date}"
        output = open_output(self.output)
        assert isinstance(output, StoreOutput)
        self.place = output

    def submit(self, *options: str) -> subprocess.Popen[str]:
        """Submit it and follow it."""
        options = ("--date", self.date, "--submit", "--address", self.cluster.address, *options)
        return run(self.cluster, "deploy", "ray-job", str(self.config), *options)

    def wait_units(self, count: int, job: subprocess.Popen[str]) -> None:
        """Wait until so many more units are published."""
        wanted = self.units() + count
        wait_for(
            lambda: job.poll() is not None or self.units() >= wanted, f"{count} units", poll=0.1
        )
        assert job.poll() is None, job.communicate()

    def units(self) -> int:
        """How many are published."""
        return sum(key.startswith("_units/u") for key in self.place.sizes())

    def check(self) -> None:
        """Its rows are those of the job on this machine, each once, and no driver is left."""
        assert verify_output(self.output).problems == []
        reference = self.output.replace("/scores/", "/reference/")
        found, right = (open_scores(each).to_table() for each in (self.output, reference))
        assert found.drop_columns("score") == right.drop_columns("score")
        assert found["score"].is_null() == right["score"].is_null()
        # Of so few rows a job without Ray computes in numpy.
        np.testing.assert_allclose(found["score"].to_numpy(), right["score"].to_numpy(), atol=1e-6)
        wait_for(lambda: not self.cluster.drivers(), "the end of drivers", 20)


def run(cluster: RayHeads, *arguments: str) -> subprocess.Popen[str]:
    pipe, text = subprocess.PIPE, [*COMMAND, *arguments]
    return subprocess.Popen(
        text, cwd=ROOT, env=cluster.environment, text=True, stdout=pipe, stderr=subprocess.STDOUT
    )


def ended(job: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = job.communicate(timeout=300)
    return job.returncode, text


def backfill(cluster: RayHeads, config: Path, first: int, last: int, *options: str) -> str:
    """Score days in order; the table."""
    dates = [str(FIRST + datetime.timedelta(days=number)) for number in (first, last)]
    between = ("--from", dates[0], "--to", dates[1])
    code, text = ended(run(cluster, "backfill", str(config), *between, *options))
    assert code == 0, text
    return text


def upload_rows() -> None:
    """A file a day, with some rows whose ids are in no table."""
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for number in range(DAYS):
        rows = encoded_table(ROWS * (8 if number == LONG_DAY else 1), seed=number)
        for row in BAD_ROWS:
            rows = with_value(rows, "C2", row, 99)
        data = io.BytesIO()
        pq.write_table(rows, data, row_group_size=UNIT_ROWS)
        key = f"rows/date={FIRST + datetime.timedelta(days=number)}/part-0.parquet"
        client.put_object(Bucket=BUCKET, Key=key, Body=data.getvalue())


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """The rows of all days in a store, scored on this machine, and a cluster."""
    folder = tmp_path_factory.mktemp("case")
    with weed_server(folder):
        upload_rows()
        tiny_bundle(folder / "bundle")
        config = write_config(
            folder,
            input=f"s3://{BUCKET}/rows/date={{date}}",
            output=f"s3://{BUCKET}/scores/date={{date}}",
            ray_address=None,
            num_scorers=3,  # one waits for a node
            unit_rows=UNIT_ROWS,
            on_bad_row="reject",
            max_rejected_fraction=0.01,
        )
        with RayHeads(nodes=2) as cluster:
            here = (f"output=s3://{BUCKET}/reference/date={{date}}", "runner=local")
            backfill(cluster, config, 0, DAYS - 1, "num_scorers=1", *here)
            yield Case(config, cluster)


def test_a_submission_ends_as_its_job_ends(case: Case) -> None:
    day = Day(case, 0)
    code, text = ended(day.submit())
    assert code == 0 and "scored      3,998" in text, text
    day.check()
    code, text = ended(day.submit("unit_rows=40"))
    assert code == 2 and "overwrite=true" in text, text
    day.check()


def test_prometheus_counts_what_the_summary_says(case: Case) -> None:
    day = Day(case, 1)
    job = day.submit()
    wait_for(
        lambda: case.cluster.counted(output=day.output)["ray_dpiframe_units_pending"] > 0,
        "the driver's gauge",
        poll=0.2,
    )
    code, text = ended(job)
    assert code == 0, text
    found, manifest = case.cluster.counted(output=day.output), finished_manifest(day.output)
    assert found["ray_dpiframe_rows_scored_total"] == manifest.scored == ROWS - len(BAD_ROWS)
    assert found["ray_dpiframe_rows_rejected_total"] == manifest.rejected == len(BAD_ROWS)
    for stage in STAGES:
        spent = sum(getattr(unit, f"{stage}_s") for unit in manifest.units)
        counted = case.cluster.counted(output=day.output, stage=stage)
        assert counted["ray_dpiframe_stage_seconds_total"] == pytest.approx(spent)
    day.check()


def test_a_schedule_that_fires_twice(case: Case) -> None:
    day = Day(case, 2)
    first = day.submit()
    day.wait_units(5, first)
    code, text = ended(day.submit())
    assert code == 5 and "runs already" in text, text
    follower = day.submit("--wait")
    assert [ended(job)[0] for job in (first, follower)] == [0, 0]
    day.check()


def test_a_stopped_follower_stops_the_driver(case: Case) -> None:
    day = Day(case, 3)
    job = day.submit()
    day.wait_units(5, job)
    job.send_signal(signal.SIGTERM)
    code, text = ended(job)
    assert code == 4 and "stopped by SIGTERM" in text, text
    wait_for(lambda: not case.cluster.drivers(), "the end of the driver", 20)
    code, text = ended(day.submit())
    assert code == 0, text
    day.check()


def test_a_killed_worker_and_a_node_that_joins(case: Case) -> None:
    day = Day(case, LONG_DAY)
    job = day.submit()
    day.wait_units(5, job)
    case.cluster.kill(case.cluster.nodes[0])
    day.wait_units(5, job)
    added = case.cluster.add()

    def taken() -> bool:
        found = case.cluster.counted(added, output=day.output)
        return found["ray_dpiframe_rows_scored_total"] > 0

    wait_for(lambda: taken() or job.poll() is not None, "a unit of the new node", poll=0.5)
    assert taken(), ended(job)
    code, text = ended(job)
    assert code == 0, text
    day.check()


def test_a_killed_head(case: Case) -> None:
    day = Day(case, 5)
    job = day.submit()
    day.wait_units(5, job)
    case.cluster.kill(case.cluster.head)
    wait_for(lambda: not case.cluster.drivers(), "the end of the driver", 60)
    for node in list(case.cluster.nodes):  # of no use any more
        case.cluster.kill(node)
    case.cluster.start()
    code, text = ended(job)
    assert code == 4 and "submit it again" in text, text
    published = day.units()
    assert 5 <= published < ROWS // UNIT_ROWS
    code, text = ended(day.submit())
    assert code == 0, text
    day.check()


def test_a_backfill_on_the_cluster(case: Case) -> None:
    here = f"ray_address=127.0.0.1:{case.cluster.port}"
    text = backfill(case.cluster, case.config, 5, 7, "--parallel", "2", here)
    assert "1 complete before, 2 scored" in text
    for number in (6, 7):
        Day(case, number).check()
