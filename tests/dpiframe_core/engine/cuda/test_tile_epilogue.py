"""The epilogue of products, run by 32 threads on the host: ranges that end within four columns or
within a box, rows that lie at any address.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from epilogue_on_host import HostTiles, cuda_headers
from torch_types import TORCH_TYPES

pytestmark = pytest.mark.skipif(cuda_headers() is None, reason="needs the headers of CUDA")
BOUNDS = {"fp16": 1e-3, "tf32": 1e-6}  # of one rounding
ROWS = 37
# Columns of the product, and of the cross layer.
RANGES = (
    (429, 429), (432, 429), (832, 429), (831, 429), (429, 128), (390, 390), (400, 3), (131, 130),
    (64, 64), (832, 432), (7, 5), (300, 0),
)  # fmt: skip


@pytest.mark.parametrize(("precision", "tile_n"), [("fp16", 144), ("fp16", 256), ("tf32", 112)])
def test_columns_of_any_range(precision, tile_n, tmp_path):
    tiles = HostTiles(precision, tile_n, tmp_path)
    generator = torch.Generator().manual_seed(tile_n)
    dtype = TORCH_TYPES[precision]
    for n, cross in RANGES:
        for pad, first, with_head in ((0, True, False), (0, False, True), (3, False, True)):
            stride = -(-n // 64) * 64 + pad

            def rows(values: torch.Tensor, stride: int = stride) -> torch.Tensor:
                view = torch.full((len(values), stride), torch.nan, dtype=dtype)
                view[:, : values.shape[1]] = values
                return view[:, : values.shape[1]]

            def normal(*shape: int) -> torch.Tensor:
                return torch.randn(shape, generator=generator)

            count = -(-n // tile_n)
            sums, bias, head = normal(ROWS, count * tile_n), normal(n), normal(n - n // 2)
            x0 = rows(normal(ROWS, cross))
            xl = x0 if first else rows(normal(ROWS, cross))
            out = rows(torch.full((ROWS, n), torch.nan))
            partial = np.full((count, ROWS), np.nan, np.float32)
            vectors = (bias.numpy(), head.numpy() if with_head else None)
            tiles.run(sums.numpy(), vectors, (x0, xl), out, (cross, n // 2), partial)
            wanted = sums[:, :n].double() + bias
            wanted[:, cross:].clamp_(min=0)
            wanted[:, :cross] = x0.double() * wanted[:, :cross] + xl.double()
            error = (out.double() - wanted).abs() / wanted.abs().clamp_min(1)
            assert error.max() < BOUNDS[precision], (n, cross, pad)
            out[:] = torch.nan
            whole = out.as_strided((ROWS, stride), (stride, 1))
            assert whole.isnan().all(), "written outside its columns"
            if with_head:
                beside_out = partial.copy()
                partial[:] = np.nan
                tiles.run(
                    sums.numpy(), vectors, (x0, xl), out, (cross, n // 2), partial, stored=False
                )
                assert np.allclose(partial, beside_out, rtol=1e-5, atol=1e-5)
                assert whole.isnan().all(), "stored what only the head is wanted of"
                dots = wanted[:, n // 2 :] * head
                away = (torch.from_numpy(partial).double().sum(0) - dots.sum(1)).abs()
                assert (away / dots.abs().sum(1)).max() < 1e-6, (n, cross, pad)
