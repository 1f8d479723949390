"""Training on synthetic rows learns the planted clicks; its bundle scores like the module."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpiframe_core import CTRModel, load_engine
from dpiframe_core.features import Encoder
from pipeline.data.synth import SynthOptions, synth
from pipeline.errors import ConfigError, ContractError
from pipeline.training import TrainOptions, encode_rows, read_tables, train


@pytest.fixture(scope="module")
def raw_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "rows"
    synth(SynthOptions(dataset="criteo", output=folder, rows=20_000, rows_per_shard=7_000))
    return folder


def _options(raw_rows, output, **changes):
    small = {"dim": 4, "hidden": (16, 8), "modulus": 500, "batch": 512, "learning_rate": 1e-2}
    return TrainOptions(input=(raw_rows,), output=output, **{**small, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "deepfm", "batch_norm": True, "dropout": 0.1},
        {"model": "dcn", "integers": "dense", "categoricals": "vocabulary"},
    ],
    ids=["hash", "vocabulary"],
)
def test_a_trained_bundle_scores_like_its_module(raw_rows, tmp_path, changes):
    options = _options(raw_rows, tmp_path / "bundle", **changes)
    result = train(options)
    assert result.rows == 20_000 and result.auc > 0.6
    bundle = result.bundle
    encoder = Encoder(bundle.schema, bundle.vocabularies)
    columns = [*bundle.schema.source_columns, bundle.schema.label_column]
    rows = encode_rows(read_tables(options, columns), encoder, bundle.schema)
    model = CTRModel.from_weights(bundle.spec, bundle.weights())
    with torch.no_grad():
        expected = model(rows.ids, rows.dense).numpy()
    logits = load_engine(bundle).logits(rows.ids.numpy(), rows.dense.numpy())
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_max_rows_stops_within_a_file(raw_rows, tmp_path):
    result = train(_options(raw_rows, tmp_path / "b", max_rows=7_501))
    assert result.rows == 7_501


def test_wrong_inputs_are_named(raw_rows, tmp_path):
    with pytest.raises(ConfigError, match="no parquet files in"):
        train(_options(tmp_path, tmp_path / "b"))
    with pytest.raises(ContractError, match="training needs the columns hour"):
        train(_options(raw_rows, tmp_path / "b", dataset="avazu"))
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        train(_options(raw_rows, tmp_path / "b"))
