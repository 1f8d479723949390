"""Publishing a unit: what is written, in which order, and what a full disk leaves behind."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit_records import UNIT, record

from pipeline.publishing.publish import FolderPublisher, SupersededError, parquet_bytes
from pipeline.publishing.records import REJECTED_SCHEMA, IdentityFile, OutputLayout, write_json

NO_ROWS = REJECTED_SCHEMA.empty_table()


def scores(rows: int) -> pa.Table:
    columns = {"row_id": np.arange(rows), "score": np.linspace(0, 1, rows, dtype=np.float32)}
    return pa.table(columns)


def claim(output: Path, attempt: str) -> OutputLayout:
    layout = OutputLayout(output)
    for folder in (layout.units, layout.rejected):
        folder.mkdir(exist_ok=True)
    facts = {"bundle_digest": "b", "config": {}, "units": 1, "rows": 1}
    write_json(layout.identity, IdentityFile(identity="i", attempt=attempt, **facts))
    return layout


@pytest.mark.parametrize("rows", [1, 19, 111])
def test_a_part_has_the_rows_in_order_and_the_recorded_hash(tmp_path: Path, rows: int) -> None:
    layout = claim(tmp_path, "a")

    published = FolderPublisher(str(tmp_path), "a").write_parts(UNIT, scores(rows), NO_ROWS)

    content = layout.part(UNIT).read_bytes()
    assert pq.read_table(layout.part(UNIT)).equals(scores(rows))
    assert published == (
        layout.part(UNIT).name,
        len(content),
        hashlib.sha256(content).hexdigest(),
        None,
        None,
    )


def test_rejected_rows_have_a_part_of_their_own(tmp_path: Path) -> None:
    layout = claim(tmp_path, "a")
    row: dict[str, str | int] = {"unit": UNIT, "row": 3, "source_row": 22, "column": "C1"}
    row |= {"value": "9", "reason": "r", "path": "/rows/a.parquet"}
    rejected = pa.Table.from_pylist([row], schema=REJECTED_SCHEMA)

    published = FolderPublisher(str(tmp_path), "a").write_parts(UNIT, scores(19), rejected)

    assert published.rejected_part == f"_rejected/part-{UNIT}.parquet"
    assert pq.read_table(layout.rejected_part(UNIT)).to_pylist() == [row]


def test_the_same_table_gives_the_same_bytes() -> None:
    assert bytes(parquet_bytes(scores(111))) == bytes(parquet_bytes(scores(111)))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_texts_of_any_form_have_a_dictionary(kind: pa.DataType) -> None:
    content = parquet_bytes(pa.table({"c": pa.array(["here", "there"] * 99, kind)}))
    chunk = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0)
    assert "RLE_DICTIONARY" in chunk.encodings and chunk.compression == "SNAPPY"


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_list(pa.int32()),
        pa.list_(pa.int32(), 2),
        pa.list_view(pa.large_string()),
        pa.struct([("a", pa.int8()), ("b.c", pa.list_(pa.struct([("d", pa.int8())])))]),
        pa.map_(pa.string(), pa.list_(pa.float32())),
        pa.uuid(),
        pa.fixed_shape_tensor(pa.float32(), (2, 2)),
    ],
    ids=str,
)
def test_values_inside_of_nested_columns_are_compressed(kind: pa.DataType) -> None:
    content = parquet_bytes(pa.table({"a.b": pa.nulls(19, kind), "score": np.zeros(19, "f4")}))
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    assert {c.compression for c in chunks if c.path_in_schema != "score"} == {"SNAPPY"}
    assert chunks[-1].compression == "UNCOMPRESSED"


def test_a_unit_is_published_with_its_record_only(tmp_path: Path) -> None:
    claim(tmp_path, "a")
    publisher = FolderPublisher(str(tmp_path), "a")
    published = publisher.write_parts(UNIT, scores(19), NO_ROWS)
    before = publisher.already(UNIT)

    written = record(UNIT, **published._asdict())
    publisher.write_record(written)

    assert before is None
    assert publisher.already(UNIT) == written


def test_a_worker_of_an_older_attempt_writes_nothing(tmp_path: Path) -> None:
    layout = claim(tmp_path, "old")
    publisher = FolderPublisher(str(tmp_path), "old")
    claim(tmp_path, "new")

    with pytest.raises(SupersededError, match="attempt new"):
        publisher.write_parts(UNIT, scores(19), NO_ROWS)
    with pytest.raises(SupersededError):
        publisher.write_record(record())

    assert sorted(p.name for p in tmp_path.iterdir()) == ["_identity.json", "_rejected", "_units"]
    assert not list(layout.units.iterdir())
