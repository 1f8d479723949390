"""A case of `dpiframe bench job`: its options, its folder, its synthetic rows and its bundle."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpiframe_core import ModelSpec, save_bundle
from dpiframe_core.features import FeatureSchema
from dpiframe_core.features.datasets import CRITEO_CATEGORICALS, criteo_schema
from dpiframe_core.features.schema import FIRST_VALUE_ROW
from dpiframe_core.model.builtin import MODELS, Deep, Features
from pipeline.bench.cases.random_data import random_weights
from pipeline.bench.job.histories import with_history
from pipeline.bench.job.rewriting import Writing, rewrite
from pipeline.config.job import known_keys
from pipeline.data.parquet_layouts import Form
from pipeline.data.synth import SynthOptions, field_rows, synth
from pipeline.errors import ConfigError

MEMORY_FOLDER = Path("/dev/shm")
MOST_DISTINCT_ROWS = 20_000_000
MOST_PEER_ROWS = 20_000_000
# Bytes of a compressed input row, and of a published key and score, rounded up: for `disk_bytes`.
INPUT_BYTES, OUTPUT_BYTES = 70, 8
# Keys of the job that the benchmark sets itself.
OWN_KEYS = {"bundle", "input", "output", "form", "device", "precision", "num_scorers"}
LISTS_LIKE = "C16"  # the field, of 5.5 million values at scale 1, whose number of ids lists have


class JobCase(BaseModel):
    """One benchmark of the job. `scale` shrinks the published cardinalities of Criteo.

    `keys` are further `key=value` of the job. `gpus`: a run for each number of GPUs, each with
    `cores_per_gpu` cores a GPU; on the CPU there is one run, with all cores.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(default=1_000_000, ge=1)
    distinct_rows: int = Field(default=MOST_DISTINCT_ROWS, ge=1)
    repeat_at: int | None = Field(default=None, ge=1)
    rows_per_file: int = Field(default=1_000_000, ge=1)
    row_group_rows: int = Field(default=100_000, ge=1)
    form: Form = "encoded"
    writer: Literal["synth", "pyarrow"] = "synth"
    compression: Literal["zstd", "snappy", "gzip", "lz4", "none"] = "zstd"
    id_type: Literal["int32", "int64"] = "int32"
    data_page_version: Literal["1.0", "2.0"] = "1.0"
    list_length: int = Field(default=0, ge=0)
    model: Literal["wdl", "deepfm", "dcn", "dcnv2"] = "dcnv2"
    dim: int = Field(default=16, ge=1)
    hidden: tuple[int, ...] = (400, 400, 400)
    scale: float = Field(default=1.0, gt=0, le=1)
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "fp32"
    gpus: tuple[int, ...] = (1,)
    cores_per_gpu: int = Field(default=16, ge=1)
    peer: bool = True
    peer_rows: int = Field(default=MOST_PEER_ROWS, ge=1)
    peer_batch: int = Field(default=65536, ge=1)
    experiment: str = "dpiframe-bench"
    mlflow_uri: str | None = None
    keys: tuple[str, ...] = ()
    seed: int = 0

    @model_validator(mode="after")
    def _keys_are_the_job_s_and_free(self) -> Self:
        for item in self.keys:
            key, equals, _ = item.partition("=")
            if not equals or key not in known_keys() or key in OWN_KEYS:
                raise ConfigError(
                    f"{item!r} is not key=value with a key of the job (docs/job.md) that the "
                    f"benchmark leaves free; it sets {', '.join(sorted(OWN_KEYS))} itself"
                )
        return self

    @model_validator(mode="after")
    def _synth_writes_one_kind_of_file(self) -> Self:
        written = (self.compression, self.id_type, self.data_page_version)
        if self.writer == "synth" and written != ("zstd", "int32", "1.0"):
            raise ConfigError(
                "the benchmark's own rows are zstd, int32, data pages 1.0; other files are "
                "pyarrow's: --writer pyarrow"
            )
        if self.list_length and (self.writer == "synth" or self.form == "raw"):
            raise ConfigError("lists are beside encoded rows that pyarrow writes: --writer pyarrow")
        return self

    @property
    def written(self) -> str:
        """How the files are written, in words; "" for our own of a million rows."""
        if self.writer == "synth":
            million = self.rows_per_file == 1_000_000
            return "" if million else f" in files of {self.rows_per_file:,} rows"
        lists = f", lists of up to {self.list_length} ids" if self.list_length else ""
        return (
            f" by pyarrow ({self.compression}, row groups of {self.row_group_rows:,}, "
            f"{self.id_type}, data pages {self.data_page_version}{lists})"
        )

    def writing(self) -> Writing | None:
        """How pyarrow writes the rows again."""
        if self.writer == "synth":
            return None
        return Writing(
            compression=self.compression,
            row_group_rows=self.row_group_rows,
            id_type=self.id_type,
            data_page_version=self.data_page_version,
            list_length=self.list_length,
            list_table_rows=self.list_table_rows,
            seed=self.seed,
        )

    @property
    def list_table_rows(self) -> int:
        """Rows of the lists' table: as many as those of a large field."""
        return field_rows(self.data(Path()))[LISTS_LIKE]

    @property
    def has_peer(self) -> bool:
        """Whether the peer runs: it takes neither raw rows nor lists."""
        return self.peer and self.form == "encoded" and not self.list_length

    def data(self, output: Path) -> SynthOptions:
        """The distinct rows: at most as many as one run reads, all files of equal size."""
        most = max(self.rows, self.repeat_at or 0)
        per_file = min(self.rows_per_file, most)
        num_files = -(-min(self.distinct_rows, most) // per_file)
        return SynthOptions(
            dataset="criteo",
            form=self.form,
            output=output,
            rows=num_files * per_file,
            rows_per_shard=per_file,
            row_group_rows=self.row_group_rows,
            seed=self.seed,
            cardinality_scale=self.scale,
        )

    def features(self) -> FeatureSchema | None:
        """The feature schema, with tables of the sizes that the synthetic ids are drawn for; None
        with lists, which have no raw form here.
        """
        return None if self.list_length else self._schema()

    def _schema(self) -> FeatureSchema:
        rows = field_rows(self.data(Path()))
        modulus = {name: rows[name] - FIRST_VALUE_ROW for name in CRITEO_CATEGORICALS}
        return criteo_schema(modulus=modulus)

    def spec(self) -> ModelSpec:
        """The model: 39 one-hot fields, 33.8 million rows at scale 1; or the 26 categorical ones
        beside a list.
        """
        features = Features.of_schema(self._schema(), self.dim)
        if not self.list_length:
            return MODELS[self.model](features, Deep(self.hidden))
        fields = [field for field in features.fields if field.name in CRITEO_CATEGORICALS]
        spec = MODELS[self.model](Features(fields), Deep(self.hidden))
        return with_history(spec, self.list_length, self.list_table_rows)

    def disk_bytes(self) -> int:
        """About how many bytes the folder will hold."""
        most = max(self.rows, self.repeat_at or 0)
        row_bytes = INPUT_BYTES + 4 * self.list_length
        tables = 4 * self.dim * table_rows(self.spec())
        return tables + self.data(Path()).rows * row_bytes + most * OUTPUT_BYTES


def table_rows(spec: ModelSpec) -> int:
    """Rows of all tables, once each."""
    return sum({field.table: field.rows for field in spec.fields}.values())


@contextlib.contextmanager
def bench_folder(
    wanted: Path | None, room: int, keep: bool, say: Callable[[str], None]
) -> Iterator[Path]:
    """A fresh folder: `wanted`, else in /dev/shm where twice `room` bytes are free, else in TMPDIR.

    It is removed at the end unless `keep`. ConfigError when `wanted` is not empty.
    """
    if wanted is None:
        in_memory = MEMORY_FOLDER.is_dir() and shutil.disk_usage(MEMORY_FOLDER).free > 2 * room
        folder = Path(
            tempfile.mkdtemp(prefix="dpiframe-bench-", dir=MEMORY_FOLDER if in_memory else None)
        )
    else:
        folder = wanted.absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--folder {folder} is not empty; choose another one")
        folder.mkdir(parents=True, exist_ok=True)
    say(f"folder  {folder} ({where(folder)}), about {room / 1e9:.1f} GB")
    try:
        yield folder
    finally:
        if keep:
            say(f"kept    {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def where(folder: Path) -> str:
    """Whether a folder lies in memory or on a disk."""
    in_memory = MEMORY_FOLDER in folder.absolute().parents
    return "memory-backed" if in_memory else "on the file system"


class Inputs(BaseModel):
    """The rows and the bundle that were written, with their sizes and times."""

    files: list[str]
    rows: int
    rows_per_file: int
    data_bytes: int
    data_s: float
    bundle: str
    table_rows: int
    bundle_s: float

    def listed(self, rows: int) -> list[str]:
        """Files for at least `rows` rows: the distinct files, listed repeatedly."""
        return list(itertools.islice(itertools.cycle(self.files), -(-rows // self.rows_per_file)))


def make_inputs(case: JobCase, folder: Path) -> Inputs:
    """Write `folder`/rows and `folder`/bundle in a child process, which frees its memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(make_here, case, folder).result()


def make_here(case: JobCase, folder: Path) -> Inputs:
    """The same in this process; torch may keep the memory of large tables."""
    data = synth(case.data(folder / "rows"))
    paths = sorted((folder / "rows").glob("*.parquet"))
    if (writing := case.writing()) is not None:
        rewrite(paths, writing)
    began = time.perf_counter()
    spec = case.spec()
    save_bundle(folder / "bundle", spec, random_weights(spec, case.seed), case.features())
    return Inputs(
        files=[str(path) for path in paths],
        rows=data.rows,
        rows_per_file=data.rows // data.shards,
        data_bytes=sum(path.stat().st_size for path in paths),
        data_s=data.seconds,
        bundle=str(folder / "bundle"),
        table_rows=table_rows(spec),
        bundle_s=time.perf_counter() - began,
    )
