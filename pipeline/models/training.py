"""Training: fit a feature schema and a model on raw parquet shards, write a bundle.

Small and plain: one pass to fit the schema, the encoded rows in memory (4 bytes per feature and
row), Adam. It provides a real model to score with; a large model is trained elsewhere and imported
by `dpiframe export`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dpiframe_core import Bundle, BundleError, CTRModel, SpecError, save_bundle
from dpiframe_core.evaluation import auc, logloss
from dpiframe_core.features import (
    EncodeError,
    Encoder,
    FeatureSchema,
    SchemaError,
    avazu_schema,
    criteo_schema,
    fit_schema,
)
from dpiframe_core.model.builtin import MODELS, Deep, Features
from pipeline.errors import ConfigError, ContractError

BATCH_ROWS = 131_072


class TrainOptions(BaseModel):
    """What to train, on what, and where the bundle goes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: tuple[Path, ...] = Field(min_length=1)
    output: Path
    dataset: Literal["criteo", "avazu"] = "criteo"
    integers: Literal["buckets", "dense"] = "buckets"
    categoricals: Literal["hash", "vocabulary"] = "hash"
    modulus: int = Field(default=20_000, ge=1)
    min_count: int = Field(default=10, ge=1)
    model: Literal["wdl", "deepfm", "dcn", "dcnv2"] = "deepfm"
    dense_as: Literal["field", "raw"] = "field"
    dim: int = Field(default=16, ge=1)
    hidden: tuple[int, ...] = (400, 400, 400)
    batch_norm: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    epochs: int = Field(default=1, ge=1)
    batch: int = Field(default=2048, ge=2)
    learning_rate: float = Field(default=1e-3, gt=0)
    max_rows: int | None = Field(default=None, ge=1)
    seed: int = 0

    def schema_to_fit(self) -> FeatureSchema:
        """The feature schema of the data set, before fitting."""
        if self.dataset == "avazu":
            return avazu_schema(self.categoricals, modulus=self.modulus, min_count=self.min_count)
        return criteo_schema(
            self.integers, self.categoricals, modulus=self.modulus, min_count=self.min_count
        )


@dataclass(frozen=True)
class Rows:
    """Encoded rows: ids [F, B] int32, dense [N, B] float32, labels [B] float32."""

    ids: Tensor
    dense: Tensor
    labels: Tensor


@dataclass(frozen=True)
class TrainResult:
    """The bundle, with AUC and logloss on its training rows."""

    bundle: Bundle
    rows: int
    auc: float
    logloss: float


def train(options: TrainOptions, on_step: Callable[[str], None] = lambda _: None) -> TrainResult:
    """Fit the schema, train, write the bundle; `on_step` prints progress.

    Raises ContractError for input that does not fit the data set or has one class only,
    ConfigError for an output that exists or cannot be made, and for invalid options.
    """
    if options.output.exists():
        raise ConfigError(f"{options.output} exists; choose another output or remove it first")
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder of {options.output}: {error}") from None
    schema = options.schema_to_fit()
    columns = [*schema.source_columns, schema.label_column or ""]
    try:
        fitted, vocabularies = fit_schema(schema, read_tables(options, columns))
        rows = encode_rows(read_tables(options, columns), Encoder(fitted, vocabularies), fitted)
    except (EncodeError, SchemaError) as error:
        raise ContractError(f"training rows do not fit the schema: {error}") from None
    on_step(f"{rows.labels.numel():,} rows encoded, {rows.labels.mean():.3f} clicks a row")
    if rows.labels.unique().numel() != 2:
        raise ContractError("training needs rows with a click and rows without one")
    try:
        features = Features.of_schema(fitted, options.dim, options.dense_as)
        deep = Deep(options.hidden, options.batch_norm, options.dropout)
        model = CTRModel(MODELS[options.model](features, deep), options.seed, sparse=True)
        fit_model(model, rows, options, on_step)
        bundle = save_bundle(options.output, model.spec, model.state_dict(), fitted, vocabularies)
    except (SpecError, BundleError) as error:
        raise ConfigError(str(error)) from None
    scores, labels = predict(model, rows, options.batch), rows.labels.numpy()
    return TrainResult(bundle, len(labels), auc(labels, scores), logloss(labels, scores))


