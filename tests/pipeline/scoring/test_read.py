"""Read tasks: rows in order, one chunk a column, faults as data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.planning.units import Unit
from pipeline.publishing.records import UnitError
from pipeline.scoring.read import ERROR_KEY, GROUPS_KEY, UNIT_KEY, read_unit


def shard(path: Path, rows: int = 111, group: int = 19) -> pa.Table:
    words = [None if i % 7 == 0 else f"w{i % 5}" for i in range(rows)]
    table = pa.table({"key": np.arange(rows), "word": words, "more": np.ones(rows)})
    pq.write_table(table, path, row_group_size=group)
    return table


def unit_of(path: Path, first: int, stop: int, first_row: int, rows: int) -> Unit:
    stat = path.stat()
    return Unit(
        index=0,
        name="u000000-0123abcd",
        path=str(path),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        first_row_group=first,
        stop_row_group=stop,
        first_row=first_row,
        rows=rows,
    )


def error_of(unit: Unit) -> UnitError:
    (table,) = read_unit(unit.model_dump_json(), ["key"], [])
    assert table.num_rows == 1
    assert table.schema.metadata[UNIT_KEY] == unit.model_dump_json().encode()
    return UnitError.model_validate_json(table.schema.metadata[ERROR_KEY])


@pytest.mark.parametrize(("first", "stop", "rows"), [(0, 1, 19), (1, 4, 57), (5, 6, 16)])
def test_a_unit_has_its_rows_in_order(tmp_path: Path, first: int, stop: int, rows: int) -> None:
    table = shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", first, stop, first * 19, rows)

    (read,) = read_unit(unit.model_dump_json(), ["word", "key"], ["word"])

    expected = table.select(["word", "key"]).slice(first * 19, rows)
    assert read.column("key").equals(expected.column("key"))
    assert read.column("word").cast(pa.string()).equals(expected.column("word"))
    assert pa.types.is_dictionary(read.schema.field("word").type)
    assert [column.num_chunks for column in read.columns] == [1, 1]
    groups = [int(n) for n in read.schema.metadata[GROUPS_KEY].split(b",")]
    assert (len(groups), sum(groups)) == (stop - first, rows)


def test_a_removed_file_is_an_outcome(tmp_path: Path) -> None:
    shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 0, 1, 0, 19)
    (tmp_path / "s.parquet").unlink()

    error = error_of(unit)

    assert error.kind == "removed"
    assert str(tmp_path / "s.parquet") in error.message


def test_a_changed_file_is_an_outcome(tmp_path: Path) -> None:
    shard(tmp_path / "s.parquet")
    unit = unit_of(tmp_path / "s.parquet", 0, 1, 0, 19)
    os.utime(tmp_path / "s.parquet", ns=(1, 1))

    assert error_of(unit).kind == "changed"


def test_a_corrupt_page_is_an_outcome(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    shard(path)
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)

    error = error_of(unit_of(path, 1, 2, 19, 19))

    assert error.kind == "corrupt"
    assert "row groups 1 to 1" in error.message


def test_a_page_that_its_checksum_disproves_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    table = pa.table({"key": np.arange(111)})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    column = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)

    error = error_of(unit_of(path, 0, 1, 0, 111))

    assert error.kind == "corrupt"
    assert "CRC" in error.message
