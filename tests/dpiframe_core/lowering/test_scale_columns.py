"""Constants by which columns are multiplied, in the weights of what reads these."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpiframe_core import from_torch
from dpiframe_core.lowering import COMPILED_PASSES, PASSES, Pass, lower
from dpiframe_core.lowering.scale_columns import LEAST, scale_columns
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import FusedLinear, Head, Linear, MappedLinear, TensorStep
from dpiframe_core.program.tensor_ops import Map

FIELDS, ROWS, SAMPLES = 6, 20, 40


class Gated(nn.Module):
    """Fields with a learned weight each, under what a subclass does with them."""

    dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.width = FIELDS * self.dim
        self.tables = nn.ModuleList(nn.Embedding(ROWS, self.dim) for _ in range(FIELDS))
        self.gate = nn.Parameter(torch.randn(FIELDS, 1))
        self.out = nn.Linear(self.width, 1)

    def example_inputs(self) -> tuple[Tensor]:
        return (torch.zeros(2, FIELDS, dtype=torch.long),)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.stack([table(x[:, k]) for k, table in enumerate(self.tables)], 1)
        return self.out(self.behind((e * self.gate.softmax(0)).flatten(1)))

    def behind(self, x: Tensor) -> Tensor:
        return x


class Layers(Gated):
    """A linear layer, maps, and the head read the fields."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Linear(self.width, self.width)

    def behind(self, x: Tensor) -> Tensor:
        return x + self.deep(x).relu() * x


class Parts(Gated):
    """A layer reads some of the columns, and a quotient is a scale, too."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Linear(2 * self.dim, self.width)

    def behind(self, x: Tensor) -> Tensor:
        return torch.sigmoid(-x / 3) * self.deep(x[:, self.dim : 3 * self.dim])


class Edcn(Gated):
    """Cross and deep layers whose products are gated for both by fields."""

    dim = 24  # such that products have epilogues of their own

    def __init__(self) -> None:
        super().__init__()
        w = self.width
        self.cross = nn.ModuleList(nn.Linear(w, 1, bias=False) for _ in range(2))
        self.deep = nn.ModuleList(nn.Linear(w, w) for _ in range(2))
        self.gates = nn.ParameterList(nn.Parameter(torch.randn(2, FIELDS, 1)) for _ in range(2))
        self.out = nn.Linear(3 * w, 1)

    def behind(self, x: Tensor) -> Tensor:
        x0 = d = x
        for cross, deep, gates in zip(self.cross, self.deep, self.gates, strict=True):
            b = (x + cross(x) * x0) * deep(d).relu()
            x, d = ((b.view(-1, FIELDS, self.dim) * g.softmax(0)).flatten(1) for g in gates)
        return torch.cat([x, d, b], 1)


class Normed(Gated):
    """A norm reads what is scaled: it stays."""

    def behind(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (self.width,))


class Features(nn.Module):
    """Dense features brought to one scale, which float16 might not hold before."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((13,), 1 / 2000))
        self.layers = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 1))

    def example_inputs(self) -> tuple[Tensor]:
        return (torch.rand(2, 13),)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x * self.scale)


def programs(kind: type[nn.Module], passes: tuple[Pass, ...] = PASSES) -> tuple[Program, Program]:
    """Plain, and lowered."""
    torch.manual_seed(0)
    model = kind().eval()
    imported = from_torch(model, model.example_inputs(), precisions=())
    return (
        lower(imported.spec, imported.weights, ()),
        lower(imported.spec, imported.weights, passes),
    )


def scales(program: Program) -> list[TensorStep]:
    """Maps that multiply one view by constants and do nothing else."""
    return [
        step
        for step in program.steps
        if isinstance(step, TensorStep)
        and isinstance(step.op, Map)
        and step.op.expression in (("mul", "x0", "x1"), ("mul", "x1", "x0"))
        and len(step.xs) == 1
    ]


def logits(program: Program) -> np.ndarray:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, ROWS, (FIELDS, SAMPLES)))
    return np.asarray(run_program(program, ids, torch.zeros(0, SAMPLES)))


@pytest.mark.parametrize(
    ("kind", "passes"),
    [(Gated, PASSES), (Layers, PASSES), (Parts, PASSES), (Edcn, COMPILED_PASSES)],
)
def test_scaled_columns_are_not_stored(kind, passes):
    plain, lowered = programs(kind, passes)
    assert scales(plain)
    assert not scales(lowered)
    np.testing.assert_allclose(logits(lowered), logits(plain), rtol=1e-5, atol=1e-6)


def test_a_view_has_one_dot_of_the_head():
    _, lowered = programs(Edcn, COMPILED_PASSES)
    head = lowered.steps[-1]
    assert isinstance(head, Head)
    assert len({view for view, _ in head.dots}) == len(head.dots) == 1


@pytest.mark.parametrize("passes", [PASSES, COMPILED_PASSES])
def test_what_is_kept_in_float32_is_scaled_there(passes):
    plain, lowered = programs(Features, passes)
    assert scales(plain)
    products = [s for s in lowered.steps if isinstance(s, (Linear, FusedLinear, MappedLinear))]
    assert products
    assert not any(view.buffer.startswith("dense") for s in products for view in s.reads())


def test_what_else_reads_scaled_columns_keeps_them():
    plain, lowered = programs(Normed)
    assert scales(lowered)
    np.testing.assert_allclose(logits(lowered), logits(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [0.0, LEAST / 2, 1e6, float("nan"), float("inf")])
def test_numbers_that_might_leave_float16s_range_stay_where_they_are(number):
    torch.manual_seed(0)
    model = Layers().eval()
    imported = from_torch(model, model.example_inputs(), precisions=())
    plain = lower(imported.spec, imported.weights, ())
    (step,) = scales(plain)
    (name,) = step.constants
    changed = {**plain.weights, name: np.full_like(plain.weights[name], number)}
    program = plain.changed(weights=changed)
    assert scales(scale_columns(program)) == [step]


@pytest.mark.parametrize(("number", "stays"), [(2.0**-8, False), (2.0**-12, True), (3e3, True)])
def test_weights_that_float16_would_not_hold_are_not_scaled(number, stays):
    torch.manual_seed(0)
    model = Layers().eval()
    with torch.no_grad():
        model.deep.weight.normal_(std=0.02)
        model.deep.weight[0, 0] = 15.0
    imported = from_torch(model, model.example_inputs(), precisions=())
    plain = lower(imported.spec, imported.weights, ())
    (step,) = scales(plain)
    (name,) = step.constants
    changed = {**plain.weights, name: np.full_like(plain.weights[name], number)}
    assert bool(scales(scale_columns(plain.changed(weights=changed)))) is stays
