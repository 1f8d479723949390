"""Facts about a machine."""

from __future__ import annotations

import pytest

from pipeline.sizing.machine import visible_gpus


@pytest.mark.parametrize(
    ("named", "found"),
    [(None, [0, 1, 2, 3]), ("2", [2]), ("3, 1", [3, 1]), ("GPU-11111111", []), ("", [])],
)
def test_only_gpus_that_the_process_may_use_are_looked_at(
    named: str | None, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(4) == found
