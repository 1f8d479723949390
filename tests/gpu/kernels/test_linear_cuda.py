"""The product and its epilogue on the GPU against float64: shapes, views, ranges, magnitudes."""

from __future__ import annotations

import pytest
import torch
from torch_types import TORCH_TYPES

from dpiframe_core import _core

# Largest error over |x| |w| + |b| of its row and column: 24, 11, 11 and 8 bits, of which the last
# two also round the result.
BOUNDS = {"fp32": 1e-6, "tf32": 1e-3, "fp16": 2e-3, "bf16": 1.6e-2}
# Also one, two and three chunks of k: fp32's loop takes two at a time; long k, which CTAs share.
SHAPES = (
    (1, 1, 1),
    (19, 13, 7),
    (111, 152, 40),
    (130, 97, 70),
    (300, 404, 624),
    (1111, 1024, 624),
    (64, 400, 400),
    (300, 200, 4200),
    (1000, 520, 4104),
)


def _view(rows: int, columns: int, stride: int, offset: int, values: torch.Tensor | None, dtype):
    """A matrix inside a buffer of NaN, and the buffer."""
    buffer = torch.full((rows * stride + offset + 64,), float("nan"), dtype=dtype, device="cuda")
    view = buffer.as_strided((rows, columns), (stride, 1), offset)
    if values is not None:
        view.copy_(values)
    return view, buffer


