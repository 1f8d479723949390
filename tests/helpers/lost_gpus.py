"""Jobs of which some scorers lose their GPU, on a GPU or, as far as that goes, on a CPU."""

from __future__ import annotations

import os

from running_job import ROOT, Case, RunningJob


def start_losing(case: Case, times: int) -> RunningJob:
    """Start a job whose scorers lose their GPU so many times, one after the other."""
    folder = case.folder / "lose"
    folder.mkdir()
    for number in range(times):
        (folder / str(number)).touch()
    paths = [str(ROOT / "tests/faults/lose_gpu"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return case.start(environment={"PYTHONPATH": os.pathsep.join(paths), "LOSE_GPU": str(folder)})


def check_recovered(case: Case, times: int) -> None:
    """Such a job ends well, with all units and a warning for each scorer that was lost."""
    with start_losing(case, times) as job:
        assert job.wait() == 0, job.text()
    warnings = [line for line in job.text().splitlines() if "lost its GPU" in line]
    assert len(warnings) == times, job.text()
    assert all("cudaErrorIllegalAddress" in line for line in warnings)
    assert not list((case.folder / "lose").iterdir())
    case.check_finished({})


def check_given_up(case: Case, most: int) -> None:
    """A job whose scorers all lose their GPU ends with code 4 and what the GPU said."""
    with start_losing(case, 1000) as job:
        assert job.wait() == 4, job.text()
    _, found, told = job.text().partition(f"{most + 1} scorers lost their GPU, the last one, ")
    assert found and "cudaErrorIllegalAddress" in told, job.text()
