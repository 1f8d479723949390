"""The data set and the bundle of a benchmark of the job, made in a process that ends with them."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from pydantic import BaseModel

from dpiframe_core import save_bundle
from pipeline.bench.engine.data import random_weights
from pipeline.bench.job.case import JobCase
from pipeline.data.synth import synth


class Inputs(BaseModel):
    """What was made: distinct files, their rows, the bundle; bytes and seconds of each."""

    files: list[str]
    rows: int
    rows_per_file: int
    data_bytes: int
    data_s: float
    bundle: str
    table_rows: int
    bundle_s: float

    def listed(self, rows: int) -> list[str]:
        """Whole files of `rows` rows or a little more: the files again and again."""
        return list(itertools.islice(itertools.cycle(self.files), -(-rows // self.rows_per_file)))


def make_inputs(case: JobCase, folder: Path) -> Inputs:
    """Write `folder`/rows and `folder`/bundle; memory and GPU are free again afterwards."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(make_here, case, folder).result()


def make_here(case: JobCase, folder: Path) -> Inputs:
    """The same in this process, which keeps the memory that torch takes for large tables."""
    data = synth(case.data(folder / "rows"))
    began = time.perf_counter()
    spec = case.spec()
    save_bundle(folder / "bundle", spec, random_weights(spec, case.seed), case.features())
    return Inputs(
        files=[str(path) for path in sorted((folder / "rows").glob("*.parquet"))],
        rows=data.rows,
        rows_per_file=data.rows // data.shards,
        data_bytes=data.bytes,
        data_s=data.seconds,
        bundle=str(folder / "bundle"),
        table_rows=sum(field.rows for field in spec.fields),
        bundle_s=time.perf_counter() - began,
    )
