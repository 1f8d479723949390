"""Which bundle scores which row, where `segments` names one for each value of a column."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.segments import Segments
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.inputs import InputFile

Rows = npt.NDArray[np.int64]
_TEXT = pa.large_string()


class SegmentRows(NamedTuple):
    """Rows [R] (ascending positions in the unit) by the name of the bundle that scores them, that
    of the job's own empty; and how many rows hold each of the values.
    """

    by_bundle: dict[str, Rows]
    by_value: dict[str, int]


def check_segments(files: Sequence[InputFile], segments: Segments | None) -> None:
    """Check the column of `segments` in files with rows, by their schemas.

    ContractError: it is missing, or neither text nor integer. ConfigError: a value is none of it.
    """
    if segments is None:
        return
    first = {id(file.arrow_schema): file for file in files if file.rows}
    for file in first.values():
        schema, column = file.arrow_schema, segments.column
        if column not in schema.names:
            close = get_close_matches(column, schema.names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "name a column that every file has"
            raise ContractError(
                f"{file.path}: the column {column!r} of segments is missing; {hint}"
            )
        kind = _plain(schema.field(schema.names.index(column)).type)
        if not pa.types.is_integer(kind) and not _is_text(kind):
            raise ContractError(
                f"{file.path}: column {column} is {kind}, and segments need texts or integers; "
                "name another column, or write it as one of these"
            )
        for value in segments.bundles:
            _check_value(value, kind, f"column {column} of {file.path}")


def segment_rows(column: pa.ChunkedArray, segments: Segments) -> SegmentRows:
    """The rows of a unit by bundle; null and values without a bundle are the job's own's."""
    kind = _plain(column.type)
    kind = _TEXT if _is_text(kind) else kind
    values = pa.array([value if kind == _TEXT else int(value) for value in segments.bundles], kind)
    found = pc.index_in(column.cast(kind), value_set=values)
    places = pc.fill_null(found, len(values)).to_numpy()
    counts = np.bincount(places, minlength=len(values) + 1).tolist()
    names = list(dict.fromkeys([*segments.bundles.values(), ""]))
    owner = np.array([names.index(name) for name in (*segments.bundles.values(), "")], np.int16)
    owners = owner[places]
    ends = np.cumsum(np.bincount(owners, minlength=len(names)))
    rows = np.split(np.argsort(owners, kind="stable"), ends[:-1])
    return SegmentRows(
        dict(zip(names, rows, strict=True)),
        dict(zip(segments.bundles, counts[:-1], strict=True)),
    )


def _check_value(value: str, kind: pa.DataType, where: str) -> None:
    if _is_text(kind):
        return
    try:
        known = str(pa.scalar(int(value), kind).as_py()) == value
    except (ValueError, OverflowError):  # pa.ArrowInvalid is a ValueError
        known = False
    if not known:
        raise ConfigError(
            f"segments names the value {value!r}, which {where} ({kind}) cannot hold; name whole "
            "numbers of that type, or another column"
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
