"""Synthetic raw rows read by our own reader, also by way of the pages that a GPU takes, have the
codes that the encoder gives to pyarrow's.

python tests/helpers/raw_equality.py --rows 100000000 --seed 7
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dpiframe_core import _core
from dpiframe_core.features import Encoder, FeatureSchema, fit_schema
from dpiframe_core.features.datasets import avazu_schema, criteo_schema
from pipeline.data.synth import SynthOptions, synth

SHARD_ROWS = 500_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rows, seed, seconds = 0, options.seed, Counter[str]()
    values = 0
    while rows < options.rows:
        with tempfile.TemporaryDirectory() as folder:
            schema, written = drawn_rows(Path(folder), seed)
            for path in written:
                values += compare(path, schema, seconds)
                rows += SHARD_ROWS
        seed += 1
    rates = ", ".join(f"{name} {rows / spent / 1e6:.2f}" for name, spent in seconds.items())
    print(f"{rows:,} rows, {values:,} codes, all equal; million rows/s: {rates}")


def drawn_rows(folder: Path, seed: int) -> tuple[FeatureSchema, list[Path]]:
    """Files of rows, and a schema for them: all that a seed decides."""
    random = np.random.default_rng(seed)
    dataset = str(random.choice(["criteo", "criteo", "avazu"]))
    options = SynthOptions(
        output=folder / "rows",
        dataset=dataset,
        rows=4 * SHARD_ROWS,
        rows_per_shard=SHARD_ROWS,
        row_group_rows=int(random.choice([10_000, 100_000, SHARD_ROWS])),
        cardinality_scale=float(random.choice([0.001, 0.1, 1.0])),
        compression=str(random.choice(["none", "snappy", "lz4", "zstd"])),
        seed=seed,
    )
    synth(options)
    categoricals = str(random.choice(["hash", "vocabulary"]))
    made = {"modulus": int(random.integers(2, 1 << 24)), "seed": int(random.integers(1 << 32))}
    if dataset == "avazu":
        schema = avazu_schema(categoricals, **made)
    else:
        schema = criteo_schema(str(random.choice(["buckets", "dense"])), categoricals, **made)
    return schema, sorted(options.output.glob("*.parquet"))


def compare(path: Path, schema: FeatureSchema, seconds: Counter[str]) -> int:
    """Codes that were compared. AssertionError where one differs, also in a dense value's bits."""
    began = time.perf_counter()
    table = pq.read_table(path, columns=list(schema.source_columns), read_dictionary=texts(path))
    seconds["pyarrow"] += time.perf_counter() - began
    encoder = Encoder(*fit_schema(schema, [table.slice(0, SHARD_ROWS // 10)]))
    began = time.perf_counter()
    wanted = encoder.encode(table)
    seconds["encoder"] += time.perf_counter() - began
    began = time.perf_counter()
    file = _core.ParquetFile(str(path))
    groups = (0, len(file.group_rows))
    fields, dense = encoder.value_encoders
    features = [*schema.fields, *schema.dense]
    codes = [np.full(table.num_rows, -7, np.int32) for _ in fields]
    codes += [np.full(table.num_rows, -7, np.float32) for _ in dense]
    for feature, values, found in zip(features, [*fields, *dense], codes, strict=True):
        assert file.is_encodable(feature.column, *groups), feature
        file.read_encoded([feature.column], *groups, [values], [found])
    seconds["ours"] += time.perf_counter() - began
    began = time.perf_counter()
    names = [field.column for field in schema.fields]
    memory = np.empty(file.encoded_pages_bytes(names, *groups, fields), np.uint8)
    stored = file.read_encoded_pages(names, *groups, fields, memory)
    seconds["pages for a GPU"] += time.perf_counter() - began
    ids = np.full((len(fields), table.num_rows), -7, np.int32)
    stored.decode(memory, ids)
    for feature, found, right in zip(schema.fields, ids, wanted.ids, strict=True):
        assert np.array_equal(found, right), f"{path}: {feature.name} differs by way of pages"
    for feature, found, right in zip(features, codes, [*wanted.ids, *wanted.dense], strict=True):
        same = np.array_equal(found.view(np.int32), right.view(np.int32))
        assert same, f"{path}: {feature.name} differs"
    return len(codes) * table.num_rows


def texts(path: Path) -> list[str]:
    """Columns of strings, which stay dictionaries."""
    schema = pq.read_schema(path)
    return [field.name for field in schema if str(field.type) == "string"]


if __name__ == "__main__":
    main()
