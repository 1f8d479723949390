"""Scored rows with labels, read from the parts of a finished output."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpiframe_core import _core
from dpiframe_core.features.columns import as_text, plain, string_bytes
from pipeline.errors import ConfigError, ContractError
from pipeline.evaluation.ranking import Packed, pack

_HALF = (1 << 31) - 3  # the largest modulus of a hash
_NULL_GROUP = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class LabelledRows(NamedTuple):
    """The rows of a table that have a score and a label; which they are, and what was left out."""

    rows: Packed
    kept: npt.NDArray[np.bool_] | None  # None: all
    without_score: int
    without_label: int


def labelled_rows(
    scores: pa.ChunkedArray, labels: pa.ChunkedArray, label: str, where: str
) -> LabelledRows:
    """Pack scores [B] and labels [B], in which nulls are left out; `where` is for messages.

    ContractError for a label other than 0, 1, false and true.
    """
    flags = _flags(labels, label, where)
    missing_score, missing_label = scores.null_count, flags.null_count
    kept = None
    if missing_score or missing_label:
        both = pc.and_(pc.is_valid(scores), pc.is_valid(flags))
        kept = both.combine_chunks().to_numpy(zero_copy_only=False)
        missing_label = int(pc.sum(pc.and_(pc.is_valid(scores), pc.is_null(flags))).as_py() or 0)
        scores, flags = scores.filter(both), flags.filter(both)
    values = scores.to_numpy().astype(np.float32, copy=False)
    return LabelledRows(
        pack(values, flags.to_numpy().astype(bool)), kept, missing_score, missing_label
    )


def _flags(labels: pa.ChunkedArray, label: str, where: str) -> pa.ChunkedArray:
    kind = labels.type
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return pc.cast(labels, pa.bool_())
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        labels, kind = pc.cast(labels, pa.float64()), pa.float64()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ConfigError(
            f"label column {label} of {where} has the type {kind}; labels are 0 and 1, as "
            "integers, numbers or booleans"
        )
    wrong = pc.and_(
        pc.not_equal(labels, pa.scalar(0, kind)), pc.not_equal(labels, pa.scalar(1, kind))
    )
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise ContractError(
            f"label column {label} of {where} holds {labels[row].as_py()!r} in row {row}; labels "
            "are 0 and 1, or null where there is none"
        )
    return pc.cast(labels, pa.bool_())


def group_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """One number a row [B], equal where values are: an integer itself, 62 bits of a text's hash."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], column.type)
    numbers: npt.NDArray[np.uint64]
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        kind = pa.uint64() if values.type == pa.uint64() else pa.int64()
        filled = pc.fill_null(values.cast(kind), 0).to_numpy(zero_copy_only=False)
        numbers = filled.astype(np.uint64)
    else:
        texts = as_text(plain(values)).cast(pa.large_string())
        numbers = _text_numbers(pc.fill_null(texts, ""))
    if values.null_count:
        numbers = np.where(pc.is_null(values).to_numpy(zero_copy_only=False), _NULL_GROUP, numbers)
    return numbers


def _text_numbers(texts: pa.Array) -> npt.NDArray[np.uint64]:
    offsets, data = string_bytes(texts)
    halves = []
    for seed in (1, 2):
        half = np.empty(len(texts), np.int32)
        _core.hashed_string_rows(offsets, data, None, seed, _HALF, half)
        halves.append(half.astype(np.uint64))
    numbers: npt.NDArray[np.uint64] = (halves[0] << np.uint64(31)) | halves[1]
    return numbers
