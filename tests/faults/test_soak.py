"""The short form of the soak: each kind of kill once on each kind of Ray."""

from __future__ import annotations

import re
import subprocess
import sys

from running_job import ROOT


def test_random_kills_lose_and_double_nothing() -> None:
    command = [sys.executable, "tests/faults/soak.py", "--kills", "7", "--seed", "19"]
    done = subprocess.run(
        [*command, "--shards", "4"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert re.search(r"^7 kills .* over \d+ jobs .*; all verified$", summary)
    reruns = re.search(r"run again after (.*?);", summary)
    assert reruns is not None
    assert set(re.findall(r"\w+(?=': )", reruns[1])) <= {"driver", "raylet"}
