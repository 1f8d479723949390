"""Units of objects: each reader gives what it gives of the same file on a disk."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import worker_plan

pytest.importorskip("moto")
from faulty_proxy import Faults, faulty_proxy
from s3_server import BUCKET, s3_server

from pipeline.errors import ErrorKind, UnitFailedError
from pipeline.planning.columns import Columns
from pipeline.planning.units import Unit
from pipeline.reading.read_arrow import read_arrow
from pipeline.reading.read_native import read_native
from pipeline.reading.read_pages import read_pages
from pipeline.reading.reader import open_unit, read_unit
from pipeline.reading.remote_file import PADDING, RemoteFile, remote_footer
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.sizing.gpu_share import gpu_share
from pipeline.storage import fetch, objects
from pipeline.storage.object_store import ObjectStore

ROWS, GROUP = 1900, 700
COLUMNS = Columns(
    form="encoded",
    key_columns=("key",),
    carry_columns=("word",),
    id_columns=("b", "a"),
    dense_columns=("x",),
)
PLAN = worker_plan(COLUMNS)
TABLE = pa.table(
    {
        "key": np.arange(ROWS) * 3,
        "unused": np.random.default_rng(1).random(ROWS),
        "word": [f"w{i % 5}" for i in range(ROWS)],
        "b": np.arange(ROWS, dtype=np.int32) % 7,
        "x": np.arange(ROWS, dtype=np.float32),
        "a": np.arange(ROWS, dtype=np.int32) % 111,
    }
)


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with s3_server() as endpoint, faulty_proxy(endpoint) as found:
        yield found


@pytest.fixture
def store(
    faults: Faults, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    monkeypatch.setattr(objects, "PAUSE_S", 0.001)
    monkeypatch.setattr(fetch, "MOST_GAP", 100)
    remote_footer.cache_clear()
    return ObjectStore(f"s3://{BUCKET}/{request.node.name.replace('[', '/')}")


def put(store: ObjectStore, table: pa.Table, **options: Any) -> Unit:
    """The object x.parquet of three row groups, and a unit of the last two."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=GROUP, **options)
    etag = store.put("x.parquet", sink.getvalue())
    size, address = len(sink.getvalue()), store.path("x.parquet")
    known = {"index": 0, "name": "u000000-0123abcd", "mtime_ns": 0, "etag": etag}
    groups = {"first_row_group": 1, "stop_row_group": 3, "first_row": GROUP, "rows": ROWS - GROUP}
    return Unit(path=address, size=size, **known, **groups)


def rows_of(table: pa.Table) -> pa.Table:
    return table.slice(GROUP).combine_chunks()


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_each_reader_gives_the_rows(store: ObjectStore, compression: str):
    unit = put(store, TABLE, compression=compression)
    for read in (read_native, read_arrow):
        buffer = UnitBuffer()
        found = read(RemoteFile(unit, COLUMNS, buffer), PLAN, buffer)
        assert found is not None
        for name, column in zip(COLUMNS.id_columns, found.ids, strict=True):
            np.testing.assert_array_equal(column, rows_of(TABLE).column(name).to_numpy())
        np.testing.assert_array_equal(found.dense[0], rows_of(TABLE).column("x").to_numpy())
        assert found.published.equals(rows_of(TABLE).select(["key", "word"]))


def test_pages_stay_where_they_were_fetched_to(store: ObjectStore):
    unit, buffer = put(store, TABLE, compression="zstd"), UnitBuffer()
    opened = RemoteFile(unit, COLUMNS, buffer)
    found = read_pages(opened, PLAN, buffer)
    assert found is not None and found.facts.read_by == "gpu"
    assert np.shares_memory(found.memory, opened._memory)
    assert found.memory.size == found.ids.compressed_bytes + PADDING
    ids = np.empty((2, unit.rows), np.int32)
    found.ids.decode(found.memory, ids)
    np.testing.assert_array_equal(ids, [rows_of(TABLE).column(n).to_numpy() for n in "ba"])
    np.testing.assert_array_equal(found.dense[0], rows_of(TABLE).column("x").to_numpy())
    assert found.published.equals(rows_of(TABLE).select(["key", "word"]))


def test_columns_that_two_fields_share_are_fetched_once(store: ObjectStore):
    columns = COLUMNS.model_copy(update={"id_columns": ("a", "b", "a")})
    unit, buffer = put(store, TABLE, compression="zstd"), UnitBuffer()
    found = read_pages(RemoteFile(unit, columns, buffer), worker_plan(columns), buffer)
    assert found is not None
    ids = np.empty((3, unit.rows), np.int32)
    found.ids.decode(found.memory, ids)
    np.testing.assert_array_equal(ids, [rows_of(TABLE).column(n).to_numpy() for n in "aba"])


