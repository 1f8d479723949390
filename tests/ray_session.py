"""One Ray for all tests of a process: starting it takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[str]:
    """A local cluster of 2 CPUs; the value is its address, for jobs in other processes."""
    import ray

    from pipeline.cluster import ray_cluster

    with ray_cluster("local", unit_bytes=1, verbose=False):
        yield str(ray.get_runtime_context().gcs_address)
