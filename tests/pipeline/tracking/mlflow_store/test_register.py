"""Bundles in MLflow's registry: registered once, pinned by a job, scored from Python alike."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from job_cases import job_keys, tiny_bundle, write_shards

from jobs.register import command
from pipeline.config.job import JobConfig
from pipeline.data.synth import SynthOptions, synth
from pipeline.errors import ConfigError
from pipeline.models.training import TrainOptions, train
from pipeline.planning.plan import make_plan
from pipeline.publishing.scores import open_scores
from pipeline.scoring.job import run_job
from pipeline.storage.mlflow_access import quiet_mlflow
from pipeline.storage.registered import resolve_registered
from pipeline.tracking.mlflow_store.register import register

CHAMPION = "models:/ctr@champion"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a bundle that is registered, and input for it."""
    folder = tmp_path_factory.mktemp("registry")
    tiny_bundle(folder / "bundle")
    write_shards(folder / "input", 1, 111, 19)
    found = CliRunner().invoke(
        command,
        [str(folder / "bundle"), "ctr", "--alias", "champion", "--mlflow-uri", uri(folder)],
        catch_exceptions=False,
    )
    assert "models:/ctr/1 registered" in found.output and CHAMPION in found.output
    return folder


def uri(folder: Path) -> str:
    return f"sqlite:///{folder}/mlflow.db"


@pytest.fixture
def loaded(folder: Path) -> Iterator[object]:
    with quiet_mlflow():
        import mlflow

        mlflow.set_tracking_uri(uri(folder))
        mlflow.set_registry_uri(uri(folder))
        yield mlflow.pyfunc.load_model(CHAMPION)


def config(folder: Path, **keys: object) -> JobConfig:
    keys = {"bundle": CHAMPION, "mlflow_uri": uri(folder), "runner": "local", **keys}
    return JobConfig(**job_keys(folder, **keys))


def test_a_job_scores_the_champion_and_says_which_version_that_was(folder: Path):
    result = run_job(config(folder, tracking=True, tracking_wait=60))
    with quiet_mlflow():
        from mlflow import MlflowClient

        run = MlflowClient(uri(folder)).get_run(result.run_id)
    assert run.data.tags["registered_model"] == "ctr"
    assert run.data.tags["registered_version"] == "1"
    assert run.data.tags["registered_alias"] == "champion"
    assert run.data.params["bundle"] == "models:/ctr/1"
    assert run.info.run_name.startswith("ctr 20")
    assert "bundle: models:/ctr/1" in (folder / "output/_config.yaml").read_text()


def test_a_data_frame_gets_the_numbers_of_the_job(folder: Path, loaded):
    run_job(config(folder, output=str(folder / "same")))
    scores = open_scores(folder / "same").to_table().column("score").to_numpy()
    frame = pq.read_table(folder / "input").to_pandas()
    # A job cuts other batches, which sum in another order.
    assert np.abs(loaded.predict(frame) - scores).max() < 1e-6
    assert np.abs(loaded.predict(frame[frame.columns[::-1]]) - scores).max() < 1e-6
    with pytest.raises(Exception, match="C1"):
        loaded.predict(frame.drop(columns=["C1"]))


def test_the_identity_is_that_of_the_folder_and_survives_a_move_of_the_alias(folder: Path):
    pinned, plain = make_plan(config(folder)), make_plan(config(folder, bundle=f"{folder}/bundle"))
    assert pinned.identity == plain.identity
    tiny_bundle(folder / "other", seed=7)
    other = register(f"{folder}/other", "ctr", ("champion",), uri(folder), "dpiframe")
    again = register(f"{folder}/bundle", "ctr", (), uri(folder), "dpiframe")
    try:
        assert (other.version, other.is_new) == ("2", True)
        assert (again.version, again.is_new) == ("1", False)
        assert make_plan(config(folder)).bundle_digest == other.digest
        first = make_plan(config(folder, bundle="models:/ctr/1"))
        assert first.identity == pinned.identity
        assert first.for_workers.bundle == pinned.bundle
    finally:
        register(f"{folder}/bundle", "ctr", ("champion",), uri(folder), "dpiframe")


@pytest.mark.parametrize(
    "address", ["models:/ctr/19", "models:/ctr@nobody", "models:/none@champion"]
)
def test_what_is_not_registered_is_a_config_error(folder: Path, address: str):
    with pytest.raises(ConfigError, match=address):
        resolve_registered(address, uri(folder))


@pytest.mark.parametrize("address", ["models:/ctr", "models:/ctr/0", "models:/a/b/c", "models:/@x"])
def test_an_address_is_checked(folder: Path, address: str):
    with pytest.raises(ValueError, match="models:/NAME"):
        config(folder, bundle=address)


def test_another_bundle_in_its_place_is_refused(folder: Path, tmp_path: Path):
    found = resolve_registered(CHAMPION, uri(folder))
    shutil.copytree(found.location, tmp_path / "kept")
    try:
        shutil.rmtree(found.location)
        tiny_bundle(Path(found.location), seed=3)
        with pytest.raises(ConfigError, match="was registered with the bundle"):
            make_plan(config(folder))
    finally:
        shutil.rmtree(found.location)
        shutil.copytree(tmp_path / "kept", found.location)


def test_raw_columns_are_scored_alike(tmp_path: Path):
    synth(SynthOptions(dataset="criteo", output=tmp_path / "rows", rows=600, rows_per_shard=600))
    (shard,) = (tmp_path / "rows").glob("*.parquet")
    train(TrainOptions(input=(shard,), output=tmp_path / "raw", max_rows=500, hidden=(8,), dim=4))
    register(str(tmp_path / "raw"), "raw", ("champion",), uri(tmp_path), "dpiframe")
    output = tmp_path / "scores"
    keys = {"bundle": "models:/raw@champion", "input": str(shard), "output": str(output)}
    run_job(JobConfig(**keys, runner="local", tracking=False, mlflow_uri=uri(tmp_path)))
    scores = open_scores(output).to_table().column("score").to_numpy()
    with quiet_mlflow():
        import mlflow

        mlflow.set_tracking_uri(uri(tmp_path))
        mlflow.set_registry_uri(uri(tmp_path))
        model = mlflow.pyfunc.load_model("models:/raw@champion")
        found = model.predict(pq.read_table(shard).to_pandas())
    assert np.abs(found - scores).max() < 1e-6