def test_only_what_the_unit_needs_is_fetched(store: ObjectStore, faults: Faults):
    unit = put(store, TABLE, compression="none")
    remote_footer(unit.path, unit.size, unit.etag)
    faults.requests.clear()
    found = read_unit(unit, PLAN, UnitBuffer())
    assert found.facts.read_by == "cpu" and found.facts.read_s > 0
    spans = [
        tuple(map(int, span.removeprefix("bytes=").split("-"))) for *_, span in faults.requests
    ]
    footer = pq.read_metadata(io.BytesIO(store.read("x.parquet")))
    unused = footer.row_group(1).column(1)
    start = unused.dictionary_page_offset
    stop = start + unused.total_compressed_size
    assert sum(b - a + 1 for a, b in spans) < unit.size / 2
    assert not any(a < stop - 200 and b > start + 200 for a, b in spans)


def test_odd_ids_are_read_beside_nested_columns_that_pyarrow_reads(
    store: ObjectStore, faults: Faults
):
    lists = pa.array([[i % 5, i % 3] for i in range(ROWS)])
    small = TABLE.column("a").cast(pa.int16())
    unit = put(store, TABLE.append_column("l", lists).append_column("s", small))
    columns = Columns(
        form="encoded", key_columns=("key",), carry_columns=("l", "b"), id_columns=("s",)
    )
    faults.requests.clear()
    found = read_unit(unit, worker_plan(columns), UnitBuffer())
    assert found.facts.read_by == "cpu"
    assert found.ids[0].tolist() == small.to_pylist()[GROUP:]
    assert found.published.column("l").to_pylist() == lists.to_pylist()[GROUP:]
    assert len(faults.requests) < 8


@pytest.mark.parametrize("kind", ["slow_down", "reset", "cut", "half", "slow"])
def test_faults_that_pass_heal(store: ObjectStore, faults: Faults, kind: str):
    unit = put(store, TABLE)
    faults.make(kind, 2, "x.parquet")
    found = read_unit(unit, PLAN, UnitBuffer())
    assert found.published.equals(rows_of(TABLE).select(["key", "word"]))


def kind_of(unit: Unit) -> tuple[ErrorKind, str]:
    with pytest.raises(UnitFailedError) as error:
        read_unit(unit, PLAN, UnitBuffer())
    return error.value.kind, str(error.value)


@pytest.mark.parametrize("footer_is_known", [False, True])
def test_faults_that_stay_have_a_kind(store: ObjectStore, faults: Faults, footer_is_known: bool):
    unit = put(store, TABLE)

    def fail(change: Any = None) -> tuple[ErrorKind, str]:
        remote_footer.cache_clear()
        if footer_is_known:
            remote_footer(unit.path, unit.size, unit.etag)
        if change is not None:
            change()
        try:
            return kind_of(unit)
        finally:
            faults.make("", 0)

    kind, message = fail(lambda: faults.make("half", 1000, "x.parquet"))
    assert kind == "io" and "x.parquet" in message and "an answer of" in message
    kind, message = fail(lambda: faults.make("refused", 1000, "x.parquet"))
    assert kind == "io" and "give it credentials" in message
    kind, message = fail(lambda: store.put("x.parquet", store.read("x.parquet") + b"!"))
    assert kind == "changed" and "was replaced after planning" in message
    store.put("x.parquet", b"")
    unit = put(store, TABLE)
    kind, message = fail(lambda: store.delete(["x.parquet"]))
    assert kind == "removed" and "restore it" in message


def test_an_object_replaced_between_two_requests(store: ObjectStore, faults: Faults):
    """The footer is read of one version, the columns are not taken from another."""
    unit = put(store, TABLE)
    remote_footer(unit.path, unit.size, unit.etag)
    put(store, TABLE.set_column(3, "b", TABLE.column("a")))
    assert kind_of(unit)[0] == "changed"


def test_corrupt_pages_are_told_of(store: ObjectStore):
    unit = put(store, TABLE, compression="zstd")
    data = bytearray(store.read("x.parquet"))
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(1).column(3)
    middle = chunk.dictionary_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 8] = b"\xff" * 8
    unit = unit.model_copy(update={"etag": store.put("x.parquet", bytes(data))})
    kind, message = kind_of(unit)
    assert kind == "corrupt" and store.path("x.parquet") in message


def test_what_was_not_fetched_is_asked_for(store: ObjectStore):
    unit, buffer = put(store, TABLE), UnitBuffer()
    opened = open_unit(unit, COLUMNS.model_copy(update={"carry_columns": ()}), buffer)
    found = pq.read_table(opened.source())
    assert found.equals(TABLE)


def test_the_share_of_a_gpu_is_told_by_the_footer(store: ObjectStore):
    assert gpu_share([put(store, TABLE, compression="zstd")], COLUMNS).share == 1
    found = gpu_share([put(store, TABLE, compression="gzip")], COLUMNS)
    assert found.share == 0 and "codec 2" in found.excludes
