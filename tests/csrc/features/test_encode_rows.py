"""Raw values to rows: hashes, buckets and dictionary codes, with and without nulls."""

from __future__ import annotations

import numpy as np
import pytest
from xxh64_reference import xxh64

from dpiframe_core import _core

SIZES = [0, 1, 19, 111]


def bitmap(there: np.ndarray, offset: int) -> tuple[np.ndarray, int]:
    padded = np.concatenate([np.ones(offset, bool), there])
    return np.packbits(padded, bitorder="little"), offset


def some_nulls(size: int, offset: int) -> tuple[np.ndarray, tuple[np.ndarray, int]]:
    there = np.random.default_rng(size).random(size) < 0.7
    return there, bitmap(there, offset)


def strings(texts: list[str], dtype: type = np.int32) -> tuple[np.ndarray, np.ndarray]:
    data = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, data)]).astype(dtype)
    return offsets, np.frombuffer(b"".join(data), np.uint8)


@pytest.mark.parametrize("modulus", [1, 2, 3, 7, 2**16, 1_000_003, 2**31 - 3])
def test_a_modulus_of_any_hash_is_exact(modulus: int) -> None:
    values = np.random.default_rng(modulus).integers(-(2**63), 2**63 - 1, 1009)
    hashes = [xxh64(int(v).to_bytes(8, "little", signed=True), 5) for v in values]
    out = np.empty(len(values), np.int32)

    _core.hashed_int64_rows(values, None, 5, modulus, out)

    assert out.tolist() == [2 + h % modulus for h in hashes]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("offset", [0, 3])
def test_hashed_strings(size: int, dtype: type, offset: int) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.bytes(n) for n in rng.choice([0, 1, 7, 8, 9, 32, 100], size)]
    offsets = np.cumsum([0, *map(len, texts)]).astype(dtype)
    data = np.frombuffer(b"".join(texts), np.uint8)
    rows = [2 + xxh64(text, 7) % 111 if text else 0 for text in texts]
    out = np.empty(size, np.int32)

    _core.hashed_string_rows(offsets, data, None, 7, 111, out)
    assert out.tolist() == rows

    there, valid = some_nulls(size, offset)
    _core.hashed_string_rows(offsets, data, valid, 7, 111, out)
    assert out.tolist() == np.where(there, rows, 0).tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_buckets(size: int, dtype: type) -> None:
    values = np.random.default_rng(1).integers(-9, 60, size).astype(dtype)
    small = np.array([2, 3, 3, 7], np.int32)  # of -1, 0, 1, 2
    steps = np.array([3, 10, 40], np.int64)
    beyond = 7 + np.searchsorted(steps, values, side="right")
    rows = np.where(values > 2, beyond, small[np.clip(values, -1, 2) + 1])
    out = np.empty(size, np.int32)

    _core.bucket_rows(values, None, -1, small, steps, out)
    assert out.tolist() == rows.tolist()

    there, valid = some_nulls(size, 5)
    _core.bucket_rows(values, valid, -1, small, steps, out)
    assert out.tolist() == np.where(there, rows, 0).tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_codes_of_a_dictionary(size: int, dtype: type) -> None:
    codes = np.array([5, 3, 111, -1], dtype)
    indices = np.random.default_rng(2).integers(0, 3, size).astype(np.int32)
    out = np.empty(size, dtype)

    _core.gather_codes(codes, indices, None, out)
    assert out.tolist() == codes[indices].tolist()

    there, valid = some_nulls(size, 9)
    indices[~there] = 2**31 - 1  # what stands in the place of a null means nothing
    _core.gather_codes(codes, indices, valid, out)
    assert out.tolist() == np.where(there, codes[np.minimum(indices, 3)], -1).tolist()


@pytest.mark.parametrize("size", [0, 1, 19, 111, 10_007])
def test_known_strings(size: int) -> None:
    known = [f"v{i}" * (i % 4 + 1) for i in range(size)]
    asked = [known[i] for i in range(0, size, 3)] + ["unseen", "", "v", *known[:1]]
    row_of = {"": 0, **{text: 2 + i for i, text in enumerate(known)}}
    rows = [row_of.get(text, 1) for text in asked]
    index, out = _core.StringIndex(*strings(known)), np.empty(len(asked), np.int32)

    index.rows(*strings(asked, np.int64), None, out)
    assert out.tolist() == rows

    there, valid = some_nulls(len(asked), 3)
    index.rows(*strings(asked), valid, out)
    assert out.tolist() == np.where(there, rows, 0).tolist()


