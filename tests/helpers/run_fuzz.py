"""Runs a fuzzing script in a process of its own, so that a crash fails one test alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def outcomes_of(script: str, folder: Path) -> dict[str, int]:
    """How often each outcome came, in `folder`, where a case that crashed is left."""
    path = ROOT / "tests" / "helpers" / script
    cases = ["--seed", "1", "--count", "4000", "--seconds", "10", "--folder", str(folder)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = subprocess.run(
        [sys.executable, str(path), *cases],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    left = [path.name for path in folder.iterdir()]
    assert found.returncode == 0, f"{left}: exit code {found.returncode}: {found.stderr[-3000:]}"
    outcomes: dict[str, int] = json.loads(found.stdout)
    return outcomes
