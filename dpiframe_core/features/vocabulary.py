"""Vocabularies: the distinct values of a field, in the order of their ids, and finding values among
them.

A vocabulary is a plain Arrow array without nulls or repeats, of strings or of int64; the value at
position p has row 2 + p. One whose encoding has a numbering is an array of structs, `value` and
`row` (int32). As numpy tensors (for safetensors) a vocabulary of strings is its utf-8 bytes and its
offsets, one of integers its values, and rows are a tensor more.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dpiframe_core import _core
from dpiframe_core.features.columns import numbers, string_bytes, validity
from dpiframe_core.features.errors import SchemaError
from dpiframe_core.features.schema import MISSING_ROW, UNSEEN_ROW, Numbering

_PREFIX = "vocabulary."


class VocabularyIndex:
    """Finds values in a vocabulary, whose memory it keeps; built once for many batches."""

    def __init__(
        self,
        vocabulary: pa.Array,
        rows: np.ndarray | None = None,
        numbering: Numbering | None = None,
    ) -> None:
        """`rows` [n] int32: those of the values, with a `numbering`.

        Raise SchemaError when the vocabulary is not distinct strings or int64 values.
        """
        if not (pa.types.is_string(vocabulary.type) or vocabulary.type == pa.int64()):
            raise SchemaError(f"a vocabulary is of type string or int64, got {vocabulary.type}")
        if vocabulary.null_count:
            raise SchemaError(f"a vocabulary holds no nulls, got {vocabulary.null_count}")
        missing, unseen = MISSING_ROW, UNSEEN_ROW
        if numbering:
            missing, unseen = numbering.missing_row, numbering.unseen_row
        self._index: _core.StringIndex | _core.Int64Index
        try:
            if vocabulary.type == pa.int64():
                self._index = _core.Int64Index(numbers(vocabulary), rows, missing, unseen)
            else:
                offsets, data = string_bytes(vocabulary)
                self._index = _core.StringIndex(offsets, data, rows, missing, unseen)
        except ValueError as error:
            raise SchemaError(f"a vocabulary: {error}") from None

    @property
    def encoder(self) -> _core.ValueEncoder:
        """The same for one value after another; it needs no nulls."""
        return self._index

    def write_rows(self, values: pa.Array, out: np.ndarray) -> None:
        """Write the ids of the values [n], which may hold nulls, into `out` [n]."""
        if isinstance(self._index, _core.Int64Index):
            self._index.rows(numbers(values), validity(values), out)
        else:
            self._index.rows(*string_bytes(values), validity(values), out)


def vocabulary_parts(vocabulary: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """The values [n], and their rows [n] int32 where it has some; SchemaError for other structs."""
    if not pa.types.is_struct(vocabulary.type):
        return vocabulary, None
    names = [field.name for field in vocabulary.type]
    if names != ["value", "row"] or vocabulary.type.field("row").type != pa.int32():
        raise SchemaError(f"a vocabulary of structs has value and int32 row, got {vocabulary.type}")
    values, rows = vocabulary.flatten()
    if rows.null_count:
        raise SchemaError(f"a vocabulary's rows hold no nulls, got {rows.null_count}")
    return values, numbers(rows)


def numbered_vocabulary(values: pa.Array, rows: np.ndarray) -> pa.Array:
    """The vocabulary of values [n] with rows [n]."""
    return pa.StructArray.from_arrays([values, pa.array(rows, pa.int32())], ["value", "row"])


def check_vocabulary(vocabulary: pa.Array) -> None:
    """Raise SchemaError when this is not an array of distinct strings or int64 values, or of
    structs of these and rows.
    """
    VocabularyIndex(*vocabulary_parts(vocabulary))


def vocabulary_to_tensors(vocabularies: Mapping[str, pa.Array]) -> dict[str, np.ndarray]:
    """Tensors `vocabulary.<field>.{bytes,offsets}` (uint8, int64 [n + 1]) or `.values` (int64), and
    `.rows` (int32) of a vocabulary that has them.
    """
    tensors = {}
    for field, found in vocabularies.items():
        check_vocabulary(found)
        vocabulary, rows = vocabulary_parts(found)
        if rows is not None:
            tensors[f"{_PREFIX}{field}.rows"] = rows.copy()
        if vocabulary.type == pa.int64():
            tensors[f"{_PREFIX}{field}.values"] = numbers(vocabulary).copy()
            continue
        offsets, data = string_bytes(vocabulary)
        tensors[f"{_PREFIX}{field}.bytes"] = data[offsets[0] : offsets[-1]].copy()
        tensors[f"{_PREFIX}{field}.offsets"] = offsets.astype(np.int64) - int(offsets[0])
    return tensors


def vocabulary_from_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, pa.Array]:
    """The vocabularies by field name; tensors of other names are left alone.

    Raises SchemaError when the tensors of a field do not make a vocabulary.
    """
    vocabularies = {}
    for name, tensor in tensors.items():
        field, _, part = name.removeprefix(_PREFIX).rpartition(".")
        if not name.startswith(_PREFIX) or part in ("bytes", "rows"):
            continue
        try:
            if part == "values":
                vocabulary = pa.array(tensor, pa.int64())
            elif part == "offsets":
                vocabulary = _strings(tensor, tensors[f"{_PREFIX}{field}.bytes"])
            else:
                raise SchemaError("its name ends neither in values, offsets, bytes nor rows")
            rows = tensors.get(f"{_PREFIX}{field}.rows")
            if rows is not None:
                vocabulary = numbered_vocabulary(vocabulary, rows)
            check_vocabulary(vocabulary)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise SchemaError(f"vocabulary tensor {name}: {error}") from error
        vocabularies[field] = vocabulary
    return vocabularies


def _strings(offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    if offsets.ndim != 1 or len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(data):
        raise SchemaError(f"offsets must run from 0 to the {len(data)} bytes there are")
    if np.any(np.diff(offsets) < 0):
        raise SchemaError("offsets must not fall")
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data.astype(np.uint8))]
    strings = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
    strings.validate(full=True)
    return strings.cast(pa.string())
