"""A job on several Ray nodes, one of which dies under it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import RayNodes
from running_job import Case, wait_for


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with RayNodes(2) as nodes:
        yield nodes


@pytest.mark.usefixtures("ray_session")
def test_a_killed_node_is_done_without(tmp_path: Path, nodes: RayNodes) -> None:
    """Scorers on two nodes; one dies with its scorer, readers and object store."""
    case = Case(tmp_path, nodes.address, num_scorers=2)
    with case.start() as job:
        wait_for(lambda: job.ended() or len(case.scorer_pids()) == 2, "units of both scorers")
        assert not job.ended(), job.text()
        doomed = nodes.raylets()[0]
        workers = {process.pid for process in doomed.children(recursive=True)}
        assert workers & case.scorer_pids()
        untouched = case.published()
        nodes.kill(doomed)
        assert job.wait() == 0, job.text()

    case.check_finished(untouched)
