"""A GPU that is lost: what the scorer tells, when it ends, and what the job makes of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pyarrow.parquet as pq
import pytest
from job_cases import encoded_table, job_keys, scorer_of, tiny_bundle
from unit_records import record

from dpiframe_core.errors import DeviceLostError
from pipeline.cluster.signals import StopSignals
from pipeline.config.job import JobConfig
from pipeline.errors import ResumableError
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.plan import make_plan
from pipeline.planning.units import Unit
from pipeline.publishing.folder import claim
from pipeline.publishing.records import Outcome, OutputLayout, UnitError
from pipeline.scoring import flow
from pipeline.scoring.engine_thread import EngineThread
from pipeline.scoring.job import MOST_LOST_GPUS, Job, job_error
from pipeline.scoring.scorer_actor import GPU_LOST_EXIT
from pipeline.scoring.transport import outcomes_from_table, units_to_table
from pipeline.sizing.sizes import Sizes

SAID = "cudaStreamSynchronize failed: cudaErrorIllegalAddress"
SIZES: Any = None  # the stream is the tests' own


def fail(*_: Any, **__: Any) -> NoReturn:
    raise DeviceLostError(SAID)


@pytest.fixture(name="plan")
def _plan(tmp_path: Path) -> JobPlan:
    tiny_bundle(tmp_path / "bundle")
    (tmp_path / "input").mkdir()
    pq.write_table(encoded_table(111), tmp_path / "input/a.parquet", row_group_size=19)
    return make_plan(JobConfig.model_validate(job_keys(tmp_path, unit_rows=19)))


def test_a_scorer_says_what_the_gpu_said_and_ends_at_the_next_call(
    plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, _ = claim(OutputLayout(plan.config.output), plan)
    scorer = scorer_of(plan, attempt)
    monkeypatch.setattr(EngineThread, "_score_inputs", fail)

    found = list(outcomes_from_table(scorer(units_to_table(plan.units[:3]))))

    expected = [(unit.name, "gpu_lost", SAID, scorer.name) for unit in plan.units[:3]]
    assert [(e.unit, e.kind, e.message, e.scorer) for e in found if isinstance(e, UnitError)] == (
        expected
    )
    pid = os.fork()
    if pid == 0:
        scorer(units_to_table(plan.units[3:]))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == GPU_LOST_EXIT


def test_an_engine_that_finds_the_gpu_lost(plan: JobPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpiframe_core.engine.loading.load_engine", fail)
    attempt, _ = claim(OutputLayout(plan.config.output), plan)
    (found,) = outcomes_from_table(scorer_of(plan, attempt)(units_to_table(plan.units[:1])))
    assert isinstance(found, UnitError)
    assert (found.kind, found.message) == ("gpu_lost", SAID)


def test_pages_of_a_lost_gpu_are_not_read_again(plan: JobPlan) -> None:
    engine = EngineThread(plan.for_workers, Sizes("cpu", 1, 1, 0, 1, 1))
    (model,) = engine._models.result()
    model.engine.page_scorer = SimpleNamespace(score=fail)  # type: ignore[assignment]
    unit: Any = SimpleNamespace(ids=None, memory=None, dense=None)
    with pytest.raises(DeviceLostError):
        engine._score_pages(unit)


def scored(
    plan: JobPlan, lost: Sequence[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Job, list[int]]:
    """A job of which the n-th stream loses the scorers lost[n], with a unit each; how many units
    each stream was given.
    """
    given: list[int] = []

    def stream(_: JobPlan, units: Sequence[Unit], *__: object) -> Iterator[Outcome]:
        scorers = lost[len(given)] if len(given) < len(lost) else ()
        given.append(len(units))
        for number, unit in enumerate(units):
            if number < len(scorers):
                scorer = scorers[number]
                yield UnitError(unit=unit.name, kind="gpu_lost", message=SAID, scorer=scorer)
            else:
                yield record(unit=unit.name, rows=unit.rows, scored=unit.rows)

    monkeypatch.setattr(flow, "stream_outcomes", stream)
    job = Job(plan, StopSignals(), verbose=False)
    tracker: Any = SimpleNamespace(unit_done=lambda _: None)
    job._score(SIZES, plan.units, tracker)
    return job, given


@pytest.mark.usefixtures("ray_session")
def test_units_of_lost_scorers_are_scored_again(
    plan: JobPlan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dpiframe.job"):
        job, given = scored(plan, [("a:1", "a:1", "b:2"), ("a:3",)], monkeypatch)
    assert given == [6, 3, 1]
    assert set(job.records) == {unit.name for unit in plan.units}
    told = [message.split(":")[0] for message in caplog.messages]
    assert told == ["scorer a", "scorer b", "scorer a"]
    assert all(message.endswith(SAID) for message in caplog.messages)


@pytest.mark.usefixtures("ray_session")
def test_a_job_whose_scorers_all_lose_their_gpu_gives_up(
    plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [(f"a:{number}",) * 6 for number in range(1000)]
    with pytest.raises(ResumableError, match=f"{MOST_LOST_GPUS + 1} scorers lost.*a:8: {SAID}"):
        scored(plan, lost, monkeypatch)


def test_the_error_of_a_job() -> None:
    error = UnitError(unit="u", kind="gpu_lost", message=SAID)
    assert isinstance(job_error(error), ResumableError)
