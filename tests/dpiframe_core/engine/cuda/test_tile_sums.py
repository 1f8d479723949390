"""Products whose rows are summed as they are made, in generated kernels: pairs of fields with a
matrix each, attention over pairs, a sample's own products.
"""

from __future__ import annotations

import pytest
import torch
from tile_on_host import largest_error
from torch import Tensor, nn

from dpiframe_core import from_torch
from dpiframe_core.engine.cuda.tile.grouping import TileGroup, group_steps
from dpiframe_core.lowering import COMPILED_PASSES, lower
from dpiframe_core.program.program import Program

BOUNDS = {"fp32": 1e-5, "fp16": 6e-3, "bf16": 6e-2}
FIELDS = 12


class Pairs(nn.Module):
    """Numbers of pairs of fields, then a linear layer."""

    def __init__(self, dim: int = 16, numbers: int | None = None) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, dim) for _ in range(FIELDS))
        self.i, self.j = torch.triu_indices(FIELDS, FIELDS, 1).tolist()
        self.out = nn.Linear((numbers or len(self.i)) + 3, 1)

    def example_inputs(self) -> tuple[Tensor]:
        return (torch.zeros(2, FIELDS, dtype=torch.long),)

    def matrices(self, columns: int) -> nn.Parameter:
        dim = self.tables[0].embedding_dim
        return nn.Parameter(torch.randn(len(self.i), dim, columns) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.stack([table(x[:, k]) for k, table in enumerate(self.tables)], 1)
        return self.out(torch.cat([self.numbers(e), e[:, 0, :3]], 1))


class Sums(Pairs):
    def __init__(self) -> None:
        super().__init__()
        self.w = self.matrices(16)

    def numbers(self, e: Tensor) -> Tensor:
        return (torch.einsum("bpd,pde->bpe", e[:, self.i], self.w) * e[:, self.j]).sum(-1)


class OddSums(Pairs):
    """Columns that fill no tile; the sums are mapped."""

    def __init__(self) -> None:
        super().__init__(dim=9)
        self.w = self.matrices(9)

    def numbers(self, e: Tensor) -> Tensor:
        made = torch.einsum("bpd,pde->bpe", e[:, self.i], self.w) * e[:, self.j]
        return torch.tanh(0.5 * made.sum(-1))


class Means(Pairs):
    def __init__(self) -> None:
        super().__init__()
        self.w = self.matrices(16)

    def numbers(self, e: Tensor) -> Tensor:
        return (torch.einsum("bpd,pde->bpe", e[:, self.i], self.w) * e[:, self.j]).mean(-1).relu()


class Dots(Pairs):
    """Of three tiles of columns, the last one half empty."""

    def __init__(self) -> None:
        super().__init__(dim=24)
        self.w, self.h = self.matrices(40), nn.Parameter(torch.randn(40))

    def numbers(self, e: Tensor) -> Tensor:
        v = e[:, self.i] * e[:, self.j]
        return torch.einsum("bpd,pde->bpe", v, self.w).relu() @ self.h


class Attention(Pairs):
    """AFM's: one matrix for all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.h = nn.Linear(16, 16), nn.Linear(16, 1, bias=False)

    def numbers(self, e: Tensor) -> Tensor:
        v = e[:, self.i] * e[:, self.j]
        return self.h(self.w(v).relu()).squeeze(-1).softmax(1) * v.sum(-1)


class WideAttention(Attention):
    """Its matrix lies in shared memory; on Hopper warpgroups multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.h = nn.Linear(16, 36), nn.Linear(36, 1, bias=False)


class Totals(Sums):
    """Summed over pairs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1 + 3, 1)

    def numbers(self, e: Tensor) -> Tensor:
        made = torch.einsum("bpd,pde->bpe", e[:, self.i], self.w) * e[:, self.j]
        return made.sum((1, 2)).unsqueeze(1)


class OwnProducts(Pairs):
    """No operand is constant; the dot's other vector is the sample's, too."""

    def __init__(self) -> None:
        super().__init__(numbers=FIELDS)

    def numbers(self, e: Tensor) -> Tensor:
        return ((e @ e.transpose(1, 2)).relu() * e[:, :, 0].unsqueeze(1)).sum(-1)


KINDS = [Sums, OddSums, Means, Dots, Attention, WideAttention, Totals, OwnProducts]


def grouped(kind: type[Pairs], precision: str) -> tuple[Program, TileGroup]:
    torch.manual_seed(0)
    model = kind().eval()
    imported = from_torch(model, model.example_inputs(), precisions=())
    program = group_steps(lower(imported.spec, imported.weights, COMPILED_PASSES), precision)
    (group,) = (step for step in program.steps if isinstance(step, TileGroup))
    return program, group


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("precision", "order"),
    [("fp32", "descending"), ("fp16", "ascending"), ("bf16", None)],
)
def test_rows_of_a_product_are_summed_as_they_are_made(kind, precision, order, tmp_path):
    program, group = grouped(kind, precision)
    kernel = group.generate(program, program.float_buffers(), precision)
    assert kernel.source.count("return summed(") == 1
    warpgroups = order == "ascending"
    error = largest_error(
        program, group, precision, 37, tmp_path, emulated=order, warpgroups=warpgroups
    )
    assert error < BOUNDS[precision]


def test_what_is_summed_takes_no_shared_memory():
    program, group = grouped(Sums, "fp16")
    kernel = group.generate(program, program.float_buffers(), "fp16")
    fields, sums = FIELDS * 16, len(Pairs().i)
    assert kernel.samples == 32
    assert kernel.shared_bytes < 2 * 32 * 2 * (fields + sums)


class OuterThenLayers(Sums):
    """Sums that leave the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(len(self.i) + 3, 600), nn.ReLU(), nn.Linear(600, 1))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_sums_leave_the_kernel_side_by_side(precision, tmp_path):
    program, group = grouped(OuterThenLayers, precision)
    source = group.generate(program, program.float_buffers(), precision).source
    (sums,) = (
        line for line in source.splitlines() if "bool exists) {" in line and "store(" in line
    )
    assert "store(s" in sums
    assert "store(g" not in sums
    assert largest_error(program, group, precision, 37, tmp_path, emulated="ascending") < 6e-3


class FewRows(Pairs):
    """A row a sample, which two warps' tiles hold."""

    def __init__(self) -> None:
        super().__init__(numbers=1)
        self.w, self.h = nn.Linear(16, 64), nn.Linear(64, 1)

    def numbers(self, e: Tensor) -> Tensor:
        return torch.tanh(self.h(self.w(e.mean(1)).relu()))


def test_a_product_of_few_rows_shares_its_columns_among_warps():
    program, group = grouped(FewRows, "fp16")
    source = group.generate(program, program.float_buffers(), "fp16").source
    assert "multiply" in source
    assert "summed(" not in source
