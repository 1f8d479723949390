"""A job on a Ray node with a small object store; `test_soak.py` kills nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray_nodes import RayNodes
from running_job import Case


@pytest.mark.usefixtures("ray_session")
def test_a_store_with_room_for_two_units(tmp_path: Path) -> None:
    """Of 28 MB each, and Ray plans with more in hand."""
    with RayNodes(0, object_store_memory=80 << 20, num_cpus=2) as nodes:
        keys = {"read_in": "tasks", "unit_rows": 600_000}
        case = Case(tmp_path, nodes.address, shards=1, rows=1_800_000, **keys)
        with case.start() as job:
            assert job.wait() == 0, job.text()

    case.check_finished({})
