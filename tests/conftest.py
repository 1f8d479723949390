"""Fixtures shared by all tests: the folder of real rows (never part of the project), one Ray."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Ray's workers have niceness 15 by default: beside other tests at work they would stand still.
os.environ.setdefault("RAY_worker_niceness", "0")


# Folders whose tests are all of one kind.
MARKERS = {
    "tests/csrc": "native",
    "tests/dpiframe_core/features": "native",
    "tests/faults": "slow",
    "tests/gpu": "gpu",
    "tests/pipeline/tracking/mlflow_store": "slow",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for folder, marker in MARKERS.items():
            if ROOT / folder in item.path.parents:
                item.add_marker(marker)
    if hasattr(config, "workerinput"):  # several processes end together if the last file is short
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _shared(name: str) -> Path:
    path = ROOT.parent / "shared" / name
    if not path.exists():
        pytest.skip(f"needs {name} in a folder 'shared' beside the project")
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real Criteo and Avazu rows."""
    return _shared("data")


@pytest.fixture(scope="session")
def shared_faults() -> Path:
    """The folder with files that once did harm."""
    return _shared("faults")


@pytest.fixture(scope="session")
def shared_reference() -> Path:
    """The folder with weights and logits that other libraries made."""
    return _shared("reference")


@pytest.fixture(scope="session")
def shared_exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs that torch.export wrote of models of other libraries."""
    archive = _shared("exports") / "exports.tar.xz"
    folder = tmp_path_factory.mktemp("exports")
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def criteo_tsv(shared_data: Path) -> Path:
    """8,184 real Criteo rows, tab separated, no header."""
    return shared_data / "criteo_kaggle_8184.tsv"


@pytest.fixture(scope="session")
def avazu_csv(shared_data: Path) -> Path:
    """8,999 real Avazu rows with a header."""
    return shared_data / "avazu_8999.csv"


@pytest.fixture(scope="session")
def ray_session() -> Iterator[str]:
    """A local cluster for all tests, as starting one takes seconds; its address."""
    import ray

    from pipeline.cluster.ray_cluster import quiet_start, start
    from pipeline.cluster.ray_private import shut_down
    from pipeline.sizing.machine import usable_cores

    with quiet_start():
        start(usable_cores(), store_bytes=256 << 20, workers=4, verbose=False, loopback=False)
    yield str(ray.get_runtime_context().gcs_address)
    shut_down()
