"""Packing: ids in the form in which they travel to a device, whatever their type and layout."""

from __future__ import annotations

import numpy as np
import pytest

from dpiframe_core import _core

VALUES = [0, 1, 19, 2**31 - 1, -1, -7, 2**31, 2**32 - 1, 2**32, 2**40, -(2**31) - 1, -(2**63)]
# Of one thread alone, and of several over parts of columns.
SIZES = [(1, 1), (3, 19), (7, 1111), (3, 50_000), (39, 16_385)]


def random_ids(shape: tuple[int, int], dtype: type) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**31, shape).astype(dtype)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("threads", [1, 3])
def test_ids_of_any_type_and_layout_are_packed(shape, dtype, threads):
    ids = random_ids(shape, dtype)
    shifted = np.zeros(ids.nbytes + 1, np.uint8)[1:].view(dtype).reshape(shape)
    shifted[:] = ids
    forms = [
        ids,
        list(ids),
        np.asfortranarray(ids),
        np.repeat(ids, 2, axis=1)[:, ::2],
        [c.astype(np.int64) if i % 2 else c for i, c in enumerate(ids)],
        shifted,  # its numbers lie across the boundaries that processors like
    ]
    for form in forms:
        for to_int64, wanted in ((False, np.int32), (True, np.int64)):
            packed = _core.pack_ids(form, to_int64, threads)
            assert packed.dtype == wanted
            np.testing.assert_array_equal(packed, ids)


def test_an_id_that_32_bits_cannot_hold_becomes_negative():
    ids = np.tile(np.array(VALUES, np.int64), (2, 3))
    inside = (ids >= 0) & (ids < 2**31)
    for form in (ids, np.asfortranarray(ids)):
        packed = _core.pack_ids(form, num_threads=1)
        np.testing.assert_array_equal(packed[inside], ids[inside])
        assert (packed[~inside] < 0).all()


def test_wrong_ids_are_named():
    ids = np.zeros((2, 3), np.int64)
    for bad, message in [
        (ids.astype(np.float32), r"int32 or int64 \[F, B\], got float32 \[2, 3\]"),
        (ids[None], r"got int64 \[1, 2, 3\]"),
        ([ids[0], ids[1, :2]], "ids must have one length, got 2 and 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.pack_ids(bad)
