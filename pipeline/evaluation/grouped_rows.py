"""GroupedRows: AUC by group, exact for any number of rows and groups, in bounded memory.

Rows are parted by a hash of their group; those that outgrow memory go to a temporary file, sorted
by part, and come back one part at a time. So several processes can each take rows, and then each
sum some of the parts. A group is told from another one by 62 bits: of 10^8 groups of strings, two
are taken for one with a probability of 0.1%; integers are never.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.evaluation.ranking import Packed, group_aucs

PARTS = 256
ROW_BYTES = 12  # group and packed row
_MIX = np.uint64(0x9E3779B97F4A7C15)

GroupNumbers = npt.NDArray[np.uint64]


class GroupSummary(NamedTuple):
    """AUC by group: the mean over groups with both classes, weighted by their rows (GAUC)."""

    gauc: float | None
    groups: int
    groups_with_both: int
    rows_with_both: int


class PartSummary(NamedTuple):
    """The groups of a part; `weighted`: AUCs times rows, of those with both classes."""

    groups: int
    with_both: int
    rows: int
    weighted: float


class PartedRows(NamedTuple):
    """Rows by the part that their group belongs to: groups [B], rows [B], the end of each part."""

    groups: GroupNumbers
    rows: Packed
    ends: list[int]

    def part(self, number: int) -> tuple[GroupNumbers, Packed]:
        """Groups and rows of a part."""
        begin, end = self.ends[number - 1] if number else 0, self.ends[number]
        return self.groups[begin:end], self.rows[begin:end]


class SpilledRows(NamedTuple):
    """The same in a file, from byte `offset` on: of each part the groups, then the rows."""

    path: Path
    offset: int
    ends: list[int]

    def part(self, number: int) -> tuple[GroupNumbers, Packed]:
        """Groups and rows of a part."""
        begin, end = self.ends[number - 1] if number else 0, self.ends[number]
        rows = end - begin
        with self.path.open("rb") as file:
            found = os.pread(file.fileno(), rows * ROW_BYTES, self.offset + begin * ROW_BYTES)
        return np.frombuffer(found, np.uint64, rows), np.frombuffer(
            found, np.uint32, rows, rows * 8
        )


Piece = PartedRows | SpilledRows


def parted(groups: GroupNumbers, rows: Packed) -> PartedRows:
    """Sort rows [B] of groups [B] by part."""
    part = ((groups * _MIX) >> np.uint64(56)).astype(np.uint8)  # sorted by radix
    order = np.argsort(part, kind="stable")
    ends = np.cumsum(np.bincount(part, minlength=PARTS)).tolist()
    return PartedRows(groups[order], rows[order], ends)


class GroupedRows:
    """Rows and the group of each, in any order; beyond `rows_in_memory` they go to `file`."""

    def __init__(self, file: Path, rows_in_memory: int) -> None:
        self._file, self._rows_in_memory = file, rows_in_memory
        self._spilled: list[SpilledRows] = []
        self._held: list[PartedRows] = []

    def add(self, found: PartedRows) -> None:
        """Add rows."""
        self._held.append(found)
        if sum(len(one.rows) for one in self._held) > self._rows_in_memory:
            self.spill()

    def pieces(self) -> list[Piece]:
        """All rows, of which each piece has some of every part."""
        return [*self._spilled, *self._held]

    def spill(self) -> None:
        """Leave nothing in memory."""
        if not self._held:
            return
        ends = np.sum([one.ends for one in self._held], axis=0).tolist()
        with self._file.open("ab") as file:
            self._spilled.append(SpilledRows(self._file, file.tell(), ends))
            for number in range(PARTS):
                for column in zip(*(one.part(number) for one in self._held), strict=True):
                    file.write(np.concatenate(column).data)
        self._held = []


def part_summary(number: int, pieces: Iterable[Piece]) -> PartSummary:
    """The groups of a part. The order of the pieces changes nothing."""
    groups, rows = zip(*(piece.part(number) for piece in pieces), strict=True)
    found = group_aucs(np.concatenate(groups), np.concatenate(rows))
    both = ~np.isnan(found.auc)
    weights = (found.clicks + found.others)[both]
    weighted = np.sort(weights * found.auc[both]).sum()
    return PartSummary(len(both), int(both.sum()), int(weights.sum()), float(weighted))


def summary(parts: Iterable[PartSummary]) -> GroupSummary:
    """GAUC, and of how many groups and rows, from the summaries of all parts."""
    found = list(parts)
    rows = sum(one.rows for one in found)
    return GroupSummary(
        gauc=math.fsum(one.weighted for one in found) / rows if rows else None,
        groups=sum(one.groups for one in found),
        groups_with_both=sum(one.with_both for one in found),
        rows_with_both=rows,
    )
