"""The CPU engine's tables."""

from __future__ import annotations

import numpy as np

from dpiframe_core.engine.compiled_lookup import HUGE_TABLE_BYTES, FastTables


def test_a_large_table_is_copied_once_and_a_small_one_never():
    rng = np.random.default_rng(0)
    large = rng.random((HUGE_TABLE_BYTES // 16 + 1, 4), np.float32)
    weights = {"large": large, "small": large[:9]}
    tables = FastTables(weights)
    assert tables["small"] is weights["small"]
    assert tables["large"] is tables["large"]
    assert not np.shares_memory(tables["large"], large)
    np.testing.assert_array_equal(tables["large"], large)
