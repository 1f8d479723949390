"""Rows that are picked for pairs, in generated kernels: found where they are read, while columns
that are picked of each row lie in shared memory.
"""

from __future__ import annotations

import pytest
import torch
from tile_on_host import largest_error
from torch import Tensor, nn

from dpiframe_core import from_torch
from dpiframe_core.engine.cuda.tile.grouping import TileGroup, group_steps
from dpiframe_core.engine.cuda.tile.stages import Stages
from dpiframe_core.engine.translation import Operation
from dpiframe_core.lowering import COMPILED_PASSES, lower
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import TensorStep
from dpiframe_core.program.tensor_ops import MatMul, Operand, Reduce, Take
from dpiframe_core.program.views import View

BOUNDS = {"fp32": 1e-5, "fp16": 6e-3}
FIELDS, DIM = 20, 16
PAIRS = FIELDS * (FIELDS - 1) // 2


class Rolls(nn.Module):
    """Circular correlation of pairs: dots of rows with rolled rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, DIM) for _ in range(FIELDS))
        self.i, self.j = torch.triu_indices(FIELDS, FIELDS, 1).tolist()
        self.out = nn.Linear(PAIRS * DIM, 1)

    def example_inputs(self) -> tuple[Tensor]:
        return (torch.zeros(2, FIELDS, dtype=torch.long),)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.stack([table(x[:, k]) for k, table in enumerate(self.tables)], 1)
        return self.out(self.pairs(e[:, self.i], e[:, self.j]).flatten(1))

    def pairs(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.stack([(p * q.roll(-k, 2)).sum(2) for k in range(DIM)], 2)


class Largest(Rolls):
    """Sums that are no dots: rows are picked for each, rolled ones from shared memory."""

    def pairs(self, p: Tensor, q: Tensor) -> Tensor:
        return torch.stack([(p * q.roll(-k, 2)).amax(2) for k in range(DIM)], 2)


class Layers(Rolls):
    """Both rows of each pair through the same layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, 24), nn.ReLU(), nn.Linear(24, DIM))

    def pairs(self, p: Tensor, q: Tensor) -> Tensor:
        return self.layers(p) * self.layers(q)


def grouped(kind: type[Rolls], precision: str) -> tuple[Program, TileGroup]:
    torch.manual_seed(1)
    model = kind().eval()
    imported = from_torch(model, model.example_inputs(), precisions=())
    program = group_steps(lower(imported.spec, imported.weights, COMPILED_PASSES), precision)
    (group,) = [step for step in program.steps if isinstance(step, TileGroup)]
    return program, group


def ops(group: TileGroup, kind: type) -> list[TensorStep]:  # type: ignore[type-arg]
    return [s for s in group.parts if isinstance(s, TensorStep) and isinstance(s.op, kind)]


@pytest.mark.parametrize("kind", [Rolls, Largest, Layers])
@pytest.mark.parametrize(
    ("precision", "order"), [("fp32", "ascending"), ("fp16", "descending"), ("fp16", None)]
)
def test_pairs_are_as_in_float64(kind, precision, order, tmp_path):
    program, group = grouped(kind, precision)
    error = largest_error(program, group, precision, 37, tmp_path, emulated=order)
    assert error < BOUNDS[precision]


def test_dots_with_rolled_rows_are_products():
    _, group = grouped(Rolls, "fp16")
    assert sum(s.out.width == FIELDS * FIELDS for s in ops(group, MatMul)) == DIM
    assert not ops(group, Reduce)


def test_rolled_rows_are_stored_and_picked_rows_are_not():
    program, group = grouped(Largest, "fp16")
    source = group.generate(program, program.float_buffers(), "fp16").source
    stored = [line for line in source.splitlines() if "// take" in line]
    assert stored == [f"  // take {DIM} places -> {s.out.buffer}[0:{FIELDS * DIM}]"
                      for s in ops(group, Take) if s.out.width == FIELDS * DIM]  # fmt: skip
    assert len(stored) == DIM - 1


@pytest.mark.parametrize(
    ("x", "is_stored"),
    [
        (Operand.whole(4, 8), False),
        (Operand((4, 8), (1, 4)), True),  # a row's elements lie apart
        (Operand.whole(4, 6), True),  # rows that are no packs
    ],
)
def test_rows_that_many_read_are_found_anew_where_they_lie_in_packs(x, is_stored):
    picked = View("picked", 0, 5 * x.shape[1])
    rows = Operand.whole(5, x.shape[1])
    take = Operation(Take((0, 1, 2, 3, 0), 1), (View("x", 0, x.size),), (x,), picked)
    sums = [
        Operation(Reduce("sum", (1,)), (picked,), (rows,), View(f"sum{k}", 0, 5)) for k in range(10)
    ]
    own = frozenset({"picked", *(o.out.buffer for o in sums)})
    assert (0 not in Stages([take, *sums], own, 1).inlined) is is_stored
