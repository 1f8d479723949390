"""Groups of steps as generated kernels, compiled for the host: every operation, in each type,
against the steps themselves in float64; what is grouped, what reaches device memory.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from random_tensors import random_tensor_model
from tile_on_host import largest_error
from torch import nn

from dpiframe_core import from_torch
from dpiframe_core.engine.cuda.tile.grouping import TileGroup, group_steps, without_own
from dpiframe_core.engine.cuda.tile.index import Scope, VaryingError, variable
from dpiframe_core.engine.cuda.tile.product import packed
from dpiframe_core.engine.cuda.tile.source import tile_kernel
from dpiframe_core.engine.translation import Operation
from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Linear, TensorStep
from dpiframe_core.program.tensor_ops import (
    Join,
    LayerNorm,
    Map,
    MatMul,
    Operand,
    Reduce,
    Softmax,
    Take,
    TakeAlong,
)
from dpiframe_core.program.views import View

BOUNDS = {"fp32": 1e-5, "fp16": 6e-3, "bf16": 6e-2}
FIELDS, DIM = 12, 16


def groups(program: Program) -> list[TileGroup]:
    return [step for step in program.steps if isinstance(step, TileGroup)]


class Interactions(nn.Module):
    """An outer product under a product, attention, bilinear pairs, a norm, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, DIM) for _ in range(FIELDS))
        self.conv = nn.Conv1d(FIELDS * FIELDS, 24, 1)
        self.conv_again = nn.Conv1d(24 * FIELDS, 24, 1)
        self.qkvr = nn.ModuleList(nn.Linear(DIM, 32, bias=False) for _ in range(4))
        self.bilinear = nn.Parameter(torch.randn(FIELDS, DIM, DIM) * 0.2)
        self.norm, self.out = nn.LayerNorm(DIM), nn.Linear(24 * 2 + FIELDS * 32 + DIM, 1)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(2, FIELDS, dtype=torch.long),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
        hidden, pooled = e, []
        for conv in (self.conv, self.conv_again):
            outer = torch.einsum("bhd,bmd->bhmd", hidden, e).flatten(1, 2)
            hidden = conv(outer).relu()
            pooled.append(hidden.sum(-1))
        q, k, v, r = (part(e) for part in self.qkvr)
        q, k, v = (p.view(p.shape[0], FIELDS, 2, 16).transpose(1, 2) for p in (q, k, v))
        weights = (q @ k.transpose(-1, -2) / 4).softmax(-1)
        attended = ((weights @ v).transpose(1, 2).flatten(2) + r).relu()
        left = torch.einsum("bfd,fde->bfe", e, self.bilinear)
        pairs = (left[:, [0, 1, 2]] * e[:, [5, 3, 8]]).sum(1)
        last = self.norm(pairs) * torch.sigmoid(e.mean(1))
        return self.out(torch.cat([*pooled, attended.flatten(1), last], 1))


@pytest.fixture(scope="module")
def interactions() -> Program:
    torch.manual_seed(0)
    model = Interactions().eval()
    imported = from_torch(model, model.example_inputs())
    return lower(imported.spec, imported.weights, DEVICE_PASSES)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_interactions_are_one_kernel_with_the_steps_numbers(interactions, precision, tmp_path):
    grouped = group_steps(interactions, precision)
    (group,) = groups(grouped)
    assert len(group.parts) > 20
    assert max(v.width for v in group.writes()) == 1  # only its parts of the logit leave it
    assert largest_error(grouped, group, precision, 37, tmp_path) < BOUNDS[precision]


@pytest.mark.parametrize(
    ("precision", "order", "warpgroups"),
    [
        ("fp32", "ascending", True),
        ("fp16", "descending", False),
        ("fp16", "ascending", True),
        ("bf16", "ascending", False),
        ("bf16", "descending", True),
    ],
)
def test_all_threads_with_tensor_cores_emulated_have_the_steps_numbers(
    interactions, precision, order, warpgroups, tmp_path
):
    grouped = group_steps(interactions, precision)
    (group,) = groups(grouped)
    error = largest_error(
        grouped, group, precision, 5, tmp_path, emulated=order, warpgroups=warpgroups
    )
    assert error < BOUNDS[precision]


def test_what_lies_inside_groups_takes_no_device_memory(interactions):
    grouped = group_steps(interactions, "fp16")
    kept = without_own(grouped)
    assert set(kept.buffers) < set(grouped.buffers)
    used = {v.buffer for s in kept.steps for v in (*s.reads(), *s.writes())}
    assert used <= {*kept.buffers, "dense"}


