"""The short form of `tests/gpu/mutated_pages.py`, and its units in memory of just their size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "mutated_pages.py"


@pytest.mark.parametrize("more", [[], ["--apart"]])
def test_mutated_pages_give_what_the_host_gives(more: list[str]) -> None:
    command = [sys.executable, str(SCRIPT), "--count", "500", "--processes", "1", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["mutated"] >= 500
    assert seen["the same numbers"] > 50
    assert seen["refused by both"] > 50
    assert seen.get("refused by the GPU alone", 0) < seen["units"] / 50
