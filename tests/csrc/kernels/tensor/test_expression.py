"""Expressions as the compiled part walks them, against torch: values, edges, slots, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpiframe_core import _core
from dpiframe_core.program.expression import ARITY, as_expression, evaluate, postfix

EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 7.25, -7.25, 88.0, -88.0,
     1e-8, -1e-8, 1e8, -1e8, np.inf, -np.inf, np.nan],
    np.float32,
)  # fmt: skip
RELATIVE = 4e-6  # a few units in the last place: the libraries of functions differ


def compute(expression, xs):
    values, _ = _core.evaluate_expression(list(postfix(expression)), xs)
    return values


def expected(expression, xs):
    found = evaluate(expression, [torch.from_numpy(x) for x in xs])
    return np.broadcast_to(found.numpy(), xs.shape[1])


@pytest.mark.parametrize("name", ARITY)
def test_a_function_is_that_of_torch(name):
    arity = ARITY[name]
    grid = np.meshgrid(*[EDGES] * arity, indexing="ij")
    xs = np.stack([np.ascontiguousarray(g).ravel() for g in grid])
    if name in ("sin", "cos", "tan"):
        xs = np.where(np.abs(xs) > 1e4, np.float32(9.5), xs)  # exact arguments, other reductions
    expression = as_expression([name, *(f"x{i}" for i in range(arity))])
    np.testing.assert_allclose(compute(expression, xs), expected(expression, xs), RELATIVE, 1e-30)


def random_expression(rng, depth):
    """Every operand and function, numbers among the leaves."""
    if depth == 0 or rng.random() < 0.1:
        return f"x{rng.integers(3)}" if rng.random() < 0.7 else float(np.round(rng.normal(), 2))
    name = rng.choice(["add", "sub", "mul", "max", "min", "where", "tanh", "sigmoid", "gt", "neg"])
    return [str(name), *(random_expression(rng, depth - 1) for _ in range(ARITY[str(name)]))]


@pytest.mark.parametrize("seed", range(40))
def test_random_expressions(seed):
    rng = np.random.default_rng(seed)
    expression = as_expression(random_expression(rng, int(rng.integers(0, 9))))
    xs = rng.standard_normal((3, 111)).astype(np.float32)
    # Sums of hundreds of terms in float32, in the same order.
    np.testing.assert_allclose(compute(expression, xs), expected(expression, xs), 2e-5, 2e-5)


def test_a_chain_needs_no_slot_and_a_full_tree_few():
    xs = np.ones((1, 3), np.float32)
    chain = "x0"
    for _ in range(150):
        chain = ["add", ["mul", "x0", 0.5], chain]
    tree = "x0"
    for _ in range(10):
        tree = ["add", tree, tree]
    for expression, value, slots in ((chain, 76.0, 1), (tree, 1024.0, 9)):
        got, used = _core.evaluate_expression(list(postfix(as_expression(expression))), xs)
        np.testing.assert_array_equal(got, np.full(3, value, np.float32))
        assert used == slots


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "leaves one value, got 0"),
        (["x0", "x0"], "leaves one value, got 2"),
        (["x0", "add"], "add takes 2 values, got 1"),
        (["x2"], "over 2 operands names x2"),
        (["y"], "no function y"),
        (["x"], "no function x"),
        (["x0", "exp3"], "no function exp3"),
        (["x99999999999"], "no function"),
    ],
)
def test_what_is_no_expression_is_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        _core.evaluate_expression(tokens, np.zeros((2, 1), np.float32))
