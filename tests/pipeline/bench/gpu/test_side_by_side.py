"""Cases prepared side by side, in processes of their own."""

import pytest

from pipeline.bench.engine.cases import EngineCase
from pipeline.bench.engine.implementations import OURS
from pipeline.bench.gpu.side_by_side import time_in_turn


@pytest.mark.slow
def test_one_is_timed_after_the_other_and_a_failing_one_leaves_the_others_alone():
    small = {"batch": 5, "fields": 3, "dim": 4, "hidden": (8,), "scale": 1e-4, "repeats": 3}
    cases = [
        EngineCase(model="deepfm", peers="plain", **small),
        EngineCase(bundle="/no/such/bundle", peers="none"),
        EngineCase(model="gdcn", dense=2, peers="none", **small),
    ]
    first, second, third = time_in_turn(cases)
    assert set(first.milliseconds) == {OURS, "eager", "one-table"}
    assert "/no/such/bundle" in second.why and not second.gpu_lost
    assert third.case == cases[2] and third.largest_error < 1e-5
