"""Small bundles and parquet inputs for the tests of planning."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpiframe_core import CTRModel, FieldSpec, ModelSpec, save_bundle
from dpiframe_core.features import FeatureSchema, criteo_schema
from dpiframe_core.model.builtin import Deep, Features, deepfm
from pipeline.config.job import JobConfig

_NOBODY = 65534
ROWS = {"C1": 11, "C2": 19}  # tables of the encoded model


def encoded_spec(oov_row: int | None = None) -> ModelSpec:
    """Two fields and a dense feature."""
    fields = [FieldSpec(name=n, rows=rows, dim=2, oov_row=oov_row) for n, rows in ROWS.items()]
    return deepfm(Features(fields=fields, dense=["I1"]), Deep(hidden=(3,)))


def raw_schema() -> FeatureSchema:
    """Criteo's columns, hashed into small tables."""
    return criteo_schema("buckets", "hash", modulus=19, max_bucket=11)


def raw_spec() -> ModelSpec:
    """The model that fits `raw_schema`."""
    fields = [FieldSpec(name=f.name, rows=f.rows, dim=2) for f in raw_schema().fields]
    return deepfm(Features(fields=fields), Deep(hidden=(3,)))


def save(path: Path, spec: ModelSpec, schema: FeatureSchema | None = None, seed: int = 0) -> Path:
    """Save a bundle with random weights."""
    save_bundle(path, spec, CTRModel(spec, seed=seed).state_dict(), schema)
    return path


def encoded_table(rows: int = 111, **columns: Any) -> pa.Table:
    """Valid rows of the encoded form; `columns` replaces or (None) removes some."""
    rng = np.random.default_rng(rows)
    table: dict[str, Any] = {
        "row_id": np.arange(rows, dtype=np.int64),
        "label": np.zeros(rows, np.int8),
        **{name: rng.integers(0, size, rows, dtype=np.int32) for name, size in ROWS.items()},
        "I1": rng.random(rows, dtype=np.float32),
    }
    table |= columns
    return pa.table({name: values for name, values in table.items() if values is not None})


def raw_table(rows: int = 111, **columns: Any) -> pa.Table:
    """Valid rows as Criteo publishes them, with nulls."""
    integers = pa.array([None, 3, -1] * rows, pa.int32())[:rows]
    strings = pa.array(["68fd1e64", None] * rows, pa.string())[:rows]
    table: dict[str, Any] = {
        "row_id": np.arange(rows, dtype=np.int64),
        "label": np.zeros(rows, np.int8),
        **{f"I{i}": integers for i in range(1, 14)},
        **{f"C{i}": strings for i in range(1, 27)},
    }
    table |= columns
    return pa.table({name: values for name, values in table.items() if values is not None})


def write(path: Path, table: pa.Table, row_group_size: int = 19) -> Path:
    """Write one parquet file, its folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def job(folder: Path, **keys: Any) -> JobConfig:
    """A job in `folder`: bundle/, input/, output/, key row_id."""
    defaults: dict[str, Any] = {
        "bundle": str(folder / "bundle"),
        "input": str(folder / "input"),
        "output": str(folder / "output"),
        "key_columns": ["row_id"],
    }
    return JobConfig(**(defaults | keys))


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A folder of a user whom permissions stop: root gives up its rights for the test."""
    folder = Path(tempfile.mkdtemp(prefix="dpiframe-test-"))
    root = os.geteuid() == 0
    if root:
        os.chown(folder, _NOBODY, _NOBODY)
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)


def snapshot(folder: Path) -> dict[str, int]:
    """Everything below a folder, with modification times: to show that nothing was written."""
    return {str(path): path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
