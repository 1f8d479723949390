"""Compiled epilogues, run by 32 threads on the host: tiles, operands of every kind, edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from epilogue_on_host import HostEpilogue, RowParts, cuda_headers
from torch_types import TORCH_TYPES

pytestmark = pytest.mark.skipif(cuda_headers() is None, reason="needs the headers of CUDA")
MAP = """
struct Map {
  static constexpr int kProducts = 1;
  static constexpr bool kDot = false, kSummed = false, kNormed = false;
  static constexpr int kOperands = 5;
  static constexpr MapOperandKind kind(int operand) {
    constexpr MapOperandKind kinds[] = {MapOperandKind::kRows, MapOperandKind::kFloatRows,
                                        MapOperandKind::kColumns, MapOperandKind::kScalar,
                                        MapOperandKind::kFloatScalar};
    return kinds[operand];
  }
  static constexpr bool aligned(int) { return ALIGNED; }
  static float of(const float (&x)[6]) {
    return x[0] * x[1] + x[2] * x[3] + x[4] * x[5];
  }
};
"""
NONE = """
struct Map {
  static constexpr int kProducts = 1;
  static constexpr bool kDot = false, kSummed = false, kNormed = false;
  static constexpr int kOperands = 0;
  static constexpr MapOperandKind kind(int) { return MapOperandKind::kRows; }
  static constexpr bool aligned(int) { return true; }
  static float of(const float (&x)[1]) { return x[0] < 0.0f ? 0.0f : x[0]; }
};
"""
BOUNDS = {"fp16": 2e-3, "bf16": 2e-2, "tf32": 1e-6, "fp32": 1e-6}


def strided(values: torch.Tensor, stride: int) -> torch.Tensor:
    """A matrix whose rows are so far apart, in NaN."""
    memory = torch.full((len(values) * stride + 64,), torch.nan, dtype=values.dtype)
    view = memory.as_strided(values.shape, (stride, 1))
    view.copy_(values)
    return view


@pytest.mark.parametrize(
    ("precision", "tile_n", "blocks", "aligned"),
    [
        ("fp16", 144, 2, True),
        ("fp16", 144, 2, False),
        ("bf16", 112, 1, True),
        ("fp16", 256, 1, True),
        ("tf32", 128, 2, True),
        ("fp32", 160, 1, True),
        ("fp32", 64, 1, False),
    ],
)
def test_an_epilogue_is_its_formula(precision, tile_n, blocks, aligned, tmp_path):
    generator = torch.Generator().manual_seed(tile_n)
    dtype, bound = TORCH_TYPES[precision], BOUNDS[precision]
    epilogue = HostEpilogue(
        MAP.replace("ALIGNED", str(aligned).lower()), precision, tile_n, blocks, tmp_path
    )
    for n, rows in (
        (tile_n * 2, 300),
        (tile_n * 2 - 3, 128 + 70),
        (tile_n + 5, 128 + 9),
        (tile_n + 5, 90),
    ):
        stride = -(-n // 8) * 8 + (0 if aligned else 3)
        named = [torch.randn(rows, n, generator=generator).to(dtype) for _ in range(2)]
        full = strided(named[0], stride)
        floats = strided(torch.randn(rows, n, generator=generator), stride)
        columns = torch.cat([torch.randn(n, generator=generator), torch.full((8,), torch.nan)])
        scalar = torch.randn(rows, 1, generator=generator).to(dtype)
        single = torch.randn(rows, 1, generator=generator)
        sums = torch.randn(blocks * 16, tile_n, generator=generator)
        bias, scale = torch.randn(tile_n, generator=generator), torch.rand(tile_n)
        out = strided(torch.full((rows, n), torch.nan).to(dtype), stride)
        operands = [(full, stride), (floats, stride), (columns, 0), (scalar, 1), (single, 1)]
        for row, first in ((0, 0), (128, tile_n)):
            out.fill_(torch.nan)
            arrays = [x.numpy() for x in (sums, bias, scale)]
            epilogue.run(*arrays, operands, out, (row, first), (rows, n), aligned)
            here = [row + b * 64 + i for b in range(blocks) for i in range(16)]
            own = [i for i, r in enumerate(here) if r < rows]
            there, end = [here[i] for i in own], min(n, first + tile_n)
            width = end - first
            product = sums[own, :width].double()
            product = product * scale[:width] if precision == "fp32" else product
            product = product + bias[:width]
            wanted = product * full[there, first:end].double()
            wanted += floats[there, first:end].double() * columns[first:end].double()
            wanted += scalar[there].double() * single[there].double()
            found = out[there, first:end].double()
            error = (found - wanted).abs() / wanted.abs().clamp_min(1)
            assert not own or error.max() < bound, (n, rows, row)
            out[there, first:end] = torch.nan
            assert out.isnan().all(), "written outside the tile"


def test_operands_that_are_loaded_ahead(tmp_path):
    generator = torch.Generator().manual_seed(1)
    few = MAP.replace("kOperands = 5", "kOperands = 1").replace("x)[6]", "x)[2]")
    few = few.replace("x[0] * x[1] + x[2] * x[3] + x[4] * x[5]", "x[0] * x[1]")
    epilogue = HostEpilogue(few.replace("ALIGNED", "true"), "fp16", 144, 2, tmp_path)
    for n, rows in ((288, 128), (150, 100)):
        operand = strided(torch.randn(rows, n, generator=generator).half(), -(-n // 8) * 8)
        sums = torch.randn(32, 144, generator=generator)
        out = strided(torch.full((rows, n), torch.nan).half(), operand.stride(0))
        zeros = np.zeros(144, np.float32)
        given = [(operand, operand.stride(0))]
        epilogue.run(sums.numpy(), zeros, zeros, given, out, (0, 144), (rows, n), True)
        here = [i for i in (*range(16), *range(64, 80)) if i < rows]
        wanted = sums[: len(here), : n - 144].double() * operand[here, 144:288].double()
        assert (out[here, 144:288].double() - wanted).abs().max() < 1e-2


def test_an_epilogue_without_operands(tmp_path):
    epilogue = HostEpilogue(NONE, "fp16", 144, 2, tmp_path)
    sums = np.random.default_rng(0).normal(size=(32, 144)).astype(np.float32)
    out = torch.zeros(128, 144, dtype=torch.float16)
    zeros = np.zeros(144, np.float32)
    epilogue.run(sums, zeros, zeros, [], out, (0, 0), (128, 144), True)
    found = torch.cat([out[:16], out[64:80]]).double().numpy()
    assert np.abs(found - np.maximum(sums, 0)).max() < 2e-3


@pytest.mark.parametrize("tile_n", [64, 112, 128, 144, 160, 256])
@pytest.mark.parametrize(
    ("precision", "aligned"), [("fp16", True), ("fp32", True), ("bf16", False)]
)
def test_an_epilogue_of_two_products(precision, tile_n, aligned, tmp_path):
    generator = torch.Generator().manual_seed(tile_n)
    dtype, bound = TORCH_TYPES[precision], BOUNDS[precision]
    gate = MAP.replace("kProducts = 1", "kProducts = 2").replace("x)[6]", "x)[7]")
    gate = gate.replace(
        "x[0] * x[1] + x[2] * x[3] + x[4] * x[5]", "x[0] * x[1] + x[2] * x[3] + x[4]"
    )
    epilogue = HostEpilogue(
        gate.replace("ALIGNED", str(aligned).lower()), precision, tile_n, 2, tmp_path
    )
    half = tile_n // 2  # columns of a tile
    for n, rows in ((tile_n, 300), (tile_n - 3, 128 + 70), (half + 5, 128 + 9), (half + 8, 90)):
        stride = -(-n // 8) * 8 + (0 if aligned else 3)
        full = strided(torch.randn(rows, n, generator=generator).to(dtype), stride)
        floats = strided(torch.randn(rows, n, generator=generator), stride)
        columns = torch.cat([torch.randn(n, generator=generator), torch.full((8,), torch.nan)])
        scalar = torch.randn(rows, 1, generator=generator).to(dtype)
        single = torch.randn(rows, 1, generator=generator)
        operands = [(full, stride), (floats, stride), (columns, 0), (scalar, 1), (single, 1)]
        sums = torch.randn(32, tile_n, generator=generator)
        bias, scale = torch.randn(tile_n, generator=generator), torch.rand(tile_n)
        out = strided(torch.full((rows, n), torch.nan).to(dtype), stride)
        for row, tile in ((0, 0), (128, 1)):
            out.fill_(torch.nan)
            arrays = [x.numpy() for x in (sums, bias, scale)]
            epilogue.run(*arrays, operands, out, (row, tile * tile_n), (rows, n), aligned)
            here = [row + b * 64 + i for b in range(2) for i in range(16)]
            own = [i for i, r in enumerate(here) if r < rows]
            first = tile * half
            there, end = [here[i] for i in own], min(n, first + half)
            products = sums[own].double() * (scale if precision == "fp32" else 1) + bias
            # Eight columns of the one, eight of the other.
            both = products.view(-1, half // 8, 2, 8).transpose(1, 2).reshape(-1, 2, half)
            one, other = both[:, 0, : end - first], both[:, 1, : end - first]
            wanted = (
                one * other + full[there, first:end].double() * floats[there, first:end].double()
            )
            wanted += columns[first:end].double()
            found = out[there, first:end].double()
            error = (found - wanted).abs() / wanted.abs().clamp_min(1)
            assert not own or error.max() < bound, (n, rows, row)
            out[there, first:end] = torch.nan
            assert out.isnan().all(), "written outside the tile"


ROWS = """
struct Map {
  static constexpr int kProducts = 1;
  static constexpr int kOperands = 1;
  static constexpr bool kDot = true, kSummed = SUMMED, kNormed = true;
  static constexpr MapOperandKind kind(int) { return MapOperandKind::kRows; }
  static constexpr bool aligned(int) { return true; }
  // Where there is no row or column, it may be NaN.
  static float of(const float (&x)[4]) {
    return (x[0] - x[2]) * x[3] + x[1] + 0.0f * (1.0f / x[0]);
  }
};
"""


@pytest.mark.parametrize("tile_n", [64, 112, 128, 144, 160, 256])
@pytest.mark.parametrize("summed", [True, False])
def test_sums_of_rows_and_moments_of_others(tile_n, summed, tmp_path):
    epilogue = HostEpilogue(
        ROWS.replace("SUMMED", str(summed).lower()), "fp16", tile_n, 2, tmp_path
    )
    random = np.random.default_rng(tile_n)
    for n, rows in ((tile_n * 2, 300), (tile_n * 2 - 3, 200), (tile_n + 5, 137), (tile_n + 8, 90)):
        operand = strided(torch.from_numpy(random.normal(size=(rows, n))).half(), -(-n // 8) * 8)
        x = random.normal(2, 3, (rows, 40))
        parts = np.split(x, 4, axis=1)
        made = tuple(np.full((2, rows), np.nan, np.float32) for _ in range(3))
        head = np.append(random.normal(size=n), [np.nan] * 8).astype(np.float32)
        read = (np.array([part.sum(1) for part in parts], np.float32),
                np.array([(part**2).sum(1) for part in parts], np.float32))  # fmt: skip
        epilogue.rows = RowParts(head, made, read, 40, 1e-3)
        bias, zeros = random.normal(size=tile_n).astype(np.float32), np.zeros(tile_n, np.float32)
        for row, first in ((0, 0), (128, tile_n)):
            sums = random.normal(size=(32, tile_n)).astype(np.float32)
            out = strided(torch.full((rows, n), torch.nan).half(), operand.stride(0))
            given_x = [(operand, operand.stride(0))]
            epilogue.run(sums, bias, zeros, given_x, out, (row, first), (rows, n), True)
            here = [row + b * 64 + i for b in range(2) for i in range(16)]
            own = [i for i, r in enumerate(here) if r < rows]
            there, end = [here[i] for i in own], min(n, first + tile_n)
            product = sums[own, : end - first].astype(np.float64) + bias[: end - first]
            norm = (product - x[there].mean(1)[:, None]) / np.sqrt(x[there].var(1)[:, None] + 1e-3)
            wanted = norm + operand[there, first:end].double().numpy()
            assert np.abs(out[there, first:end].double().numpy() - wanted).max(initial=0) < 0.02
            expected = [wanted @ head[first:end]]
            expected += [wanted.sum(1), (wanted**2).sum(1)] if summed else []
            for found, right in zip(made, expected, strict=False):
                error = np.abs(found[first // tile_n, there] - right)
                assert (error / np.maximum(1, np.abs(right))).max(initial=0) < 1e-3
                found[first // tile_n, there] = np.nan
            assert all(np.isnan(found).all() for found in made), "written elsewhere"
