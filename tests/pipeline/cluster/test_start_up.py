"""What a job waits for before it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from job_cases import tiny_bundle, write_config, write_shards

ROOT = Path(__file__).resolve().parents[3]
PLAN = """
import sys
from pipeline.config.job import load_config
from pipeline.planning.plan import make_plan
import pipeline.scoring.job, pipeline.scoring.scorer_actor, pipeline.scoring.{flow}
make_plan(load_config(sys.argv[1]))
print([name for name in {modules} if name in sys.modules])
"""
SLOW = ("torch", "mlflow", "matplotlib")


@pytest.mark.parametrize(
    ("flow", "modules"), [("flow", SLOW), ("local_flow", (*SLOW, "ray", "pandas"))]
)
def test_the_driver_plans_without_slow_modules(
    tmp_path: Path, flow: str, modules: tuple[str, ...]
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 19, 5)
    code = PLAN.format(flow=flow, modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", code, str(write_config(tmp_path))],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n", done.stderr
