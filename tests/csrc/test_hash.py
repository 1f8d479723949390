"""XXH64 against published values and against a plain reading of its specification."""

from __future__ import annotations

import numpy as np
import pytest
from xxh64_reference import xxh64

from dpiframe_core import _core


def hash_all(values: list[bytes], seed: int, dtype: type = np.int32) -> list[int]:
    offsets = np.cumsum([0, *map(len, values)]).astype(dtype)
    return _core.xxh64_strings(offsets, np.frombuffer(b"".join(values), np.uint8), seed).tolist()


# The first values of the reference implementation's own self-test and of its documentation.
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
def test_published_values(value: bytes, seed: int, expected: int) -> None:
    assert hash_all([value], seed) == [expected]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_every_length(dtype: type, seed: int) -> None:
    rng = np.random.default_rng(0)
    values = [rng.bytes(n) for n in [*range(101), 1000]]
    assert hash_all(values, seed, dtype) == [xxh64(v, seed) for v in values]


def test_int64_hashes_its_little_endian_bytes() -> None:
    values = np.array([0, 1, -1, 2**63 - 1, -(2**63), 111], np.int64)
    expected = [xxh64(int(v).to_bytes(8, "little", signed=True), 19) for v in values]
    assert _core.xxh64_int64(values, 19).tolist() == expected


def test_offsets_of_a_slice() -> None:
    data = np.frombuffer(b"xxaabbb", np.uint8)
    hashes = _core.xxh64_strings(np.array([2, 4, 7], np.int32), data, 0)
    assert hashes.tolist() == [xxh64(b"aa", 0), xxh64(b"bbb", 0)]


def test_no_values() -> None:
    assert hash_all([], 0) == []
    assert _core.xxh64_int64(np.zeros(0, np.int64), 0).tolist() == []


@pytest.mark.parametrize("offsets", [[0, 8], [-1, 3], [0, 4, 2, 7], [0, 2**30, 7]])
def test_offsets_outside_the_data(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets must rise from >= 0 to <= 7"):
        _core.xxh64_strings(np.array(offsets, np.int32), np.zeros(7, np.uint8), 0)
