"""Duplicate keys of an output, counted over all of its rows when a job ends (`check_keys`).

The published parts are read again, their key columns alone, so that what an earlier start published
counts, too. One integer column is compared by its values, which is exact; any other key by a hash
of 124 bits: among 10^9 keys two different ones are taken for equal with a probability of 10^-19. A
key with a null equals no other: its row was rejected. Memory is bounded: beyond `MEMORY_BYTES` keys
go to temporary files, apart by their hash, and are counted file by file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpiframe_core import _core
from dpiframe_core.features.columns import as_text, plain, string_bytes
from pipeline.config.job import JobConfig
from pipeline.errors import ContractError
from pipeline.publishing.records import Manifest, UnitRecord

if TYPE_CHECKING:
    import pyarrow.dataset as pads

MEMORY_BYTES = 512 << 20
SHOWN = 3
_SEEDS = (19, 111, 2027, 60013)
_MODULUS = 2**31 - 3
_ODD = np.uint64(0x9E3779B97F4A7C15)

Open = Callable[[UnitRecord], "pads.Dataset"]


class Duplicates(NamedTuple):
    """`rows`: those beyond the first of each key. `examples`: some of the keys, in words."""

    rows: int
    examples: list[str]


def keys_are_checked(manifest: Manifest, config: JobConfig) -> bool:
    """Whether a finished output tells what `check_keys` asks for, and may stay finished."""
    if config.check_keys == "off":
        return True
    count = manifest.duplicate_keys
    return count == 0 or (count is not None and config.check_keys == "count")


def with_checked_keys(manifest: Manifest, config: JobConfig, open_part: Open) -> Manifest:
    """The manifest with the number of duplicate keys, if the job asks for it.

    Raises ContractError when there are some and the job shall fail then.
    """
    if config.check_keys == "off":
        return manifest
    found = count_duplicates(manifest.units, manifest.key_columns, open_part)
    if found.rows and config.check_keys == "fail":
        keys = ", ".join(manifest.key_columns)
        raise ContractError(
            f"{found.rows:,} of {manifest.rows:,} rows have a key ({keys}) that an earlier row "
            f"has: {'; '.join(found.examples)}; fix the input or key_columns, or set check_keys to "
            "count"
        )
    return manifest.model_copy(update={"duplicate_keys": found.rows})


def count_duplicates(
    units: Sequence[UnitRecord],
    columns: Sequence[str],
    open_part: Open,
    memory_bytes: int = MEMORY_BYTES,
) -> Duplicates:
    """Count over the parts of these units; OSError of the storage, or of the temporary files."""
    rows = sum(record.rows for record in units)
    buckets = max(1, -(-rows * 16 // memory_bytes))
    hashes = (found for record in units for found in _part_hashes(record, columns, open_part))
    with tempfile.TemporaryDirectory(prefix="dpiframe-keys-") as folder:
        count, some = 0, set[int]()
        for first, second in _bucketed(hashes, buckets, Path(folder)):
            order = np.lexsort((second, first))
            first, second = first[order], second[order]
            same = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
            count += int(same.sum())
            some |= set(first[1:][same][:SHOWN].tolist())
    return Duplicates(count, _examples(units, columns, open_part, sorted(some)[:SHOWN]))


def _bucketed(
    hashes: Iterator[np.ndarray], buckets: int, folder: Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The hashes [n, 2] apart by their first number: in memory, or bucket by bucket from files."""
    if buckets == 1:
        found = [*hashes, np.empty((0, 2), np.uint64)]
        joined = np.concatenate(found)
        yield joined[:, 0], joined[:, 1]
        return
    files = [(folder / str(i)).open("wb") for i in range(buckets)]
    try:
        for some in hashes:
            mixed = some[:, 0] * _ODD
            places = ((mixed ^ (mixed >> np.uint64(32))) % np.uint64(buckets)).astype(np.int64)
            order = np.argsort(places, kind="stable")
            ends = np.cumsum(np.bincount(places, minlength=buckets))
            for i, piece in enumerate(np.split(some[order], ends[:-1])):
                if len(piece):
                    files[i].write(piece.tobytes())
    finally:
        for file in files:
            file.close()
    for i in range(buckets):
        pairs = np.fromfile(folder / str(i), np.uint64).reshape(-1, 2)
        yield pairs[:, 0], pairs[:, 1]


def _part_hashes(
    record: UnitRecord, columns: Sequence[str], open_part: Open
) -> Iterator[np.ndarray]:
    """Hashes [n, 2] of the keys of a part, without those that have a null."""
    for batch in open_part(record).to_batches(columns=list(columns)):
        yield key_hashes(_without_nulls(batch))


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_null() if any(column.null_count for column in batch.columns) else batch


def key_hashes(batch: pa.RecordBatch) -> np.ndarray:
    """Two numbers [n, 2] a row: of one integer column its value and 0, else the hash of the key."""
    found = np.zeros((batch.num_rows, 2), np.uint64)
    if batch.num_columns == 1 and pa.types.is_integer(batch.column(0).type):
        found[:, 0] = batch.column(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return found
    for column in batch.columns:
        for i, half in enumerate(_column_hashes(column)):
            mixed = (found[:, i] ^ half) * _ODD
            found[:, i] = mixed ^ (mixed >> np.uint64(29))
    return found


def _column_hashes(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Two numbers of 62 bits a value."""
    if pa.types.is_integer(column.type):
        values = column.to_numpy(zero_copy_only=False).astype(np.int64)
        quarters = [_hashed_integers(values, seed) for seed in _SEEDS]
    else:
        column = as_text(plain(column))
        if not pa.types.is_string(column.type):
            column = pc.cast(column, pa.large_string())
        offsets, data = string_bytes(column)
        quarters = [_hashed_strings(offsets, data, seed) for seed in _SEEDS]
    a, b, c, d = (quarter.astype(np.uint64) for quarter in quarters)
    shift = np.uint64(31)
    return (a << shift) | b, (c << shift) | d


def _hashed_integers(values: np.ndarray, seed: int) -> np.ndarray:
    out = np.empty(len(values), np.int32)
    _core.hashed_int64_rows(values, None, seed, _MODULUS, out)
    return out


def _hashed_strings(offsets: np.ndarray, data: np.ndarray, seed: int) -> np.ndarray:
    out = np.empty(len(offsets) - 1, np.int32)
    _core.hashed_string_rows(offsets, data, None, seed, _MODULUS, out)
    return out


def _examples(
    units: Sequence[UnitRecord], columns: Sequence[str], open_part: Open, wanted: list[int]
) -> list[str]:
    """Keys whose first number is among `wanted`, and where they lie; reads the parts again."""
    if not wanted:
        return []
    found: dict[int, list[str]] = {number: [] for number in wanted}
    for record in units:
        for batch in open_part(record).to_batches(columns=list(columns)):
            batch = _without_nulls(batch)
            first = key_hashes(batch)[:, 0]
            for row in np.flatnonzero(np.isin(first, np.array(wanted, np.uint64)))[:SHOWN].tolist():
                key = ", ".join(f"{name} {batch.column(name)[row]}" for name in columns)
                found[int(first[row])].append(f"{key} in {record.where}")
        if all(len(places) > 1 for places in found.values()):
            break
    return [" and ".join(dict.fromkeys(places[:2])) for places in found.values()]
