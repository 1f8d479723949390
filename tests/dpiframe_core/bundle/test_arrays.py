"""Weights mapped from a bundle's file: what torch reads from it, bit for bit, without a copy."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import safetensors.torch
import torch

from dpiframe_core.bundle.arrays import map_arrays

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
TYPES += [torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES = [(1,), (3, 0), (7, 19), (2, 3, 5)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_floating_type_is_read_as_torch_reads_it(tmp_path, dtype, shape):
    generator = torch.Generator().manual_seed(1)
    weights = {n: torch.randn(shape, generator=generator).to(dtype) for n in ("a/b", "ü")}
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file(weights, file, metadata={"made": "by a test"})
    found = map_arrays(file)
    assert set(found) == set(weights)
    wanted = torch.float64 if dtype is torch.float64 else torch.float32
    for name, weight in weights.items():
        assert found[name].dtype == (np.float64 if dtype is torch.float64 else np.float32)
        torch.testing.assert_close(torch.from_numpy(found[name]), weight.to(wanted), rtol=0, atol=0)


def test_every_half_is_widened_exactly(tmp_path):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    weights = {"half": bits.view(torch.float16), "brain": bits.clone().view(torch.bfloat16)}
    safetensors.torch.save_file(weights, tmp_path / "w")
    for name, found in map_arrays(tmp_path / "w").items():
        wide = weights[name].float().numpy()
        numbers = ~np.isnan(wide)
        np.testing.assert_array_equal(np.isnan(found), ~numbers)
        np.testing.assert_array_equal(found.view(np.int32)[numbers], wide.view(np.int32)[numbers])


def test_full_types_are_not_copied_and_the_file_keeps_what_it_holds(tmp_path):
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"a": torch.ones(3, 5), "b": torch.ones(7).double()}, file)
    before = file.read_bytes()
    first, second = map_arrays(file), map_arrays(file)
    for array in first.values():
        assert array.base is not None and not array.flags.owndata and array.flags.writeable
        array += 1
    assert file.read_bytes() == before
    for array in second.values():
        np.testing.assert_array_equal(array, 1)


def test_weights_that_begin_anywhere_are_read(tmp_path):
    header = {"half": [2, 0, 2], "full": [4, 2, 10]}
    entries = {
        name: {
            "dtype": f"F{8 * size}",
            "shape": [(stop - start) // size],
            "data_offsets": [start, stop],
        }
        for name, (size, start, stop) in header.items()
    }
    text = json.dumps(entries).encode()
    data = np.array([1.5], "<f2").tobytes() + np.array([2.5, -3.5], "<f4").tobytes()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(text)) + text + data)
    found = map_arrays(tmp_path / "w")
    np.testing.assert_array_equal(found["half"], [1.5])
    np.testing.assert_array_equal(found["full"], [2.5, -3.5])
    assert found["full"].flags.aligned
