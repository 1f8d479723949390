"""Jobs from and into Iceberg tables, in a catalog on sqlite."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, job_keys, tiny_bundle, write_shards

import pipeline
from pipeline.config.job import load_config
from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.lakehouse import table as tables
from pipeline.lakehouse.addresses import parse_table
from pipeline.lakehouse.iceberg import IcebergTable
from pipeline.lakehouse.table import commit_parts
from pipeline.planning.plan import make_plan
from pipeline.publishing.scores import open_scores

catalogs = pytest.importorskip("pyiceberg.catalog")
TABLE = "iceberg://prod/ads.scores"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings = {"TYPE": "sql", "URI": f"sqlite:///{tmp_path}/catalog.db"}
    settings["WAREHOUSE"] = f"file://{tmp_path}/warehouse"
    for name, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", type(catalogs._ENV_CONFIG)())
    found = catalogs.load_catalog("prod")
    found.create_namespace("ads")
    return found


def part(path: Path, first: int, rows: int = 10) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "row_id": pa.array(range(first, first + rows)),
            "hour": pa.array([path.parent.name] * rows),
            "score": pa.array([0.5] * rows, pa.float32()),
        }
    )
    pq.write_table(table, path)
    return str(path)


def rows_of(catalog: Any) -> list[int]:
    return sorted(catalog.load_table("ads.scores").scan().to_arrow()["row_id"].to_pylist())


def commit(parts: list[str], replaces: Path, **keys: Any) -> Any:
    properties = {"dpiframe.identity": "1"}
    return commit_parts(parse_table(TABLE), parts, [str(replaces)], properties, **keys)


def test_parts_become_files_of_the_table_once(catalog: Any, tmp_path: Path):
    parts = [part(tmp_path / "out/1/a b.parquet", 0), part(tmp_path / "out/1/b.parquet", 10)]
    done = commit(parts, tmp_path / "out")
    assert done.new and rows_of(catalog) == list(range(20))
    assert commit(parts, tmp_path / "out") == (done.version, False)
    table = catalog.load_table("ads.scores")
    assert len(table.metadata.snapshots) == 1
    assert table.current_snapshot().summary["dpiframe.identity"] == "1"
    query = "select count(*), sum(row_id), min(score) from t"
    pytest.importorskip("duckdb")
    assert table.scan().to_duckdb("t").sql(query).fetchall() == [(20, 190, 0.5)]


def test_one_partition_is_replaced_in_one_snapshot(catalog: Any, tmp_path: Path):
    hours = [tmp_path / f"out/hour={hour}" for hour in ("05", "06")]
    for number, hour in enumerate(hours):
        commit([part(hour / "old/a.parquet", 10 * number)], hour, partition_by=["hour"])
    before = catalog.load_table("ads.scores")
    assert [field.name for field in before.spec().fields] == ["hour"]
    commit([part(hours[0] / "new/a.parquet", 100, 5)], hours[0])
    table = catalog.load_table("ads.scores")
    assert rows_of(catalog) == [*range(10, 20), *range(100, 105)]
    assert len(table.metadata.snapshots) == len(before.metadata.snapshots) + 1
    # The old snapshot is there as it was.
    old = table.scan(snapshot_id=before.current_snapshot().snapshot_id).to_arrow()
    assert sorted(old["row_id"].to_pylist()) == list(range(20))


def test_writers_at_one_time_lose_nothing(catalog: Any, tmp_path: Path):
    commit([part(tmp_path / "out/first/a.parquet", 0)], tmp_path / "out/first")
    failures: list[Exception] = []

    def write(number: int) -> None:
        folder = tmp_path / f"out/{number}"
        try:
            commit([part(folder / "a.parquet", 10 * number)], folder)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and rows_of(catalog) == list(range(40))


@pytest.mark.parametrize("same", [False, True])
def test_a_commit_that_is_overtaken_looks_again(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
):
    """What another job put in the same place meanwhile, or this job in a try that was thought lost,
    is neither left beside the parts nor doubled.
    """
    commit([part(tmp_path / "first/a.parquet", 1000, 1)], tmp_path / "first")
    with catalog.load_table("ads.scores").transaction() as change:
        # pyiceberg then commits anew by itself, whatever others have added.
        change.set_properties({"write.delete.isolation-level": "snapshot"})
    parts = [part(tmp_path / "out/mine/a.parquet", 0)]
    other = parts if same else [part(tmp_path / "out/other/a.parquet", 100)]
    inner = IcebergTable._commit
    left = [other]

    def late(self: IcebergTable, table: Any, *arguments: Any) -> Any:
        if left:
            commit(left.pop(), tmp_path / "out")
        return inner(self, table, *arguments)

    monkeypatch.setattr(IcebergTable, "_commit", late)
    assert commit(parts, tmp_path / "out").new is not same
    assert rows_of(catalog) == [*range(10), 1000]


def test_commits_end_when_others_overtake_them_all_the_time(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from pyiceberg.exceptions import CommitFailedException

    tries = []

    def refused(*_: Any) -> None:
        tries.append(1)
        raise CommitFailedException("too late")

    monkeypatch.setattr(type(catalog), "commit_table", refused)
    monkeypatch.setattr(tables, "COMMIT_SECONDS", 0.5)
    with pytest.raises(ResumableError, match=r"changed by others meanwhile.*too late"):
        commit([part(tmp_path / "out/a.parquet", 0)], tmp_path / "out")
    assert len(tries) > 1


def test_a_job_from_a_snapshot_into_a_table(catalog: Any, tmp_path: Path):
    tiny_bundle(tmp_path / "bundle")
    rows = write_shards(tmp_path / "rows", shards=2, rows=300, group=100)
    source = catalog.create_table("ads.impressions", schema=rows.schema)
    files = [str(path) for path in sorted((tmp_path / "rows").glob("*.parquet"))]
    source.add_files([f"file://{file}" for file in files[:1]])
    first = source.current_snapshot().snapshot_id
    source.add_files([f"file://{file}" for file in files[1:]])
    keys = job_keys(tmp_path, input="iceberg://prod/ads.impressions", table=TABLE, runner="local")
    result = pipeline.score(keys)
    assert result.rows == 600 and Path(result.output).parent == tmp_path / "output"
    expected = open_scores(result.output).to_table().sort_by("row_id")
    found = catalog.load_table("ads.scores").scan().to_arrow().sort_by("row_id")
    assert found["score"].equals(expected["score"]) and len(found) == 600
    assert pipeline.score(keys).status == "complete before"
    # An older snapshot is another job, which replaces what the table has of the first one.
    again = pipeline.score(keys | {"input": f"iceberg://prod/ads.impressions@{first}"})
    assert again.rows == 300 and again.identity != result.identity
    assert len(catalog.load_table("ads.scores").scan().to_arrow()) == 300
    assert Path(result.output, "_SUCCESS").exists()  # until the table's snapshots expire


def test_partitions_of_a_job_are_committed_in_one_snapshot(catalog: Any, tmp_path: Path):
    tiny_bundle(tmp_path / "bundle")
    hours = [tmp_path / f"rows/hour={hour:02d}/x.parquet" for hour in (5, 6, 7)]
    for number, hour in enumerate(hours):
        hour.parent.mkdir(parents=True)
        pq.write_table(encoded_table(19, 19 * number, seed=number), hour)
    keys = job_keys(tmp_path, input=str(tmp_path / "rows"), table=TABLE, runner="local")
    keys |= {"partition_by": ["hour"], "carry_columns": ["hour"]}
    result = pipeline.score(keys)
    table = catalog.load_table("ads.scores")
    assert [field.name for field in table.spec().fields] == ["hour"]
    assert rows_of(catalog) == list(range(57)) and len(table.metadata.snapshots) == 1
    files = {task.file.file_path for task in table.scan().plan_files()}
    assert len({file.rpartition("/")[0] for file in files}) == 3
    assert len(table.scan("hour = 6").to_arrow()) == 19
    assert open_scores(result.output).to_table().num_rows == 57
    assert pipeline.score(keys).status == "complete before"

    pq.write_table(encoded_table(10, 100, seed=19), hours[1])
    assert pipeline.score(keys).rows == 48
    table = catalog.load_table("ads.scores")
    assert rows_of(catalog) == [*range(19), *range(38, 57), *range(100, 110)]
    assert len(table.metadata.snapshots) == 2
    assert len(files & {task.file.file_path for task in table.scan().plan_files()}) == 2
    with pytest.raises(ConfigError, match="hour=6 holds the scores of 2 jobs"):
        open_scores(result.output)


def test_unsigned_keys_are_refused_before_anything_is_scored(tmp_path: Path):
    tiny_bundle(tmp_path / "bundle")
    rows = encoded_table(19)
    rows = rows.set_column(0, "row_id", rows["row_id"].cast(pa.uint64()))
    pq.write_table(rows, tmp_path / "x.parquet")
    job = job_keys(tmp_path, input=str(tmp_path / "x.parquet"), table=TABLE)
    with pytest.raises(ConfigError, match="row_id is uint64, and tables have no unsigned"):
        make_plan(load_config(job))


def test_files_of_a_snapshot(catalog: Any, tmp_path: Path):
    files = [part(tmp_path / f"in/{n}.parquet", n) for n in (1, 2)]
    commit(files, tmp_path / "in")
    pinned = parse_table(TABLE).pinned()
    assert pinned.version is not None and parse_table(str(pinned)) == pinned
    assert [file.path for file in pinned.files()] == files


def test_what_cannot_be_read_or_written(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ConfigError, match="there is no table"):
        parse_table(TABLE).pinned()
    catalog.create_table("ads.scores", schema=pa.schema({"other": pa.int64()}))
    with pytest.raises(ConfigError, match="has no snapshot"):
        parse_table(TABLE).pinned()
    with pytest.raises(ConfigError, match="do not fit the table"):
        commit([part(tmp_path / "out/a.parquet", 0)], tmp_path / "out")
    nowhere = parse_table("iceberg://prod/nowhere.t")
    with pytest.raises(ConfigError, match="has no namespace nowhere"):
        commit_parts(nowhere, [str(tmp_path / "out/a.parquet")], ["/"], {})
    with pytest.raises(ConfigError, match="PYICEBERG_CATALOG__ELSEWHERE__URI"):
        parse_table("iceberg://elsewhere/ads.scores").pinned()
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", "http://127.0.0.1:9")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", type(catalogs._ENV_CONFIG)())
    with pytest.raises(ResumableError, match="cannot open the catalog away"):
        parse_table("iceberg://away/ads.scores").pinned()
    with pytest.raises(ConfigError, match="no such snapshot"):
        parse_table(f"{TABLE}@1").files()
    with pytest.raises(ValueError, match="must be a table such as"):
        parse_table("iceberg://prod/table")


def test_rows_that_a_delete_file_deletes_are_not_scored(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commit([part(tmp_path / "in/a.parquet", 0)], tmp_path / "in")
    from pyiceberg.table import DataScan, FileScanTask

    plan = DataScan.plan_files

    def with_deletes(scan: Any) -> list[Any]:
        return [FileScanTask(task.file, delete_files={task.file}) for task in plan(scan)]

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(ContractError, match="compact the table"):
        parse_table(TABLE).files()
