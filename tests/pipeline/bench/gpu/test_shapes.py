"""The cases of other shapes: drawn by a seed, spread over models, batches and precisions."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.bench.cases.zoo import ZOO
from pipeline.bench.gpu.shapes import MODELS, shape_cases, shape_title, zoo_cases


@pytest.mark.parametrize("seed", [0, 1, 19])
def test_a_seed_draws_different_cases_of_every_kind(seed):
    cases = shape_cases(seed)
    titles = [shape_title(case) for case in cases]
    assert len(set(titles)) == 40
    assert [shape_title(case) for case in shape_cases(seed)] == titles
    for kind, count in (("model", len(MODELS)), ("batch", 3), ("precision", 2)):
        found = Counter(getattr(case, kind) for case in cases)
        assert len(found) == count
        assert max(found.values()) - min(found.values()) <= 6
    assert {case.fields for case in cases} == {10, 26, 39, 200}
    assert {case.dim for case in cases} == {8, 10, 32, 64, 128}


def test_other_seeds_draw_other_cases():
    assert set(map(shape_title, shape_cases(0))) != set(map(shape_title, shape_cases(1)))


def test_the_zoo_is_measured_at_two_batches_and_precisions():
    cases = list(zoo_cases())
    assert len(cases) == 4 * len(ZOO) == 36
    assert all(
        case.in_zoo and (case.fields, case.dense, case.dim) == (26, 13, 16) for case in cases
    )
