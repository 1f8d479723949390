"""The policy `auto`: several streams only where work lies side by side."""

from __future__ import annotations

import pytest

from dpiframe_core import CTRModel
from dpiframe_core.lowering import lower
from dpiframe_core.model.builtin import Deep, Features, dcnv2
from dpiframe_core.program.schedule import overlap, schedule
from tests.helpers.model_zoo import fields


def test_overlap_is_the_work_beside_the_longest_chain():
    assert overlap([], []) == 0
    assert overlap([], [3.0]) == 0
    assert overlap([(0, 1), (1, 2)], [1, 2, 3]) == 0
    assert overlap([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 4, 2, 1]) == pytest.approx(2 / 8)
    assert overlap([], [1, 1, 1, 1]) == 0.75


@pytest.mark.parametrize(("deep_cost", "order"), [(0.001, "serial"), (0.2, "breadth_first")])
def test_auto_takes_streams_where_enough_lies_beside(deep_cost, order):
    spec = dcnv2(Features(fields(4), []), Deep((8, 8)))
    program = lower(spec, CTRModel(spec).state_dict(), ())

    def cost(step):
        return 1.0 if step.name.startswith(("cross", "embedding")) else deep_cost

    plan = schedule(program, 19, 4, "auto", cost=cost).plan
    chosen = schedule(program, 19, 1 if order == "serial" else 4, order, cost=cost).plan
    assert str(plan) == str(chosen)
    assert (plan.num_streams > 1) == (order != "serial")
