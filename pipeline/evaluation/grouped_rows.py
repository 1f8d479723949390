"""GroupedRows: AUC by group, exact for any number of rows and groups, in bounded memory.

Rows are parted by a hash of their group; parts that outgrow memory go to temporary files and come
back one at a time. A group is told from another one by 62 bits: of 10^8 groups of strings, two are
taken for one with a probability of 0.1%; integers are never.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.evaluation.ranking import GroupAucs, Packed, group_aucs

PARTS = 64
_KINDS = ("groups", "rows")  # of temporary files
ROWS_IN_MEMORY = 1 << 25
_MIX = np.uint64(0x9E3779B97F4A7C15)

GroupNumbers = npt.NDArray[np.uint64]


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


class PartedRows(NamedTuple):
    """Rows by the part that their group belongs to: groups [B], rows [B], the end of each part."""

    groups: GroupNumbers
    rows: Packed
    ends: list[int]


def parted(groups: GroupNumbers, rows: Packed) -> PartedRows:
    """Sort rows [B] of groups [B] by part."""
    part = ((groups * _MIX) >> np.uint64(58)).astype(np.uint8)  # sorted by radix
    order = np.argsort(part, kind="stable")
    ends = np.cumsum(np.bincount(part, minlength=PARTS)).tolist()
    return PartedRows(groups[order], rows[order], ends)


class GroupedRows:
    """Rows and the group of each, in any order. Close it when done."""

    def __init__(self, folder: Path | None = None, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        """`folder`: where temporary files may lie; the system's place for them by default."""
        self.rows_in_memory = rows_in_memory
        self._above = folder
        self._folder: Path | None = None
        self._parts: list[list[tuple[GroupNumbers, Packed]]] = [[] for _ in range(PARTS)]
        self._held = 0

    def add(self, found: PartedRows) -> None:
        """Add rows; one caller at a time."""
        begin = 0
        for held, end in zip(self._parts, found.ends, strict=True):
            if end > begin:
                held.append((found.groups[begin:end], found.rows[begin:end]))
            begin = end
        self._held += len(found.rows)
        if self._held > self.rows_in_memory:
            self._spill()

    def part_aucs(self, number: int) -> GroupAucs | None:
        """The groups of a part; None if it has none."""
        pieces = [*self._spilled(number), *self._parts[number]]
        if not pieces:
            return None
        groups, rows = zip(*pieces, strict=True)
        return group_aucs(np.concatenate(groups), np.concatenate(rows))

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
            for kind, pieces in zip(_KINDS, zip(*held, strict=True), strict=False):
                with (self._folder / f"{number}.{kind}").open("ab") as file:
                    file.write(np.concatenate(pieces).tobytes())
            held.clear()
        self._held = 0

    def _spilled(self, number: int) -> list[tuple[GroupNumbers, Packed]]:
        paths = [self._folder / f"{number}.{kind}" for kind in _KINDS] if self._folder else []
        if not paths or not paths[0].exists():
            return []
        return [(np.fromfile(paths[0], np.uint64), np.fromfile(paths[1], np.uint32))]
