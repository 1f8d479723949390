"""The short form of the soak: each kind of kill once, on a cluster of several nodes."""

from __future__ import annotations

import json
import subprocess
import sys

from running_job import ROOT


def test_random_kills_lose_and_double_nothing() -> None:
    options = "--kills 4 --seed 19 --ray nodes --shards 4"
    command = [sys.executable, "tests/faults/soak.py", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["kills"] == 4
    assert not any(summary[name] for name in ("lost", "doubled", "wrong", "left_over", "hanging"))
    assert set(summary["run_again_after"]) <= {"driver"}
