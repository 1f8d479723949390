"""Joining two streams of tables by key, in bounded memory and in any order.

Both are parted by a hash of the key into temporary files, and joined part by part.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError, ContractError
from pipeline.evaluation.rows import group_numbers

PART_ROWS = 1 << 22
MOST_PARTS = 256


class Side:
    """Tables of one schema, and the name that messages call them by."""

    def __init__(self, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        self.name, self.schema, self.tables = name, schema, tables


def joined(
    left: Side,
    right: Side,
    keys: Sequence[str],
    kind: Literal["left outer", "full outer"],
    rows: int,
) -> Iterator[pa.Table]:
    """Tables with the columns of both sides, whose names differ but for the keys.

    `rows`: of the larger side, about. ConfigError: keys whose types cannot be compared.
    ContractError: a key that one side has twice.
    """
    parts = min(MOST_PARTS, max(1, -(-rows // PART_ROWS)))
    with contextlib.ExitStack() as closing:
        folder = Path(tempfile.mkdtemp(prefix="dpiframe-join-"))
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        for number, side in enumerate((left, right)):
            for table in side.tables:
                typed = with_key_types(table, keys, left.schema, side.name)
                _append_parts(typed, keys, folder / str(number), parts)
        for part in range(parts):
            sides = [_read_part(folder / f"{number}-{part}") for number in (0, 1)]
            tables = [
                side.schema.empty_table() if found is None else found
                for side, found in zip((left, right), sides, strict=True)
            ]
            tables[1] = with_key_types(tables[1], keys, left.schema, right.name)
            for side, table in zip((left, right), tables, strict=True):
                _refuse_twice(table, keys, side.name)
            if len(tables[0]) or (len(tables[1]) and kind == "full outer"):
                yield tables[0].join(tables[1], list(keys), join_type=kind)


def with_key_types(table: pa.Table, keys: Sequence[str], schema: pa.Schema, name: str) -> pa.Table:
    """The table with its key columns in the types of `schema`."""
    for key in keys:
        kind = schema.field(key).type
        if table.schema.field(key).type != kind:
            try:
                typed = table.column(key).cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConfigError(f"keys {key} of {name} are not {kind}: {error}") from None
            table = table.set_column(table.schema.get_field_index(key), key, typed)
    return table


def _refuse_twice(table: pa.Table, keys: Sequence[str], name: str) -> None:
    counted = table.group_by(list(keys)).aggregate([([], "count_all")])
    if len(counted) < len(table):
        (twice,) = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).to_pylist()
        key = ", ".join(f"{name}={twice[name]!r}" for name in keys)
        raise ContractError(f"{name} has {twice['count_all']} rows of {key}")


def _append_parts(table: pa.Table, keys: Sequence[str], file_stem: Path, parts: int) -> None:
    numbers = np.zeros(len(table), np.uint64)
    for i, name in enumerate(keys):
        numbers += group_numbers(table.column(name)) * np.uint64(2 * i + 1)
    part = ((numbers * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % np.uint64(parts)).astype(
        np.uint8 if parts <= 256 else np.uint64
    )
    order = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[order], np.arange(parts + 1))
    for number in np.flatnonzero(np.diff(ends)).tolist():
        rows = table.take(order[ends[number] : ends[number + 1]]).combine_chunks()
        path = file_stem.with_name(f"{file_stem.name}-{number}")
        with path.open("ab") as file, pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows)


def _read_part(path: Path) -> pa.Table | None:
    """All streams that were appended to a file."""
    if not path.exists():
        return None
    tables = []
    with pa.memory_map(str(path)) as file:
        while file.tell() < file.size():
            tables.append(pa.ipc.open_stream(file).read_all())
    return pa.concat_tables(tables)
