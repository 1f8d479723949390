"""Wide parts of what one product makes begin at a multiple of 8 columns; narrow ones follow."""

from __future__ import annotations

from small_programs import N, X, kinds, linear, program, same

from dpiframe_core.lowering.device.align_columns import align_columns
from dpiframe_core.program.steps import Linear, TensorStep
from dpiframe_core.program.tensor_ops import Join, Map, Operand
from dpiframe_core.program.views import View


def test_what_maps_read_is_aligned_behind_a_gate_of_one_column():
    wide = linear("wide", X, 1 + 10 + 9)
    gate, first, second = (View("wide", a, n) for a, n in ((0, 1), (1, 10), (11, 9)))
    gated = TensorStep(
        "gated", Map(("mul", "x0", "x1")), (gate, first), (),
        (Operand((10,), (0,)), Operand.whole(10)), View("gated", 0, 10),
    )  # fmt: skip
    both = TensorStep(
        "both", Join(), (gated.out, second), (), (Operand.whole(10), Operand.whole(9)),
        View("both", 0, 19),
    )  # fmt: skip
    before = program(wide, gated, both)
    after = same(before, align_columns(before))
    assert kinds(after) == kinds(before)
    laid, moved, joined = after.steps[:3]
    assert isinstance(laid, Linear) and laid.x == X and laid.x.width == N
    assert moved.reads() == [View("wide", 25, 1), View("wide", 0, 10)]
    assert joined.reads()[1] == View("wide", 16, 9)


def test_aligned_and_narrow_parts_stay():
    wide = linear("wide", X, 8 + 3)
    narrow = TensorStep(
        "narrow", Map(("exp", "x0")), (View("wide", 8, 3),), (), (Operand.whole(3),),
        View("narrow", 0, 3),
    )  # fmt: skip
    before = program(wide, narrow)
    assert align_columns(before) == before