def read_tables(options: TrainOptions, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The training rows as tables, in file order, up to max_rows."""
    left = options.max_rows
    for path in parquet_files(options.input):
        try:
            present = pq.read_schema(path).names
        except pa.ArrowInvalid as error:
            raise ContractError(f"{path} is not a whole parquet file: {error}") from None
        if absent := [c for c in columns if c not in present]:
            raise ContractError(f"{path}: training needs the columns {', '.join(absent)}")
        file = pq.ParquetFile(path, read_dictionary=list(columns))
        for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
            table = pa.Table.from_batches([batch.slice(0, left)])
            yield table
            left = None if left is None else left - table.num_rows
            if left == 0:
                return


def parquet_files(paths: Sequence[Path]) -> list[Path]:
    """Files, and the *.parquet files of folders, sorted; ConfigError when there is none."""
    found = []
    for path in paths:
        found += sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not found:
        raise ConfigError(f"no parquet files in {', '.join(map(str, paths))}")
    if absent := [str(path) for path in found if not path.is_file()]:
        raise ConfigError(f"no such file: {', '.join(absent)}")
    return found


def encode_rows(tables: Iterator[pa.Table], encoder: Encoder, schema: FeatureSchema) -> Rows:
    """Encode tables and concatenate them."""
    ids, dense, labels = [], [], []
    for table in tables:
        encoded = encoder.encode(table)
        ids.append(np.stack(encoded.ids) if encoded.ids else np.empty((0, table.num_rows)))
        dense.append(np.stack(encoded.dense) if encoded.dense else np.empty((0, table.num_rows)))
        labels.append(read_labels(table.column(schema.label_column), schema.label_column or ""))
    return Rows(
        torch.from_numpy(np.concatenate(ids, axis=1).astype(np.int32, copy=False)),
        torch.from_numpy(np.concatenate(dense, axis=1).astype(np.float32, copy=False)),
        torch.from_numpy(np.concatenate(labels)),
    )


def read_labels(column: pa.ChunkedArray, name: str) -> np.ndarray:
    """The labels [B] float32, each 0 or 1; otherwise ContractError."""
    try:
        labels: np.ndarray = column.cast(pa.float32()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ContractError(f"column {name} does not hold labels: {error}") from None
    wrong = np.flatnonzero((labels != 0) & (labels != 1))  # a null is NaN here
    if len(wrong):
        raise ContractError(f"column {name} must hold 0 or 1, got {column[int(wrong[0])]}")
    return labels


def fit_model(
    model: CTRModel, rows: Rows, options: TrainOptions, on_step: Callable[[str], None]
) -> None:
    """Minimise the logloss by Adam in shuffled batches; batches of one row are skipped."""
    named = dict(model.named_parameters())
    tables = [w for name, w in named.items() if "/tables/" in name]
    others = [w for name, w in named.items() if "/tables/" not in name]
    optimisers = [
        torch.optim.SparseAdam(tables, lr=options.learning_rate),
        torch.optim.Adam(others, lr=options.learning_rate),
    ]
    generator = torch.Generator().manual_seed(options.seed)
    model.train()
    for epoch in range(options.epochs):
        losses = []
        for picked in torch.randperm(rows.labels.numel(), generator=generator).split(options.batch):
            if len(picked) < 2:
                continue
            logits = model(rows.ids[:, picked], rows.dense[:, picked])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, rows.labels[picked])
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise ConfigError("the loss is not finite: lower the learning rate")
        on_step(f"epoch {epoch + 1}: mean logloss {np.mean(losses):.4f} in {len(losses)} batches")
    model.eval()


@torch.no_grad()
def predict(model: CTRModel, rows: Rows, batch: int) -> np.ndarray:
    """Probabilities [B] of the torch module."""
    parts = [
        torch.sigmoid(model(rows.ids[:, i : i + batch], rows.dense[:, i : i + batch]))
        for i in range(0, rows.labels.numel(), batch)
    ]
    return torch.cat(parts).numpy()
