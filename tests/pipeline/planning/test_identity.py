from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.job import JobConfig
from pipeline.config.segments import Segments
from pipeline.planning.identity import IDENTITY_KEYS, job_identity
from pipeline.planning.inputs import InputFile

FILE = InputFile(
    path="/data/a.parquet",
    size=1000,
    mtime_ns=7,
    footer_sha256="00ff",
    rows=19,
    row_group_rows=(19,),
    arrow_schema=None,
)
CONFIG = JobConfig(
    bundle="b",
    input="x",
    output="o",
    form="encoded",
    key_columns=["row_id"],
    unit_rows=1_000_000,
)
# Keys that count by a rule of their own.
OWN_RULES = ("field_columns", "outputs", "segments", "where")
# One other value for every key that must count, and for every key that must not.
COUNTS: dict[str, Any] = {
    "form": "raw",
    "key_columns": ["id"],
    "carry_columns": ["label"],
    "field_columns": {"C1": "c1"},
    "unit_rows": 19,
    "outputs": {"user": "tower"},
    "segments": Segments(column="country", bundles={"DE": "de"}),
    "where": "hour < 6",
    "on_bad_row": "reject",
    "on_bad_id": "oov",
    "on_corrupt_file": "quarantine",
}
COUNTS_NOT: dict[str, Any] = {
    "partition_base": "moved",
    "partition_by": ["date"],  # each partition has an identity of its own
    "bundle": "moved",
    "input": ["moved"],
    "output": "moved",
    "date": "2026-11-19",
    "time_zone": "Europe/Berlin",
    "wait_for": "success",
    "deadline": "5m",
    "min_rows": 19,
    "check_keys": "count",
    "max_rejected_fraction": 0.5,
    "overwrite": True,
    "device": "cpu",
    "max_batch": 19,
    "streams": 1,
    "graphs": False,
    "threads": 2,
    "runner": "local",
    "ray_address": "auto",
    "num_scorers": 3,
    "max_tasks_in_flight": 1,
    "read_in": "tasks",
    "max_read_tasks": 1,
    "object_store_bytes": 10**9,
    "tracking": False,
    "mlflow_uri": "http://localhost",
    "tracking_wait": 0,
    "experiment": "other",
    "bundles": {"other": "elsewhere"},  # their names and digests count
    "run_name": "other",
    "baseline_run": "other",
    "table": "iceberg://prod/ads.scores",
    "label_column": "y",  # what these four carry counts among carry_columns, once it is settled
    "output_labels": {"cvr": "bought"},
    "group_column": "user",
    "slice_columns": ["site"],
    "notify_command": "true",
    "notify_webhook": "http://localhost",
    "price_per_hour": 2.5,
}


def identity(**changes: Any) -> str:
    return job_identity([FILE], "digest", CONFIG.model_copy(update=changes))


@pytest.mark.parametrize("key", COUNTS)
def test_a_key_that_changes_rows_changes_the_identity(key: str) -> None:
    assert identity(**{key: COUNTS[key]}) != identity()


@pytest.mark.parametrize("key", COUNTS_NOT)
def test_a_key_that_changes_no_row_does_not(key: str) -> None:
    assert identity(**{key: COUNTS_NOT[key]}) == identity()


def test_every_key_is_decided_about() -> None:
    assert set(IDENTITY_KEYS) | {*OWN_RULES} == {*COUNTS, "precision"}
    assert {*COUNTS, *COUNTS_NOT, "precision"} == set(JobConfig.model_fields)


def test_a_field_mapped_to_its_own_name_is_not_mapped() -> None:
    assert identity(field_columns={"C1": "C1"}) == identity()


def test_column_order_counts() -> None:
    ab, ba = (identity(carry_columns=list(order)) for order in ("ab", "ba"))
    assert ab != ba


@pytest.mark.parametrize(
    "change", [{"path": "/b"}, {"size": 1}, {"mtime_ns": 8}, {"footer_sha256": "01"}]
)
def test_every_fact_of_a_file_counts(change: dict[str, Any]) -> None:
    changed = job_identity([FILE.model_copy(update=change)], "digest", CONFIG)
    assert changed != identity()


def test_files_and_bundle_count() -> None:
    found = {
        job_identity(files, digest, CONFIG)
        for files in ([], [FILE], [FILE, FILE])
        for digest in ("digest", "other")
    }
    assert len(found) == 6


def test_the_identity_is_the_same_in_every_version() -> None:
    """A change here makes every stopped job of the field start over: raise _FORMAT, knowing it."""
    assert identity() == "9bb58cdc6b428e13dc365b2f9d6efb5cceb23f409a1ad34c1e5d2bcf3db7c6e2"
