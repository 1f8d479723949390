"""Whether implementations agree: with float64, with one another, as far as rounding lets them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.bench.engine.agreement import (
    AS_EAGER,
    AS_OURS,
    ExactLogits,
    agree,
    largest_difference,
    scaled_error,
)
from pipeline.bench.engine.implementations import OURS, Implementation
from pipeline.errors import DpiframeError


def _implementation(logit: float) -> Implementation:
    return Implementation(lambda i: None, lambda i: np.full(7, logit, np.float32))


def _exact(precision: str) -> ExactLogits:
    """Logits of 1, which rounding the weights to float16 makes 1.011."""
    values = {None: 1.0, torch.float16: 1.011}
    return ExactLogits(lambda rounded_to=None: np.full(7, values[rounded_to]), precision)


def test_large_hidden_numbers_widen_the_bound_of_16_bits():
    ours = np.full(7, 1.03)
    assert scaled_error(ours, _exact("fp16")) == pytest.approx(0.03)
    with pytest.raises(DpiframeError, match=r"by 3.0e-02, not 1e-02"):
        scaled_error(ours, _exact("tf32"))


@pytest.mark.parametrize(
    ("precision", "eager", "agrees"),
    [
        ("fp16", 1.06, True),
        ("fp16", 1.07, False),
        ("tf32", 1.009, True),
        ("tf32", 1.03, False),
    ],
)
def test_large_hidden_numbers_widen_the_tolerance_to_peers(precision, eager, agrees):
    made = {OURS: _implementation(1.0), "eager": _implementation(eager)}
    if agrees:
        assert agree(made, {}, _exact(precision)) == pytest.approx(eager - 1, rel=1e-4)
    else:
        with pytest.raises(DpiframeError, match="the logits of eager differ from ours"):
            agree(made, {}, _exact(precision))


def test_torch_may_differ_in_16_bits_from_a_model_that_agreed_with_its_module():
    made, failed = {OURS: _implementation(1.0), "eager": _implementation(1.5)}, {}
    assert agree(made, failed, _exact("fp16"), is_imported=True) == 0.0
    assert list(made) == [OURS] and "differ from ours" in failed["eager"]
    made["eager"] = _implementation(1.5)
    with pytest.raises(DpiframeError, match="differ from ours"):
        agree(made, {}, _exact("tf32"), is_imported=True)


def test_no_number_is_the_same_as_none():
    nan, inf = np.nan, np.inf
    assert largest_difference(np.array([nan, inf, 3.0]), np.array([nan, inf, 2.0])) == 0.5
    assert np.isnan(largest_difference(np.array([nan, 3.0]), np.array([1.0, 3.0])))


@pytest.mark.parametrize(
    ("kind", "logit"),
    [(torch.float16, 9.0), (torch.float16, -9.0), (torch.float16, -15.0), (torch.float32, 16.0),
     (torch.float32, 60.0), (torch.bfloat16, 5.0)],
)  # fmt: skip
def test_what_rounding_a_probability_hides_is_no_difference(kind, logit):
    ours = np.array([logit, 0.5], np.float32)
    p = torch.sigmoid(torch.from_numpy(ours).double()).to(kind).double().numpy()
    with np.errstate(divide="ignore"):
        peer = np.clip(np.log(p) - np.log1p(-p), -1e4, 1e4)
    assert largest_difference(peer, ours) > 1e-4
    assert largest_difference(peer, ours, kind) <= 2 * torch.finfo(kind).eps


def test_rounding_a_probability_hides_no_other_model():
    ours = np.array([9.0, 0.5], np.float32)
    assert largest_difference(np.array([9.0, 0.6]), ours, torch.float16) > 0.08
    assert largest_difference(np.array([6.0, 7.0]), np.array([6.0, 6.0]), torch.float16) > 0.05
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        for p in (0.01, 0.1, 0.5):  # of a peer that says 0, or 1, of all samples
            wanted = np.full(3, np.log(p / (1 - p)))
            assert largest_difference(np.full(3, -1e4), wanted, kind) > 1
            assert largest_difference(np.full(3, 1e4), wanted, kind) > 1
    assert largest_difference(np.array([-9.0, 0.5]), ours, torch.float32) > 1
    assert largest_difference(np.array([-1e4, 0.5]), ours, torch.float16) > 0.99
    assert np.isnan(largest_difference(np.array([np.nan, 0.5]), ours, torch.float16))
    far = np.array([50.0])  # of which the probability is 1 in float64, too
    assert largest_difference(np.array([-5.0]), far, torch.float16) > 1
    assert largest_difference(np.array([9.0]), far, torch.float32) > 0.5
    assert largest_difference(np.array([17.0]), far, torch.float32) == 0.0
    none = np.array([np.nan, 0.5])
    assert largest_difference(none, none, torch.float16) == 0.0


def _tied(untied: np.ndarray, first: float | None = None) -> Implementation:
    """Eager, which says 1 of tied samples, and `first` where it takes the first of equal ones."""
    eager = np.where(untied, 0, 1).astype(np.float32)
    found = None if first is None else lambda _: np.full(300, first)
    return Implementation(lambda _: None, lambda _: eager, untied=lambda _: untied, first=found)


def _of_300(logit: float) -> Implementation:
    return Implementation(lambda _: None, lambda _: np.full(300, logit, np.float32))


def test_samples_whose_scores_depend_on_the_order_of_equal_numbers_do_not_count():
    untied = np.arange(300) % 2 == 0
    eager = _tied(untied)
    exact = ExactLogits(lambda: np.zeros(300), "fp32", eager=eager)
    assert (
        agree({OURS: _of_300(0), "eager": eager}, {}, exact)
        == 0.0
        == exact.difference(eager.logits(0))
    )
    assert exact.left_out == 150
    eager.logits(0)[0] = 1
    with pytest.raises(DpiframeError, match="the logits of eager differ from ours"):
        agree({OURS: _of_300(0), "eager": eager}, {}, exact)
    with pytest.raises(DpiframeError, match=r"differ from float64's by 1\.0e"):
        scaled_error(eager.logits(0), exact)


def test_where_most_samples_are_tied_the_first_of_equal_numbers_are_compared():
    untied = np.arange(300) < 30
    eager = _tied(untied, first=0.0)
    exact = ExactLogits(lambda: np.zeros(300), "fp32", eager=eager)
    with pytest.raises(DpiframeError, match=r"differ from float64's by 1\.0e"):
        scaled_error(eager.logits(0), exact)
    made = {OURS: _of_300(0), "eager": eager, "as eager": eager, "as ours": _of_300(0)}
    failed: dict[str, str] = {}
    assert agree(made | {"else": _of_300(2)}, failed, exact) == 0.0
    assert list(failed) == ["else"]
    agree(made, {}, exact)
    notes = {name: one.note for name, one in made.items() if one.note}
    assert notes == {"eager": AS_OURS, "as eager": AS_EAGER}
    wrong = _tied(untied, first=0.5)
    exact = ExactLogits(lambda **_: np.zeros(300), "fp16", eager=wrong)
    made = {OURS: _of_300(0), "eager": wrong, "as eager": wrong}
    agree(made, failed := {}, exact, is_imported=True)
    assert list(made) == [OURS] and list(failed) == ["eager", "as eager"]
    exact = ExactLogits(lambda: np.zeros(300), "fp32", eager=wrong)
    with pytest.raises(DpiframeError, match="the logits of eager differ from ours by 5"):
        agree({OURS: _of_300(0), "eager": wrong}, {}, exact)


def test_an_eager_without_memory_widens_no_bound():
    def short(_: int) -> None:
        raise torch.OutOfMemoryError("tried to allocate")

    exact = _exact("fp32")
    exact.eager = Implementation(short, short, untied=short)
    before = exact.bound, exact.tolerance
    exact.widen()
    assert (exact.bound, exact.tolerance) == before
    with pytest.raises(DpiframeError, match="our logits differ"):
        scaled_error(np.full(7, 1.1), exact)
    exact.eager = _implementation(1.0 + 1e-4)
    exact.widen()
    assert exact.bound == pytest.approx(4e-4, rel=1e-3) and exact.tolerance == 2 * exact.bound


def test_a_module_that_its_import_let_be_further_away_is_compared_so():
    exact = ExactLogits(lambda: np.ones(7), "fp32", own=1e-3)
    assert exact.bound == 1e-3 and exact.tolerance == 2e-3
