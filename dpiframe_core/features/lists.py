"""Columns of lists as matrices: of each row's list, `length` elements, padded."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

# Rows per pass of numpy: few enough that their values stay in the cache from place to place.
RUN = 1 << 12


class Shape(NamedTuple):
    """How many elements of a list count, where the pads of a shorter one stand, and which elements
    of a longer one are kept.
    """

    length: int
    side: Literal["behind", "before"] = "behind"
    keep: Literal["first", "last"] = "first"

    def element_names(self, column: str) -> list[str]:
        """What to call the elements [length]: `column[0]`, counted from the begin of each list, or
        `column[-1]`, from its end; where neither counts alike in all lists, in the padded list.
        """
        counted = {("behind", "first"): 0, ("before", "last"): self.length}
        first = counted.get((self.side, self.keep))
        if first is None:
            return [f"{column}[{p} of {self.length} padded]" for p in range(self.length)]
        return [f"{column}[{p - first}]" for p in range(self.length)]


class Lists(NamedTuple):
    """Row i of an array of lists is values[starts[i] : starts[i] + lengths[i]]; a null is empty."""

    starts: np.ndarray  # [B] int64
    lengths: np.ndarray  # [B] int64
    values: pa.Array


def is_list(kind: pa.DataType) -> bool:
    """True for list, large_list, fixed_size_list and views of lists."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or _is_view(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def split_lists(array: pa.Array) -> Lists:
    """The parts of an array of lists [B]; no value is copied."""
    if _is_view(array.type):
        starts, values = array.offsets.to_numpy().astype(np.int64), array.values
        lengths = array.sizes.to_numpy().astype(np.int64)
    else:
        if pa.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            offsets = (array.offset + np.arange(len(array) + 1, dtype=np.int64)) * size
        else:
            offsets = array.offsets.to_numpy().astype(np.int64)
        first, lengths = int(offsets[0]), np.diff(offsets)
        starts = offsets[:-1] - first
        values = array.values.slice(first, offsets[-1] - first)
    if array.null_count:  # what stands in the place of a null means nothing
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    return Lists(starts, lengths, values)


def pad_lists(lists: Lists, values: np.ndarray, shape: Shape, pad: float, out: np.ndarray) -> None:
    """Write element p of each list to out[p] [length, B]; `values` stands for `lists.values`."""
    for start in range(0, len(lists.starts), RUN):
        run = slice(start, start + RUN)
        _pad_run(lists.starts[run], lists.lengths[run], values, shape, pad, out[:, run])


def _pad_run(
    starts: np.ndarray,
    lengths: np.ndarray,
    values: np.ndarray,
    shape: Shape,
    pad: float,
    out: np.ndarray,
) -> None:
    length = shape.length
    if bool((lengths == length).all()) and bool((np.diff(starts) == length).all()):
        out[:] = values[starts[0] : starts[0] + out.size].reshape(-1, length).T
        return
    kept = np.minimum(lengths, length)
    first = starts + (lengths - kept if shape.keep == "last" else 0)
    pads = length - kept if shape.side == "before" else np.zeros_like(kept)
    first -= pads  # of the element at place 0, where it is there
    stop = pads + kept
    for p in range(length):
        there = (pads <= p) & (p < stop)
        out[p] = pad
        if there.any():
            np.copyto(out[p], values.take(first + p, mode="clip"), where=there)
