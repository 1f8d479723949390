"""The fuzzing scripts for a few seconds each; `make fuzz` runs them for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_fuzz import outcomes_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "count", "wanted"),
    [
        ("frames", 3000, ["zstd: taken", "zstd: refused", "snappy: taken", "snappy: refused"]),
        ("arrow", 1000, ["both read", "both refuse"]),
        ("archive", 300, ["read", "refused"]),
        ("inputs", 300, ["bundle: refused", "yaml: no YAML", "criteo: refused", "avazu: refused"]),
    ],
)
def test_damaged_inputs_are_read_right_or_refused(tmp_path, script, count, wanted):
    seen = outcomes_of(f"fuzz_{script}.py", tmp_path, count)
    # The damage is neither too small nor too large to test anything.
    for outcome in wanted:
        assert seen[outcome] > seen["cases"] // 100, seen
    if script == "inputs":  # most damage leaves no YAML at all, some leaves wrong settings
        assert seen["yaml: refused"] > 0, seen


def test_a_case_that_takes_too_much_memory_is_found(tmp_path):
    script = f"""
import numpy as np
from pathlib import Path
from fuzzing import run
run(lambda path: [f"{{len(np.ones(80 << 20, 'u1'))}} bytes"],
    lambda folder: lambda path, _: path.write_bytes(b"abc"),
    folder=Path({str(tmp_path)!r}), seed=1, first=0, count=1, seconds=9)
"""
    # In a process of its own, as all cases are: the system may take pages from a large idle one.
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent / "helpers")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "case-0 of 3 bytes takes" in ended.stderr, ended.stderr
    assert (tmp_path / "seed-1-case-0").exists()
