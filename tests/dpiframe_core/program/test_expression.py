"""Expressions whose parts are shared: walked once a part, not once a way to it."""

from __future__ import annotations

import math
import pickle

import torch

from dpiframe_core.program.expression import Call, evaluate, fingerprint, folded, rebuilt, replaced

DOUBLED = ("add", "x0", "x0")


def _deep(times):
    found = "x0"
    for _ in range(times):
        found = replaced(DOUBLED, lambda _, inner=found: inner)
    return found


def test_shared_parts_are_walked_once():
    deep = _deep(200)  # 2^200 ways to x0
    assert folded(deep, lambda part, made: 1 + max(made, default=0)) == 201
    assert len(fingerprint(deep)) == 40
    assert hash(deep) == hash(_deep(200))
    assert deep == _deep(200)
    assert rebuilt(deep, lambda part: "x1" if part == "x0" else part)[1][0] == "add"


def test_another_process_hashes_for_itself():
    here = Call(DOUBLED)
    here._hash = 1  # of a process that hashes strings otherwise
    sent = pickle.loads(pickle.dumps(here))
    assert isinstance(sent, Call)
    assert sent == DOUBLED
    assert hash(sent) == hash(DOUBLED)


def test_what_is_computed_is_the_same():
    found = evaluate(_deep(5), [torch.tensor([1.5])])
    assert found.item() == 48


def test_a_negative_zero_is_no_zero():
    zeros = [rebuilt(("mul", "x0", zero), lambda part: part) for zero in (0.0, -0.0)]
    assert [math.copysign(1, z[2]) for z in zeros] == [1, -1]
    assert fingerprint(zeros[0]) != fingerprint(zeros[1])
