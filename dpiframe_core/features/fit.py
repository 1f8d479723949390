"""Fitting a feature schema: one pass over tables, in memory bounded by the distinct values."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpiframe_core.features.columns import as_table, list_chunk, missing, numbers
from dpiframe_core.features.encoder import as_field_values, as_vocabulary_values
from dpiframe_core.features.errors import EncodeError, SchemaError
from dpiframe_core.features.numbers import as_reals
from dpiframe_core.features.numeric import transform
from dpiframe_core.features.schema import (
    CategoricalFeature,
    DenseFeature,
    FeatureSchema,
    VocabularyEncoding,
)

# Counts wait until there are this many (or as many as are merged already), then are merged.
_MERGE_ENTRIES = 1 << 20


def fit_schema(
    schema: FeatureSchema, batches: Iterable[pa.Table | pa.RecordBatch]
) -> tuple[FeatureSchema, dict[str, pa.Array]]:
    """Fit means, deviations and vocabularies; gives the fitted schema and vocabularies by feature.

    A vocabulary is ordered by falling count, then by value, so it does not depend on how the rows
    are batched. Missing values are not counted. A dense feature without values gets mean 0, and
    one without spread gets deviation 1. Raises EncodeError for columns of wrong type, SchemaError
    when there is no row.
    """
    counters = {
        f.name: ValueCounter(f) for f in schema.fields if isinstance(f.encoding, VocabularyEncoding)
    }
    if numbered := [f.name for f in schema.fields if f.name in counters and _is_numbered(f)]:
        raise SchemaError(f"field {numbered[0]}: a vocabulary with a numbering cannot be fitted")
    moments = {d.name: Moments(d) for d in schema.dense}
    accumulators: list[ValueCounter | Moments] = [*counters.values(), *moments.values()]
    num_rows = 0
    for batch in batches:
        table = as_table(batch)
        problems = schema.check(table.schema)
        if problems:
            raise EncodeError("; ".join(problems))
        num_rows += table.num_rows
        for accumulator in accumulators:
            elements = accumulator.feature.elements
            for chunk in table.column(accumulator.feature.column).chunks:
                accumulator.add(list_chunk(chunk, elements.split_at).values if elements else chunk)
    if num_rows == 0:
        raise SchemaError("cannot fit a schema on no rows")
    vocabularies = {name: counter.finish() for name, counter in counters.items()}
    fitted = schema.model_copy(
        update={
            "fields": tuple(_fit_field(f, vocabularies) for f in schema.fields),
            "dense": tuple(moments[d.name].finish() for d in schema.dense),
        }
    )
    return fitted, vocabularies


class ValueCounter:
    """Counts the values of one field, merging counts as they pile up."""

    def __init__(self, feature: CategoricalFeature) -> None:
        self.feature = feature
        self._type = pa.string() if feature.values == "string" else pa.int64()
        empty = {"value": pa.array([], self._type), "count": pa.array([], pa.int64())}
        self._merged = pa.table(empty)
        self._waiting: list[pa.Table] = []

    def add(self, chunk: pa.Array) -> None:
        """Count the values of a plain or dictionary-encoded chunk."""
        if pa.types.is_null(chunk.type) or len(chunk) == 0:
            return
        if pa.types.is_dictionary(chunk.type):
            values = as_field_values(chunk.dictionary, self.feature)
            used = numbers(chunk.indices.drop_null()).astype(np.int64)
            counts = pa.array(np.bincount(used, minlength=len(values)))
        else:
            counted = pc.value_counts(as_field_values(chunk, self.feature))
            values, counts = counted.field(0), counted.field(1)
        values = as_vocabulary_values(values, self.feature).cast(self._type)
        keep = pc.and_(pc.is_valid(values), pc.greater(counts, 0))
        if self.feature.values == "string":
            keep = pc.and_(keep, pc.not_equal(pc.fill_null(values, ""), ""))
        found = pa.table({"value": values, "count": counts.cast(pa.int64())}).filter(keep)
        self._waiting.append(found)
        if sum(map(len, self._waiting)) > max(_MERGE_ENTRIES, len(self._merged)):
            self._merge()

    def finish(self) -> pa.Array:
        """The values with at least `min_count` occurrences, the most frequent first."""
        self._merge()
        encoding = self.feature.encoding
        assert isinstance(encoding, VocabularyEncoding)
        kept = self._merged.filter(pc.greater_equal(self._merged["count"], encoding.min_count))
        ordered = kept.sort_by([("count", "descending"), ("value", "ascending")])
        return pa.concat_arrays([pa.array([], self._type), *ordered["value"].chunks])

    def _merge(self) -> None:
        tables = pa.concat_tables([self._merged, *self._waiting])
        merged = tables.group_by("value", use_threads=False).aggregate([("count", "sum")])
        self._merged = merged.select(["value", "count_sum"]).rename_columns(["value", "count"])
        self._waiting = []


class Moments:
    """Mean and deviation of one dense feature after its transform, in float64.

    Batches are joined by the parallel form of Welford's update (Chan, Golub, LeVeque 1979).
    """

    def __init__(self, feature: DenseFeature) -> None:
        self.feature = feature
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, chunk: pa.Array) -> None:
        """Take in the values of a plain or dictionary-encoded chunk."""
        plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
        if pa.types.is_null(plain.type):
            return
        plain = as_reals(plain)
        absent = missing(plain)
        present = numbers(plain) if absent is None else numbers(plain)[~absent]
        if len(present) == 0:
            return
        values = transform(present, self.feature.transform)
        mean = float(values.mean())
        if not math.isfinite(mean):
            raise EncodeError(f"column {self.feature.column}: holds an infinite value")
        total, delta = self._count + len(values), mean - self._mean
        self._squares += float(np.square(values - mean).sum())
        self._squares += delta * delta * self._count * len(values) / total
        self._mean += delta * len(values) / total
        self._count = total

    def finish(self) -> DenseFeature:
        """The feature with its mean and (population) deviation."""
        std = math.sqrt(self._squares / self._count) if self._count else 0.0
        return self.feature.model_copy(update={"mean": self._mean, "std": std or 1.0})


def _is_numbered(field: CategoricalFeature) -> bool:
    return isinstance(field.encoding, VocabularyEncoding) and field.encoding.numbering is not None


def _fit_field(field: CategoricalFeature, vocabularies: dict[str, pa.Array]) -> CategoricalFeature:
    if field.name not in vocabularies:
        return field
    size = len(vocabularies[field.name])
    return field.model_copy(update={"encoding": field.encoding.model_copy(update={"size": size})})
