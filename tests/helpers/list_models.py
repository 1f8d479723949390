"""A small model that reads lists, tables of random lists, and padding written row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from model_zoo import random_model

from dpiframe_core import CTRModel, FieldSpec, ModelSpec, save_bundle
from dpiframe_core.features import FeatureSchema
from dpiframe_core.model.builtin import Deep, Features, deepfm
from dpiframe_core.model.fields import ListSpec

HISTORY = tuple(f"h{p}" for p in range(5))
PRICES = tuple(f"x{p}" for p in range(3))
ROWS = 19  # of the table that the field C and the list share


def list_spec(side: str = "behind", keep: str = "first", pad: int = 2) -> ModelSpec:
    """Field C and a list of ids that share a table, dense feature I and a list of numbers."""
    fields = [FieldSpec(name=name, rows=ROWS, dim=4, table="C") for name in ("C", *HISTORY)]
    spec = deepfm(Features(fields, ["I", *PRICES]), Deep(hidden=(5,)))
    lists = [
        {"name": "history", "features": HISTORY, "side": side, "keep": keep, "pad": pad},
        {"name": "prices", "features": PRICES, "side": side, "keep": keep, "pad": -1},
    ]
    return ModelSpec.parse(spec.model_dump() | {"lists": lists})


def list_bundle(
    path: Path, spec: ModelSpec, schema: FeatureSchema | None = None, vocabularies: Any = None
) -> CTRModel:
    """Write a bundle with random weights at `path`."""
    model = random_model(spec)
    save_bundle(path, model.spec, model.state_dict(), schema, vocabularies)
    return model


def random_lists(rows: int, length: int, high: int, seed: int) -> list[list[int] | None]:
    """Lists of numbers below `high`: null, empty, short, of `length` and longer."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(-1, length + 4, rows)
    return [None if n < 0 else rng.integers(0, high, n).tolist() for n in sizes]


def list_table(rows: int, seed: int = 0, **columns: Any) -> pa.Table:
    """Encoded rows of the model; `columns` replaces or (None) removes some."""
    rng = np.random.default_rng(seed)
    table: dict[str, Any] = {
        "row_id": np.arange(rows),
        "label": np.zeros(rows, np.int8),
        "C": rng.integers(0, ROWS, rows),
        "history": pa.array(random_lists(rows, 5, ROWS, seed), pa.list_(pa.int32())),
        "I": rng.random(rows, np.float32),
        "prices": pa.array(random_lists(rows, 3, 99, seed + 1), pa.large_list(pa.float64())),
    }
    table |= columns
    return pa.table({name: values for name, values in table.items() if values is not None})


def padded(values: list[Any] | None, spec: ListSpec) -> list[Any]:
    """One list as the model reads it."""
    length, found = len(spec.features), values or []
    kept = found[:length] if spec.keep == "first" else found[max(0, len(found) - length) :]
    pads = [spec.pad] * (length - len(kept))
    return kept + pads if spec.side == "behind" else pads + kept


def model_inputs(spec: ModelSpec, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Ids [F, B] int64 and dense features [N, B] float32 of encoded rows, row by row."""
    columns = {name: table.column(name).to_pylist() for name in ("C", "I")}
    for each in spec.lists:
        rows = [padded(values, each) for values in table.column(each.name).to_pylist()]
        columns |= {name: [row[p] for row in rows] for p, name in enumerate(each.features)}
    ids = np.array([columns[field.name] for field in spec.fields], np.int64)
    return ids, np.array([columns[name] for name in spec.dense], np.float32)
