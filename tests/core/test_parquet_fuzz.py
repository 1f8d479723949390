"""Damaged files in a process of its own, so that a crash fails this test alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tests" / "helpers" / "fuzz_parquet.py"


def test_damaged_files_are_read_or_refused(tmp_path):
    cases = ["--seed", "1", "--count", "4000", "--seconds", "10", "--folder", str(tmp_path)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *cases],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    left = [path.name for path in tmp_path.iterdir()]
    assert found.returncode == 0, f"{left}: exit code {found.returncode}: {found.stderr[-3000:]}"
    seen = json.loads(found.stdout)
    # The damage is neither too small nor too large to test anything.
    for outcome in ("read", "not read: ValueError", "not opened: ValueError"):
        assert seen[outcome] > seen["cases"] // 100, seen
