from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from job_cases import job_keys, scorer_of, tiny_bundle, write_shards

import pipeline.scoring.job as job_module
from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ResumableError
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.plan import make_plan
from pipeline.publishing.output import open_output
from pipeline.schedule.status import output_status, status_of, table
from pipeline.scoring.job import run_job
from pipeline.scoring.transport import units_to_table


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    """A job of 4 units of 19 rows, two of which are published."""
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 2, 38, 19)
    keys = job_keys(tmp_path, output=str(tmp_path / "root/a"), unit_rows=19, date="2026-11-19")
    plan = make_plan(JobConfig.model_validate(keys))
    attempt, _ = open_output(plan.config.output).claim(plan)
    scorer_of(plan, attempt)(units_to_table(plan.units[:2]))
    return plan


def test_a_stopped_output_is_resumable(plan: JobPlan) -> None:
    found = output_status(plan.config.output)
    assert (found.state, found.rows, found.rows_done) == ("resumable", 76, 38)
    assert found.date == "2026-11-19"
    assert "resumable  38 of 76 rows" in table([found])


def test_a_locked_output_is_running(plan: JobPlan) -> None:
    output = open_output(plan.config.output)
    with output.lock():
        found = output_status(output.address)
        assert found.state == "running"
        assert f"process {os.getpid()} on host" in table([found])
        assert found.heartbeat_s is not None and found.heartbeat_s < 10
    assert output_status(output.address).state == "resumable"


def test_the_speed_of_a_running_job(plan: JobPlan) -> None:
    output = open_output(plan.config.output)
    with output.lock():
        attempt, _ = output.claim(plan)
        time.sleep(1.1)  # the lock tells its begin in seconds
        scorer_of(plan, attempt)(units_to_table(plan.units[2:3]))
        found = output_status(output.address)
    assert found.rows_done == 57
    assert found.rows_per_s is not None and 0 < found.rows_per_s <= 57 / 1.1
    assert found.seconds_left == pytest.approx(19 / found.rows_per_s)


def test_outputs_are_found_at_any_depth(plan: JobPlan, tmp_path: Path) -> None:
    write_shards(tmp_path / "none", 1, 0, 1)
    keys = {"input": str(tmp_path / "none"), "output": str(tmp_path / "root/b/hour=05")}
    run_job(JobConfig.model_validate(job_keys(tmp_path, min_rows=0, **keys)))
    found = status_of(str(tmp_path / "root"))
    assert [each.output for each in found] == [f"{tmp_path}/root/a", f"{tmp_path}/root/b/hour=05"]
    assert [each.state for each in found] == ["resumable", "done"]
    assert table(found).endswith("2 outputs: 1 resumable, 1 done")
    with pytest.raises(ConfigError, match="holds no output of a job"):
        status_of(str(tmp_path / "input"))


def test_a_failed_job_says_why_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 0, 1)
    config = JobConfig.model_validate(job_keys(tmp_path, min_rows=0))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left at https://user:secret@host/x")

    with monkeypatch.context() as patched:
        patched.setattr(job_module, "publish_empty", fail)
        with pytest.raises(ResumableError):
            run_job(config)
    found = output_status(config.output)
    assert (found.state, found.exit_code) == ("failed", 4)
    assert "No space left" in str(found.error)
    assert "secret" not in (tmp_path / "output/_error.json").read_text()
    run_job(config)
    assert output_status(config.output).state == "done"
    assert not (tmp_path / "output/_error.json").exists()
