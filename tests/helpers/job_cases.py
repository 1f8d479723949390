"""Small jobs that several tests share: a tiny model, encoded parquet shards, a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from model_zoo import fields, random_inputs, random_model

from dpiframe_core import CTRModel, ModelSpec, save_bundle
from dpiframe_core.model.builtin import Deep, Features, deepfm
from pipeline.config.job import JobConfig
from pipeline.planning.columns import Columns
from pipeline.planning.job_plan import JobPlan, WorkerPlan
from pipeline.planning.plan import make_plan
from pipeline.planning.units import Unit
from pipeline.publishing.output import open_output
from pipeline.publishing.records import Manifest, Outcome, UnitRecord
from pipeline.scoring.flow import read_task
from pipeline.scoring.scorer_actor import ScorerActor
from pipeline.scoring.transport import outcomes_from_table
from pipeline.sizing.sizes import Sizes


def unit_of(path: Path, first: int, stop: int, first_row: int, rows: int) -> Unit:
    """The unit of row groups [first, stop) of a file as it is now."""
    stat = path.stat()
    return Unit(
        index=0,
        name="u000000-0123abcd",
        path=str(path),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        first_row_group=first,
        stop_row_group=stop,
        first_row=first_row,
        rows=rows,
    )


def tiny_spec() -> ModelSpec:
    """DeepFM with seven fields and three dense features."""
    return deepfm(Features(fields(4), ["I1", "I2", "I3"], "field"), Deep(hidden=(19, 5)))


def tiny_bundle(path: Path, seed: int = 0) -> CTRModel:
    """Write a bundle at `path` and return its model."""
    model = random_model(tiny_spec(), seed)
    save_bundle(path, model.spec, model.state_dict())
    return model


def encoded_table(rows: int, first_key: int = 0, seed: int = 0) -> pa.Table:
    """Rows in the encoded form of the tiny model: row_id, label, ids, dense features."""
    spec = tiny_spec()
    ids, dense = random_inputs(spec, rows, seed)
    columns: dict[str, Any] = {"row_id": np.arange(first_key, first_key + rows)}
    columns["label"] = (ids[0] % 2).astype(np.int8)
    columns |= {f.name: ids[i].astype(np.int32) for i, f in enumerate(spec.fields)}
    columns |= {name: dense[i] for i, name in enumerate(spec.dense)}
    return pa.table(columns)


def write_shards(folder: Path, shards: int, rows: int, group: int) -> pa.Table:
    """Write shards of `rows` rows with row groups of `group`; returns all rows in order."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = [encoded_table(rows, i * rows, seed=i) for i in range(shards)]
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"shard-{i:03}.parquet", row_group_size=group)
    return pa.concat_tables(tables)


def damage(path: Path, group: int, column: int) -> None:
    """Overwrite bytes in the middle of the pages of a column."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    data = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(data)


def job_keys(folder: Path, **keys: Any) -> dict[str, Any]:
    """A configuration over `folder`/input and `folder`/bundle, without tracking."""
    return {
        "bundle": str(folder / "bundle"),
        "input": str(folder / "input"),
        "output": str(folder / "output"),
        "key_columns": ["row_id"],
        "carry_columns": ["label"],
        "ray_address": "local",
        "tracking": False,
        "threads": 1,
    } | keys


def write_config(folder: Path, **keys: Any) -> Path:
    """The same as a YAML file."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job_keys(folder, **keys)))
    return path


def reference_scores(model: CTRModel, table: pa.Table) -> np.ndarray:
    """Scores [B] of the torch model, in float64."""
    spec = model.spec
    ids = np.stack([table.column(f.name).to_numpy() for f in spec.fields]).astype(np.int64)
    dense = np.stack([table.column(name).to_numpy() for name in spec.dense])
    with torch.no_grad():
        double = model.double()
        logits = double(torch.from_numpy(ids), torch.from_numpy(dense).double())
    model.float()
    return torch.sigmoid(logits).numpy()


def read_scores(output: Path) -> pa.Table:
    """All published rows, part by part in the order of the units."""
    parts = sorted(output.glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts])


def stamps(
    output: Path, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, tuple[int, int]]:
    """Part name -> inode and modification time: equal stamps mean the file was not rewritten."""
    paths = output.glob("part-*.parquet")
    found = {path.name: path.stat() for path in paths if wanted(path.name)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def worker_plan(columns: Columns, bundle: str = "", digest: str = "") -> WorkerPlan:
    """A plan to read such columns by."""
    config = JobConfig.model_construct(bundle=bundle)
    return WorkerPlan.model_construct(config=config, columns=columns, bundle_digest=digest)


def scorer_of(plan: JobPlan, attempt: str, device: Literal["cpu", "cuda"] = "cpu") -> ScorerActor:
    """The scorer of this plan, in this process."""
    gpus = 1 if device == "cuda" else 0
    sizes = Sizes(device, scorers=1, scorer_cpus=1, scorer_gpus=gpus, read_cpus=1, threads=1)
    return ScorerActor(plan.for_workers, sizes, attempt)


def outcomes(plan: JobPlan, attempt: str | None = None) -> Iterator[Outcome]:
    """Score every unit, as the job does but in this process; claims the output for no attempt."""
    attempt = attempt or open_output(plan.config.output).claim(plan).attempt
    scorer = scorer_of(plan, attempt)
    for unit in plan.units:
        (table,) = read_task(unit, plan.for_workers)
        yield from outcomes_from_table(scorer(table))


def score_here(folder: Path, **keys: Any) -> Manifest:
    """A finished output of the job, made in this process."""
    plan = make_plan(JobConfig.model_validate(job_keys(folder, **keys)))
    output = open_output(plan.config.output)
    attempt, _ = output.claim(plan)
    for outcome in outcomes(plan, attempt):
        assert isinstance(outcome, UnitRecord), outcome
    manifest = output.finish(plan, attempt, [])
    output.tidy()
    return manifest


def with_value(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    """The table with another value in one place."""
    values = table.column(column).to_pylist()
    values[row] = value
    index, kind = table.schema.get_field_index(column), table.schema.field(column).type
    return table.set_column(index, column, pa.array(values, kind))