@pytest.mark.parametrize("size", [0, 1, 19, 10_007])
def test_known_integers(size: int) -> None:
    values = np.random.default_rng(size).permutation(4 * size + 4)[: 2 * size + 2] - size
    index, out = _core.Int64Index(values[:size]), np.empty(len(values), np.int32)
    rows = np.where(np.arange(len(values)) < size, np.arange(len(values)) + 2, 1)

    index.rows(values, None, out)
    assert out.tolist() == rows.tolist()

    there, valid = some_nulls(len(values), 1)
    index.rows(values, valid, out)
    assert out.tolist() == np.where(there, rows, 0).tolist()


def test_known_values_must_differ() -> None:
    with pytest.raises(ValueError, match="values must differ, got 2 of 3"):
        _core.StringIndex(*strings(["a", "b", "a"]))
    with pytest.raises(ValueError, match="values must differ, got 1 of 2"):
        _core.Int64Index(np.array([7, 7]))
    with pytest.raises(ValueError, match="offsets must rise"):
        _core.StringIndex(np.array([0, 9], np.int32), np.zeros(7, np.uint8))


def test_what_does_not_fit_is_refused() -> None:
    out, three = np.empty(3, np.int32), np.zeros(3, np.int32)
    codes = np.zeros(3, np.int32)
    for index in (-1, 2, 3):
        with pytest.raises(ValueError, match="an index is outside the dictionary's 2 values"):
            _core.gather_codes(codes, np.array([0, index, 1], np.int32), None, out)
    with pytest.raises(ValueError, match="codes must end in that of nulls"):
        _core.gather_codes(codes[:0], three, None, out)
    with pytest.raises(ValueError, match="validity must have 9 bits, got 8"):
        _core.gather_codes(codes, three, (np.zeros(1, np.uint8), 6), out)
    with pytest.raises(ValueError, match="out must have length 2, got 3"):
        _core.gather_codes(codes, three[:2], None, out)
    with pytest.raises(ValueError, match=r"modulus must be in 1 \.\. 2147483645, got 0"):
        _core.hashed_int64_rows(np.zeros(3, np.int64), None, 0, 0, out)
    with pytest.raises(ValueError, match="small must hold at least 1 row"):
        _core.bucket_rows(three, None, 0, codes[:0], np.zeros(0, np.int64), out)
    with pytest.raises(ValueError, match="offsets must rise"):
        _core.hashed_string_rows(np.array([0, 4, 2, 7]), np.zeros(7, np.uint8), None, 0, 5, out)


def test_values_numbered_freely() -> None:
    known, rows = ["b", "", "a"], np.array([7, 3, 0], np.int32)
    index, out = _core.StringIndex(*strings(known), rows, 9, 8), np.empty(5, np.int32)

    index.rows(*strings(["a", "b", "", "unseen", "a"]), None, out)
    assert out.tolist() == [0, 7, 3, 8, 0]

    without_empty = _core.StringIndex(*strings(["a"]), rows[:1], 9, 8)
    without_empty.rows(*strings(["a", "", "b"]), (np.array([5], np.uint8), 0), out[:3])
    assert out[:3].tolist() == [7, 9, 8]

    integers = _core.Int64Index(np.array([5, -1, 0]), rows, 9, 8)
    integers.rows(np.array([0, 5, 6]), (np.array([6], np.uint8), 0), out[:3])
    assert out[:3].tolist() == [9, 7, 8]


def test_every_known_value_needs_a_row() -> None:
    with pytest.raises(ValueError, match="rows_of_values must be of 2 values, got 1"):
        _core.StringIndex(*strings(["a", "b"]), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="rows_of_values must be of 1 values, got 2"):
        _core.Int64Index(np.array([1]), np.zeros(2, np.int32))
