"""What is computed of picked rows is computed of the rows they are picked from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpiframe_core import from_torch
from dpiframe_core.lowering import COMPILED_PASSES, PASSES, Pass, lower
from dpiframe_core.lowering.pick_late import pick_late
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.number_bounds import holds_in_fp16, input_bounds
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Step, TensorStep
from dpiframe_core.program.tensor_ops import LayerNorm, Map, MatMul, Operation, Reduce, Take

FIELDS, DIM, ROWS, SAMPLES = 6, 8, 20, 40
PAIRS = FIELDS * (FIELDS - 1) // 2


class Pairs(nn.Module):
    """Pairs of fields, of which a subclass makes a sample's score."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, DIM) for _ in range(FIELDS))
        self.first, self.second = torch.triu_indices(FIELDS, FIELDS, 1)
        self.out = nn.Linear(PAIRS * DIM, 1)

    def example_inputs(self) -> tuple[Tensor]:
        return (torch.zeros(2, FIELDS, dtype=torch.long),)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.stack([table(x[:, k]) for k, table in enumerate(self.tables)], 1)
        return self.out(self.pairs(e, e[:, self.first], e[:, self.second]).flatten(1))

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        raise NotImplementedError


class Bilinear(Pairs):
    """One matrix for all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(DIM, DIM)

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return self.matrix(p) * q


class Both(Pairs):
    """Two layers over both rows of each pair: the same of the same rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, 12), nn.ReLU(), nn.Linear(12, DIM))

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return self.layers(p) * self.layers(q)


class Norms(Pairs):
    """A norm, a softmax in rows, and a map with what is the same for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return self.norm(p) * (q * e.sum(1, keepdim=True)).softmax(2)


class Sums(Pairs):
    """A sum inside of rows."""

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return p.exp().sum(2, keepdim=True) * q


class Rolls(Pairs):
    """Circular correlation: columns of picked rows are picked."""

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return torch.stack([(p * q.roll(-k, 2)).sum(2) for k in range(DIM)], 2)


class Alike(Pairs):
    """Two tensors whose rows are picked alike."""

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return (p + e.square()[:, self.first]).tanh() * q


class Batched(Pairs):
    """Products with a matrix of each sample, and parts of rows as heads."""

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        made = torch.bmm(p, e.transpose(1, 2) @ e)
        heads = q.unflatten(2, (2, DIM // 2)).transpose(1, 2) @ e[:, :4, :4].unsqueeze(1)
        return made * heads.transpose(1, 2).flatten(2)


MODULES: tuple[type[Pairs], ...] = (Bilinear, Both, Norms, Sums, Rolls, Alike, Batched)


def program_of(module: nn.Module, passes: tuple[Pass, ...] = ()) -> Program:
    imported = from_torch(module.eval(), module.example_inputs(), precisions=())
    return lower(imported.spec, imported.weights, passes)


def ops(program: Program, kind: type[Operation]) -> list[TensorStep]:
    return [s for s in program.steps if isinstance(s, TensorStep) and isinstance(s.op, kind)]


def ids() -> Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(0, ROWS, (FIELDS, SAMPLES)))


@pytest.mark.parametrize("passes", [(pick_late,), PASSES, COMPILED_PASSES])
@pytest.mark.parametrize("module", MODULES)
def test_scores_are_the_module_s(module, passes):
    torch.manual_seed(5)
    made = module()
    found = np.asarray(run_program(program_of(made, passes), ids(), torch.zeros(0, SAMPLES)))
    with torch.no_grad():
        wanted = made.double()(ids().T).numpy()
    np.testing.assert_allclose(found.reshape(-1), wanted.reshape(-1), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_but_maps_of_pairs_is_computed_of_picked_rows(module):
    program = pick_late(program_of(module()))
    picks = {s.out for s in ops(program, Take) if len(getattr(s.op, "index", ())) == PAIRS}
    readers: list[Step] = [s for view in picks for s in program.readers(view)]
    assert readers
    assert all(isinstance(s, TensorStep) and isinstance(s.op, Map) for s in readers)


def test_a_matrix_multiplies_each_row_once():
    (product,) = ops(pick_late(program_of(Bilinear())), MatMul)
    assert product.out.width == FIELDS * DIM


def test_what_is_the_same_of_the_same_rows_is_computed_once():
    assert len(ops(program_of(Both()), MatMul)) == 4
    assert len(ops(pick_late(program_of(Both())), MatMul)) == 2


def test_weights_that_differ_are_not_taken_for_the_same():
    class Two(Bilinear):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(DIM, DIM)

        def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
            return self.matrix(p) * self.other(q)

    module = Two()
    assert len(ops(pick_late(program_of(module)), MatMul)) == 2
    module.other.weight.data = module.matrix.weight.data.clone()
    assert len(ops(pick_late(program_of(module)), MatMul)) == 1


def test_norms_and_sums_are_of_the_fields():
    program = pick_late(program_of(Norms()))
    assert [s.out.width for s in ops(program, LayerNorm)] == [FIELDS * DIM]
    program = pick_late(program_of(Sums()))
    assert [s.out.width for s in ops(program, Reduce)] == [FIELDS]


@pytest.mark.parametrize("count", [3, FIELDS, FIELDS + 2])
def test_hardly_more_rows_or_fewer_are_picked_first(count):
    class Some(Bilinear):
        def pairs(self, e, p, q):
            some = torch.arange(count).flip(0) % FIELDS
            return (self.matrix(e[:, some])).repeat(1, PAIRS, 1)[:, :PAIRS] * p

    program = program_of(Some())
    widths = [s.out.width for s in ops(program, MatMul)]
    assert [s.out.width for s in ops(pick_late(program), MatMul)] == widths == [count * DIM]


def test_rows_that_are_summed_stay_picked():
    class Total(Pairs):
        def pairs(self, e, p, q):
            return p.sum(1, keepdim=True) * q

    program = pick_late(program_of(Total()))
    sums = [s for s in ops(program, Reduce) if s.out.width == DIM]
    assert [s.operands[0].shape[0] for s in sums] == [PAIRS]


class Normed(Pairs):
    """Norms of rows, which a product reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.out = nn.Sequential(nn.Linear(PAIRS * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def pairs(self, e: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return self.norm(p)


@pytest.mark.parametrize("passes", [PASSES, COMPILED_PASSES])
def test_numbers_are_as_bounded_as_before(passes):
    before = tuple(run for run in passes if run is not pick_late)
    assert holds_in_fp16(program_of(Normed(), before), [])
    assert holds_in_fp16(program_of(Normed(), passes), [])


def test_a_bound_is_picked_with_its_number():
    program = pick_late(program_of(Normed()))
    (take,) = ops(program, Take)
    bounds = input_bounds(program, ())
    rows = np.arange(FIELDS * DIM, dtype=np.float64).reshape(FIELDS, DIM)
    bounds[take.xs[0]] = rows.reshape(-1)
    take.bound(bounds)
    first, _ = torch.triu_indices(FIELDS, FIELDS, 1)
    np.testing.assert_array_equal(bounds[take.out].reshape(PAIRS, DIM), rows[first.numpy()])


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_left_to_move(module):
    program = pick_late(program_of(module()))
    assert pick_late(program).steps == program.steps
    assert len({step.name for step in program.steps}) == len(program.steps)
