"""Ids as parquet files store them, unpacked and scored on the GPU: as the same ids from arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from job_cases import encoded_table, tiny_bundle, tiny_spec
from parquet_files import required, write

from dpiframe_core import Engine, _core, load_engine, save_bundle
from pipeline.reading.unit_buffers import UnitBuffer

NAMES = [field.name for field in tiny_spec().fields]
DENSE = list(tiny_spec().dense)


class Stored(NamedTuple):
    """A file's ids as they are stored, its ids and dense features as arrays."""

    columns: _core.ColumnPages
    memory: np.ndarray
    ids: np.ndarray
    dense: np.ndarray


@pytest.fixture(name="engine", scope="module")
def _engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    bundle = tmp_path_factory.mktemp("stored") / "bundle"
    tiny_bundle(bundle)
    engine = load_engine(bundle, device="cuda", max_batch=1000, threads=2)
    yield engine
    engine.close()


def stored(
    path: Path,
    table: pa.Table,
    group: int = 1 << 30,
    unpack_above: int | None = None,
    **options: Any,
) -> Stored:
    """Write the table in row groups of `group` rows, and read the ids back as they are stored, or
    some of their pages unpacked.
    """
    options = {"compression": "zstd"} | options
    groups = [table.slice(i, group) for i in range(0, max(1, table.num_rows), group)]
    file = _core.ParquetFile(str(write(path, groups, **options)))
    stop = len(file.group_rows)
    buffer = UnitBuffer(lock=True)
    (memory,), dense = buffer.matrices(
        (1, 2 * file.pages_bytes(NAMES, 0, stop), "<u1"), (len(DENSE), table.num_rows, "<f4")
    )
    columns = file.read_pages(NAMES, 0, stop, memory, unpack_above)
    dense[:] = columns_of(table, DENSE)
    return Stored(columns, memory, columns_of(table, NAMES), dense)


def columns_of(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    return np.stack([table.column(name).to_numpy() for name in names])


def check(engine: Engine, case: Stored) -> None:
    scorer = engine.page_scorer()
    assert scorer is not None
    found = scorer.score(case.columns, case.memory, case.dense)
    assert found is not None
    np.testing.assert_array_equal(found.scores, engine.score(case.ids, case.dense))
    assert not found.bad_ids.any()


@pytest.mark.parametrize("rows", [1, 19, 111, 1000, 4097, 65537])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none"},
        {"data_page_version": "2.0"},
        {"use_dictionary": False},
        {"compression": "none", "use_dictionary": False, "data_page_version": "2.0"},
        {"dictionary_pagesize_limit": 64},
        {"data_page_size": 100, "write_batch_size": 7},
        {"write_page_checksum": True, "compression_level": 19},
    ],
)
def test_scores_are_those_of_arrays(
    engine: Engine, tmp_path: Path, rows: int, options: dict[str, Any]
) -> None:
    check(engine, stored(tmp_path / "a.parquet", encoded_table(rows), 20000, **options))


@pytest.mark.parametrize("group", [1, 100, 1366])
def test_units_of_many_row_groups(engine: Engine, tmp_path: Path, group: int) -> None:
    check(engine, stored(tmp_path / "a.parquet", encoded_table(1500), group))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4"])
@pytest.mark.parametrize("unpack_above", [0, 1000])
def test_pages_that_the_reader_unpacked(
    engine: Engine, tmp_path: Path, compression: str, unpack_above: int
) -> None:
    path, table = tmp_path / "a.parquet", encoded_table(4097)
    check(engine, stored(path, table, 1000, unpack_above, compression=compression))


