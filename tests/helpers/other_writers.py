"""Files as DuckDB, Polars and Spark write them: our reader takes every column, as ids, dense
features, raw values and lists, and GPU pages where a GPU takes them, and finds what was written.

python tests/helpers/other_writers.py --rows 60000 --seed 7

Polars and Spark are tried where they are installed (`pip install polars pyspark`; Spark wants
Java).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from column_pages import decode, read_pages

from dpiframe_core import _core
from dpiframe_core.features import Encoder, fit_schema
from dpiframe_core.features.datasets import criteo_schema
from pipeline.data.synth import SynthOptions, synth

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4"]
LISTS = {"ids": pa.int32(), "long_ids": pa.int64(), "numbers": pa.float32()}
LENGTH, PAD = 50, -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = made_rows(folder, options.rows, options.seed)
        pq.write_table(table, folder / "pyarrow.parquet")
        for path in written(folder / "pyarrow.parquet"):
            pages = check(path, table)
            metadata = pq.read_metadata(path)
            chunks = [
                metadata.row_group(g).column(c)
                for g, c in itertools.product(
                    range(metadata.num_row_groups), range(metadata.num_columns)
                )
            ]
            encodings = sorted({encoding for chunk in chunks for encoding in chunk.encodings})
            print(f"{path.name}: equal; pages of {pages} columns for a GPU; {', '.join(encodings)}")


def made_rows(folder: Path, rows: int, seed: int) -> pa.Table:
    """Raw Criteo columns, integers of all types and spreads, real numbers, and lists."""
    synth(SynthOptions(output=folder / "raw", dataset="criteo", rows=rows, seed=seed))
    table = pq.read_table(folder / "raw")
    random = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {}
    for kind, spread in itertools.product(INTEGERS, ["few", "zipf", "sorted", "runs", "wide"]):
        most = int(np.iinfo(kind).max)
        values = {
            "few": lambda most: random.integers(0, min(most, 100), rows),
            "zipf": lambda most: np.minimum(random.zipf(1.3, rows), most),
            "sorted": lambda most: np.sort(random.integers(0, min(most, 1 << 30), rows)),
            "runs": lambda most: np.repeat(random.integers(0, min(most, 1 << 20), rows), 50)[:rows],
            "wide": lambda most: random.integers(0, most, rows),
        }[spread](most)
        columns[f"{kind}_{spread}"] = pa.array(values.astype(kind))
        columns[f"{kind}_{spread}_null"] = pa.array(values.astype(kind), mask=some(random, rows))
    for kind in ("f4", "f8"):
        columns[kind] = pa.array(random.normal(size=rows).astype(kind))
        columns[f"{kind}_null"] = pa.array(columns[kind].to_numpy(), mask=some(random, rows))
    for name, element in LISTS.items():
        sizes = random.integers(-1, 70, rows)
        lists = [None if n < 0 else random.integers(0, 1000, n).tolist() for n in sizes]
        columns[name] = pa.array(lists, pa.list_(element))
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def some(random: np.random.Generator, rows: int) -> np.ndarray:
    """One row in fifty."""
    return random.random(rows) < 0.02


def written(base: Path) -> Iterator[Path]:
    """The rows of a file in files by other writers, with the codecs and versions of each."""
    yield base
    for codec, version in itertools.product(["snappy", "zstd", "gzip", "lz4_raw"], ["v1", "v2"]):
        path = base.with_name(f"duckdb-{codec}-{version}.parquet")
        form = f"format parquet, compression {codec}, parquet_version {version}"
        duckdb.sql(f"copy (from read_parquet('{base}')) to '{path}' ({form}, row_group_size 20000)")
        yield path
    if importlib.util.find_spec("polars"):
        yield from by_polars(base)
    if importlib.util.find_spec("pyspark"):
        yield from by_spark(base)


def by_polars(base: Path) -> Iterator[Path]:
    import polars

    for codec, page in itertools.product(
        ["uncompressed", "snappy", "zstd", "gzip", "lz4"], [None, 5000]
    ):
        path = base.with_name(f"polars-{codec}-{page}.parquet")
        polars.read_parquet(base).write_parquet(
            path, compression=codec, data_page_size=page, row_group_size=25_000
        )
        yield path


def by_spark(base: Path) -> Iterator[Path]:
    from pyspark.sql import SparkSession

    keys = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1"}
    spark = SparkSession.builder.master("local[1]").config(map=keys).getOrCreate()
    try:
        rows = spark.read.parquet(str(base)).coalesce(1)
        for codec, version in itertools.product(
            ["none", "snappy", "zstd", "gzip", "lz4_raw"], ["v1", "v2"]
        ):
            folder = base.with_name(f"spark-{codec}-{version}")
            writer = rows.write.option("compression", codec)
            writer = writer.option("parquet.writer.version", version)
            writer = writer.option("parquet.page.size", "20000")
            writer.option("parquet.block.size", str(2 << 20)).parquet(str(folder))
            yield next(folder.glob("part-*.parquet")).rename(folder / f"{folder.name}.parquet")
    finally:
        spark.stop()


def check(path: Path, table: pa.Table) -> int:
    """Read all columns in each way that they may be read; the columns whose pages a GPU takes."""
    file = _core.ParquetFile(str(path))
    groups, rows = (0, len(file.group_rows)), table.num_rows
    numbers = [name for name in table.column_names if name[:2] in {*INTEGERS, "f4", "f8"}]
    pages = 0
    for name in numbers:
        (kind,) = file.feature_types([name], *groups)
        assert kind, f"{path.name}: {name} is not for our reader"
        kind = "<f4" if name[0] == "f" else kind
        found = np.empty(rows, kind)
        (nulls,) = file.read_features([name], *groups, [found])
        column = table.column(name).combine_chunks()
        np.testing.assert_array_equal(found, column.fill_null(0).to_numpy().astype(kind), name)
        np.testing.assert_array_equal(nulls, np.flatnonzero(column.is_null()), name)
        if not len(nulls) and name[0] != "f" and name[:2] != "u4" and "gzip" not in path.name:
            (decoded,) = decode(*read_pages(file, [name]))
            np.testing.assert_array_equal(decoded, found.view(decoded.dtype), name)
            pages += 1
    check_raw(file, groups, path, table)
    for name in LISTS:
        check_list(file, groups, name, table)
    return pages


def check_raw(file: Any, groups: tuple[int, int], path: Path, table: pa.Table) -> None:
    for integers, texts in (("buckets", "vocabulary"), ("dense", "hash")):
        schema = criteo_schema(integers, texts, min_count=3)
        encoder = Encoder(*fit_schema(schema, [table.slice(0, table.num_rows // 10)]))
        wanted, (fields, dense) = encoder.encode(table), encoder.value_encoders
        features = zip(
            [*schema.fields, *schema.dense],
            [*fields, *dense],
            [*wanted.ids, *wanted.dense],
            strict=True,
        )
        for feature, values, right in features:
            assert file.is_encodable(feature.column, *groups), f"{path.name}: {feature.column}"
            found = np.empty_like(right)
            file.read_encoded([feature.column], *groups, [values], [found])
            np.testing.assert_array_equal(found.view("i4"), right.view("i4"), feature.column)


def check_list(file: Any, groups: tuple[int, int], name: str, table: pa.Table) -> None:
    kind = "f4" if name == "numbers" else "i8"
    wanted = np.full((LENGTH, table.num_rows), PAD, kind)
    for row, values in enumerate(table.column(name).to_pylist()):
        kept = (values or [])[:LENGTH]
        wanted[: len(kept), row] = kept
    found = np.empty_like(wanted)
    file.read_list(name, *groups, list(found), PAD, False, False)
    np.testing.assert_array_equal(found, wanted, name)


if __name__ == "__main__":
    main()