def test_an_outer_product_is_an_operand_made_in_registers(interactions):
    (group,) = groups(group_steps(interactions, "fp16"))
    source = group.generate(interactions, interactions.float_buffers(), "fp16").source
    assert source.count("separable(") == 2


class OuterThenLinear(nn.Module):
    """An outer product of the fields, under a Linear too large for a group but for that."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(9, 16) for _ in range(24))
        self.mix, self.out = nn.Linear(24 * 24, 100), nn.Linear(100, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
        outer = torch.einsum("bhd,bmd->bdhm", e, e).flatten(2)
        return self.out(self.mix(outer).relu().sum(1))


def test_an_outer_product_is_never_made_for_a_large_linear(tmp_path):
    model = OuterThenLinear().eval()
    imported = from_torch(model, (torch.zeros(2, 24, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    grouped = group_steps(program, "fp16")
    (group,) = groups(grouped)
    source = group.generate(grouped, grouped.float_buffers(), "fp16").source
    assert source.count("separable(") == 1
    assert max(v.width for v in (*group.reads(), *group.writes())) <= 24 * 16
    assert largest_error(grouped, group, "fp16", 19, tmp_path) < BOUNDS["fp16"]


class OuterProducts(nn.Module):
    """CIN's layers of fields whose numbers differ by many orders of magnitude."""

    def __init__(self, fields: int, dim: int, columns: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(9, dim) for _ in range(fields))
        self.sizes = nn.Parameter(10 ** torch.linspace(-3, 5, fields).unsqueeze(1))
        widths = (fields, columns, columns)
        self.convs = nn.ModuleList(nn.Conv1d(fields * w, columns, 1) for w in widths[:2])
        with torch.no_grad():
            for conv in self.convs:
                conv.weight.mul_(10 ** torch.linspace(-6, 6, columns).view(-1, 1, 1))
        self.out = nn.Linear(2 * columns, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1) * self.sizes
        hidden, pooled = e, []
        for conv in self.convs:
            hidden = conv(torch.einsum("bhd,bmd->bhmd", hidden, e).flatten(1, 2))
            pooled.append(hidden.sum(-1))
        return self.out(torch.cat(pooled, 1).abs().add(1e-30).log())


@pytest.mark.parametrize(("fields", "dim", "columns"), [(26, 16, 24), (13, 12, 40), (30, 20, 36)])
@pytest.mark.parametrize(
    ("emulated", "warpgroups"), [(None, False), ("ascending", False), ("descending", True)]
)
def test_outer_products_of_float32_are_multiplied_as_two_float16(
    fields, dim, columns, emulated, warpgroups, tmp_path
):
    torch.manual_seed(0)
    model = OuterProducts(fields, dim, columns).eval()
    imported = from_torch(model, (torch.zeros(2, fields, dtype=torch.long),))
    program = group_steps(lower(imported.spec, imported.weights, DEVICE_PASSES), "fp32")
    (group,) = groups(program)
    source = group.generate(program, program.float_buffers(), "fp32").source
    assert source.count("multiply_staged<Fp16x3") == 2
    error = largest_error(program, group, "fp32", 9, tmp_path, emulated, warpgroups)
    assert error < 2e-6


