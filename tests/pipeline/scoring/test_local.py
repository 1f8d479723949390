"""Jobs without Ray, in one process: the same rows, the same errors, seconds sooner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from job_cases import (
    damage,
    encoded_table,
    job_keys,
    read_scores,
    reference_scores,
    score_here,
    stamps,
    tiny_bundle,
    write_config,
    write_shards,
)

import pipeline
from pipeline.config.job import JobConfig, load_config
from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.publishing.verify import verify_output
from pipeline.scoring.local_flow import stream_outcomes
from pipeline.sizing.job_sizes import choose_sizes
from pipeline.sizing.machine import Machine

ROOT = Path(__file__).resolve().parents[3]
COMMAND = "import sys; sys.argv[1:] = {}; from jobs.cli import main; main()"


def keys_of(folder: Path, **keys: Any) -> dict[str, Any]:
    return job_keys(folder, runner="local", unit_rows=40) | keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 3, 111, 19)
    return tmp_path


def check_scores(folder: Path, rows: int = 333) -> None:
    """Every row is there once, in order, with its score."""
    table = write_shards(folder / "again", rows // 111, 111, 19)
    found = read_scores(folder / "output")
    assert found.column("row_id").equals(table.column("row_id"))
    expected = reference_scores(tiny_bundle(folder / "bundle-again"), table)
    np.testing.assert_allclose(found.column("score").to_numpy(), expected, atol=1e-5)
    assert verify_output(folder / "output").problems == []


def test_every_row_is_scored_once_and_in_order(folder: Path) -> None:
    result = pipeline.score(keys_of(folder))
    assert (result.status, result.rows, result.scored, result.units) == ("scored", 333, 333, 9)
    check_scores(folder)
    assert pipeline.score(keys_of(folder)).status == "complete before"


def test_a_job_goes_on_where_another_runner_stopped(folder: Path) -> None:
    score_here(folder, unit_rows=40)
    (folder / "output/_SUCCESS").unlink()
    lost = sorted((folder / "output").glob("part-*"))[:4]
    for part in lost:
        part.unlink()
    before = stamps(folder / "output")
    result = pipeline.score(keys_of(folder))
    assert (result.units, result.resumed_units) == (9, 5)
    check_scores(folder)
    assert before.items() <= stamps(folder / "output").items()


def test_score_takes_a_file_keys_or_a_configuration(folder: Path) -> None:
    file = write_config(folder, runner="local")
    for i, source in enumerate([file, yaml.safe_load(file.read_text()), load_config(file)]):
        result = pipeline.score(source, [f"output={folder / str(i)}", "unit_rows=100"])
        assert (result.rows, result.units) == (333, 3 * 2)
    assert isinstance(load_config(load_config(file)), JobConfig)


def test_errors_are_those_of_the_command(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'unitrows' in the given keys; did you mean 'unit_rows'"
    ):
        pipeline.score(keys_of(folder) | {"unitrows": 7})
    damage(folder / "input/shard-001.parquet", 2, 3)
    with pytest.raises(ContractError, match=r"shard-001\.parquet"):
        pipeline.score(keys_of(folder))
    assert not (folder / "output/_lock").exists()


def test_a_bad_row_is_rejected(folder: Path) -> None:
    import pyarrow.parquet as pq
    from job_cases import with_value

    table = with_value(encoded_table(111), "C1", 7, None)
    pq.write_table(table, folder / "input/shard-000.parquet", row_group_size=19)
    result = pipeline.score(keys_of(folder, on_bad_row="reject"))
    assert (result.rows, result.scored, result.rejected) == (333, 332, 1)
    assert verify_output(folder / "output").problems == []


def test_a_lost_gpu_ends_the_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pipeline.scoring.local_flow as flow
    from pipeline.publishing.records import UnitError

    def lost(_: object, unit: Any) -> UnitError:
        return UnitError(unit=unit.name, kind="gpu_lost", message="Xid 79", scorer="here:1")

    monkeypatch.setattr(flow.ScorerActor, "outcome", lost)
    with pytest.raises(ResumableError, match="lost to this process: Xid 79"):
        pipeline.score(keys_of(folder))


def test_closing_waits_for_the_units_in_hand(folder: Path) -> None:
    from pipeline.planning.plan import make_plan
    from pipeline.publishing.output import open_output
    from pipeline.sizing.machine import local_machine
    from pipeline.sizing.sizes import work_of

    plan = make_plan(JobConfig.model_validate(keys_of(folder)))
    attempt, _ = open_output(plan.config.output).claim(plan)
    units = folder / "output/_units"
    sizes = choose_sizes(local_machine(), work_of(plan, plan.units), plan.config)
    assert sizes.calls > 1  # several units are in hand
    stream = stream_outcomes(plan, plan.units, sizes, attempt)
    next(stream)
    stream.close()
    records = len(list(units.glob("u*.json")))
    time.sleep(0.1)
    assert 1 <= records == len(list(units.glob("u*.json"))) < len(plan.units)


def test_one_scorer_takes_the_cores_and_one_gpu() -> None:
    from pipeline.planning.row_cost import ModelCost
    from pipeline.sizing.sizes import Work

    machine = Machine(16, 4, 1 << 36, 1 << 33, has_cuda=True, gpu_bytes=1 << 36)
    model = ModelCost(fields=26, dense=13, table_values=10**6, operations=10**6, values=1000)
    work = Work(10**6, 64, 16000, 200, "encoded", model)
    keys = {"bundle": "b", "input": "i", "output": "o", "runner": "local", "num_scorers": 3}
    found = choose_sizes(machine, work, JobConfig.model_validate(keys))
    assert (found.device, found.scorers, found.read_in, found.light) == ("cuda", 1, "scorer", False)
    found = choose_sizes(machine, work, JobConfig.model_validate(keys | {"device": "cpu"}))
    assert (found.threads, found.scorers, found.calls, found.light) == (16, 1, 3, False)
    small = work._replace(rows=10_000)
    assert choose_sizes(machine, small, JobConfig.model_validate(keys | {"device": "cpu"})).light


@pytest.mark.slow
def test_the_command_imports_neither_ray_nor_torch_nor_mlflow(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 10_000, 2500)
    config = write_config(tmp_path, runner="local", tracking=True, unit_rows="auto")
    arguments = ["score", str(config), f"mlflow_uri=sqlite:///{tmp_path}/mlflow.db"]
    code = COMMAND.format(arguments) + (
        "; print([m for m in ('ray', 'torch', 'mlflow', 'matplotlib',"
        " 'dpiframe_core.engine.cuda.backend') if m in sys.modules])"
    )
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    after = os.times()
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    # Of the processor, as other tests run; on an idle machine the command takes less than 2 s.
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 4
    # MLflow's process goes on alone.
    until = time.monotonic() + 60
    while time.monotonic() < until:
        states = [json.loads(p.read_text()) for p in tmp_path.glob("output/_tracking/*/store-*")]
        (spool,) = tmp_path.glob("output/_tracking/*/attempt-*.jsonl")
        events = [json.loads(line) for line in spool.read_text().splitlines()]
        assert events[-1]["kind"] == "finish"
        if states and states[0]["cursor"] == [0, events[-1]["seq"]]:  # all of them were sent
            return
        time.sleep(0.2)
    raise AssertionError((tmp_path / "output/_tracking/sender.log").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_time_and_the_same_command_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 3, 500, 10)
    config = write_config(tmp_path, runner="local", unit_rows=10)
    command = [sys.executable, "-c", COMMAND.format(["score", str(config)])]
    job = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    units = tmp_path / "output/_units"
    while len(list(units.glob("u*.json"))) < 20 and time.monotonic() < until:
        time.sleep(0.01)
    stopped = time.monotonic()
    job.send_signal(number)
    _, errors = job.communicate(timeout=30)
    assert (job.returncode, time.monotonic() - stopped < 10) == (4, True), errors
    assert f"stopped by {number.name}" in errors
    done = stamps(tmp_path / "output")
    assert 20 <= len(done) < 150
    published = {path.stem for path in units.glob("u*.json")}
    kept = {name: stamp for name, stamp in done.items() if name[5:-8] in published}
    result = pipeline.score(config)
    assert result.rows == 1500 and result.resumed_units == len(kept)
    assert kept.items() <= stamps(tmp_path / "output").items()
