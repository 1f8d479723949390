"""Scorers whose GPU is lost to their process, on a CPU: tests/gpu/pipeline has the GPU's form."""

from __future__ import annotations

from pathlib import Path

import pytest
from lost_gpus import check_recovered
from running_job import Case


@pytest.mark.parametrize("read_in", ["scorer", "tasks"])
def test_scorers_that_lose_their_gpu_are_started_again(tmp_path: Path, read_in: str) -> None:
    check_recovered(Case(tmp_path, "local", read_in=read_in), 2)
