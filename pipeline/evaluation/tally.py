"""Tally: what the rows of some parts of an output come to, for a question; small and mergeable.

A tally of a part, added to others in any order, gives the same figures to the last bit. It is kept
beside the scores, so that an evaluation that is stopped goes on, and one of many outputs adds up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.evaluation.ranking import Packed
from pipeline.evaluation.rows import LabelledRows
from pipeline.evaluation.score_counts import COARSE, ScoreCounts
from pipeline.evaluation.slices import (
    Codes,
    Slice,
    SlicedRows,
    Slicing,
    slicings,
)
from pipeline.evaluation.sums import Sums, figures_of, sums_of

FORMAT = "1"
_META = b"dpiframe.tally"
_WHOLE = -1  # in place of a slicing's number
_SCHEMA = pa.schema(
    [
        ("slicing", pa.int16()),
        ("slice", pa.int32()),
        ("score", pa.uint32()),  # bits of a float32, or the number of a bin
        ("clicks", pa.int64()),
        ("rows", pa.int64()),
    ]
)


class TalliedRows(NamedTuple):
    """What one part comes to; `rows` in ascending order, which are counted fastest."""

    rows: Packed
    without_score: int
    without_label: int
    sums: Sums
    sliced: list[list[SlicedRows]]


class Tally:
    """Sums, counted scores and slices of rows. `parts`: of which files, where it is kept."""

    def __init__(self, slices: Sequence[str] = (), pairs: bool = False) -> None:
        self.columns, self.pairs = tuple(slices), pairs
        self.parts: set[str] = set()
        self.sums, self.scores = Sums(), ScoreCounts()
        self.without_score = self.without_label = 0
        # Slices by one column are sums of those by a pair that has it.
        by_pair = pairs and len(self.columns) > 1
        counted = [s for s in slicings(self.columns, by_pair) if len(s) == 1 + by_pair]
        self._slicings = [Slicing(columns) for columns in counted]

    def look(self, found: LabelledRows, codes: dict[str, Codes]) -> TalliedRows:
        """What rows come to, with the codes of the slice columns; changes nothing."""
        figures = figures_of(found.rows)
        sliced = [slicing.look(codes, found.rows) for slicing in self._slicings]
        without = found.without_score, found.without_label
        return TalliedRows(np.sort(found.rows), *without, sums_of(figures), sliced)

    def add(self, part: TalliedRows, name: str = "") -> None:
        """Count what `look` found, of the part of this name; one caller at a time."""
        self.sums = self.sums.plus(part.sums)
        self.scores.add(part.rows)
        for slicing, some in zip(self._slicings, part.sliced, strict=True):
            slicing.add(some)
        self.without_score += part.without_score
        self.without_label += part.without_label
        self.parts |= {name}

    def merge(self, other: Tally) -> None:
        """Count the rows of another tally of the same slices."""
        self.sums = self.sums.plus(other.sums)
        self.scores.merge(other.scores)
        for slicing, of in zip(self._slicings, other._slicings, strict=True):
            for values, one in of.slices.items():
                slicing.merge(values, one)
        self.without_score += other.without_score
        self.without_label += other.without_label
        self.parts |= other.parts

    def shrink(self, rows: int) -> None:
        """Make it small, as part of one that has at least so many rows."""
        if rows > self.scores.resolution.exact_rows:
            self.scores.count_kept()
        for slicing in self._slicings:
            for one in slicing.slices.values():
                one.scores.shrink()

    def slicings(self) -> list[Slicing]:
        """Slices by each column, then by each pair."""
        found = []
        for columns in slicings(self.columns, self.pairs):
            has = next(s for s in self._slicings if set(columns) <= set(s.columns))
            found.append(has if has.columns == columns else has.by_column(columns[0]))
        return found

    def to_bytes(self) -> bytes:
        """A parquet file: counted scores as rows, all else in its metadata."""
        whole = _counted(_WHOLE, 0, self.scores)
        tables, slices = [whole[0]], []
        for place, slicing in enumerate(self._slicings):
            for number, (values, one) in enumerate(slicing.slices.items()):
                table, exact = _counted(place, number, one.scores)
                tables.append(table)
                slices.append([place, number, values, exact, [str(x) for x in one.sums]])
        meta = {
            "format": FORMAT,
            "parts": sorted(self.parts),
            "exact": whole[1],
            "sums": [str(x) for x in self.sums],
            "without": [self.without_score, self.without_label],
            "slices": slices,
        }
        table = pa.concat_tables(tables).replace_schema_metadata({_META: json.dumps(meta)})
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            compression="zstd",
            use_dictionary=False,
            column_encoding=dict.fromkeys(_SCHEMA.names, "DELTA_BINARY_PACKED"),
        )
        return bytes(sink.getvalue())

    @classmethod
    def of_bytes(cls, data: bytes, slices: Sequence[str], pairs: bool) -> Tally:
        """What `to_bytes` of a tally of the same slices gave. ValueError: it is not such a file."""
        table = pq.read_table(pa.BufferReader(data))
        meta = json.loads((table.schema.metadata or {}).get(_META, b"{}"))
        if meta.get("format") != FORMAT:
            raise ValueError("not a tally that this version wrote")
        found = cls(slices, pairs)
        found.parts, found.sums = set(meta["parts"]), _sums(meta["sums"])
        found.without_score, found.without_label = meta["without"]
        rows = {name: table.column(name).to_numpy() for name in _SCHEMA.names}
        owner = (rows["slicing"].astype(np.int64) + 1) << 32 | rows["slice"]
        edges = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1], True])[: len(owner) + 1]
        at = {int(owner[a]): slice(a, b) for a, b in pairwise(edges.tolist())}

        def count(scores: ScoreCounts, key: int, exact: bool) -> None:
            some = at.get(key, slice(0, 0))
            scores.add_counted(exact, *(rows[name][some] for name in ("score", "clicks", "rows")))

        count(found.scores, 0, meta["exact"])
        for place, number, values, exact, sums in meta["slices"]:
            one = Slice(_sums(sums), ScoreCounts(COARSE))
            count(one.scores, (place + 1) << 32 | number, exact)
            found._slicings[place].slices[tuple(values)] = one
        return found


def _counted(slicing: int, number: int, scores: ScoreCounts) -> tuple[pa.Table, bool]:
    exact, index, clicks, rows = scores.counted()
    columns: list[Any] = [
        np.full(len(index), slicing, np.int16),
        np.full(len(index), number, np.int32),
        index,
        clicks,
        rows,
    ]
    return pa.table(columns, schema=_SCHEMA), exact


def _sums(texts: Sequence[str]) -> Sums:
    return Sums(*map(int, texts))