class MaskedHistory(nn.Module):
    """Attention over a history of which a sample's mask may leave nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.history, self.score, self.out = nn.Embedding(9, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = self.history(x)
        weights = self.score(e).squeeze(-1).masked_fill(x == 0, -1e9).softmax(-1)
        return self.out((weights.unsqueeze(-1) * e).sum(1).relu())


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_mask_that_leaves_nothing(precision, tmp_path):
    model = MaskedHistory().eval()
    imported = from_torch(model, (torch.zeros(2, 20, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    grouped = group_steps(program, precision)
    (group,) = groups(grouped)  # its random numbers are no zeros: all is masked
    assert largest_error(grouped, group, precision, 19, tmp_path) < BOUNDS[precision]


def test_products_of_one_operand_are_one(interactions):
    (group,) = groups(group_steps(interactions, "fp16"))
    source = group.generate(interactions, interactions.float_buffers(), "fp16").source
    assert ", 1, 16, 128, " in source  # queries, keys, values and residuals: 4 x 32 columns


class Projections(nn.Module):
    """Attention whose heads lie side by side again under a residual, as AutoInt has it, twice."""

    def __init__(self, fields: int, heads: int, dim: int) -> None:
        super().__init__()
        self.fields, self.heads, self.dim = fields, heads, dim
        self.tables = nn.ModuleList(nn.Embedding(9, 16) for _ in range(fields))
        widths = (16, heads * dim)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, heads * dim, bias=False) for _ in range(4))
            for width in widths
        )
        self.out = nn.Linear(fields * heads * dim, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
        for layer in self.layers:
            shape = (x.shape[0], self.fields, self.heads, self.dim)
            q, k, v = (part(e).view(shape).transpose(1, 2) for part in layer[:3])
            weights = (q @ k.transpose(-1, -2) / self.dim**0.5).softmax(-1)
            e = ((weights @ v).transpose(1, 2).flatten(2) + layer[3](e)).relu()
        return self.out(e.flatten(1))


@pytest.mark.parametrize("fields", [26, 13])
@pytest.mark.parametrize(
    ("precision", "emulated", "warpgroups"),
    [
        ("fp16", None, False),
        ("fp16", "ascending", False),
        ("fp16", "descending", True),
        ("bf16", "ascending", True),
        ("fp32", "ascending", True),
    ],
)
def test_a_matrix_that_many_rows_need_is_whole_in_shared_memory(
    fields, precision, emulated, warpgroups, tmp_path
):
    torch.manual_seed(0)
    model = Projections(fields, 2, 24).eval()
    imported = from_torch(model, (torch.zeros(2, fields, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    grouped = group_steps(program, precision)
    (group,) = groups(grouped)
    source = group.generate(grouped, grouped.float_buffers(), precision).source
    assert source.count("multiply_resident") == (2 if precision != "fp32" else 0)
    error = largest_error(
        grouped, group, precision, 9, tmp_path, emulated=emulated, warpgroups=warpgroups
    )
    assert error < BOUNDS[precision]


def test_what_follows_attention_is_applied_as_it_is_written():
    model = Projections(26, 2, 32).eval()
    imported = from_torch(model, (torch.zeros(2, 26, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    grouped = group_steps(program, "fp16")
    (group,) = groups(grouped)
    source = group.generate(grouped, grouped.float_buffers(), "fp16").source
    assert (source.count("attend<"), source.count("each_ahead<")) == (2, 1)  # of inputs


class LastOfHistory(nn.Module):
    """A convolution whose padding is the same for all samples, and the state at the last item."""

    def __init__(self) -> None:
        super().__init__()
        self.history, self.norm, self.out = nn.Embedding(9, 16), nn.LayerNorm(16), nn.Linear(16, 1)
        self.conv = nn.Conv1d(16, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = nn.functional.pad(self.history(x).transpose(1, 2), (2, 0))
        states = self.norm(self.conv(padded).transpose(1, 2)).relu()
        last = states[torch.arange(x.shape[0]), (x != 0).sum(1) - 1]
        return self.out(last.sigmoid())


@pytest.mark.parametrize("precision", BOUNDS)
def test_what_is_picked_by_places_that_are_computed_is_part_of_a_group(precision, tmp_path):
    torch.manual_seed(0)
    model = LastOfHistory().eval()
    imported = from_torch(model, (torch.ones(2, 7, dtype=torch.long),))
    program = group_steps(lower(imported.spec, imported.weights, DEVICE_PASSES), precision)
    kinds = [type(step).__name__ for step in program.steps]
    assert kinds == ["Lookup", "Lookup", "TileGroup", "Head"]
    (group,) = groups(program)
    assert largest_error(program, group, precision, 70, tmp_path) < BOUNDS[precision]


class Largest(LastOfHistory):
    """The largest states."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.norm(self.history(x)).relu().transpose(1, 2)
        return self.out(states.topk(3).values.sum(2).sigmoid())


