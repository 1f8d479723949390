"""A job on several Ray nodes, one of which dies under it; a node with a small object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray_nodes import RayNodes
from running_job import Case, wait_for


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with RayNodes(2) as nodes:
        yield nodes


def pids(raylet: psutil.Process) -> set[int]:
    """The workers of a node."""
    return {worker.pid for worker in raylet.children(recursive=True)}


@pytest.mark.usefixtures("ray_session")
def test_a_killed_node_is_done_without(tmp_path: Path, nodes: RayNodes) -> None:
    """A node dies with a scorer or two, readers and its object store."""
    case = Case(tmp_path, nodes.address, num_scorers=2, read_in="tasks")
    with case.start() as job:
        wait_for(lambda: job.ended() or len(case.scorer_pids()) == 2, "units of both scorers")
        assert not job.ended(), job.text()
        doomed = next(raylet for raylet in nodes.raylets() if pids(raylet) & case.scorer_pids())
        untouched = case.published()
        nodes.kill(doomed)
        assert job.wait() == 0, job.text()

    case.check_finished(untouched)


@pytest.mark.usefixtures("ray_session")
def test_a_store_with_room_for_two_units(tmp_path: Path) -> None:
    """Of 28 MB each, and Ray plans with more in hand."""
    with RayNodes(0, object_store_memory=80 << 20, num_cpus=2) as nodes:
        keys = {"read_in": "tasks", "unit_rows": 600_000}
        case = Case(tmp_path, nodes.address, shards=1, rows=1_800_000, **keys)
        with case.start() as job:
            assert job.wait() == 0, job.text()

    case.check_finished({})
