"""The benchmark of the job: tiny runs of ours and of the peer, and what its figures mean."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from unit_records import record

from dpiframe_core import load_engine
from jobs.bench import command
from pipeline import score
from pipeline.bench.job.case import JobCase, bench_folder, make_here
from pipeline.bench.job.measure import sizes
from pipeline.bench.job.monitor import kind_of, parse_samples
from pipeline.bench.job.ray_data_peer import TorchScorer
from pipeline.bench.job.report import JobReport, page
from pipeline.bench.job.runs import agreement, first_cores, gpu_environment, peer_settings
from pipeline.bench.job.throughput import Event, Stage, bottleneck, rates, stages
from pipeline.errors import ConfigError, DpiframeError
from pipeline.publishing.scores import open_scores
from pipeline.tracking.compare import load_runs

TINY = ["--scale", "1e-4", "--hidden", "8", "--rows-per-file", "1000", "--row-group-rows", "500"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run of ours and of the peer: what was printed, the report, the MLflow store."""
    folder = tmp_path_factory.mktemp("bench")
    uri = f"sqlite:///{folder}/mlflow.db"
    arguments = ["job", "--rows", "6000", "--distinct-rows", "3000", *TINY, "unit_rows=500"]
    arguments += ["--mlflow-uri", uri, "--json", str(folder / "report.json")]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    text = (folder / "report.json").read_text()
    return done.output, JobReport.model_validate_json(text), uri


@pytest.mark.slow
def test_ours_is_timed_from_the_command_on(measured):
    _, report, _ = measured
    (run,) = report.runs
    assert (run.rows, run.files, run.units, run.gpus) == (6000, 6, 12, 0)
    assert 0 < run.planned_s < run.first_unit_read_s < run.rates.first_s < run.rates.seconds
    assert run.rates.seconds < run.exit_s
    assert run.rates.rows_per_s == pytest.approx(6000 / run.rates.seconds)
    assert {stage.name for stage in run.stages} >= {"read", "score", "write"}
    assert run.usage.processes["driver"].processes == 1
    assert run.usage.processes["scorers"].peak_bytes > 1e7
    assert report.inputs.rows == 3000 and report.machine["ray"]


@pytest.mark.slow
def test_the_peer_gives_the_same_scores(measured):
    output, report, _ = measured
    assert report.peer is not None
    assert report.peer.rows == 3000  # it reads each file once
    assert report.peer.agreement.rows == 2000
    assert report.peer.agreement.largest_difference < 1e-5
    assert "from the command on" in report.over_peer()
    assert "scores of ours and the peer agree on 2,000 sampled rows" in output


@pytest.mark.slow
def test_both_are_logged(measured):
    _, report, uri = measured
    ours, peer = load_runs(
        ["dpiframe dcnv2 fp32 encoded x1", "ray data + torch dcnv2 fp32 encoded x1"], uri
    )
    assert ours.metrics["bench_seconds"] == pytest.approx(report.runs[0].rates.seconds)
    assert ours.metrics["rows"] == 6000  # of the job itself
    assert peer.metrics["bench_rows"] == 3000
    assert peer.params["engine"] == "ray data + torch"


@pytest.mark.slow
def test_the_report_as_text_and_as_a_page(measured):
    output, report, _ = measured
    assert "seconds, command to _SUCCESS" in output and "peer, CPU" in output
    assert "on the file system" in output or "memory-backed" in output
    text = page([report, report])
    assert text.count("| M rows/s |") == 2 and text.count("\n## dcnv2, ") == 2
    assert "cores of" in text and "ray 2." in text


