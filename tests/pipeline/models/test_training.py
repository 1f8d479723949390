"""Training on synthetic rows learns the planted clicks; its bundle scores like the module."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner

from dpiframe_core import CTRModel, load_engine
from dpiframe_core.features import Encoder
from jobs.train import command
from pipeline import demo
from pipeline.data.synth import SynthOptions, synth
from pipeline.errors import ConfigError, ContractError
from pipeline.models.training import TrainOptions, encode_rows, read_labels, read_tables, train


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


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["0", "1"], None),
        ([0, 2], "must hold 0 or 1, got 2"),
        ([1, None], "must hold 0 or 1, got None"),
        (["yes", "no"], "does not hold labels"),
    ],
)
def test_labels(labels, message):
    column = pa.chunked_array([pa.array(labels)])
    if message is None:
        assert read_labels(column, "click").tolist() == [0.0, 1.0]
        return
    with pytest.raises(ContractError, match=f"column click {message}"):
        read_labels(column, "click")


def test_what_cannot_be_learnt_is_said(raw_rows, tmp_path):
    with pytest.raises(ContractError, match="with a click and rows without one"):
        train(_options(raw_rows, tmp_path / "b", max_rows=1))
    with pytest.raises(ConfigError, match="lower the learning rate"):
        train(_options(raw_rows, tmp_path / "b", max_rows=2000, learning_rate=1e30))
    with pytest.raises(ConfigError, match="dim: Input should be less than"):
        train(_options(raw_rows, tmp_path / "b", max_rows=2000, dim=5000))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the folder"):
        train(_options(raw_rows, tmp_path / "file" / "b"))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("hidden", ["", "8,,4", "abc", "0", "-1", "8;4"])
def test_the_command_names_wrong_widths(raw_rows, tmp_path, hidden):
    arguments = [str(raw_rows), "-o", str(tmp_path / "b"), "--hidden", hidden]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2 and "no list of numbers" in result.output


def test_a_demo_clears_its_own_folder_alone(tmp_path):
    (tmp_path / "rows").mkdir()
    with pytest.raises(ConfigError, match="holds files that no demo made"):
        demo.clear(tmp_path)
    demo.clear(tmp_path / "demo_out")
    (tmp_path / "demo_out" / "rows").mkdir()
    demo.clear(tmp_path / "demo_out")
    assert (tmp_path / "rows").exists() and not (tmp_path / "demo_out" / "rows").exists()
