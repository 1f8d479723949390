"""Following a submission to its end, with a Jobs API that answers as Ray's does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from job_cases import job_keys, tiny_bundle

from pipeline.deploy import ray_jobs
from pipeline.deploy.settings import Deployment
from pipeline.errors import LockedError, ResumableError

UNKNOWN = RuntimeError("Request failed with status code 404: Job x does not exist.")


class Jobs:
    """One job, whose infos come one after the other; the last one stays."""

    def __init__(self, job: Deployment, *infos: Any, before: str | None = None) -> None:
        self.name, self.infos = job.submission_id, list(infos)
        self.known = [] if before is None else [info(before, name=self.name)]
        self.calls: list[str] = []

    def list_jobs(self) -> list[Any]:
        return self.known

    def delete_job(self, name: str) -> None:
        self.calls.append(f"delete {name}")

    def submit_job(self, entrypoint: str, submission_id: str) -> None:
        self.calls.append(f"submit {submission_id}")

    def get_job_info(self, name: str) -> Any:
        found = self.infos.pop(0) if len(self.infos) > 1 else self.infos[0]
        if isinstance(found, Exception):
            raise found
        return found

    def get_job_logs(self, name: str) -> str:
        return "one\ntwo\n"


def info(status: str, code: int | None = None, name: str = "") -> Any:
    return SimpleNamespace(submission_id=name, status=status, driver_exit_code=code)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setattr(ray_jobs, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(ray_jobs, "LOST_SECONDS", 0.05)
    tiny_bundle(tmp_path / "bundle")
    return Deployment(job_keys(tmp_path), "ctr", "", webhook=False)


def submit(
    jobs: Jobs, job: Deployment, monkeypatch: pytest.MonkeyPatch, wait: bool = False
) -> tuple[int, str]:
    monkeypatch.setattr(ray_jobs, "_client", lambda address: jobs)
    shown: list[str] = []
    code = ray_jobs.submit(job, None, shown.append, wait)
    return code, "".join(shown)


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (info("SUCCEEDED", 0), 0),
        (info("FAILED", 3), 3),
        (info("FAILED", -9), 4),
        (info("FAILED", 137), 4),
        (info("STOPPED"), 4),
    ],
)
def test_the_exit_code_is_the_drivers(
    job: Deployment, monkeypatch: pytest.MonkeyPatch, last: Any, code: int
) -> None:
    lost = ConnectionError("for a moment")
    jobs = Jobs(job, info("PENDING"), lost, info("RUNNING"), last)
    assert submit(jobs, job, monkeypatch) == (code, "one\ntwo\n")
    assert jobs.calls == [f"submit {job.submission_id}"]


def test_one_that_runs_is_followed_or_left_alone(
    job: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(job, info("RUNNING"), info("SUCCEEDED", 0), before="RUNNING")
    with pytest.raises(LockedError, match="runs already"):
        submit(jobs, job, monkeypatch)
    assert submit(jobs, job, monkeypatch, wait=True)[0] == 0
    assert jobs.calls == []


def test_one_that_has_ended_gives_way(job: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(job, info("SUCCEEDED", 0), before="FAILED")
    assert submit(jobs, job, monkeypatch)[0] == 0
    assert jobs.calls == [f"delete {job.submission_id}", f"submit {job.submission_id}"]


@pytest.mark.parametrize("error", [UNKNOWN, ConnectionError("refused")])
def test_a_lost_head_leaves_the_job_resumable(
    job: Deployment, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with pytest.raises(ResumableError, match="submit"):
        submit(Jobs(job, info("RUNNING"), error), job, monkeypatch)
