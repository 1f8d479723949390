"""Damaged files: each is read or refused."""

from __future__ import annotations

from run_fuzz import outcomes_of


def test_damaged_files_are_read_or_refused(tmp_path):
    seen = outcomes_of("fuzz_parquet.py", tmp_path, 2000)
    # The damage is neither too small nor too large to test anything.
    for outcome in ("read", "not read: ValueError", "not opened: ValueError"):
        assert seen[outcome] > seen["cases"] // 100, seen


def test_damaged_lists_and_raw_columns_are_read_or_refused(tmp_path):
    seen = outcomes_of("fuzz_other_columns.py", tmp_path, 700)
    for outcome in ("list: read", "list: ValueError", "raw: read", "raw: ValueError"):
        assert seen[outcome] > seen["cases"] // 100, seen
