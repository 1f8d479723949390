"""What a job waits for before it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from job_cases import tiny_bundle, write_config, write_shards

ROOT = Path(__file__).resolve().parents[3]
PLAN = """
import sys
from pipeline.config.job import load_config
from pipeline.planning.plan import make_plan
import pipeline.scoring.flow, pipeline.scoring.job, pipeline.scoring.scorer_actor
make_plan(load_config(sys.argv[1]))
print([name for name in ("torch", "mlflow", "matplotlib") if name in sys.modules])
"""


def test_the_driver_needs_no_torch(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 19, 5)
    config = write_config(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PLAN, str(config)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr
