"""A job that finds no Ray or no GPU has touched nothing, whatever it was to replace."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_cases import job_keys, score_here
from running_job import Case

from dpiframe_core import _core
from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError
from pipeline.scoring.job import run_job


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in paths}


@pytest.mark.skipif(_core.cuda_device_count() > 0, reason="needs a machine without a GPU")
@pytest.mark.parametrize("finished", [False, True])
def test_without_a_gpu_nothing_is_touched(tmp_path: Path, ray_session: str, finished: bool) -> None:
    Case(tmp_path, ray_session, shards=1)
    if finished:
        score_here(tmp_path, unit_rows=40)
    before = contents(tmp_path)
    keys = job_keys(tmp_path, device="cuda", unit_rows=20, overwrite=True)

    with pytest.raises(ConfigError, match="device is cuda, but there are 0 GPUs"):
        run_job(JobConfig.model_validate(keys))

    assert contents(tmp_path) == before
    assert (tmp_path / "output").exists() == finished


@pytest.mark.parametrize("finished", [False, True])
def test_without_ray_nothing_is_touched(tmp_path: Path, finished: bool) -> None:
    case = Case(tmp_path, "127.0.0.1:1", shards=1, overwrite=True)
    if finished:
        score_here(tmp_path, unit_rows=40)
    before = contents(case.output)

    with case.start() as job:
        assert job.wait() == 4, job.text()

    assert "nothing answers there" in job.text()
    assert contents(case.output) == before
    assert case.output.exists() == finished
