"""Areas under ROC curves, of rows that are sorted or counted by score.

A row is packed into 32 bits, the score's float32 bits and the label: probabilities are not
negative, so their bits have their order and leave two bits free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Packed = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]
ONE = 0x3F800000  # the bits of 1.0


class GroupAucs(NamedTuple):
    """A group each: its number or hash, clicks, other rows, and AUC (nan where one is absent)."""

    group: npt.NDArray[np.uint64]
    clicks: Counts
    others: Counts
    auc: npt.NDArray[np.float64]


class CountedAuc(NamedTuple):
    """An AUC from counts a bin, and how far at most the exact one is away from it."""

    auc: float
    error: float


def pack(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.bool_]) -> Packed:
    """Rows [B] from probabilities [B] and labels [B]."""
    bits = np.abs(scores).view(np.uint32)
    return bits << np.uint32(1) | labels


def unpack(rows: Packed) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Probabilities [B] and labels [B] of packed rows [B]."""
    return (rows >> np.uint32(1)).view(np.float32), (rows & np.uint32(1)).astype(bool)


def group_aucs(groups: npt.NDArray[np.uint64], rows: Packed) -> GroupAucs:
    """The exact AUC of each group of rows; `groups` [B] and `rows` [B] in any order."""
    if not len(rows):
        empty = np.empty(0, np.int64)
        return GroupAucs(np.empty(0, np.uint64), empty, empty, np.empty(0))
    # Groups numbered as they come, then sorted by number and score at once, as plain numbers.
    coded = pa.array(groups).dictionary_encode()
    groups = coded.dictionary.to_numpy()
    keyed = (coded.indices.to_numpy().astype(np.uint64) << np.uint64(32)) | rows
    keyed.sort()
    rows, number = keyed.astype(np.uint32), keyed >> np.uint64(32)
    new_group = np.r_[True, number[1:] != number[:-1]]
    bits, clicked = rows >> np.uint32(1), rows & np.uint32(1)
    tie_starts = np.flatnonzero(new_group | np.r_[True, bits[1:] != bits[:-1]])
    clicks = np.add.reduceat(clicked.astype(np.int64), tie_starts)
    others = np.diff(np.r_[tie_starts, len(rows)]) - clicks
    group_starts = np.searchsorted(tie_starts, np.flatnonzero(new_group))
    below = np.cumsum(others) - others
    ties = np.diff(np.r_[group_starts, len(tie_starts)])
    below -= np.repeat(below[group_starts], ties)
    group_clicks = np.add.reduceat(clicks, group_starts)
    group_others = np.add.reduceat(others, group_starts)
    wins = np.add.reduceat(clicks * (below + others / 2), group_starts)
    pairs = group_clicks.astype(np.float64) * group_others
    aucs = np.full(len(pairs), np.nan)
    np.divide(wins, pairs, out=aucs, where=pairs > 0)
    return GroupAucs(groups, group_clicks, group_others, aucs)


def counted_auc(clicks: Counts, others: Counts) -> CountedAuc | None:
    """The AUC of bins in ascending order of score, where rows of one bin count as ties.

    Rows of one bin may be in any order, so the exact AUC lies within half of the share of pairs
    that are in one bin. None when one of the classes is absent.
    """
    pairs = float(clicks.sum()) * float(others.sum())
    if not pairs:
        return None
    below = np.cumsum(others) - others
    tied = float(np.dot(clicks.astype(np.float64), others)) / 2
    wins = float(np.dot(clicks.astype(np.float64), below)) + tied
    return CountedAuc(wins / pairs, tied / pairs)