@pytest.mark.slow
def test_raw_rows_without_a_peer_in_a_folder_that_is_kept(tmp_path):
    arguments = ["job", "--rows", "1000", "--form", "raw", *TINY, "tracking=false"]
    arguments += ["--mlflow-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    folder = tmp_path / "bench"
    done = CliRunner().invoke(command, [*arguments, "--folder", str(folder), "--keep"])
    assert done.exit_code == 0, done.output
    assert "ours, CPU" in done.output and "peer, CPU" not in done.output
    assert "MLflow has no run of the job" in done.output
    assert pq.read_metadata(folder / "rows/shard-00000.parquet").num_rows == 1000
    with pytest.raises(ConfigError, match="is not empty"), bench_folder(folder, 1, True, print):
        pass


def test_steady_is_between_a_fifth_and_nine_tenths_of_the_files():
    events = [Event(110.0 + i, 10) for i in range(10)]
    found = rates(events[::-1], 100.0, 121.0)
    assert found.steady_window == (111.0, 118.0)
    assert found.steady_rows_per_s == pytest.approx(70 / 7)
    assert (found.seconds, found.first_s, found.tail_s) == (21.0, 10.0, 2.0)
    few = rates(events[:2], 100.0, 121.0)
    assert few.steady_rows_per_s is None and few.steady_window == (100.0, 121.0)


def test_stages_are_per_million_rows_and_per_place():
    units = [record(rows=500_000, read_s=4.0, score_s=0.5, scorer="a")] * 4
    read, score = stages(units, [11.0, 12.0, 13.0, 14.0], (11.0, 13.0), cores=8)
    assert (read.name, read.seconds_per_million, read.busy, read.places) == ("read", 8.0, 4.0, 8)
    assert (score.busy, score.places, score.share) == (0.5, 1, 0.5)


def test_the_limit_is_what_is_full():
    read = Stage(name="read", seconds_per_million=1, busy=6, places=8)
    score = Stage(name="score", seconds_per_million=1, busy=0.9, places=1)
    idle = score.model_copy(update={"busy": 0.2})
    assert bottleneck([read, score], 2.0, 8).startswith(
        "the engines limit: engines 90% of the time"
    )
    assert bottleneck([read, idle], 7.0, 8).startswith("the cores limit: ")
    assert bottleneck([read, score], 7.0, 8).startswith("the engines and the cores limit: ")
    assert bottleneck([read, idle], 2.0, 8).startswith("nothing is full: ")
    stolen = bottleneck([read, idle], 5.0, 8, 2.5)
    assert stolen.startswith("the cores limit: ") and "the host took 2.5 cores away" in stolen
    assert bottleneck([], None, 8) == "nothing is full"


def test_processes_are_told_apart_by_their_titles():
    assert kind_of("ray::MapWorker(MapBatches(Scorer)).submit", "ray") == "scorers"
    assert kind_of("ray::ReadUnits", None) == "readers"
    assert kind_of("ray::IDLE", "readers") == "readers"
    assert kind_of("ray::DashboardAgent", None) == "ray"
    assert kind_of("/site-packages/ray/core/src/ray/raylet/raylet --x", None) == "ray"
    assert kind_of("python -m pipeline.tracking.mlflow_store.sender", None) == "helpers"


def test_samples_of_nvidia_smi():
    text = "2026/11/20 14:00:00.250, 1, 87, 4096\nFailed to initialize\n, , [N/A], \n"
    (sample,) = parse_samples(text)
    assert (sample.index, sample.busy, sample.memory) == (1, 87.0, 4096.0)
    assert sample.time % 1 == pytest.approx(0.25)


def test_other_scores_of_the_peer_are_an_error(tmp_path):
    part = tmp_path / "part.parquet"
    scores = np.float32([0.5, 0.25, 0.75])
    pq.write_table(pa.table({"row_id": [2, 0, 1], "score": scores}), part)
    ours = pa.table({"row_id": [0, 2], "score": np.float32([0.25, 0.5])})
    assert agreement(ours, [part], 3, 1e-4).largest_difference == 0.0
    with pytest.raises(DpiframeError, match="differ from ours by"):
        agreement(ours.set_column(1, "score", [np.float32([0.3, 0.5])]), [part], 3, 1e-4)
    lacking = pa.table({"row_id": [3], "score": np.float32([0.3])})
    with pytest.raises(DpiframeError, match="differ from ours by nan"):
        agreement(lacking, [part], 4, 1e-4)


@pytest.mark.parametrize("model", ["wdl", "deepfm", "dcn", "dcnv2"])
def test_the_peer_s_model_is_ours(tmp_path, model):
    case = JobCase(model=model, rows=111, scale=1e-4, hidden=(8, 5), dim=4)
    inputs = make_here(case, tmp_path)
    settings = peer_settings(
        case, inputs, inputs.files, tmp_path / "peer", (0, torch.get_num_threads())
    )
    table = pq.read_table(inputs.files[0])
    theirs = TorchScorer(settings.model_dump_json())(table)
    ids = [table.column(field.name).to_numpy() for field in case.spec().fields]
    ours = load_engine(inputs.bundle, device="cpu").score(ids)
    np.testing.assert_allclose(theirs.column("score").to_numpy(), ours, atol=1e-6)
    assert theirs.column("row_id").equals(table.column("row_id"))


def test_keys_of_the_job_are_checked_before_anything_is_made():
    for key in ("unit_row=5", "output=/tmp/x", "streams"):
        with pytest.raises(ConfigError, match="not key=value with a key of the job"):
            JobCase(keys=(key,))


def test_a_run_for_each_number_of_gpus_on_its_share_of_the_machine(monkeypatch):
    case = JobCase(rows=10, repeat_at=5, device="cuda", gpus=(1, 2))
    assert sizes(case) == [(1, 10), (1, 5), (2, 10)]
    assert sizes(case.model_copy(update={"device": "cpu"})) == [(0, 10), (0, 5)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    assert gpu_environment(2)["CUDA_VISIBLE_DEVICES"] == "3,5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu_environment(2)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert first_cores(0) == os.sched_getaffinity(0) and len(first_cores(1)) == 1


def test_files_are_listed_again_and_data_is_no_more_than_is_read(tmp_path):
    case = JobCase(rows=2500, repeat_at=7000, distinct_rows=3500, rows_per_file=1000)
    options = case.data(tmp_path)
    assert (options.rows, options.rows_per_shard) == (4000, 1000)
    small = JobCase(rows=10, distinct_rows=3500, rows_per_file=1000).data(tmp_path)
    assert (small.rows, small.rows_per_shard) == (10, 10)


def test_rows_as_other_writers_leave_them(tmp_path):
    shape = {"rows": 3000, "rows_per_file": 1500, "scale": 0.001, "dim": 4, "hidden": (4,)}
    shape |= {"row_group_rows": 700}
    own = make_here(JobCase(**shape), tmp_path / "own")
    kind = {"compression": "gzip", "id_type": "int64", "data_page_version": "2.0"}
    case = JobCase(**shape, writer="pyarrow", **kind)
    made = make_here(case, tmp_path / "other")
    assert "by pyarrow (gzip, row groups of 700, int64, data pages 2.0)" in case.written
    assert JobCase(rows_per_file=10_000).written == " in files of 10,000 rows"
    for mine, other in zip(own.files, made.files, strict=True):
        file = pq.ParquetFile(other)
        assert file.num_row_groups == 3 and file.schema_arrow.field("C1").type == pa.int64()
        assert file.metadata.row_group(0).column(5).compression == "GZIP"
        assert file.read().cast(pq.read_schema(mine)).equals(pq.read_table(mine))
    with pytest.raises(ConfigError, match="--writer pyarrow"):
        JobCase(compression="snappy")


def test_lists_beside_the_fields(tmp_path):
    shape = {"rows": 700, "rows_per_file": 350, "scale": 1e-4, "dim": 4, "hidden": (4,)}
    case = JobCase(**shape, writer="pyarrow", id_type="int64", list_length=5, model="deepfm")
    made = make_here(case, tmp_path)
    job = {"bundle": made.bundle, "input": made.files, "output": str(tmp_path / "scores")}
    job |= {"key_columns": ["row_id"], "runner": "local", "device": "cpu", "tracking": False}
    assert score(job).rows == 700
    table = pq.read_table(made.files)
    lists = table.column("history").to_pylist()
    assert {len(ids) for ids in lists} == set(range(6)) and not case.has_peer
    padded = np.array([(ids + [0] * 5)[:5] for ids in lists])
    ids = [table.column(f"C{field}").to_numpy() for field in range(1, 27)]
    expected = load_engine(made.bundle, device="cpu").score(np.stack([*ids, *padded.T]))
    found = open_scores(tmp_path / "scores").to_table().column("score")
    np.testing.assert_allclose(found.to_numpy(), expected, atol=1e-6)
    for model in ("wdl", "dcn", "dcnv2"):
        assert len(case.model_copy(update={"model": model}).spec().fields) == 31
    with pytest.raises(ConfigError, match="lists are beside encoded rows"):
        JobCase(list_length=5)
