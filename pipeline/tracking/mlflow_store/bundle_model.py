"""The code of a registered model: a bundle as MLflow's pyfunc, scored on the CPU.

MLflow copies this file beside the model and runs it when the model is loaded.
"""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np
import pyarrow as pa

from dpiframe_core import Bundle, load_engine, open_bundle
from dpiframe_core.features.encoder import Encoder
from pipeline.config.job import JobConfig
from pipeline.planning.columns import Columns, choose_columns
from pipeline.reading.encoded_columns import encoded_columns

MAX_BATCH = 4096
# What settles the columns of a job; nobody asks for a key here.
ENCODED = JobConfig(
    bundle="registered", input="frame", output="scores", form="encoded", key_columns=["none"]
)


class BundleModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Scores a DataFrame of raw or encoded columns, found by name; other columns are ignored."""

    bundle: Bundle
    engine: Any
    encoder: Encoder | None = None

    def load_context(self, context: Any) -> None:
        """Open the bundle and its engine on the CPU."""
        self.bundle = open_bundle(context.artifacts["bundle"])
        self.engine = load_engine(self.bundle, device="cpu", max_batch=MAX_BATCH)
        if self.bundle.schema is not None:
            self.encoder = Encoder(self.bundle.schema, self.bundle.vocabularies)

    # MLflow would take a type of `model_input` for a schema.
    def predict(  # type: ignore[no-untyped-def]
        self, context: Any, model_input, params: dict[str, Any] | None = None
    ) -> np.ndarray:
        """Probabilities [B] float32. ValueError names columns or rows that break the contract."""
        named = {str(name): model_input[name] for name in model_input.columns}
        if self.encoder is not None and set(self.encoder.schema.source_columns) <= named.keys():
            return self._score_raw(named)
        table = pa.table(
            {name: pa.array(values, from_pandas=True) for name, values in named.items()}
        )
        columns = choose_columns([table.schema], self.bundle.spec, None, ENCODED)
        absent = [name for name in columns.feature_columns if name not in named]
        if absent:
            raise ValueError(f"the DataFrame has no column {', '.join(absent[:20])}")
        return self._score_encoded(table, columns)

    def _score_raw(self, named: dict[str, Any]) -> np.ndarray:
        assert self.encoder is not None
        schema = self.encoder.schema
        arrays: dict[str, pa.Array] = {}
        for feature in schema.features:
            array = pa.array(named[feature.column], from_pandas=True)
            if getattr(feature, "values", None) == "integer" and pa.types.is_floating(array.type):
                array = array.cast(pa.int64())  # pandas has no integers beside missing values
            arrays[feature.column] = array
        encoded = self.encoder.encode(pa.table(arrays))
        return self._scores(encoded.ids, encoded.dense)

    def _score_encoded(self, table: pa.Table, columns: Columns) -> np.ndarray:
        found = encoded_columns(table, columns)
        if found.findings:
            first = found.findings[0]
            raise ValueError(f"{first.reason} in column {first.column}, row {first.rows[0]}")
        return self._scores(found.ids, found.dense)

    def _scores(self, ids: list[Any], dense: list[Any]) -> np.ndarray:
        rows = len((ids or dense)[0])
        scores = np.empty(rows, np.float32)
        for first in range(0, rows, MAX_BATCH):
            part = slice(first, first + MAX_BATCH)
            some = np.stack([column[part] for column in dense]) if dense else None
            scores[part] = self.engine.score([column[part] for column in ids], some)
        return scores


mlflow.models.set_model(BundleModel())