class Case:
    """Inputs with every element outside them NaN, the call, and float64's answer."""

    def __init__(self, precision, shape, *, pad=0, offset=0, cross=0, scale=0, tiles=None) -> None:
        rows, n, k = shape
        generator = torch.Generator("cuda").manual_seed(rows + n + k)
        dtype = TORCH_TYPES[precision]

        def normal(*shape, spread=0):
            values = torch.randn(shape, generator=generator, device="cuda")
            exponents = torch.randint(
                -spread, spread + 1, (shape[0], 1), generator=generator, device="cuda"
            )
            return values * 10.0 ** exponents.float() if spread else values

        def stride(columns):
            return (columns + 7) // 8 * 8 + pad

        self.precision, self.rows, self.n, self.k = precision, rows, n, k
        self.cross, self.relu, self.head = cross, (n // 3, n), (n // 2, n)
        self.x, _ = _view(rows, k, stride(k), offset, normal(rows, k, spread=scale), dtype)
        self.x0, _ = _view(rows, n, stride(n), offset, normal(rows, n), dtype)
        self.xl, _ = _view(rows, n, stride(n), offset, normal(rows, n), dtype)
        self.out, self.buffer = _view(rows, n, stride(n), offset, None, dtype)
        self.w = (normal(n, k, spread=scale // 2) / k**0.5).to(dtype).float()
        self.bias = normal(n)
        self.weights = normal(n - self.head[0])
        self.tiles = tiles
        parts = -(-n // tiles.tile_n) if tiles else _core.head_partials(precision, rows, n, k)
        self.partial = torch.full((parts, rows + 3), float("nan"), device="cuda")

    def run(self) -> None:
        bytes_ = _core.prepared_weight_bytes(self.precision, self.n, self.k)
        prepared = torch.full((bytes_,), 255, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        address = prepared.data_ptr()
        _core.prepare_linear_weight(
            self.precision, self.w.data_ptr(), self.n, self.k, address, stream
        )
        torch.cuda.synchronize()  # products read a part of it before the kernels ahead have ended
        params = _core.LinearParams()
        params.rows, params.n, params.k, params.w = self.rows, self.n, self.k, address
        params.x, params.ldx = self.x.data_ptr(), self.x.stride(0)
        params.x0, params.ldx0 = self.x0.data_ptr(), self.x0.stride(0)
        params.xl, params.ldxl = self.xl.data_ptr(), self.xl.stride(0)
        params.out, params.ldo = self.out.data_ptr(), self.out.stride(0)
        params.bias, params.head = self.bias.data_ptr(), self.weights.data_ptr()
        params.relu_begin, params.relu_end = self.relu
        params.cross_end = self.cross
        params.head_begin, params.head_end = self.head
        params.head_partial, params.ld_partial = self.partial.data_ptr(), self.partial.stride(0)
        _core.linear(self.precision, params, stream, self.tiles)
        torch.cuda.synchronize()

    def check(self) -> None:
        y = self.x.double() @ self.w.double().t() + self.bias
        size = self.x.double().norm(dim=1)[:, None] * self.w.double().norm(dim=1) + self.bias.abs()
        y[:, self.relu[0] :] = y[:, self.relu[0] :].clamp(min=0)
        x0, xl = self.x0.double()[:, : self.cross], self.xl.double()[:, : self.cross]
        y[:, : self.cross] = x0 * y[:, : self.cross] + xl
        size[:, : self.cross] = x0.abs() * size[:, : self.cross] + xl.abs()
        bound = BOUNDS[self.precision]
        assert ((self.out - y).abs() / size).max().item() < bound
        head = self.partial[:, : self.rows].double().sum(0)
        head_size = size[:, self.head[0] :] @ self.weights.double().abs()
        expected = y[:, self.head[0] :] @ self.weights.double()
        assert ((head - expected).abs() / head_size).max().item() < bound
        self.out.fill_(float("nan"))
        assert self.buffer.isnan().all(), "wrote outside its columns"
        assert self.partial[:, self.rows :].isnan().all()


@pytest.mark.parametrize("precision", TORCH_TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_float64(precision, shape):
    case = Case(precision, shape)
    case.run()
    case.check()


@pytest.mark.parametrize("precision", TORCH_TYPES)
@pytest.mark.parametrize(("pad", "offset", "cross"), [(8, 8, 128), (8, 0, 404), (1, 3, 131)])
def test_views_and_cross(precision, pad, offset, cross):
    case = Case(precision, (333, 404, 624), pad=pad, offset=offset, cross=cross)
    case.run()
    case.check()


# n or the cross range ends within four columns, which are finished one by one.
@pytest.mark.parametrize("precision", TORCH_TYPES)
@pytest.mark.parametrize(
    ("n", "cross"), [(429, 429), (429, 128), (390, 390), (131, 0), (3, 3), (432, 429), (832, 429)]
)
def test_columns_that_end_within_four(precision, n, cross):
    case = Case(precision, (333, n, 429), cross=cross)
    case.run()
    case.check()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_rows_of_any_magnitude(precision):
    case = Case(precision, (500, 624, 624), scale=12)
    case.run()
    case.check()


@pytest.mark.parametrize("precision", TORCH_TYPES)
def test_many_tiles_a_block(precision):
    case = Case(precision, (33001, 640, 400), cross=640)
    case.run()
    case.check()


# Tens of tiles a CTA in every configuration; k of one k tile and of several.
@pytest.mark.parametrize("precision", TORCH_TYPES)
def test_many_tiles_in_every_configuration(precision):
    for tiles in _core.all_linear_configs(precision):
        for k in (30, 200):
            case = Case(precision, (99_001, 4 * tiles.tile_n + 23, k), tiles=tiles)
            case.run()
            case.check()


# CTAs of a cluster share a tile, each with a part of k; the last part may be shorter.
@pytest.mark.parametrize("precision", TORCH_TYPES)
@pytest.mark.parametrize("split", [2, 4, 8])
def test_split_k(precision, split):
    for whole in _core.all_linear_configs(precision):
        if whole.in_turn or split * 16 > whole.rows:
            continue
        tiles = _core.LinearConfig(whole.tile_n, False, split, whole.rows)
        for rows, n, k, cross in ((1, 1, 640, 0), (300, 404, 650, 404), (1111, 264, 2056, 120)):
            case = Case(precision, (rows, n, k), cross=cross, tiles=tiles)
            same = list(range(0, rows, 17))  # of all warps: a sample has its bits in whatever row
            for rows_of in (case.x, case.x0, case.xl):
                rows_of[same] = rows_of[0].clone()
            case.run()
            assert (case.out[same] == case.out[0]).all()
            first = case.out.clone(), case.partial[:, :rows].clone()
            case.run()
            assert torch.equal(first[0], case.out)
            assert torch.equal(first[1], case.partial[:, :rows])
            case.check()


def test_what_cannot_be_split_is_refused():
    refused = ((128, True, 2, 128), (64, False, 3, 128), (64, False, 8, 128), (64, False, 8, 64))
    for tiles in refused:
        with pytest.raises(ValueError, match="can't be split"):
            Case("fp16", (100, 64, 200), tiles=_core.LinearConfig(*tiles)).run()


@pytest.mark.parametrize("precision", TORCH_TYPES)
def test_the_same_bits_every_time(precision):
    case = Case(precision, (5000, 400, 624))
    case.run()
    first = case.out.clone(), case.partial[:, :5000].clone()
    case.run()
    assert torch.equal(first[0], case.out)
    assert torch.equal(first[1], case.partial[:, :5000])
