"""Runs side by side: what differs, by how much, and where a run may come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from tracking_records import make_record, track_job

from jobs.compare import command
from pipeline.errors import ConfigError
from pipeline.publishing.records import Manifest, OutputLayout, write_json
from pipeline.storage.registered import DIGEST_TAG, PATH_TAG
from pipeline.tracking.compare import RunView, compare, format_comparison, load_runs, score_psi

FIRST = RunView("a", "FINISHED", {"x": "1", "y": "1"}, {"rows": 100.0, "gpus": 0.0}, {"host": "h"})
SECOND = RunView("b", "FAILED", {"x": "1", "y": "2"}, {"rows": 125.0, "gpus": 0.0, "units": 19.0})


def test_parameters_that_differ_and_relative_metrics():
    comparison = compare([FIRST, SECOND, FIRST])
    assert comparison["params"] == {"y": ["1", "2", "1"]}
    assert comparison["tags"] == {"host": ["h", None, "h"]}
    rows = comparison["metrics"]["rows"]
    assert rows == {"values": [100.0, 125.0, 100.0], "relative": [None, 0.25, 0.0]}
    assert comparison["metrics"]["gpus"]["relative"] == [None, None, None]
    assert comparison["metrics"]["units"] == {"values": [None, 19.0, None], "relative": [None] * 3}


def test_the_table():
    table = format_comparison(compare([FIRST, SECOND]))
    assert table.splitlines() == [
        "run      a         b",
        "status   FINISHED  FAILED",
        "",
        "params that differ",
        "  y      1         2",
        "",
        "tags that differ",
        "  host   h         -",
        "",
        "metrics (difference to the first run)",
        "  rows   100       125 (+25.0%)",
        "  units  -         19",
        "  gpus   0         0",
    ]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """An output folder, the store it was tracked in, the run's id."""
    folder = tmp_path_factory.mktemp("compare")
    store = f"sqlite:///{folder}/mlflow.db"
    tracker = track_job(folder / "out", store, run_name="nightly")
    return folder / "out", store, str(tracker.run_id)


def test_a_run_by_folder_id_and_name(tracked: tuple[Path, str, str]):
    output, store, run_id = tracked
    by_folder, by_id, by_name = load_runs([str(output), run_id, "nightly"], store)
    assert by_folder.params == by_id.params == by_name.params
    assert by_id.label == f"nightly ({run_id[:8]})"
    series = {"progress_rows", "progress_rows_per_second"}
    assert {k: v for k, v in by_id.metrics.items() if k not in series} == by_folder.metrics
    assert score_psi(run_id, "nightly", store) == 0
    assert score_psi(run_id, str(output), store) is None  # no manifest: the job has not finished


def test_a_run_by_an_alias(tracked: tuple[Path, str, str]):
    output, store, run_id = tracked
    digest = load_runs([str(output)], store)[0].tags["bundle_digest"]
    registry = MlflowClient(store, store)
    for name, scored in ("ctr", digest), ("never", "0" * 64):
        registry.create_registered_model(name)
        tags = {DIGEST_TAG: scored, PATH_TAG: "bundle"}
        registry.create_model_version(name, str(output), tags=tags)
        registry.set_registered_model_alias(name, "champion", "1")
    (by_alias,) = load_runs(["models:/ctr@champion"], store)
    assert by_alias.label == f"nightly ({run_id[:8]})"
    assert score_psi("models:/ctr/1", run_id, store) == 0
    with pytest.raises(ConfigError, match="no finished run has scored by models:/never@champion"):
        load_runs(["models:/never@champion"], store)


def test_the_command_prints_a_table_and_json(tracked: tuple[Path, str, str]):
    output, store, run_id = tracked
    arguments = [str(output), run_id, "--mlflow-uri", store]
    table = CliRunner().invoke(command, arguments)
    assert table.exit_code == 0, table.output
    assert "rows_per_second" in table.output
    as_json = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)
    assert as_json["metrics"]["rows"] == {"values": [333.0, 333.0], "relative": [None, 0.0]}


def test_an_output_that_was_never_tracked(tmp_path: Path):
    units = [make_record(index) for index in range(3)]
    manifest = Manifest(
        identity="i",
        bundle_digest="b",
        config={"max_batch": 19},
        key_columns=[],
        carry_columns=[],
        rows=333,
        scored=327,
        rejected=6,
        units=units,
        quarantined=[],
        files=[],
    )
    write_json(OutputLayout(tmp_path).manifest, manifest)
    (run,) = load_runs([str(tmp_path)], None)
    assert run.params == {"max_batch": "19"}
    assert run.metrics["rows"] == 333
    assert run.metrics["score_seconds"] == pytest.approx(0.09)
    assert score_psi(str(tmp_path), str(tmp_path), None) == 0


def test_what_cannot_be_found_is_said(tracked: tuple[Path, str, str], tmp_path: Path):
    with pytest.raises(ConfigError, match="no run 'nosuch'"):
        load_runs(["nosuch"], tracked[1])
    with pytest.raises(ConfigError, match=r"no run 'nosuch': .*no MLflow database .*none\.db"):
        load_runs(["nosuch"], f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(ConfigError, match="neither tracking records nor"):
        load_runs([str(tmp_path)], None)
    assert CliRunner().invoke(command, ["one"]).exit_code == 2
