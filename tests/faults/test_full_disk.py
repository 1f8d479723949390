"""A disk that is full at any one of the files that a job writes: stopped, whole, and resumable."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from job_cases import (
    job_keys,
    outcomes,
    read_scores,
    reference_scores,
    tiny_bundle,
    with_value,
    write_shards,
)

from pipeline.config.job import JobConfig
from pipeline.errors import ResumableError
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.plan import make_plan
from pipeline.publishing.atomic import TEMP_MARK
from pipeline.publishing.output import open_output
from pipeline.publishing.records import OutputLayout, UnitError, UnitRecord, read_json
from pipeline.publishing.verify import verify_output
from pipeline.scoring.job import job_error

PAGE = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 pages."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={64 * PAGE}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def leave(disk: Path, pages: int) -> None:
    """Fill the disk but for so many pages."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize // PAGE
    filler.write_bytes(bytes(max(0, free - pages) * PAGE))


def run(plan: JobPlan) -> None:
    """The job as it is, but in this process."""
    output = open_output(plan.config.output)
    with output.errors(), output.lock():
        attempt, _ = output.claim(plan)
        for outcome in outcomes(plan, attempt):
            if isinstance(outcome, UnitError):
                raise job_error(outcome)
        output.finish(plan, attempt, [])
        output.tidy()


def check_whole(layout: OutputLayout) -> set[str]:
    """Every record, and a manifest, names files with the recorded content; names of the records."""
    found = set()
    for path in layout.units.glob("u*.json"):
        record = read_json(path, UnitRecord)
        assert record is not None
        content = (layout.root / record.part).read_bytes()
        assert hashlib.sha256(content).hexdigest() == record.sha256
        assert record.rejected_part is None or (layout.root / record.rejected_part).exists()
        found.add(record.unit)
    if layout.success.exists():
        assert verify_output(layout.root).problems == []
    return found


def test_the_disk_may_be_full_anywhere(tmp_path: Path, disk: Path) -> None:
    """One page more each time: the lock, identity, each part, rejected rows, record, the end."""
    model = tiny_bundle(tmp_path / "bundle")
    folder = tmp_path / "input"
    table = write_shards(folder, 1, 60, 20)
    _spoil(folder / "shard-000.parquet")
    keys = {"unit_rows": 20, "on_bad_row": "reject", "max_rejected_fraction": 0.1}
    stopped_at: list[int] = []
    for pages in range(40):
        output = disk / "output"
        config = JobConfig.model_validate(job_keys(tmp_path, output=str(output), **keys))
        plan, layout = make_plan(config), OutputLayout(output)
        leave(disk, pages)
        try:
            run(plan)
            break
        except ResumableError as error:
            assert "No space left" in str(error)
        published = check_whole(layout)
        stopped_at.append(len(published))
        assert not list(disk.rglob(f"*{TEMP_MARK}*"))

        (disk / "filler").unlink()
        run(plan)

        assert verify_output(output).problems == []
        scores = read_scores(output).column("score").to_numpy(zero_copy_only=False)
        good = np.flatnonzero(~np.isnan(scores))
        assert len(good) == 59
        np.testing.assert_allclose(scores[good], reference_scores(model, table)[good], atol=1e-5)
        subprocess.run(["rm", "-r", str(output)], check=True)
    assert set(stopped_at) == {0, 1, 2, 3}  # before each unit, and at the manifest
    assert stopped_at == sorted(stopped_at)
    assert len(stopped_at) > 9


def _spoil(shard: Path) -> None:
    """One bad row, which no statistics show, so that a unit has rejected rows."""
    import pyarrow.parquet as pq

    table = with_value(pq.read_table(shard), "C2", 25, 99)
    pq.write_table(table, shard, row_group_size=20, write_statistics=False)
