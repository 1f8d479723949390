"""Vocabularies: the distinct values of a field, in row order, and finding values among them.

A vocabulary is a plain Arrow array without nulls or repeats, of strings or of int64; the value at
position p has row 2 + p. As numpy tensors (for safetensors) a vocabulary of strings is its utf-8
bytes and its offsets, and one of integers is its values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpiframe_core.features.columns import hash_values, numbers, string_bytes
from dpiframe_core.features.errors import SchemaError

_PREFIX = "vocabulary."


class VocabularyIndex:
    """Finds values in a vocabulary: exact, vectorised, built once for many batches.

    The vocabulary's hashes lie sorted; a directory over their leading bits says where to start, so
    that a look-up reads about two of them. What is found by hash is then compared by value.
    """

    def __init__(self, vocabulary: pa.Array) -> None:
        """Raise SchemaError when the vocabulary is not distinct strings or int64 values."""
        check_vocabulary(vocabulary)
        self._vocabulary = vocabulary
        self._seed, hashes = _distinct_hashes(vocabulary)
        self._order = np.argsort(hashes)
        # The last entry stands after all others, so that a search needs no bound.
        self._hashes = np.append(hashes[self._order], np.uint64(2**64 - 1))
        bits = max(1, len(vocabulary).bit_length())
        self._shift = np.uint64(64 - bits)
        starts = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._directory = np.searchsorted(self._hashes[:-1], starts)
        self._order = np.append(self._order, 0)

    def find(self, values: pa.Array) -> np.ndarray:
        """Positions [n] int64 of the values in the vocabulary, -1 for others.

        What a null gives is undefined.
        """
        if len(self._vocabulary) == 0:
            return np.full(len(values), -1, np.int64)
        hashes = hash_values(values, self._seed)
        place = self._directory[(hashes >> self._shift).astype(np.int64)]
        behind = np.flatnonzero(self._hashes[place] < hashes)
        while len(behind):
            place[behind] += 1
            behind = behind[self._hashes[place[behind]] < hashes[behind]]
        positions: np.ndarray = self._order[place]
        positions[~self._equal(positions, values)] = -1
        return positions

    def _equal(self, positions: np.ndarray, values: pa.Array) -> np.ndarray:
        if pa.types.is_integer(values.type):
            return np.asarray(numbers(self._vocabulary)[positions] == numbers(values))
        candidates = self._vocabulary.take(pa.array(positions))
        same = pc.fill_null(pc.equal(candidates, values.cast(candidates.type)), False)
        return np.asarray(same.to_numpy(zero_copy_only=False))


def check_vocabulary(vocabulary: pa.Array) -> None:
    """Raise SchemaError when this is not an array of distinct strings or int64 values."""
    if not (pa.types.is_string(vocabulary.type) or vocabulary.type == pa.int64()):
        raise SchemaError(f"a vocabulary is of type string or int64, got {vocabulary.type}")
    if vocabulary.null_count:
        raise SchemaError(f"a vocabulary holds no nulls, got {vocabulary.null_count}")
    distinct = pc.count_distinct(vocabulary).as_py()
    if distinct != len(vocabulary):
        raise SchemaError(f"a vocabulary's values differ, got {distinct} of {len(vocabulary)}")


def _distinct_hashes(vocabulary: pa.Array) -> tuple[int, np.ndarray]:
    """The first seed under which no two values share a hash (nearly always 0), and the hashes."""
    seed = 0
    while True:
        hashes = hash_values(vocabulary, seed)
        if len(np.unique(hashes)) == len(hashes):
            return seed, hashes
        seed += 1


def vocabulary_to_tensors(vocabularies: Mapping[str, pa.Array]) -> dict[str, np.ndarray]:
    """Tensors `vocabulary.<field>.{bytes,offsets}` (uint8, int64 [n + 1]) or `.values` (int64)."""
    tensors = {}
    for field, vocabulary in vocabularies.items():
        check_vocabulary(vocabulary)
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
        if not name.startswith(_PREFIX) or part == "bytes":
            continue
        try:
            if part == "values":
                vocabulary = pa.array(tensor, pa.int64())
            elif part == "offsets":
                vocabulary = _strings(tensor, tensors[f"{_PREFIX}{field}.bytes"])
            else:
                raise SchemaError("its name ends neither in values, offsets nor bytes")
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
