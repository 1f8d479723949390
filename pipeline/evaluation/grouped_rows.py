"""GroupedRows: AUC by group, exact for any number of rows and groups, in bounded memory.

Rows are parted by a hash of their group; parts that outgrow memory go to temporary files and come
back one at a time. A group is told from another one by 62 bits: of 10^8 groups of strings, two are
taken for one with a probability of 0.1%; integers are never.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.evaluation.ranking import GroupAucs, Packed, group_aucs

PARTS = 64
ROWS_IN_MEMORY = 1 << 25
_MIX = np.uint64(0x9E3779B97F4A7C15)
_ROW = np.dtype([("group", "<u8"), ("row", "<u4")])


class GroupSummary(NamedTuple):
    """AUC by group: the mean over groups with both classes, weighted by their rows (GAUC)."""

    gauc: float | None
    groups: int
    groups_with_both: int
    rows_with_both: int


class _PartSummary(NamedTuple):
    groups: int
    with_both: int
    rows: int
    weighted: float  # AUCs times rows


class GroupedRows:
    """Rows and the group of each, added from any thread in any order. Close it when done."""

    def __init__(self, folder: Path | None = None, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        """`folder`: where temporary files may lie; the system's place for them by default."""
        self.rows_in_memory = rows_in_memory
        self._above = folder
        self._folder: Path | None = None
        self._parts: list[list[np.ndarray]] = [[] for _ in range(PARTS)]
        self._held = 0
        self._guard = threading.Lock()

    def add(self, groups: npt.NDArray[np.uint64], rows: Packed) -> None:
        """Add rows [B] of groups [B]."""
        both = np.empty(len(rows), _ROW)
        both["group"], both["row"] = groups, rows
        part = ((groups * _MIX) >> np.uint64(58)).astype(np.uint8)  # sorted by radix
        order = np.argsort(part, kind="stable")
        ends = np.searchsorted(part[order], np.arange(1, PARTS + 1))
        pieces = np.split(both[order], ends[:-1])
        with self._guard:
            for held, piece in zip(self._parts, pieces, strict=True):
                if len(piece):
                    held.append(piece)
            self._held += len(rows)
            if self._held > self.rows_in_memory:
                self._spill()

    def part_aucs(self, number: int) -> GroupAucs | None:
        """The groups of a part; None if it has none."""
        pieces = [*self._spilled(number), *self._parts[number]]
        if not pieces:
            return None
        rows = np.concatenate(pieces)
        return group_aucs(np.ascontiguousarray(rows["group"]), np.ascontiguousarray(rows["row"]))

    def summary(self, threads: int = 1) -> GroupSummary:
        """GAUC, and of how many groups and rows; a part in memory for each thread."""
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(self._part_summary, range(PARTS)))
        weighted = math.fsum(one.weighted for one in found)
        rows = sum(one.rows for one in found)
        return GroupSummary(
            gauc=weighted / rows if rows else None,
            groups=sum(one.groups for one in found),
            groups_with_both=sum(one.with_both for one in found),
            rows_with_both=rows,
        )

    def _part_summary(self, number: int) -> _PartSummary:
        found = self.part_aucs(number)
        if found is None:
            return _PartSummary(0, 0, 0, 0.0)
        both = ~np.isnan(found.auc)
        weights = (found.clicks + found.others)[both]
        weighted = float(np.dot(weights, found.auc[both]))
        return _PartSummary(len(both), int(both.sum()), int(weights.sum()), weighted)

    def close(self) -> None:
        """Remove temporary files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dpiframe-groups-", dir=self._above))
        for number, held in enumerate(self._parts):
            if held:
                with (self._folder / str(number)).open("ab") as file:
                    file.write(np.concatenate(held).tobytes())
                held.clear()
        self._held = 0

    def _spilled(self, number: int) -> list[np.ndarray]:
        path = None if self._folder is None else self._folder / str(number)
        return [np.fromfile(path, _ROW)] if path is not None and path.exists() else []
