"""XXH64 against published values and against a plain reading of its specification.

The compiled hash shows in rows alone: 2 + hash mod modulus.
"""

from __future__ import annotations

import numpy as np
import pytest
from xxh64_reference import xxh64

from dpiframe_core import _core

MODULI = [2**31 - 3, 2**31 - 4]  # without a common divisor: together they tell 62 bits


def rows_of(values: list[bytes], seed: int, modulus: int, dtype: type = np.int32) -> list[int]:
    offsets = np.cumsum([0, *map(len, values)]).astype(dtype)
    out = np.empty(len(values), np.int32)
    data = np.frombuffer(b"".join(values), np.uint8)
    _core.hashed_string_rows(offsets, data, None, seed, modulus, out)
    return out.tolist()


# The first values of the reference implementation's own self-test and of its documentation.
@pytest.mark.parametrize("modulus", MODULI)
@pytest.mark.parametrize(
    ("value", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"", 0x9E3779B1, 0xAC75FDA2929B17EF),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_published_values(value: bytes, seed: int, expected: int, modulus: int) -> None:
    assert xxh64(value, seed) == expected
    if value:  # the empty string is a missing value
        assert rows_of([value], seed, modulus) == [2 + expected % modulus]


@pytest.mark.parametrize("modulus", MODULI)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_every_length(dtype: type, seed: int, modulus: int) -> None:
    rng = np.random.default_rng(0)
    values = [rng.bytes(n) for n in [*range(1, 101), 1000]]
    assert rows_of(values, seed, modulus, dtype) == [2 + xxh64(v, seed) % modulus for v in values]


@pytest.mark.parametrize("modulus", MODULI)
def test_int64_hashes_its_little_endian_bytes(modulus: int) -> None:
    values = np.array([0, 1, -1, 2**63 - 1, -(2**63), 111], np.int64)
    expected = [xxh64(int(v).to_bytes(8, "little", signed=True), 19) for v in values]
    out = np.empty(len(values), np.int32)
    _core.hashed_int64_rows(values, None, 19, modulus, out)
    assert out.tolist() == [2 + h % modulus for h in expected]


def test_offsets_of_a_slice() -> None:
    data, out = np.frombuffer(b"xxaabbb", np.uint8), np.empty(2, np.int32)
    _core.hashed_string_rows(np.array([2, 4, 7], np.int32), data, None, 0, 111, out)
    assert out.tolist() == [2 + xxh64(b"aa", 0) % 111, 2 + xxh64(b"bbb", 0) % 111]


@pytest.mark.parametrize("offsets", [[0, 8], [-1, 3], [0, 4, 2, 7], [0, 2**30, 7]])
def test_offsets_outside_the_data(offsets: list[int]) -> None:
    out = np.empty(len(offsets) - 1, np.int32)
    with pytest.raises(ValueError, match="offsets must rise from >= 0 to <= 7"):
        _core.hashed_string_rows(
            np.array(offsets, np.int32), np.zeros(7, np.uint8), None, 0, 5, out
        )
