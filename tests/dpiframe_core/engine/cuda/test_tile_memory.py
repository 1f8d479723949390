"""How generated kernels move numbers: loads ahead, odd rows, small tiles, windows as they lie."""

from __future__ import annotations

import pytest
import torch
from random_tensors import random_tensor_model
from tile_on_host import largest_error
from torch import nn

from dpiframe_core import from_torch
from dpiframe_core.engine.cuda.tile.grouping import TileGroup, group_steps
from dpiframe_core.engine.cuda.tile.source import TileKernel
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_PASSES, lower
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import TensorStep
from dpiframe_core.program.tensor_ops import Expression, LayerNorm, Map, Operand, Softmax
from dpiframe_core.program.views import View

BOUNDS = {"fp32": 1e-5, "fp16": 6e-3, "bf16": 6e-2}


def mapped(
    expression: Expression, width: int, first: int = 0, inputs: int = 2
) -> tuple[Program, TileGroup]:
    """A map of inputs, of their columns from `first` on."""
    xs = tuple(View(f"x{i}", first, width) for i in range(inputs))
    out = View("out", 0, width)
    step = TensorStep("map", Map(expression), xs, (), (Operand.whole(width),) * inputs, out)
    widths = {**{x.buffer: first + width for x in xs}, "out": width}
    program = Program((), (), (), 0, widths, (step,), {}, out)
    return program, TileGroup("map", (step,), frozenset())


def generated(program: Program, group: TileGroup, precision: str = "fp16") -> TileKernel:
    return group.generate(program, frozenset(), precision)


GATE = ("mul", ("sigmoid", "x0"), ("add", "x1", "x0"))


@pytest.mark.parametrize("width", [429, 67, 24, 3])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("precision", "emulated"), [("fp32", None), ("fp16", "descending")])
def test_rows_of_any_width_from_any_column_on(width, first, precision, emulated, tmp_path):
    program, group = mapped(GATE, width, first)
    error = largest_error(program, group, precision, 37, tmp_path, emulated=emulated)
    assert error < BOUNDS[precision]


def test_turns_that_loads_ahead_do_not_divide(tmp_path):
    """Of one sample: behind its last element there is none."""
    program, group = mapped(("relu", "x0"), 10_240, inputs=1)
    kernel = generated(program, group)
    assert kernel.samples == 1 and "each_ahead<1280, 3>" in kernel.source
    assert largest_error(program, group, "fp16", 2, tmp_path, emulated="ascending") < 1e-3


def test_an_input_is_loaded_once_ahead_of_its_use():
    source = generated(*mapped(GATE, 416)).source
    assert source.count("load_stored<8>") == 2  # of three reads
    assert "each_ahead<" in source and "meet();" not in source


def test_what_is_read_in_two_orders_is_staged():
    width = 16 * 16
    x, out = View("x", 0, width), View("out", 0, width)
    read = Operand.whole(16, 16), Operand((16, 16), (1, 16))
    step = TensorStep("map", Map(("add", "x0", "x1")), (x, x), (), read, out)
    program = Program((), (), (), 0, {"x": width, "out": width}, (step,), {}, out)
    assert "meet();" in generated(program, TileGroup("map", (step,), frozenset())).source


@pytest.mark.parametrize(("width", "samples"), [(16, 32), (128, 32), (416, 16), (2704, 2)])
def test_a_tile_that_only_moves_numbers_is_small(width, samples):
    assert generated(*mapped(("relu", "x0"), width, inputs=1)).samples == samples


class Windows(nn.Module):
    """Convolutions over fields, pooled in twos."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(9, 8) for _ in range(8))
        self.first = nn.Conv2d(1, 8, (7, 1), padding=(3, 0))
        self.second = nn.Conv2d(8, 5, (3, 1), padding=(1, 0))
        self.out = nn.Linear(5 * 2 * 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1).unsqueeze(1)
        for conv in (self.first, self.second):
            e = nn.functional.max_pool2d(conv(e).tanh(), (2, 1))
        return self.out(e.flatten(1))


@pytest.mark.parametrize(
    ("precision", "emulated"), [("fp32", "ascending"), ("fp16", "descending"), ("bf16", None)]
)
def test_windows_are_multiplied_where_they_lie(precision, emulated, tmp_path):
    torch.manual_seed(1)
    imported = from_torch(Windows().eval(), (torch.zeros(2, 8, dtype=torch.long),))
    program = group_steps(lower(imported.spec, imported.weights, COMPILED_PASSES), precision)
    (group,) = [step for step in program.steps if isinstance(step, TileGroup)]
    source = group.generate(program, program.float_buffers(), precision).source
    assert source.count("multiply<") == 2
    assert "reduce<Max" not in source and "temporary" not in source
    error = largest_error(program, group, precision, 19, tmp_path, emulated=emulated)
    assert error < BOUNDS[precision]


@pytest.mark.parametrize("width", [1032, 2049, 4098])
@pytest.mark.parametrize("op", [LayerNorm(1, 1e-5), Softmax((0,)), Softmax((0,), guarded=True)])
@pytest.mark.parametrize(("precision", "emulated"), [("fp32", None), ("fp16", "descending")])
def test_rows_too_long_for_registers_are_read_again(op, width, precision, emulated, tmp_path):
    x, out = View("x", 0, width), View("out", 0, width)
    step = TensorStep("long", op, (x,), (), (Operand.whole(width),), out)
    program = Program((), (), (), 0, {"x": width, "out": width}, (step,), {}, out)
    group = TileGroup("long", (step,), frozenset())
    error = largest_error(program, group, precision, 3, tmp_path, emulated=emulated)
    assert error < BOUNDS[precision]


def test_rows_of_a_warp_behind_the_last_are_not_read(tmp_path):
    """A warp has 64 rows of 224 that lie at the end of shared memory: half of its last ones."""
    model = random_tensor_model(15)
    grouped = group_steps(lower(model.spec, model.state_dict(), DEVICE_PASSES), "fp16")
    groups = [step for step in grouped.steps if isinstance(step, TileGroup)]
    (group,) = [g for g in groups if "multiply<Half, 1, 224, 1, 16, 24, 4, 2>" in
                g.generate(grouped, grouped.float_buffers(), "fp16").source]  # fmt: skip
    error = largest_error(grouped, group, "fp16", 35, tmp_path, emulated="ascending")
    assert error < BOUNDS["fp16"]
