"""The face of what unpacks units on a GPU: calls from several threads, and its end."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpiframe_core.engine.cuda.page_scorer import PageScorer

UNIT: Any = SimpleNamespace(rows=3)
NOTHING = np.empty(0, np.uint8)


class Native:
    """Scores of 0.5, once it is let go on."""

    device_bytes = 7

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def score(self, ids: Any, memory: Any, dense: Any, out: np.ndarray, use_oov: bool) -> Any:
        self.begun.set()
        assert self.go_on.wait(10)
        out[:] = 0.5
        return None, [0.25], (1.0, 2.0, 3.0, 4.0)


def scorer_of(native: Any) -> PageScorer:
    return PageScorer(native, lambda report: np.zeros(2, np.int64), use_oov=False)


def test_scores_and_times() -> None:
    native = Native()
    native.go_on.set()

    found = scorer_of(native).score(UNIT, NOTHING, NOTHING)

    assert found is not None
    assert found.scores.tolist() == [0.5] * 3
    assert (found.copy_in, found.unpack, found.compute, found.copy_out) == (1.0, 2.0, 3.0, 4.0)


def test_its_end_waits_for_calls_and_later_ones_give_nothing() -> None:
    native = Native()
    scorer = scorer_of(native)
    found: list[Any] = []
    calling = threading.Thread(target=lambda: found.append(scorer.score(UNIT, NOTHING, NOTHING)))
    calling.start()
    assert native.begun.wait(10)
    closing = threading.Thread(target=scorer.close)
    closing.start()

    closing.join(0.2)
    assert closing.is_alive()
    native.go_on.set()
    closing.join(10)
    calling.join(10)

    assert found[0].scores.tolist() == [0.5] * 3
    assert scorer.score(UNIT, NOTHING, NOTHING) is None
    assert scorer.device_bytes == 0


def test_a_call_that_fails_is_over() -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no GPU")

    scorer = scorer_of(SimpleNamespace(score=fail))
    with pytest.raises(RuntimeError, match="no GPU"):
        scorer.score(UNIT, NOTHING, NOTHING)
    scorer.close()
