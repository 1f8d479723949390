"""The fuzzing scripts for a few seconds each; `make fuzz` runs them for long."""

from __future__ import annotations

import pytest
from run_fuzz import outcomes_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("frames", ["zstd: taken", "zstd: refused", "snappy: taken", "snappy: refused"]),
        ("arrow", ["both read", "both refuse"]),
        ("inputs", ["bundle: refused", "yaml: refused", "criteo: refused", "avazu: refused"]),
    ],
)
def test_damaged_inputs_are_read_right_or_refused(tmp_path, script, wanted):
    seen = outcomes_of(f"fuzz_{script}.py", tmp_path, seconds=6)
    # The damage is neither too small nor too large to test anything.
    for outcome in wanted:
        assert seen[outcome] > seen["cases"] // 1000, seen
