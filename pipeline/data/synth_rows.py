"""Draws synthetic rows: the values of every field, missing values, and clicks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core.features.numeric import log_bucket_rows
from dpiframe_core.features.schema import FIRST_VALUE_ROW, MISSING_ROW, LogBucketEncoding
from pipeline.data.cardinalities import (
    AVAZU_CARDINALITIES,
    AVAZU_MISSING,
    CLICK_RATES,
    CRITEO_CARDINALITIES,
    CRITEO_COUNTS,
    CRITEO_MISSING,
)
from pipeline.data.click_model import ClickModel
from pipeline.data.parquet_layouts import Dataset, feature_columns
from pipeline.data.quantile_tables import QuantileTable, counts_table, missing_mask, zipf_table
from pipeline.data.synth_values import integer_values, permute_ranks

COUNT_BUCKETS = LogBucketEncoding()
_CALIBRATION_ROWS = 1 << 16


@dataclass(frozen=True)
class SynthField:
    """How one column is drawn. `size`: number of values, for counts the number of buckets."""

    name: str
    size: int
    missing_share: float
    table: QuantileTable
    is_text: bool
    is_count: bool
    published: np.ndarray | None  # [size] int32: the integers that the numbers stand for

    @property
    def rows(self) -> int:
        """Rows of the encoded field's table."""
        return COUNT_BUCKETS.rows if self.is_count else FIRST_VALUE_ROW + self.size


class Drawn(NamedTuple):
    """Values of n rows by field: counts, or numbers of values (int32 [n]); masks of the missing."""

    values: dict[str, np.ndarray]
    absent: dict[str, np.ndarray]
    clicks: np.ndarray  # [n] int8


class RowSource:
    """Draws the rows of one data set's shape; the same seed and block give the same rows."""

    def __init__(self, dataset: Dataset, zipf_exponent: float, cardinality_scale: float) -> None:
        self.fields = synth_fields(dataset, zipf_exponent, cardinality_scale)
        self._clicks = ClickModel({f.name: f.size for f in self.fields}, CLICK_RATES[dataset])
        sample = np.random.Generator(np.random.SFC64(0))
        hours = np.linspace(0, 1, _CALIBRATION_ROWS, endpoint=False)
        values, absent = self._values(sample, hours)
        self._clicks.calibrate(self._clicks.raw_scores(self._numbers(values), absent))

    def draw(self, seed: int, block: int, progress: np.ndarray) -> Drawn:
        """Rows of one block; `progress` [n] in [0, 1) says how far into the data each row is."""
        generator = np.random.Generator(np.random.SFC64([seed, block]))
        values, absent = self._values(generator, progress)
        scores = self._clicks.raw_scores(self._numbers(values), absent)
        uniform = generator.random(len(progress), dtype=np.float32)
        return Drawn(values, absent, self._clicks.clicks(scores, uniform))

    def _values(
        self, generator: np.random.Generator, progress: np.ndarray
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        values, absent = {}, {}
        for field in self.fields:
            if field.name == "hour":
                values["hour"] = (progress * field.size).astype(np.int32)
                continue
            words = generator.integers(0, 2**64, len(progress), dtype=np.uint64)
            drawn = field.table.draw(words)
            values[field.name] = permute_ranks(drawn, field.size) if field.is_text else drawn
            if field.missing_share:
                absent[field.name] = missing_mask(words, field.missing_share)
        return values, absent

    def _numbers(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the click model sees: buckets of counts, the hour of the day, other numbers."""
        seen = dict(values)
        for field in self.fields:
            if field.is_count:
                seen[field.name] = count_rows(values[field.name])
        if "hour" in seen:
            seen["hour"] = seen["hour"] % 24
        return seen


def count_rows(values: np.ndarray) -> np.ndarray:
    """Encoded ids [n] int32 of counts [n]: their logarithmic buckets."""
    return log_bucket_rows(values, COUNT_BUCKETS.max_bucket)


def encoded_ids(field: SynthField, drawn: Drawn) -> np.ndarray:
    """Ids [n] int32 of one field: row 0 where missing, values from row 2 on."""
    values = drawn.values[field.name]
    ids = count_rows(values) if field.is_count else values + np.int32(FIRST_VALUE_ROW)
    if field.name in drawn.absent:
        ids[drawn.absent[field.name]] = MISSING_ROW
    return ids


def synth_fields(
    dataset: Dataset, zipf_exponent: float, cardinality_scale: float
) -> list[SynthField]:
    """The fields of a data set in published order.

    The cardinalities of string columns are scaled (to at least 2); those of others are small.
    """
    sizes = CRITEO_CARDINALITIES if dataset == "criteo" else AVAZU_CARDINALITIES
    shares = CRITEO_MISSING if dataset == "criteo" else AVAZU_MISSING
    fields = []
    for name, kind in feature_columns(dataset).items():
        is_text, is_count = pa.types.is_string(kind), dataset == "criteo" and name in CRITEO_COUNTS
        if is_count:
            size, table = COUNT_BUCKETS.rows, counts_table(*CRITEO_COUNTS[name])
        else:
            size = max(2, round(sizes[name] * cardinality_scale)) if is_text else sizes[name]
            table = zipf_table(size, zipf_exponent)
        published = None if is_text or is_count else integer_values(name, size)
        share = shares.get(name, 0.0)
        fields.append(SynthField(name, size, share, table, is_text, is_count, published))
    return fields
