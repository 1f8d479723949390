"""Jobs from and into Delta tables, in folders and in a store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, job_keys, tiny_bundle
from s3_server import BUCKET, s3_server

import pipeline
from pipeline.config.job import load_config
from pipeline.errors import ConfigError, ContractError
from pipeline.lakehouse import delta
from pipeline.lakehouse.addresses import parse_table
from pipeline.lakehouse.table import commit_parts
from pipeline.planning.plan import make_plan
from pipeline.publishing.scores import open_scores

deltalake = pytest.importorskip("deltalake")


def part(path: Path, first: int, rows: int = 10) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    hours = [path.parent.name] * rows
    scores = pa.array([0.5] * rows, pa.float32())
    pq.write_table(
        pa.table({"row_id": range(first, first + rows), "hour": hours, "score": scores}), path
    )
    return str(path)


def commit(folder: Path, parts: Sequence[str], replaces: str, **keys: Any) -> Any:
    table = parse_table(f"delta:{folder}")
    return commit_parts(table, parts, [str(folder / replaces)], {"dpiframe.identity": "1"}, **keys)


def rows_of(folder: Path | str, version: int | None = None) -> list[int]:
    table = deltalake.DeltaTable(str(folder), version).to_pyarrow_table()
    return sorted(table["row_id"].to_pylist())


def test_parts_become_files_of_the_table_once(tmp_path: Path):
    parts = [part(tmp_path / "1/a b%20.parquet", 0), part(tmp_path / "1/b.parquet", 10)]
    done = commit(tmp_path, parts, "1")
    assert done.new and rows_of(tmp_path) == list(range(20))
    assert commit(tmp_path, parts, "1") == (done.version, False)
    table = deltalake.DeltaTable(str(tmp_path))
    assert table.history(1)[0]["dpiframe.identity"] == "1"
    found = pa.table(table.get_add_actions(flatten=True)).sort_by("min.row_id").to_pylist()
    assert [(file["num_records"], file["min.row_id"], file["max.row_id"]) for file in found] == [
        (10, 0, 9),
        (10, 10, 19),
    ]
    duckdb = pytest.importorskip("duckdb")
    scores = table.to_pyarrow_dataset()  # noqa: F841  # DuckDB finds it by its name
    assert duckdb.sql("select count(*), sum(row_id) from scores").fetchall() == [(20, 190)]


def test_one_partition_is_replaced_in_one_version(tmp_path: Path):
    for number, hour in enumerate(("a=1%3A2", "b")):
        parts = [part(tmp_path / f"{hour}/old/05/x.parquet", 10 * number)]
        commit(tmp_path, parts, hour, partition_by=["hour"])
    before = deltalake.DeltaTable(str(tmp_path))
    assert before.metadata().partition_columns == ["hour"]
    commit(tmp_path, [part(tmp_path / "a=1%3A2/new/06/x.parquet", 100, 5)], "a=1%3A2")
    table = deltalake.DeltaTable(str(tmp_path))
    assert table.version() == before.version() + 1
    assert rows_of(tmp_path) == [*range(10, 20), *range(100, 105)]
    assert rows_of(tmp_path, before.version()) == list(range(20))
    assert table.to_pyarrow_table(partitions=[("hour", "=", "06")]).num_rows == 5


def test_writers_at_one_time_lose_nothing(tmp_path: Path):
    failures: list[Exception] = []

    def write(number: int) -> None:
        try:
            commit(tmp_path, [part(tmp_path / f"{number}/a.parquet", 10 * number)], str(number))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and rows_of(tmp_path) == list(range(40))
    assert deltalake.DeltaTable(str(tmp_path)).version() == 4  # it was made once


@pytest.mark.parametrize("same", [False, True])
def test_a_commit_that_is_overtaken_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
):
    commit(tmp_path, [part(tmp_path / "first/a.parquet", 1000, 1)], "first")
    parts = [part(tmp_path / "out/mine/a.parquet", 0)]
    left = [parts if same else [part(tmp_path / "out/other/a.parquet", 100)]]
    inner = delta._added

    def late(*arguments: Any) -> Any:
        if left:
            commit(tmp_path, left.pop(), "out")
        return inner(*arguments)

    monkeypatch.setattr(delta, "_added", late)
    assert commit(tmp_path, parts, "out").new is not same
    assert rows_of(tmp_path) == [*range(10), 1000]


def test_a_job_from_a_version_into_a_table_in_a_store(tmp_path: Path):
    tiny_bundle(tmp_path / "bundle")
    rows = encoded_table(300, 0, seed=19)
    rows = rows.append_column("day", pa.array([f"2026-11-0{1 + i % 2}" for i in range(300)]))
    with s3_server() as endpoint:
        lake = {"allow_http": "true"} if endpoint else {}
        source, table = f"s3://{BUCKET}/impressions", f"s3://{BUCKET}/scores"
        keys = {"storage_options": lake, "partition_by": ["day"]}
        deltalake.write_deltalake(source, rows, **keys)
        deltalake.write_deltalake(source, rows.slice(0, 100), mode="append", **keys)
        job = job_keys(tmp_path, input=f"delta:{source}@0", output=f"{table}/now", runner="local")
        job |= {"table": f"delta:{table}", "partition_by": ["day"], "carry_columns": ["day"]}
        result = pipeline.score(job)
        assert result.rows == 300
        found = deltalake.DeltaTable(table, storage_options=lake)
        assert found.version() == 1 and found.metadata().partition_columns == ["day"]
        scores = found.to_pyarrow_table().sort_by("row_id")
        expected = open_scores(result.output).to_table().sort_by("row_id")
        assert scores["score"].equals(expected["score"])
        assert scores["day"].to_pylist() == rows["day"].to_pylist()
        assert pipeline.score(job).status == "complete before"
        # Of the newest version the first hundred rows come twice; where: one partition replaced.
        day = {"input": f"delta:{source}", "where": "day = '2026-11-01'"}
        assert pipeline.score(job | day).rows == 200
        again = deltalake.DeltaTable(table, storage_options=lake)
        assert again.version() == 2 and again.to_pyarrow_table().num_rows == 350
        # What is written beside its partition's folder is read as another table's files are.
        copy = job_keys(tmp_path, input=f"delta:{table}", output=f"s3://{BUCKET}/x", runner="local")
        assert parse_table(copy["input"]).pinned().files()[0].partition == {"day": "2026-11-01"}


def test_an_output_outside_the_table_is_refused_before_anything_is_scored(tmp_path: Path):
    tiny_bundle(tmp_path / "bundle")
    pq.write_table(encoded_table(19), tmp_path / "x.parquet")
    job = job_keys(tmp_path, input=str(tmp_path / "x.parquet"), table=f"delta:{tmp_path}/t")
    with pytest.raises(ConfigError, match="does not lie in the folder of the table"):
        make_plan(load_config(job))
    assert make_plan(load_config(job, [f"output={tmp_path}/t"])).total_rows == 19


def test_what_cannot_be_read_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = parse_table(f"delta:{tmp_path}/table@3")
    with pytest.raises(ConfigError, match="there is no table"):
        table.pinned()
    with pytest.raises(ConfigError, match="does not lie in the folder"):
        commit(tmp_path / "table", [part(tmp_path / "out/a.parquet", 0)], "out")
    parts = [part(tmp_path / "table/out/a.parquet", 0)]
    deltalake.write_deltalake(str(tmp_path / "table"), pa.table({"other": [1]}))
    with pytest.raises(ConfigError, match="column row_id differs"):
        commit(tmp_path / "table", parts, "out")
    with pytest.raises(ConfigError, match="no such version"):
        table.pinned()
    monkeypatch.setattr(delta, "_mapped", lambda _: True)
    with pytest.raises(ContractError, match="column mapping"):
        parse_table(f"delta:{tmp_path}/table").files()
    for wrong in ("delta:", "delta:@3", "delta:/", "delta://"):
        with pytest.raises(ValueError, match="must be delta: and the path"):
            parse_table(wrong)


def test_a_part_of_several_partitions_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="rows of several partitions by row_id"):
        commit(tmp_path, [part(tmp_path / "05/a.parquet", 0)], "05", partition_by=["row_id"])


def test_rows_that_a_deletion_vector_deletes_are_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commit(tmp_path, [part(tmp_path / "in/a.parquet", 0)], "in")
    found = pa.table({"filepath": ["a"], "selection_vector": [[False]]}).to_reader()
    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", lambda _: found)
    with pytest.raises(ContractError, match="deletion vectors"):
        parse_table(f"delta:{tmp_path}").files()
