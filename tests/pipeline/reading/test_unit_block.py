"""Blocks: what goes in comes out, and lies in the object store as the engine likes it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipeline.planning.units import Unit
from pipeline.publishing.records import UnitError
from pipeline.reading.bad_rows import Finding, harmless, id_findings
from pipeline.reading.unit_block import (
    ReadFacts,
    UnitBlock,
    failed_block,
    make_block,
    open_block,
)

UNIT = Unit(
    index=3,
    name="u000003-0123abcd",
    path="/somewhere/s.parquet",
    size=1,
    mtime_ns=2,
    first_row_group=4,
    stop_row_group=6,
    first_row=400,
    rows=111,
)
FACTS = ReadFacts([100, 11], 0.5, 0.25, "cpu")


def table_of(rows: int, fields: int = 3, findings: list[Finding] | None = None) -> pa.Table:
    ids = [(f"C{f}", pa.array(np.arange(rows, dtype=np.int32) + f)) for f in range(fields)]
    ids.append(("C1", pa.array(np.arange(rows, dtype=np.uint64) + 2**63)))
    dense = [("I:1", pa.array(np.linspace(0, 1, rows, dtype=np.float32)))]
    copied = [("C1", pa.array([str(i) for i in range(rows)])), ("key", pa.array(range(rows)))]
    return make_block(UNIT, FACTS, ids, dense, copied, findings or [])


def opened(table: pa.Table) -> UnitBlock:
    block = open_block(table)
    assert isinstance(block, UnitBlock)
    return block


@pytest.mark.parametrize("rows", [1, 19, 111])
def test_a_block_is_what_went_in(rows: int) -> None:
    block = opened(table_of(rows))

    assert (block.unit, block.facts, block.findings) == (UNIT, FACTS, [])
    assert [name for name, _ in block.id_columns] == ["C0", "C1", "C2", "C1"]
    np.testing.assert_array_equal(block.ids[2], np.arange(rows) + 2)
    assert [column.dtype.name for column in block.ids] == ["int32"] * 3 + ["int64"]
    assert (block.ids[3] < 0).all()
    np.testing.assert_array_equal(block.dense, [np.linspace(0, 1, rows, dtype=np.float32)])
    assert block.copied.column_names == ["C1", "key"]
    assert block.copied.column("C1").to_pylist() == [str(i) for i in range(rows)]


def test_findings_travel_with_their_block() -> None:
    one = Finding("C1", np.array([5, 7]), "because", pa.array(["x", None]))
    two = Finding("key", np.array([0]), "null key", pa.nulls(1, pa.string()))

    first, second = opened(table_of(19, findings=[one, two])).findings

    assert (first.column, first.reason, first.rows.tolist()) == ("C1", "because", [5, 7])
    assert first.values.to_pylist() == ["x", None]
    assert (second.column, second.rows.tolist(), second.values.to_pylist()) == ("key", [0], [None])


def test_an_error_travels_as_a_block() -> None:
    error = UnitError(unit=UNIT.name, kind="io", message="gone")
    assert open_block(failed_block(UNIT, error)) == error


def test_bad_ids_are_found_in_a_block_and_made_harmless() -> None:
    block = opened(table_of(19))
    names = [name for name, _ in block.id_columns]

    found = list(id_findings(block.id_columns, block.ids, [100, 18, 19, 5]))
    clean = harmless(block.ids, names, found)

    assert [(f.column, len(f.rows)) for f in found] == [("C1", 2), ("C2", 2), ("C1", 19)]
    assert found[1].values.to_pylist() == ["19", "20"]
    assert found[2].values.to_pylist()[0] == str(2**63)
    assert clean[0] is block.ids[0]
    assert not np.any(clean[1]) and not np.any(clean[3]) and clean[2].tolist()[-2:] == [0, 0]
    assert block.ids[1].tolist() == list(range(1, 20))


@pytest.mark.parametrize("rows", [1, 111, 4096])
def test_id_columns_lie_at_one_distance_in_the_object_store(ray_session: str, rows: int) -> None:
    import ray

    block = opened(ray.get(ray.put(table_of(rows, fields=39))))

    places = np.array([column.ctypes.data for column in block.ids[:39]])
    assert len(set(np.diff(places))) == 1
    assert np.diff(places)[0] - 4 * rows < 64
    assert places[0] % 64 == 0 and not block.ids[0].flags.writeable


def test_a_block_keeps_the_memory_of_columns_that_lie_side_by_side() -> None:
    """Small arrays taken one after the other often lie at one distance, which makes a matrix."""
    blocks, expected = [], []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        values = [rng.random(500, np.float32) for _ in range(13)]
        dense = [(f"I{n}", pa.array(column.copy())) for n, column in enumerate(values)]
        blocks.append(
            opened(make_block(UNIT, FACTS, [], dense, [("key", pa.array(range(500)))], []))
        )
        expected.append(values)
        del dense
    for block, values in zip(blocks, expected, strict=True):
        np.testing.assert_array_equal(block.dense, values)
