"""What a job tells its tracker: names and digests that mean the same in every run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from local_job import plan_of, write_input

from pipeline.planning.inputs import scan_inputs
from pipeline.planning.job_plan import JobPlan
from pipeline.scoring.tracked import dataset_digest, made_up_name
from pipeline.words import shortened


def plan(folder: Path, **keys: str) -> JobPlan:
    return plan_of(folder, folder / "out", unit_rows=20, **keys)


def test_one_input_has_one_digest_wherever_it_lies(tmp_path: Path):
    write_input(tmp_path / "a" / "input")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first, second = plan(tmp_path / "a"), plan(tmp_path / "b", precision="fp16")
    assert first.identity != second.identity
    assert dataset_digest(first.files) == dataset_digest(second.files)
    assert len(dataset_digest(first.files)) == 36


def test_another_input_has_another_digest(tmp_path: Path):
    write_input(tmp_path / "input")
    one = plan(tmp_path)
    (tmp_path / "input" / "more").mkdir()
    shutil.copy(tmp_path / "input" / "shard.parquet", tmp_path / "input" / "more" / "shard.parquet")
    more = scan_inputs(one.config).files
    assert len(more) == 2
    digests = {dataset_digest(files) for files in (one.files, more, more[:1], [])}
    assert len(digests) == 3  # the first file is the whole of the first input


def test_a_run_is_called_by_bundle_date_and_rows(tmp_path: Path):
    write_input(tmp_path / "input")
    assert made_up_name(plan(tmp_path, date="2026-11-19")) == "bundle 2026-11-19 60 rows"
    assert made_up_name(plan(tmp_path)).startswith("bundle 20")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0k"),
        (99_900, "99.9k"),
        (123_456, "123k"),
        (999_949, "1.0M"),
        (45_840_617, "45.8M"),
        (3_000_000_000, "3.0B"),
        (4 * 10**12, "4000B"),
    ],
)
def test_counts_are_short(count: int, text: str):
    assert shortened(count) == text
