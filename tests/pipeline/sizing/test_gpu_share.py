"""How much of the input a GPU can unpack: by all units, and what `--dry-run` says of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, job_keys, tiny_bundle, tiny_spec, unit_of

from pipeline.config.job import JobConfig
from pipeline.planning.columns import Columns
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.plan import make_plan
from pipeline.scoring import dry_run
from pipeline.sizing import gpu_share
from pipeline.sizing.machine import Machine
from pipeline.sizing.sizes import work_of

FIELD = tiny_spec().fields[0].name


def plan_of(folder: Path, *codecs: str, unit_rows: int = 500) -> JobPlan:
    """Of a file of two units for each codec."""
    tiny_bundle(folder / "bundle")
    (folder / "input").mkdir()
    for i, codec in enumerate(codecs):
        write(folder / f"input/{i}.parquet", encoded_table(1000), codec)
    return make_plan(JobConfig.model_validate(job_keys(folder, unit_rows=unit_rows)))


def write(path: Path, table: pa.Table, codec: str) -> None:
    pq.write_table(table, path, row_group_size=500, compression=codec, write_statistics=False)


def test_all_units_count(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "zstd", "none", "gzip", "zstd")
    work = work_of(plan, plan.units)
    assert work.gpu_share == 0.75
    assert work.gpu_excludes.endswith(
        f"2.parquet: row group 0, column {FIELD}: pages of codec 2 are not unpacked on a GPU"
    )
    assert work_of(plan, plan.units[:4])[-2:] == (1.0, "")
    on_cpu = plan.config.model_copy(update={"device": "cpu"})
    assert work_of(plan.model_copy(update={"config": on_cpu}), plan.units).gpu_share == 0


def test_of_many_units_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path, "zstd", "gzip", "zstd", "gzip")
    monkeypatch.setattr(gpu_share, "MAX_UNITS", 4)
    assert work_of(plan, plan.units).gpu_share == 0.5


def test_raw_rows(tmp_path: Path) -> None:
    keys = {"form": "raw", "key_columns": ("key",), "carry_columns": ()}
    columns = Columns(**keys, source_columns=("word", "count"))
    table = pa.table({"word": ["a", None], "count": [1, 2], "other": [True, False]})
    units = []
    for codec in ("zstd", "gzip"):
        write(tmp_path / codec, table, codec)
        units.append(unit_of(tmp_path / codec, 0, 1, 0, 2))
    assert gpu_share.gpu_share(units[:1], columns) == (1.0, "")
    half = gpu_share.gpu_share(units, columns)
    assert half.share == 0.5
    assert half.excludes.endswith("column word: pages of codec 2 are not unpacked on a GPU")
    others = Columns(**keys, source_columns=("other",))
    assert "column other holds no raw values" in gpu_share.gpu_share(units, others).excludes


def test_files_that_went_or_have_other_types(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "zstd", "zstd")
    paths = [Path(unit.path) for unit in plan.units[::2]]
    paths[0].unlink()
    table = encoded_table(1000)
    column = table.schema.get_field_index(FIELD)
    write(paths[1], table.set_column(column, FIELD, table[FIELD].cast(pa.int64())), "zstd")
    assert work_of(plan, plan.units).gpu_share == 0
    assert "No such file" in work_of(plan, plan.units).gpu_excludes
    assert "has numbers of 4 bytes" in work_of(plan, plan.units[2:]).gpu_excludes


@pytest.mark.parametrize(
    ("codecs", "line"),
    [
        (["zstd"], "unpacking  by the GPU"),
        (
            ["zstd", "gzip"],
            "unpacking  of 50.0% of the rows by the GPU, of the others by the CPU",
        ),
        (["gzip"], "unpacking  by the CPU: "),
    ],
)
def test_a_dry_run_says_who_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codecs: list[str], line: str
) -> None:
    host = Machine(cores=16, gpus=1, memory_bytes=10**11, shared_bytes=10**10, has_cuda=True)
    monkeypatch.setattr(dry_run, "local_machine", lambda: host)
    plan = plan_of(tmp_path, *codecs)
    plan = plan.model_copy(update={"config": plan.config.model_copy(update={"device": "cuda"})})
    (found,) = [x for x in dry_run.dry_run(plan, 500).splitlines() if x.startswith("unpacking")]
    assert found.startswith(line)
    assert ("codec 2" in found) == ("gzip" in codecs)
