"""The short form of `store_faults.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("obstore")
SCRIPT = Path(__file__).with_name("store_faults.py")
pytestmark = pytest.mark.slow


def test_publishing_to_a_store_outlives_every_fault() -> None:
    command = [sys.executable, str(SCRIPT), "--seed", "19", "--seconds", "6"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout


def test_the_harness_sees_what_is_not_conditional() -> None:
    """Records that are put whatever is there, and a head that anybody may replace."""
    command = [sys.executable, str(SCRIPT), "--seed", "19", "--seconds", "60", "--unconditional"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
