"""Row by row: the scores of two outputs, joined by key."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pydantic import BaseModel, ConfigDict

from pipeline.config.job import SCORE_COLUMN
from pipeline.errors import ConfigError
from pipeline.evaluation.keyed_join import Side, joined, with_key_types
from pipeline.evaluation.rows import group_numbers
from pipeline.publishing.scores import key_columns, open_scores

OTHER = "score of the other"
WORST_ROWS = 10
SAMPLE_ROWS = 1 << 22  # of which ranks are compared
QUANTILE = 0.999
_SAMPLED = np.dtype([("hash", "<u8"), ("base", "<f4"), ("candidate", "<f4")])
_SHIFT = 12  # low bits of a difference that a bin leaves out: 2^11 bins an octave


class WorstRow(BaseModel):
    """A row whose scores differ much: its key, and both scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: dict[str, Any]
    base: float | None
    candidate: float | None


class Differences(BaseModel):
    """Scores of the candidate against those of the base, of the rows that both have scored.

    `p999`: 99.9% of the differences are not larger, within 0.05%. `rank_correlation`: Spearman's,
    of `rank_rows` rows (all, or a sample by a hash of the key). `one_is_null`: rows that only one
    of them rejected.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    only_in_base: int
    only_in_candidate: int
    one_is_null: int
    differing: int
    largest: float
    mean: float
    p999: float
    rank_correlation: float | None
    rank_rows: int
    worst: list[WorstRow]


def compare_scores(base: str | Path, candidate: str | Path) -> Differences:
    """The differences of two finished outputs with the same key columns.

    ConfigError: an output is not finished, or their keys differ. ContractError: a key occurs twice.
    """
    keys = key_columns(base)
    if not keys or keys != key_columns(candidate):
        raise ConfigError(
            f"rows of {base} and {candidate} cannot be matched: their key columns are "
            f"{list(keys)} and {list(key_columns(candidate))}"
        )
    left, right = open_scores(base), open_scores(candidate)
    in_order = _Comparison(keys)
    if all(in_order.add(table) for table in _side_by_side(left, right, keys)):
        return in_order.result()
    comparison = _Comparison(keys)
    for table in _joined(left, right, keys, (str(base), str(candidate))):
        comparison.add(table)
    return comparison.result()


def _side_by_side(
    left: pads.Dataset, right: pads.Dataset, keys: Sequence[str]
) -> Iterator[pa.Table | None]:
    """Rows of both, as long as they have the same keys in the same order; then None."""
    columns = [*keys, SCORE_COLUMN]
    rest: pa.Table | None = None
    others = (f.to_table(columns=columns) for f in right.get_fragments())
    for fragment in left.get_fragments():
        table = fragment.to_table(columns=columns)
        held = [] if rest is None else [rest]
        while sum(len(one) for one in held) < len(table):
            more = next(others, None)
            if more is None:
                yield None
                return
            held.append(more)
        if not held:
            continue
        other = pa.concat_tables(held)
        rest, other = other.slice(len(table)), other.slice(0, len(table))
        other = with_key_types(other, keys, table.schema, "the candidate")
        if not all(_equal(table.column(key), other.column(key)) for key in keys):
            yield None
            return
        yield table.append_column(OTHER, other.column(SCORE_COLUMN))
    if (rest is not None and len(rest)) or next(others, None) is not None:
        yield None


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    equal = pc.equal(left, right)
    return equal.null_count == 0 and pc.all(equal).as_py() in (True, None)


def _joined(
    left: pads.Dataset, right: pads.Dataset, keys: Sequence[str], names: tuple[str, str]
) -> Iterator[pa.Table]:
    base = _side(left, keys, names[0], SCORE_COLUMN)
    candidate = _side(right, keys, names[1], OTHER)
    rows = max(left.count_rows(), right.count_rows())
    return joined(base, candidate, keys, "full outer", rows)


def _side(dataset: pads.Dataset, keys: Sequence[str], name: str, score: str) -> Side:
    """Keys and scores of an output, and a column that is null in rows of the other one only."""
    there = f"in {score}"
    fields = [dataset.schema.field(key) for key in keys]
    fields += [pa.field(score, pa.float32()), pa.field(there, pa.bool_())]

    def tables() -> Iterator[pa.Table]:
        for fragment in dataset.get_fragments():
            table = fragment.to_table(columns=[*keys, SCORE_COLUMN])
            marked = table.append_column(there, pa.repeat(True, len(table)))
            yield marked.rename_columns([*keys, score, there])

    return Side(name, pa.schema(fields), tables())


class _Comparison:
    """Counts differences, table after table."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._counts = dict.fromkeys(("rows", "base", "candidate", "null", "differing"), 0)
        self._largest = 0.0
        self._sums: list[float] = []
        self._bins = np.zeros((0x3F800000 >> _SHIFT) + 2, np.int64)
        self._worst: list[tuple[float, int, WorstRow]] = []
        self._sample = _Sample()

    def add(self, table: pa.Table | None) -> bool:
        """Count the rows of a table with both scores; False for None."""
        if table is None:
            return False
        table = self._in_both(table)
        mine, theirs = pc.is_valid(table.column(SCORE_COLUMN)), pc.is_valid(table.column(OTHER))
        both = pc.and_(mine, theirs)
        scored = int(pc.sum(both).as_py() or 0)
        self._counts["rows"] += scored
        self._counts["null"] += int(pc.sum(pc.xor(mine, theirs)).as_py() or 0)
        if scored < len(table):
            table = table.filter(both)
        base = table.column(SCORE_COLUMN).to_numpy()
        candidate = table.column(OTHER).to_numpy()
        self._count(table, base, candidate)
        return True

    def result(self) -> Differences:
        """The differences of all that was added."""
        rows = self._counts["rows"]
        ranks, ranked = self._sample.correlation()
        worst = [row for *_, row in sorted(self._worst, key=lambda one: (-one[0], one[1]))]
        return Differences(
            rows=rows,
            only_in_base=self._counts["base"],
            only_in_candidate=self._counts["candidate"],
            one_is_null=self._counts["null"],
            differing=self._counts["differing"],
            largest=self._largest,
            mean=math.fsum(self._sums) / rows if rows else 0.0,
            p999=self._quantile(),
            rank_correlation=ranks,
            rank_rows=ranked,
            worst=worst,
        )

    def _in_both(self, table: pa.Table) -> pa.Table:
        """The rows that both outputs have; counts the others."""
        flags = [f"in {name}" for name in (SCORE_COLUMN, OTHER)]
        if flags[0] not in table.column_names:
            return table
        for name, side in zip(flags, ("candidate", "base"), strict=True):
            self._counts[side] += table.column(name).null_count
        return table.filter(pc.and_(*(pc.is_valid(table.column(name)) for name in flags)))

    def _count(
        self, table: pa.Table, base: npt.NDArray[np.float32], candidate: npt.NDArray[np.float32]
    ) -> None:
        differences = np.abs(candidate.astype(np.float64) - base)
        if not len(differences):
            return
        self._counts["differing"] += int(np.count_nonzero(differences))
        self._largest = max(self._largest, float(differences.max()))
        self._sums.append(float(differences.sum()))
        bits = differences.astype(np.float32).view(np.uint32)
        self._bins += np.bincount(bits >> np.uint32(_SHIFT), minlength=len(self._bins))
        self._keep_worst(table, base, candidate, differences)
        self._sample.add(group_numbers(table.column(self.keys[0])), base, candidate)

    def _keep_worst(
        self,
        table: pa.Table,
        base: npt.NDArray[np.float32],
        candidate: npt.NDArray[np.float32],
        differences: npt.NDArray[np.float64],
    ) -> None:
        some = min(WORST_ROWS, len(differences))
        for row in np.argpartition(-differences, some - 1)[:some].tolist():
            if differences[row] == 0:
                continue
            key = {name: table.column(name)[row].as_py() for name in self.keys}
            found = WorstRow(key=key, base=float(base[row]), candidate=float(candidate[row]))
            order = -len(self._sums) * len(differences) - row
            entry = (float(differences[row]), order, found)
            if len(self._worst) < WORST_ROWS:
                heapq.heappush(self._worst, entry)
            elif entry[:2] > self._worst[0][:2]:
                heapq.heapreplace(self._worst, entry)

    def _quantile(self) -> float:
        """The upper end of the bin that holds the quantile, at most the largest difference."""
        total = int(self._bins.sum())
        if not total:
            return 0.0
        index = int(np.searchsorted(np.cumsum(self._bins), QUANTILE * total))
        if index == 0:
            return 0.0
        end = np.array([(index + 1) << _SHIFT], np.uint32).view(np.float32)
        return min(self._largest, float(end[0]))


