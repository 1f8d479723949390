"""Input that changes under a job: no unit is scored from a file that is not the planned one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from job_cases import (
    encoded_table,
    job_keys,
    outcomes,
    read_scores,
    score_here,
    tiny_bundle,
    write_shards,
)

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError
from pipeline.planning.plan import make_plan
from pipeline.publishing.records import UnitError, UnitRecord
from pipeline.publishing.verify import verify_output
from pipeline.scoring.job import job_error


def rewritten(path: Path) -> None:
    """In place, as long as before."""
    size = path.stat().st_size
    pq.write_table(encoded_table(200, seed=9), path, row_group_size=20)
    with path.open("ab") as file:
        file.write(b"\0" * max(0, size - path.stat().st_size))


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def replaced(path: Path) -> None:
    """By a file of another name, as most tools write."""
    other = path.with_name("new.tmp")
    pq.write_table(encoded_table(200, seed=9), other, row_group_size=20)
    other.rename(path)


def replaced_with_its_time(path: Path) -> None:
    """As `rsync -t` or `cp -p` do: the time is kept, the size is another."""
    stat = path.stat()
    pq.write_table(encoded_table(220, seed=9), path, row_group_size=20)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def touched(path: Path) -> None:
    os.utime(path)


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def removed(path: Path) -> None:
    path.unlink()


CHANGES = [rewritten, appended, truncated, emptied, replaced, replaced_with_its_time, touched]
CHANGES += [made_a_folder, removed]


@pytest.mark.parametrize("change", CHANGES)
def test_units_of_a_changed_file_are_not_scored(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    tiny_bundle(tmp_path / "bundle")
    table = write_shards(tmp_path / "input", 2, 200, 20)
    shard = tmp_path / "input/shard-000.parquet"
    before, stat = shard.read_bytes(), shard.stat()
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, unit_rows=100)))

    found = []
    for outcome in outcomes(plan):
        if not found:
            change(shard)
        found.append(outcome)

    assert [type(outcome) for outcome in found] == [UnitRecord, UnitError, UnitRecord, UnitRecord]
    assert job_error(found[1]).exit_code == 3
    assert str(shard) in found[1].message
    if change in (replaced, replaced_with_its_time, touched):  # whole, but of another job
        with pytest.raises(ConfigError, match="its input files were others or have changed"):
            score_here(tmp_path, unit_rows=100)

    if shard.is_dir():
        shard.rmdir()
    shard.write_bytes(before)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    score_here(tmp_path, unit_rows=100)
    assert verify_output(tmp_path / "output").problems == []
    assert read_scores(tmp_path / "output").column("row_id").equals(table.column("row_id"))
