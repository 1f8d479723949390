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
        ("inputs", ["bundle: refused", "yaml: no YAML", "criteo: refused", "avazu: refused"]),
    ],
)
def test_damaged_inputs_are_read_right_or_refused(tmp_path, script, wanted):
    seen = outcomes_of(f"fuzz_{script}.py", tmp_path, seconds=6)
    # The damage is neither too small nor too large to test anything.
    for outcome in wanted:
        assert seen[outcome] > seen["cases"] // 100, seen
    if script == "inputs":  # most damage leaves no YAML at all, some leaves wrong settings
        assert seen["yaml: refused"] > 0, seen
