"""Our own reader gives what pyarrow gives, or leaves the unit to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import unit_of, worker_plan

from pipeline.errors import UnitFailedError
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.read_arrow import read_arrow
from pipeline.reading.read_native import read_native
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer, UnitBufferPool
from pipeline.reading.unit_data import UnitColumns, as_matrix
from pipeline.reading.unit_file import LocalFile

COLUMNS = Columns(
    form="encoded",
    key_columns=("key",),
    carry_columns=("word", "span"),
    id_columns=("a", "b", "a"),
    dense_columns=("x",),
)
PLAN = worker_plan(COLUMNS)


def rows_of(rows: int, ids: Any = np.int32) -> pa.Table:
    rng = np.random.default_rng(rows)
    return pa.table(
        {
            "key": np.arange(rows) * 3,
            "word": [f"w{i % 5}" for i in range(rows)],
            "span": pa.array(range(rows), pa.duration("s")),
            "b": rng.integers(0, 7, rows).astype(ids),
            "x": rng.random(rows, np.float32),
            "a": rng.integers(0, 1000, rows).astype(ids),
        }
    )


def written(path: Path, table: pa.Table, **options: Any) -> Unit:
    """A file of three row groups and a unit of the last two."""
    group = -(-table.num_rows // 3)
    pq.write_table(table, path, row_group_size=group, **options)
    return unit_of(path, 1, 3, group, table.num_rows - group)


def read(unit: Unit) -> UnitColumns:
    return read_unit(unit, PLAN, UnitBuffer())


def read_quickly(unit: Unit) -> UnitColumns | None:
    return read_native(LocalFile(unit), PLAN, UnitBuffer())


@pytest.mark.parametrize("ids", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [111, 4096, 65_537])
def test_it_gives_what_pyarrow_gives(tmp_path: Path, rows: int, ids: Any) -> None:
    unit = written(tmp_path / "s.parquet", rows_of(rows, ids), compression="snappy")
    native = read_native(LocalFile(unit), PLAN, UnitBuffer())
    general = read_arrow(LocalFile(unit), PLAN, UnitBuffer())

    assert native is not None
    matrix = as_matrix(native.ids)
    assert isinstance(matrix, np.ndarray) and matrix.dtype == ids
    np.testing.assert_array_equal(matrix, np.stack(general.ids))
    np.testing.assert_array_equal(native.dense, general.dense)
    assert native.published == general.published
    assert native.published.schema.field("span").type == pa.duration("s")
    assert native.facts.group_rows == general.facts.group_rows
    assert native.findings == general.findings == []


def test_bad_dense_values_are_found(tmp_path: Path) -> None:
    table = rows_of(111)
    values = table.column("x").to_numpy().copy()
    values[[50, 99]] = np.inf, np.nan
    unit = written(tmp_path / "s.parquet", table.set_column(4, "x", pa.array(values)))

    (finding,) = read(unit).findings

    assert (finding.column, finding.rows.tolist()) == ("x", [50 - 37, 99 - 37])
    assert finding.values.to_pylist() == ["inf", "nan"]


FEATURES = [
    ("a", pa.array([None, *range(109), None], pa.int32())),
    ("a", pa.array(range(111), pa.int64())),  # ids of two types
    *(("a", pa.array(range(111), kind)) for kind in ("int8", "uint16", "uint32")),
    ("a", pa.array([(1 << 64) - 1, None, *range(109)], pa.uint64())),
    ("x", pa.array([0.1, 1e-50, None, *range(108)], pa.float64())),
    ("x", pa.array([None] * 111, pa.float32())),
    ("x", pa.array([(1 << 63) - 1, *range(110)], pa.int64())),
]


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"use_dictionary": False}], ids=str)
@pytest.mark.parametrize(("column", "values"), FEATURES)
def test_features_of_any_type_and_their_nulls(
    tmp_path: Path, column: str, values: pa.Array, options: dict[str, Any]
) -> None:
    table = rows_of(111)
    values = pa.concat_arrays([values.slice(37), values.slice(0, 37)])  # nulls in the unit's rows
    place = table.column_names.index(column)
    unit = written(tmp_path / "s.parquet", table.set_column(place, column, values), **options)
    native = read_quickly(unit)
    general = read_arrow(LocalFile(unit), PLAN, UnitBuffer())

    assert native is not None
    assert [ids.dtype for ids in native.ids] == [ids.dtype for ids in general.ids]
    for ours, theirs in zip(
        [*native.ids, *native.dense], [*general.ids, *general.dense], strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert told(native) == told(general)


def test_dense_values_beyond_float32_are_left_to_the_general_way(tmp_path: Path) -> None:
    values = pa.array([1e300] * 111)
    unit = written(tmp_path / "s.parquet", rows_of(111).set_column(4, "x", values))

    assert read_quickly(unit) is None
    assert told(read(unit))[0][2:] == ("dense value is not finite", ["1e+300"] * 74)


def told(unit: UnitColumns) -> list[tuple[str, list[int], str, list[str | None]]]:
    """What the findings say."""
    return [(f.column, f.rows.tolist(), f.reason, f.values.to_pylist()) for f in unit.findings]


def test_null_keys_are_found(tmp_path: Path) -> None:
    table = rows_of(111).set_column(0, "key", pa.array([None] * 40 + [*range(71)]))
    unit = written(tmp_path / "s.parquet", table)
    assert read_quickly(unit) is not None

    (finding,) = read(unit).findings

    assert (finding.column, finding.rows.tolist()) == ("key", [0, 1, 2])


def test_a_file_with_a_broken_page_is_left_to_the_general_way(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    written(path, rows_of(4096), write_page_checksum=True, compression="zstd")
    chunk = pq.read_metadata(path).row_group(1).column(5)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    unit = unit_of(path, 1, 2, 1366, 1366)
    with pytest.raises(ValueError):
        read_quickly(unit)
    with pytest.raises(UnitFailedError, match="corrupt parquet"):  # told by pyarrow
        read(unit)


def test_a_buffer_is_used_again_and_grows() -> None:
    pool = UnitBufferPool(on_gpu=lambda: False, is_behind=lambda: False)
    places = []
    for size in (111, 19, 100_000):
        with pool.borrow() as buffer:
            ids, dense = buffer.matrices((3, size, "<i4"), (1, size, "<f4"))
            assert (ids.shape, dense.shape) == ((3, size), (1, size))
            assert ids.strides[0] % 64 == 0 and ids.ctypes.data % 64 == 0
            ids[:], dense[:] = 7, 1.5
            assert (ids == 7).all()
            places.append(ids.ctypes.data)
    assert places[0] == places[1]


def test_units_in_flight_have_buffers_of_their_own() -> None:
    # Where there is no CUDA, pages stay as they are.
    pool = UnitBufferPool(on_gpu=lambda: True, is_behind=lambda: False)
    with pool.borrow() as one, pool.borrow() as other:
        (a,), (b,) = one.matrices((1, 19, "<i8")), other.matrices((1, 19, "<i8"))
        a[:], b[:] = 1, 2
        assert (a == 1).all() and (b == 2).all()


def test_a_file_that_was_another_for_a_while_is_not_kept_open(tmp_path: Path) -> None:
    path, table = tmp_path / "s.parquet", rows_of(111)
    unit = written(path, table)
    planned = path.read_bytes()
    other = tmp_path / "other"
    pq.write_table(table.take(list(range(110, -1, -1))), other, row_group_size=37)

    other.replace(path)
    with pytest.raises(UnitFailedError):
        read(unit)

    path.unlink()
    path.write_bytes(planned)
    os.utime(path, ns=(unit.mtime_ns, unit.mtime_ns))
    np.testing.assert_array_equal(read(unit).ids[0], table.column("a").to_numpy()[37:])