def test_a_group_is_cut_at_what_it_cannot_compute_and_nowhere_else():
    imported = from_torch(Largest().eval(), (torch.ones(2, 7, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    kinds = [type(step).__name__ for step in group_steps(program, "fp16").steps]
    assert kinds == ["Lookup", "TileGroup", "TensorStep", "TileGroup", "Head"]


class Picked(nn.Module):
    """Rows by hashes: of a constant, of what a layer makes, of numbers that are made where
    they are read, and of places that there are none of.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.item, self.table = nn.Embedding(50, 8), nn.Embedding(rows, 6)
        self.made, self.out = nn.Linear(8, 30), nn.Linear(12, 1)

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        rows = self.table.num_embeddings
        found = self.table((ids * 7 + ids[:, :1]) % rows)
        made = self.made(self.item(ids[:, 0])).tanh()
        places = (dense * 9).abs().floor().long().clamp(max=29)
        return self.out(
            torch.cat([found.sum(1), made.gather(1, places), (made * 2 + 1).gather(1, places)], 1)
        )

    def example_inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, 50, (64, 4)), torch.randn(64, 3)


def picked(rows: int, precision: str) -> tuple[Program, TileGroup]:
    torch.manual_seed(0)
    model = Picked(rows).eval()
    imported = from_torch(model, model.example_inputs())
    program = group_steps(lower(imported.spec, imported.weights, DEVICE_PASSES), precision)
    kinds = {type(step).__name__ for step in program.steps}
    assert kinds == {"Lookup", "TileGroup", "Head"}
    (group,) = groups(program)
    return program, group


@pytest.mark.parametrize("emulated", [None, "descending"])
@pytest.mark.parametrize("precision", BOUNDS)
def test_rows_of_hashes_are_picked_in_a_group(precision, emulated, tmp_path):
    program, group = picked(300, precision)
    error = largest_error(program, group, precision, 70, tmp_path, emulated=emulated)
    assert error < BOUNDS[precision]


def test_however_large_a_table_is_a_tile_has_as_many_samples():
    program, group = picked(70_001, "fp16")
    assert group.generate(program, program.float_buffers(), "fp16").samples == 32


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("of_constant", [True, False])
def test_there_is_no_number_at_places_outside_the_axis(of_constant, precision, tmp_path):
    wide, picked = View("wide", 0, 8), View("picked", 0, 8)
    widen = TensorStep(
        "w", Map(("mul", "x0", 8.0)), (View("x", 0, 8),), (), (Operand.whole(8),), wide
    )
    read = (Operand.whole(8), Operand.whole(3))
    if of_constant:
        op, xs, operands = TakeAlong(places_first=True), (wide,), read
    else:
        op, xs, operands = TakeAlong(), (View("x", 8, 3), wide), read[::-1]
    along = TensorStep("a", op, xs, ("table",) if of_constant else (), operands, picked)
    program = Program(
        field_names=(),
        field_rows=(),
        oov_rows=(),
        num_dense=0,
        buffers={"x": 11, "wide": 8, "picked": 8},
        steps=(widen, along),
        weights={"table": np.arange(3, dtype=np.float32)} if of_constant else {},
        output=picked,
    )
    group = TileGroup("a", (widen, along), frozenset({"wide"}))
    assert largest_error(program, group, precision, 70, tmp_path) < BOUNDS[precision]


def test_the_steps_of_a_recurrence_share_their_weights():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.cell = nn.Embedding(9, 16), nn.GRU(16, 16, batch_first=True)
            self.out = nn.Linear(16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.cell(self.items(x))[1][-1])

    imported = from_torch(Recurrent().eval(), (torch.ones(2, 30, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    group, _ = groups(group_steps(program, "fp16"))
    kernel = group.generate(program, program.float_buffers(), "fp16")
    assert len(kernel.weights) == 4  # of inputs and states: a matrix and a bias each


class FieldNorms(nn.Module):
    """A norm a field, with weights or without, as MaskNet has them, and functions in a row."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 8), nn.Linear(5 * 8, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(8, elementwise_affine=affine) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = self.table(x)
        e = torch.cat([norm(e[:, i]) for i, norm in enumerate(self.norms)], 1)
        return self.out(e.view(-1, 5, 8).tanh().flatten(1).relu())


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("emulated", [None, "ascending"])
def test_norms_of_neighbouring_columns_are_one(affine, emulated, tmp_path):
    model = FieldNorms(affine).eval()
    for norm in model.norms:
        if affine:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    imported = from_torch(model, (torch.zeros(2, 5, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    grouped = group_steps(program, "fp32")
    (group,) = groups(grouped)
    source = group.generate(grouped, grouped.float_buffers(), "fp32").source
    assert source.count("layer_norm<") == 1
    assert largest_error(grouped, group, "fp32", 37, tmp_path, emulated=emulated) < 1e-5


def test_a_norm_of_what_is_made_between_norms_stays_where_it_is(tmp_path):
    norm = LayerNorm(1, 1e-5)

    def step(name, op, x, out):
        return TensorStep(name, op, (x,), (), (Operand.whole(16),), out)

    steps = (
        step("first", norm, View("x", 0, 16), View("out", 0, 16)),
        step("between", Map(("mul", "x0", 3.0)), View("y", 0, 16), View("x", 16, 16)),
        step("second", norm, View("x", 16, 16), View("out", 16, 16)),
    )
    widths = {"x": 32, "y": 16, "out": 32}
    program = Program((), (), (), 0, widths, steps, {}, View("out", 0, 32))
    group = TileGroup("norms", steps, frozenset())
    assert largest_error(program, group, "fp32", 3, tmp_path) < 1e-5


def test_a_product_without_an_inner_axis(tmp_path):
    outer = TensorStep(
        "outer", MatMul(0, 1, 0), (View("x", 0, 3), View("y", 0, 40)), (),
        (Operand.whole(3), Operand.whole(40)), View("out", 0, 120),
    )  # fmt: skip
    program = Program((), (), (), 0, {"x": 3, "y": 40, "out": 120}, (outer,), {}, outer.out)
    group = TileGroup("all", (outer,), frozenset())
    assert largest_error(program, group, "fp32", 35, tmp_path) < BOUNDS["fp32"]


@pytest.mark.parametrize("emulated", [None, "ascending", "descending"])
@pytest.mark.parametrize(("fields", "dim"), [(39, 64), (3, 24), (130, 9)])
def test_sums_of_what_lies_apart(fields, dim, emulated, tmp_path):
    sums = TensorStep(
        "sums", Reduce("sum", (0,)), (View("x", 0, fields * dim),), (),
        (Operand.whole(fields, dim),), View("out", 0, dim),
    )  # fmt: skip
    program = Program((), (), (), 0, {"x": fields * dim, "out": dim}, (sums,), {}, sums.out)
    group = TileGroup("all", (sums,), frozenset())
    source = group.generate(program, program.float_buffers(), "fp16").source
    assert "reduce_columns<Sum" in source
    assert largest_error(program, group, "fp16", 37, tmp_path, emulated=emulated) < BOUNDS["fp16"]


@pytest.mark.parametrize("emulated", [None, "descending"])
@pytest.mark.parametrize(("inner", "columns"), [(128, 60), (7, 33), (40, 8)])
def test_a_matrix_of_each_sample(inner, columns, emulated, tmp_path):
    product = TensorStep(
        "product", MatMul(0, 0, 1), (View("x", 0, inner), View("w", 0, inner * columns)), (),
        (Operand.whole(inner), Operand.whole(inner, columns)), View("out", 0, columns),
    )  # fmt: skip
    widths = {"x": inner, "w": inner * columns, "out": columns}
    program = Program((), (), (), 0, widths, (product,), {}, product.out)
    group = TileGroup("all", (product,), frozenset())
    source = group.generate(program, program.float_buffers(), "fp16").source
    assert "reduce_columns<Sum" in source
    assert largest_error(program, group, "fp16", 37, tmp_path, emulated=emulated) < BOUNDS["fp16"]


class OwnMatrix(nn.Module):
    """A layer, and one whose weights are rows of a table: few samples' fit a tile."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.own = nn.Embedding(9, 154), nn.Embedding(9, 128 * 60)
        self.trunk, self.out = nn.Linear(154, 128), nn.Linear(60, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.trunk(self.table(ids[:, 0])).relu()
        w = self.own(ids[:, 1]).view(-1, 128, 60) * 0.5
        return self.out(torch.bmm(x.unsqueeze(1), w).squeeze(1).tanh())


def test_a_large_layer_is_no_part_of_a_tile_of_few_samples():
    made = from_torch(OwnMatrix().eval(), torch.zeros(2, 2, dtype=torch.long), precisions=())
    program = group_steps(lower(made.spec, made.weights, DEVICE_PASSES), "fp16")
    assert any(isinstance(step, Linear) for step in program.steps)


class Normalized(nn.Module):
    """Rows of length 1, of which some are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4 * 16), nn.Linear(16, 1)
        with torch.no_grad():
            self.table.weight[::2, :16] = 0.0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = nn.functional.normalize(self.table(ids).view(-1, 4, 16), dim=-1)
        return self.out((x * x.sum(1, keepdim=True)).sum(1))


def test_what_keeps_a_divisor_from_zero_is_not_rounded_to_zero():
    made = from_torch(Normalized().eval(), torch.tensor([1, 2]), precisions=())
    program = group_steps(lower(made.spec, made.weights, DEVICE_PASSES), "fp16")
    source = groups(program)[0].generate(program, program.float_buffers(), "fp16").source
    kept = [line for line in source.splitlines() if "fn::max(fn::sqrt" in line]
    named = re.search(r"store\((s\d+_\w+)", kept[0])
    assert named and f"{named[1]} = reinterpret_cast<float*>" in source


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed, tmp_path):
    model = random_tensor_model(seed)
    program = lower(model.spec, model.state_dict(), DEVICE_PASSES)
    precision = ("fp32", "fp16")[seed % 2]
    grouped = group_steps(program, precision)
    for i, group in enumerate(groups(grouped)):
        folder = tmp_path / str(i)
        folder.mkdir()
        assert largest_error(grouped, group, precision, 35, folder) < BOUNDS[precision]


def test_weights_are_in_the_order_of_their_use_in_every_process():
    numbers = [np.full(3, i, np.float32) for i in range(9)]
    total = "x0"
    for i in range(1, 10):
        total = ("add", total, f"x{i}")
    read = (Operand.whole(3),) * 10
    step = Operation(Map(total), (View("x", 0, 3), *numbers), read, View("out", 0, 3))
    kernel = tile_kernel([step], frozenset(), frozenset(), "fp32")
    assert [w[0] for w in kernel.weights] == list(range(9))


def test_a_constant_is_packed_for_each_way_of_reading_it():
    matrix = np.arange(256, dtype=np.float32)
    steps = [
        Operation(
            MatMul(0, 1, 1), (View("x", 0, 256), matrix), (Operand.whole(16, 16), read),
            View(f"out{i}", 0, 256),
        )
        for i, read in enumerate((Operand.whole(16, 16), Operand((16, 16), (1, 16))))
    ]  # fmt: skip
    kernel = tile_kernel(steps, frozenset(), frozenset(), "fp32")
    assert len(kernel.weights) == 2


def test_indices_of_a_wide_row_fit_their_table(tmp_path):
    op = Take((40_000, 3), 0)
    view, out = View("x", 0, 40_001), View("out", 0, 2)
    step = TensorStep("take", op, (view,), (), (Operand.whole(40_001),), out)
    program = Program((), (), (), 0, {"x": 40_001, "out": 2}, (step,), {}, out)
    group = TileGroup("take", (step,), frozenset())
    assert largest_error(program, group, "fp32", 3, tmp_path) == 0


def test_an_index_is_taken_apart_without_division_where_that_is_exact():
    scope = Scope({"a": 5, "b": 16})
    index = variable("a").times(16).plus(variable("b"))
    quotient, rest = scope.divided(index, 16)
    assert (str(quotient), str(rest), scope.lines) == ("a", "b", [])
    scope.divided(index.plus(3), 16)
    assert any("quotient<16>" in line for line in scope.lines)


def test_an_index_in_whole_units_stays_in_whole_units():
    scope = Scope({"a": 50, "u": 8}, frozenset({"u"}))
    index = variable("a").times(8).plus(variable("u"))
    quotient, rest = scope.divided(index, 16)
    assert (str(quotient), str(rest)) == ("v1", "v2 * 8 + u")
    assert scope.lines[1:] == [
        "const int v1 = quotient<2>(v0);",
        "const int v2 = remainder<2>(v0);",
    ]


def test_nothing_is_computed_ahead_of_what_varies():
    scope = Scope({"u": 8}, frozenset({"u"}))
    with pytest.raises(VaryingError):
        scope.divided(variable("u").plus(1), 4)


def test_neighbours_pick_their_entries_at_once():
    scope = Scope({"i": 9, "u": 8}, frozenset({"u"}), ahead=[])
    place = variable("i").times(8).plus(variable("u"))
    assert str(scope.pick("t0", 100, place)) == str(scope.pick("t0", 100, place)) == "v0[u]"
    assert scope.lines == ["int v0[8]; load_places<8>(t0 + i * 8, v0);"]
    assert scope.largest(variable("v0[u]")) == 99
    with pytest.raises(VaryingError):  # of what is picked
        scope.pick("t1", 100, variable("v0[u]"))
    with pytest.raises(VaryingError):  # not at a multiple of 8
        scope.pick("t0", 100, place.plus(1))
    with pytest.raises(VaryingError):  # a reduction
        Scope({"i": 9, "u": 8}, frozenset({"u"})).pick("t0", 100, place)


@pytest.mark.parametrize("element", ["Half", "float"])
def test_packed_matrices_hold_each_number_once_and_zeros(element):
    matrix = np.arange(1, 1 + 2 * 20 * 10, dtype=np.float32).reshape(2, 1, 20, 10)
    kind = np.float16 if element == "Half" else np.float32
    numbers = packed(matrix, element).view(kind).astype(np.float32)
    assert numbers.size == 2 * 32 * 16
    assert sorted(numbers[numbers != 0]) == sorted(matrix.reshape(-1))


def test_a_column_that_is_written_late_and_not_read_spoils_nothing(tmp_path):
    def reduce(name, x, out):
        op = Reduce("sum", (1,))
        return TensorStep(name, op, (x,), (), (Operand.whole(24, 16),), out)

    whole = Operand.whole(24, 16)
    big = View("big", 0, 24 * 16)
    copies = [
        TensorStep(
            f"c{i}", Softmax((1,)), (View("x", 0, 384),), (), (whole,), View(f"b{i}", 0, 384)
        )
        for i in range(3)
    ]
    steps = (
        reduce("first", big, View("gap", 0, 24)),
        reduce("last", big, View("gap", 48, 24)),
        TensorStep(
            "use", Join(), (View("gap", 0, 24), View("gap", 48, 24)), (),
            (Operand.whole(24),) * 2, View("both", 0, 48),
        ),
        *copies,
        reduce("late", View("b0", 0, 384), View("gap", 24, 24)),
        *(reduce(f"r{i}", View(f"b{i}", 0, 384), View(f"out{i}", 0, 24)) for i in range(3)),
    )  # fmt: skip
    buffers = {"big": 384, "x": 384, "gap": 72, "both": 48}
    buffers |= {f"b{i}": 384 for i in range(3)} | {f"out{i}": 24 for i in range(3)}
    program = Program((), (), (), 0, buffers, steps, {}, View("both", 0, 48))
    group = TileGroup("all", steps, frozenset({"b0", "b1", "b2", "gap"}))
    assert largest_error(program, group, "fp32", 35, tmp_path) < BOUNDS["fp32"]


@pytest.mark.parametrize("emulated", [None, "ascending", "descending"])
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("place", [0, 3, 11])
def test_what_is_made_beside_fields_is_multiplied_with_them(place, precision, emulated, tmp_path):
    """DLRM's interaction: a dense vector among the fields, made by the group. All is in shared
    memory, its columns of the fields from device memory, pairs picked eight at a time.
    """
    rng = np.random.default_rng(place)
    rows, width = 12, 16
    fields, own = View("fields", 0, rows * width), View("fields", place * width, width)
    weights = {
        "w": rng.normal(size=(width, 40)).astype(np.float32) * 0.2,
        "b": rng.normal(size=width).astype(np.float32),
    }
    stacked = Operand.whole(rows, width)
    turned = Operand((width, rows), (1, width))
    picked = tuple(i * rows + j for i in range(rows) for j in range(i))  # 66 of them
    steps = (
        Linear("bottom", View("hidden", 0, 40), "w", "b", own, ((0, width),)),
        TensorStep("dots", MatMul(0, 1, 1), (fields, fields), (), (stacked, turned),
                   View("dots", 0, rows * rows)),
        TensorStep("pick", Take(picked), (View("dots", 0, rows * rows),), (),
                   (Operand.whole(rows * rows),), View("pairs", 0, len(picked))),
    )  # fmt: skip
    buffers = {"hidden": 40, "fields": rows * width, "dots": rows * rows, "pairs": len(picked)}
    program = Program((), (), (), 0, buffers, steps, weights, View("pairs", 0, len(picked)))
    group = TileGroup("all", steps, frozenset({"dots"}))
    kernel = group.generate(program, frozenset(), precision)
    assert "load_places<8>" in kernel.source
    assert f"g{kernel.buffers.index('fields')}(at(q))" not in kernel.source
    error = largest_error(program, group, precision, 35, tmp_path, emulated)
    assert error < BOUNDS[precision]


def test_columns_that_others_write_are_not_read(tmp_path):
    def doubled(name, x, out):
        return TensorStep(name, Map(("mul", "x0", 2.0)), (x,), (), (Operand.whole(16),), out)

    parts = [View("parts", start, 16) for start in (0, 16, 32)]
    steps = (
        doubled("first", View("x", 0, 16), parts[0]),
        doubled("last", View("x", 16, 16), parts[2]),
        *(
            TensorStep(f"norm{i}", Softmax((0,)), (part,), (), (Operand.whole(16),), out)
            for i, (part, out) in enumerate(
                zip(parts[::2], (View("out", 0, 16), View("out", 16, 16)), strict=True)
            )
        ),
    )
    buffers = {"x": 32, "parts": 48, "out": 32}
    program = Program((), (), (), 0, buffers, steps, {}, View("out", 0, 32))
    group = TileGroup("all", steps, frozenset())  # another step has the columns between
    kernel = group.generate(program, frozenset(), "fp32")
    assert f"g{kernel.buffers.index('parts')}(at(" not in kernel.source
    assert largest_error(program, group, "fp32", 35, tmp_path) < BOUNDS["fp32"]


class Attention(nn.Module):
    """Self-attention of heads; a mask leaves nothing of a sample's rows (of random numbers all)."""

    def __init__(self, fields: int, heads: int, dim: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        self.items = nn.Embedding(9, heads * dim)
        self.qkv, self.out = nn.Linear(heads * dim, 3 * heads * dim), nn.Linear(heads * dim, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = self.items(x)
        q, k, v = self.qkv(e).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = (x == 0)[:, None, None, :]
        if self.kind == "torch":
            found = nn.functional.scaled_dot_product_attention(q, k, v)
        elif self.kind == "torch, masked":
            found = nn.functional.scaled_dot_product_attention(q, k, v, ~mask)
        elif self.kind == "pointwise":
            weights = nn.functional.silu(q @ k.transpose(-1, -2)) * (x != 9)[:, None, None, :]
            found = (weights / x.shape[1]) @ v
        else:
            scores = q @ k.transpose(-1, -2) / 3
            if self.kind == "masked":
                scores = scores.masked_fill(mask, -1e9)
            found = scores.softmax(-1) @ v
        return self.out((found.transpose(1, 2).flatten(2) + e).relu().mean(1))


@pytest.mark.parametrize("emulated", [None, "ascending"])
@pytest.mark.parametrize(
    ("fields", "heads", "dim", "kind", "precision"),
    [
        (26, 2, 32, "plain", "fp16"),
        (26, 2, 32, "masked", "fp32"),
        (50, 1, 24, "masked", "fp16"),
        (17, 2, 20, "torch, masked", "bf16"),
        (9, 3, 8, "torch", "fp16"),
        (33, 1, 12, "torch, masked", "fp32"),
        (70, 2, 16, "pointwise", "fp16"),
        (64, 2, 16, "pointwise", "bf16"),
        (61, 2, 12, "pointwise", "fp32"),
    ],
)
def test_attention_stays_in_registers(fields, heads, dim, kind, precision, emulated, tmp_path):
    torch.manual_seed(fields)
    model = Attention(fields, heads, dim, kind).eval()
    imported = from_torch(model, (torch.zeros(2, fields, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    grouped = group_steps(program, precision)
    (group,) = groups(grouped)
    source = group.generate(grouped, grouped.float_buffers(), precision).source
    assert source.count("attend<") == 1 and "softmax<" not in source
    error = largest_error(grouped, group, precision, 5, tmp_path, emulated=emulated)
    assert error < BOUNDS[precision]


class Bucketed(nn.Module):
    """A number becomes one of 1,000 buckets, and looks up a row."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(1000, 8), nn.Linear(8 + 3, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        buckets = (dense[:, 0] * 4096).floor() % 1000
        return self.out(torch.cat([self.table(buckets.long()), dense], 1))

    def example_inputs(self) -> tuple[torch.Tensor]:
        return (torch.rand(2, 3),)


@pytest.mark.parametrize("precision", BOUNDS)
def test_numbers_that_pick_rows_are_not_rounded(precision, tmp_path):
    torch.manual_seed(0)
    made = from_torch(Bucketed().eval(), Bucketed().example_inputs())
    program = group_steps(lower(made.spec, made.weights, DEVICE_PASSES), precision)
    (group,) = groups(program)
    assert largest_error(program, group, precision, 70, tmp_path) < BOUNDS[precision]


class NormedPairs(nn.Module):
    """A small layer for each pair, and a norm over all that they make."""

    def __init__(self, pairs: int) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 24)
        self.weight = nn.Parameter(torch.randn(pairs, 24, 16) * 0.2)
        self.second = nn.Parameter(torch.randn(pairs, 16, 5) * 0.2)
        self.out = nn.Linear(pairs * 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = self.table(x)
        pairs = e.unsqueeze(2) * e.unsqueeze(1)
        first, second = torch.triu_indices(x.shape[1], x.shape[1], 1)
        made = torch.einsum("bpi,pio->bpo", pairs[:, first, second], self.weight)
        normed = torch.relu(nn.functional.layer_norm(made, made.shape[1:]))
        return self.out(torch.einsum("bpi,pio->bpo", normed, self.second).flatten(1))


def test_long_rows_leave_products_their_samples(tmp_path):
    imported = from_torch(NormedPairs(120).eval(), (torch.zeros(2, 16, dtype=torch.long),))
    program = lower(imported.spec, imported.weights, DEVICE_PASSES)
    grouped = group_steps(program, "fp16")
    found = groups(grouped)
    (apart,) = [g for g in found if len(g.parts) == 1 and isinstance(g.parts[0].op, LayerNorm)]
    first = found[0].generate(grouped, grouped.float_buffers(), "fp16")
    assert first.samples >= 16
    assert largest_error(grouped, apart, "fp16", 5, tmp_path) < BOUNDS["fp16"]
