"""The CUDA multi-table lookup against float64 on the CPU."""

from __future__ import annotations

import pytest
import torch

from dpiframe_core import _core

ROWS = (7, 1000, 3, 1, 50, 11)
NONE_BAD = 2**63 - 1


class Case:
    """Tables, ids and a poisoned output on the device; expected values in float64 on the CPU."""

    def __init__(
        self,
        batch: int,
        dims: tuple[int, ...],
        dtype: torch.dtype,
        fm_dim: int,
        values: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = [ROWS[f % len(ROWS)] for f in range(len(dims))]
        self.tables = [
            torch.randn(r, d, generator=generator).to("cuda", values)
            for r, d in zip(rows, dims, strict=True)
        ]
        self.weights = [torch.randn(r, generator=generator).cuda() for r in rows]
        self.columns = [sum(dims[:f]) for f in range(len(dims) + 1)]
        self.in_fm = [d == fm_dim for d in dims]
        self.ids = torch.stack(
            [torch.randint(0, r, (batch,), generator=generator) for r in rows]
        ).to(dtype)
        width = -(-self.columns[-1] // 8) * 8 + 8
        self.out = torch.full((batch, width), torch.nan, device="cuda", dtype=values)
        self.fm = torch.full((batch,), torch.nan, device="cuda")
        self.wide = torch.full((batch,), torch.nan, device="cuda")
        self.report = torch.tensor([0] * len(dims) + [NONE_BAD], device="cuda")

    def run(self, oov_row: int = -1, stream: int = 0) -> list[int]:
        fields = [
            _core.CudaLookupField(t, c, wide=w, in_fm=fm, oov_row=oov_row)
            for t, c, w, fm in zip(
                self.tables, self.columns, self.weights, self.in_fm, strict=False
            )
        ]
        lookup = _core.CudaMultiTableLookup(fields)
        fm = self.fm if any(self.in_fm) else None
        torch.cuda.synchronize()
        lookup.run(
            self.ids.cuda(), self.out, self.report, oov_row >= 0, fm, self.wide, stream=stream
        )
        torch.cuda.synchronize()
        return self.report.tolist()

    def check(self, oov_row: int = -1) -> None:
        rows = [self._rows(t, i, oov_row) for t, i in zip(self.tables, self.ids, strict=True)]
        wide = [
            self._rows(w[:, None], i, oov_row) for w, i in zip(self.weights, self.ids, strict=True)
        ]
        width = self.columns[-1]
        assert torch.equal(self.out[:, :width].cpu().double(), torch.cat(rows, dim=1))
        assert self.out[:, width:].isnan().all()
        # A few float32 roundings for 40 terms of size 1.
        expected = torch.stack(wide).sum(0)[:, 0]
        atol = 1e-5 * max(1, len(rows) / 40)
        torch.testing.assert_close(self.wide.cpu().double(), expected, rtol=1e-5, atol=atol)
        if any(self.in_fm):
            v = torch.stack([r for r, fm in zip(rows, self.in_fm, strict=True) if fm])
            fm = 0.5 * (v.sum(0) ** 2 - (v**2).sum(0)).sum(1)
            # fp32 sums in double. 16-bit tables sum in float32, and the two sums cancel: what is
            # rounded is as large as either of them.
            scale = fm.abs().clamp(min=1)
            if self.out.dtype != torch.float32:
                scale = scale.clamp(min=0.1 * (v.sum(0) ** 2).sum(1).max().item())
            assert ((self.fm.cpu().double() - fm).abs() <= 1e-5 * scale).all()

    @staticmethod
    def _rows(table: torch.Tensor, ids: torch.Tensor, oov_row: int) -> torch.Tensor:
        wide = table.cpu().double()
        good = (ids >= 0) & (ids < len(table))
        fallback = wide[oov_row] if oov_row >= 0 else torch.zeros(table.shape[1]).double()
        return torch.where(good[:, None], wide[torch.where(good, ids, 0).long()], fallback)


@pytest.mark.parametrize("batch", [0, 1, 19, 111, 4097, 17001])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "dims",
    [
        (16,) * 39,
        (1, 10, 16, 64, 10, 3),
        (10,) * 9,
        (64, 256, 64),
        (4, 8, 32) * 5,
        (16,) * 700,
        (4,),
        (1,) * 4096,
    ],
)
def test_equals_float64(batch: int, dtype: torch.dtype, dims: tuple[int, ...]) -> None:
    if batch * len(dims) > 10**6:
        pytest.skip("large for a test")
    case = Case(batch, dims, dtype, fm_dim=dims[-1])
    assert case.run() == [0] * len(dims) + [NONE_BAD]
    case.check()


@pytest.mark.parametrize(
    "dims", [(16,) * 39, (1, 10, 16), (2, 6, 10, 8), (8, 264), (20,) * 19, (4, 12, 28, 12)]
)
def test_16_bits_equal_float64(dims: tuple[int, ...]) -> None:
    case = Case(111, dims, torch.int32, fm_dim=dims[-1], values=torch.float16)
    assert case.run() == [0] * len(dims) + [NONE_BAD]
    case.check()


@pytest.mark.parametrize("batch", [1, 19, 111, 1024, 2048, 4097])
@pytest.mark.parametrize("values", [torch.float32, torch.float16])
@pytest.mark.parametrize("dims", [(32,) * 200, (128,) * 39, (10,) * 200, (4, 8, 32) * 30])
def test_many_fields_whose_copies_teams_share(
    batch: int, values: torch.dtype, dims: tuple[int, ...]
) -> None:
    # Without FM, whose sums are one team's.
    case = Case(batch, dims, torch.int32, fm_dim=0, values=values)
    assert case.run() == [0] * len(dims) + [NONE_BAD]
    case.check()


@pytest.mark.parametrize("dim", [16, 17])
def test_tables_of_more_than_2_to_the_31_elements(dim: int) -> None:
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GB of free device memory")
    rows = 2**27 + 3
    ids = torch.tensor([0, 2**31 // dim, rows - 2, rows, rows - 1, 1], dtype=torch.int32)
    good = [0, 1, 2, 4, 5]
    expected = torch.zeros(len(ids), dim, dtype=torch.float16)
    expected[good] = torch.randn(len(good), dim).half()
    table = torch.full((rows, dim), torch.nan, dtype=torch.float16, device="cuda")
    for k in good:
        table[ids[k].item()] = expected[k].cuda()
    out = torch.full((len(ids), dim), torch.nan, dtype=torch.float16, device="cuda")
    report = torch.tensor([0, NONE_BAD], device="cuda")
    lookup = _core.CudaMultiTableLookup([_core.CudaLookupField(table, 0)])
    torch.cuda.synchronize()
    lookup.run(ids[None].cuda(), out, report)
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), expected)
    assert report.tolist() == [1, 3]


@pytest.mark.parametrize("oov_row", [-1, 0])
@pytest.mark.parametrize("dims", [(16, 16, 16, 16), (16, 10, 16, 1)])
def test_bad_ids_are_counted_and_never_read(oov_row: int, dims: tuple[int, ...]) -> None:
    case = Case(111, dims, torch.int64, fm_dim=16)
    case.ids[0, [5, 50]] = torch.tensor([7, -1])
    case.ids[1, [4, 5]] = torch.tensor([2**62, -(2**63)])
    case.ids[2, 110] = -(2**31)
    assert case.run(oov_row) == [2, 2, 1, 0, 4 * 4 + 1]
    case.check(oov_row)


def test_on_another_stream_and_unaligned() -> None:
    case = Case(111, (16,) * 9, torch.int32, fm_dim=16)
    case.out = torch.full((111 * 149 + 1,), torch.nan, device="cuda")[1:].view(111, 149)
    case.run(stream=torch.cuda.Stream().cuda_stream)
    case.check()


def test_the_same_bits_every_time() -> None:
    case = Case(1025, (16,) * 39, torch.int32, fm_dim=16)
    case.run()
    first = case.out.clone(), case.fm.clone(), case.wide.clone()
    case.run()
    assert torch.equal(first[1], case.fm)
    assert torch.equal(first[2], case.wide)


def test_sums_do_not_depend_on_the_batch() -> None:
    large = Case(17001, (16,) * 39, torch.int32, fm_dim=16)
    large.run()
    small = Case(100, (16,) * 39, torch.int32, fm_dim=16)
    small.tables, small.weights, small.ids = large.tables, large.weights, large.ids[:, :100]
    small.run()
    assert torch.equal(small.fm, large.fm[:100])
    assert torch.equal(small.wide, large.wide[:100])


def test_fault_of_the_caller() -> None:
    case = Case(19, (16, 16), torch.int32, fm_dim=16)
    case.out = case.out[:, :31]
    with pytest.raises(ValueError, match=r"out must be \[19, at least 32\], got \[19, 31\]"):
        case.run()
    with pytest.raises(ValueError, match="table must be an array on a CUDA device"):
        _core.CudaLookupField(torch.zeros(3, 4), 0)
