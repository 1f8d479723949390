"""Jobs without rows, which need no Ray: `min_rows`, and what their output is to readers."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import yaml
from job_cases import encoded_table, job_keys, tiny_bundle

from pipeline.config.job import JobConfig
from pipeline.errors import ContractError, LockedError
from pipeline.publishing.lock import OutputLock
from pipeline.publishing.scores import open_scores
from pipeline.publishing.verify import verify_output
from pipeline.scoring.job import JobResult, run_job

COLUMNS = {"row_id": pa.int64(), "label": pa.int8(), "score": pa.float32()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bundle(tmp_path / "bundle")
    (tmp_path / "input").mkdir()
    pq.write_table(encoded_table(0), tmp_path / "input/a.parquet")
    return tmp_path


def run(folder: Path, wait: bool = False, **keys: object) -> JobResult:
    keys = {"min_rows": 0} | keys
    return run_job(JobConfig.model_validate(job_keys(folder, **keys)), wait=wait)


def test_few_rows_are_refused_before_anything_is_touched(folder: Path) -> None:
    with pytest.raises(ContractError, match=r"0 rows in 1 files, fewer than min_rows 1; .*to 0"):
        run(folder, min_rows=1)
    pq.write_table(encoded_table(19), folder / "input/b.parquet")
    with pytest.raises(ContractError, match="has 19 rows in 2 files, fewer than min_rows 20"):
        run(folder, min_rows=20)
    assert not (folder / "output").exists()


def test_an_empty_output_opens_with_its_columns(folder: Path) -> None:
    assert run(folder).status == "scored"
    assert run(folder).status == "complete before"
    output = folder / "output"
    assert verify_output(output).problems == []
    tables = [
        open_scores(output).to_table(),
        pads.dataset(output, format="parquet").to_table(),
        pq.read_table(next(output.glob("part-*.parquet"))),
    ]
    for table in tables:
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == COLUMNS
        assert table.num_rows == 0


def test_duckdb_reads_an_empty_output(folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    run(folder)
    query = f"select count(*), sum(score) from '{folder}/output/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(0, None)]


def test_a_lost_empty_part_is_published_again(folder: Path) -> None:
    run(folder)
    next((folder / "output").glob("part-*.parquet")).unlink()
    assert run(folder).status == "scored"
    assert verify_output(folder / "output").problems == []


def test_the_columns_of_empty_files_are_checked(folder: Path) -> None:
    pq.write_table(encoded_table(0).drop_columns(["label"]), folder / "input/a.parquet")
    with pytest.raises(ContractError, match="column label: missing"):
        run(folder)


def test_the_date_is_recorded(folder: Path) -> None:
    run(folder, date="2026-11-19", output=str(folder / "out-{date}"))
    config = yaml.safe_load((folder / "out-2026-11-19/_config.yaml").read_text())
    assert config["date"] == "2026-11-19"
    assert config["output"] == str(folder / "out-2026-11-19")


def test_a_locked_output_ends_the_job_or_is_waited_for(folder: Path) -> None:
    held = OutputLock(folder / "output")
    with held, pytest.raises(LockedError):
        run(folder)
    held.__enter__()
    threading.Timer(0.7, held.release).start()
    assert run(folder, wait=True).status == "scored"
