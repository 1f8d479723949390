"""The whole path on real Criteo and Avazu rows: convert, train, score by the job, compare."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from mlflow import MlflowClient
from sklearn.metrics import log_loss, roc_auc_score

from dpiframe_core import CTRModel
from dpiframe_core.features import Encoder
from jobs.compare import command as compare
from pipeline.config.job import JobConfig
from pipeline.data.convert import ConvertOptions, convert
from pipeline.errors import ContractError
from pipeline.models.training import TrainOptions, train
from pipeline.publishing.scores import open_scores
from pipeline.publishing.verify import verify_output
from pipeline.scoring.job import run_job

pytestmark = pytest.mark.slow

# data set -> key, label, what to train, rows a shard (at least 8 shards)
CASES = {
    "criteo": ("row_id", "label", {"model": "dcnv2", "integers": "dense", "dim": 10}, 1000),
    "avazu": ("id", "click", {"model": "deepfm", "categoricals": "vocabulary", "dim": 4}, 1100),
}


@pytest.fixture(scope="module", params=CASES)
def scored(request, tmp_path_factory, shared_data, ray_session):
    """Real rows converted to shards, a model trained on them, every row scored by the job."""
    name = request.param
    key, label, training, shard_rows = CASES[name]
    folder = tmp_path_factory.mktemp(name)
    source = next(Path(shared_data).glob(f"{name}_*.[ct]sv"))
    convert(
        ConvertOptions(
            dataset=name, inputs=(source,), output=folder / "rows", rows_per_shard=shard_rows
        )
    )
    options = TrainOptions(
        input=(folder / "rows",),
        output=folder / "bundle",
        dataset=name,
        hidden=(32, 16),
        modulus=1000,
        min_count=2,
        batch_norm=True,
        learning_rate=3e-3,
        **training,
    )
    bundle = train(options).bundle
    config = JobConfig(
        bundle=str(folder / "bundle"),
        input=str(folder / "rows"),
        output=str(folder / "scores"),
        label_column=label,
        unit_rows=500,
        mlflow_uri=f"sqlite:///{folder}/mlflow.db",
        ray_address=ray_session,
    )
    result = run_job(config)
    return source, key, label, bundle, folder, result


def test_the_shards_hold_the_rows(scored):
    source, _, _, _, folder, result = scored
    with source.open(newline="") as file:
        lines = list(csv.reader(file, delimiter="\t" if source.suffix == ".tsv" else ","))
    rows = len(lines) - (source.suffix == ".csv")
    assert result.rows == result.scored == rows and rows in (8184, 8999)
    assert len(list((folder / "rows").glob("*.parquet"))) >= 8


def test_each_row_is_scored_once_in_its_order(scored):
    _, key, label, _, folder, _ = scored
    table = pq.read_table(folder / "rows", columns=[key, label])
    published = open_scores(folder / "scores").to_table()
    assert published.column_names == [key, label, "score"]
    assert published[key].equals(table[key]) and published[label].equals(table[label])
    assert published["score"].null_count == 0
    assert verify_output(folder / "scores").problems == []


def test_scores_equal_the_torch_module_s(scored):
    _, _, label, bundle, folder, _ = scored
    table = pq.read_table(folder / "rows")
    encoded = Encoder(bundle.schema, bundle.vocabularies).encode(table)
    model = CTRModel.from_weights(bundle.spec, bundle.weights())
    ids = torch.from_numpy(np.stack(encoded.ids))
    dense = torch.from_numpy(np.stack(encoded.dense)) if encoded.dense else None
    with torch.no_grad():
        expected = torch.sigmoid(model(ids, dense)).numpy()
    scores = open_scores(folder / "scores").to_table()["score"].to_numpy()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
    labels = table[label].to_numpy()
    exact = roc_auc_score(labels, expected)
    assert roc_auc_score(labels, scores) == pytest.approx(exact, abs=1e-6) and exact > 0.6


def test_the_auc_in_mlflow_is_scikit_learn_s(scored):
    _, _, label, _, folder, result = scored
    published = open_scores(folder / "scores").to_table()
    labels, scores = published[label].to_numpy(), published["score"].to_numpy().astype(np.float64)
    metrics = MlflowClient(f"sqlite:///{folder}/mlflow.db").get_run(result.run_id).data.metrics
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert metrics["logloss"] == pytest.approx(log_loss(labels, scores), rel=1e-6)
    assert metrics["labelled_rows"] == result.rows and metrics["auc_error"] == 0
    assert result.evaluation["auc"] == metrics["auc"]


def test_a_gate_catches_two_swapped_columns(scored, ray_session):
    _, _, label, _, folder, _ = scored
    table = pq.read_table(folder / "rows")
    swapped = {"label": ("I5", "I11"), "click": ("site_id", "app_id")}[label]
    names = [dict(zip(swapped, swapped[::-1], strict=True)).get(n, n) for n in table.column_names]
    (folder / "swapped").mkdir()
    pq.write_table(table.rename_columns(names), folder / "swapped/x.parquet")
    run_job(
        JobConfig(
            bundle=str(folder / "bundle"),
            input=str(folder / "swapped"),
            output=str(folder / "scores-swapped"),
            label_column=label,
            tracking=False,
            ray_address=ray_session,
        )
    )
    gates = ["--min-auc-ratio", "0.99", "--rows"]
    same = [str(folder / "scores"), str(folder / "scores")]
    assert CliRunner().invoke(compare, [*same, *gates], catch_exceptions=False).exit_code == 0
    runs = [str(folder / "scores"), str(folder / "scores-swapped")]
    with pytest.raises(ContractError, match="below --min-auc-ratio"):
        CliRunner().invoke(compare, [*runs, *gates], catch_exceptions=False)