class _Sample:
    """Pairs of scores of at most SAMPLE_ROWS rows, chosen by a hash of the key alone."""

    def __init__(self) -> None:
        self._bits = 0  # a row is in the sample if so many high bits of its hash are 0
        self._rows: list[npt.NDArray[Any]] = []
        self._held = 0

    def add(
        self,
        keys: npt.NDArray[np.uint64],
        base: npt.NDArray[np.float32],
        candidate: npt.NDArray[np.float32],
    ) -> None:
        """Add rows with these keys' numbers [B]."""
        hashed = keys * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(29)
        hashed *= np.uint64(0xBF58476D1CE4E5B9)
        rows = np.empty(len(hashed), _SAMPLED)
        rows["hash"], rows["base"], rows["candidate"] = hashed, base, candidate
        self._rows.append(self._chosen(rows))
        self._held += len(self._rows[-1])
        while self._held > SAMPLE_ROWS:
            self._bits += 1
            self._rows = [self._chosen(some) for some in self._rows]
            self._held = sum(len(some) for some in self._rows)

    def correlation(self) -> tuple[float | None, int]:
        """Spearman's, None where it is not defined, and of how many rows."""
        if self._held < 2:
            return None, self._held
        rows = np.concatenate(self._rows)
        base, candidate = _ranks(rows["base"]), _ranks(rows["candidate"])
        if base.min() == base.max() or candidate.min() == candidate.max():
            return None, self._held
        return float(np.corrcoef(base, candidate)[0, 1]), self._held

    def _chosen(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self._bits:
            return rows
        chosen: npt.NDArray[Any] = rows[rows["hash"] >> np.uint64(64 - self._bits) == 0]
        return chosen


def _ranks(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Mean ranks [B], ties sharing one."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return ranks