def test_ids_of_eight_bytes_and_columns_without_levels(engine: Engine, tmp_path: Path) -> None:
    table = encoded_table(3000)
    for name in NAMES:
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table.column(name).cast(pa.int64()))

    check(engine, stored(tmp_path / "a.parquet", required(table)))


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_ids_that_repeat(engine: Engine, tmp_path: Path, kind: pa.DataType) -> None:
    spec = tiny_spec()
    fields = [f.model_copy(update={"period": f.rows}) for f in spec.fields]
    bundle = tmp_path / "bundle"
    weights = tiny_bundle(tmp_path / "plain").state_dict()
    save_bundle(bundle, spec.model_copy(update={"fields": fields}), weights)
    table = encoded_table(3000)
    beyond = 2**62 if kind == pa.int64() else 2**30
    for f, field in enumerate(fields):
        values = table.column(field.name).to_numpy().astype(np.int64)
        values += (
            np.random.default_rng(f).integers(-beyond, beyond, 3000) // field.rows * field.rows
        )
        index = table.schema.get_field_index(field.name)
        table = table.set_column(index, field.name, pa.array(values, kind))
    with closing(load_engine(bundle, device="cuda", max_batch=1000, threads=2)) as repeating:
        check(repeating, stored(tmp_path / "a.parquet", table))


def test_ids_outside_their_tables_are_counted(engine: Engine, tmp_path: Path) -> None:
    table = encoded_table(2500)
    index = table.schema.get_field_index(NAMES[1])
    values = table.column(NAMES[1]).to_numpy().copy()
    values[[3, 1500, 2499]] = [-1, 10**6, 7000]
    case = stored(tmp_path / "a.parquet", table.set_column(index, NAMES[1], pa.array(values)))
    scorer = engine.page_scorer()
    assert scorer is not None

    found = scorer.score(case.columns, case.memory, case.dense)

    assert found is not None
    assert found.bad_ids.tolist() == [0, 3, *[0] * (len(NAMES) - 2)]
    check(engine, stored(tmp_path / "b.parquet", encoded_table(2500)))  # the counters are back


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_corrupt_pages_are_refused_or_harmless(
    engine: Engine, tmp_path: Path, compression: str
) -> None:
    case = stored(tmp_path / "a.parquet", encoded_table(5000), 2000, compression=compression)
    scorer = engine.page_scorer()
    assert scorer is not None
    rng = np.random.default_rng(7)
    whole = case.memory[: case.columns.compressed_bytes].copy()
    refused = 0
    for _ in range(300):
        places = rng.integers(0, len(whole), rng.integers(1, 30))
        case.memory[places] = rng.integers(0, 256, len(places))
        try:
            scorer.score(case.columns, case.memory, case.dense)
        except RuntimeError as error:
            assert str(error).startswith("the page of rows ")
            refused += 1
        case.memory[: len(whole)] = whole

    assert refused > (200 if compression == "zstd" else 10)
    check(engine, case)


def test_several_threads_at_one_time(engine: Engine, tmp_path: Path) -> None:
    cases = [
        stored(tmp_path / f"{i}.parquet", encoded_table(500 + 977 * i, seed=i)) for i in range(12)
    ]
    expected = [engine.score(case.ids, case.dense) for case in cases]
    scorer = engine.page_scorer()
    assert scorer is not None

    def scores(i: int) -> bool:
        case = cases[i % len(cases)]
        found = scorer.score(case.columns, case.memory, case.dense)
        return found is not None and np.array_equal(found.scores, expected[i % len(cases)])

    with ThreadPoolExecutor(10) as threads:
        beside = threads.map(scores, range(200))
        for case, wanted in zip(cases, expected, strict=True):  # and the engine's own caller
            np.testing.assert_array_equal(engine.score(case.ids, case.dense), wanted)
        assert all(beside)


def test_memory_grows_with_units_and_goes_with_the_engine(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    engine = load_engine(tmp_path / "bundle", device="cuda", max_batch=1000)
    scorer = engine.page_scorer()
    assert scorer is not None
    assert scorer.device_bytes == 0
    case = stored(tmp_path / "a.parquet", encoded_table(4097))

    engine.close()
    found = scorer.score(case.columns, case.memory, case.dense)  # it keeps what it needs

    assert found is not None
    assert scorer.device_bytes > 4097 * 4 * len(NAMES)


def test_wrong_shapes_are_refused(engine: Engine, tmp_path: Path) -> None:
    case = stored(tmp_path / "a.parquet", encoded_table(111))
    scorer = engine.page_scorer()
    assert scorer is not None
    with pytest.raises(ValueError, match="stored bytes, but memory of 10"):
        scorer.score(case.columns, case.memory[:10].copy(), case.dense)
    with pytest.raises(ValueError, match="dense"):
        scorer.score(case.columns, case.memory, case.dense[:, :100])
