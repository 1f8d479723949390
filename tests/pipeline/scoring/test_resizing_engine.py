"""An engine that finds too little memory: smaller batches, the same scores, an end at the floor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_cases import (
    job_keys,
    outcomes,
    read_scores,
    reference_scores,
    score_here,
    tiny_bundle,
    write_shards,
)

from dpiframe_core import Engine, load_engine
from dpiframe_core.engine import loading
from dpiframe_core.errors import DeviceMemoryError
from pipeline.cluster.signals import StopSignals
from pipeline.config.job import JobConfig
from pipeline.errors import UnitFailedError
from pipeline.planning.plan import make_plan
from pipeline.publishing.records import Manifest, UnitError, UnitRecord
from pipeline.scoring.job import Job, job_error
from pipeline.scoring.resizing_engine import ResizingEngine
from pipeline.sizing.sizes import MIN_BATCH


class Card:
    """A device with room for `rows` rows a batch: the CPU engine, with a limit in front."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.loads: list[int] = []

    def load(self, *args: Any, max_batch: int, **keys: Any) -> Engine:
        self.loads.append(max_batch)
        self.check(max_batch)
        engine = load_engine(*args, max_batch=max_batch, **keys)
        score = engine.score

        def limited(ids: Any, dense: Any = None) -> Any:
            self.check(max_batch)
            return score(ids, dense)

        engine.score = limited
        return engine

    def check(self, rows: int) -> None:
        if rows > self.rows:
            raise DeviceMemoryError(f"the GPU gave no {rows} bytes")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    tiny_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def loaded(card: Card, bundle: Path, max_batch: int = 65536) -> ResizingEngine:
    return ResizingEngine(lambda rows: card.load(bundle, device="cpu", max_batch=rows), max_batch)


def inputs(engine: ResizingEngine) -> tuple[Any, Any]:
    return np.zeros((7, 111), np.int32), np.zeros((3, 111), np.float32)


def test_enough_memory_changes_nothing(bundle: Path) -> None:
    card = Card(65536)
    engine = loaded(card, bundle)
    assert (engine.max_batch, engine.reduced_batch, card.loads) == (65536, None, [65536])


def test_loading_takes_the_largest_half_that_fits(bundle: Path) -> None:
    card = Card(9000)
    engine = loaded(card, bundle)
    assert (engine.reduced_batch, card.loads) == (8192, [65536, 32768, 16384, 8192])
    assert len(engine.score(*inputs(engine))) == 111


def test_memory_that_goes_away_while_scoring(bundle: Path) -> None:
    card = Card(65536)
    engine = loaded(card, bundle)
    before = engine.score(*inputs(engine))
    card.rows = 20_000

    np.testing.assert_array_equal(engine.score(*inputs(engine)), before)
    assert engine.reduced_batch == 16384


@pytest.mark.parametrize(("max_batch", "tried"), [(3000, [3000, 1500, 1024]), (100, [100])])
def test_it_ends_at_the_floor(bundle: Path, max_batch: int, tried: list[int]) -> None:
    card = Card(10)
    with pytest.raises(UnitFailedError, match=rf"batches of {tried[-1]} rows: the GPU gave no"):
        loaded(card, bundle, max_batch)
    assert card.loads == tried
    assert tried[-1] <= MIN_BATCH


def test_other_errors_are_not_taken_for_a_lack_of_memory(bundle: Path) -> None:
    def refuse(rows: int) -> Engine:
        raise RuntimeError("cudaErrorInvalidValue")

    with pytest.raises(RuntimeError, match="cudaErrorInvalidValue"):
        ResizingEngine(refuse, 4096)


Small = Callable[[int], Card]


@pytest.fixture
def small_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Small:
    def make(rows: int) -> Card:
        card = Card(rows)
        monkeypatch.setattr(loading, "load_engine", card.load)
        return card

    return make


def test_a_scorer_says_what_it_runs_with(tmp_path: Path, small_card: Small) -> None:
    model = tiny_bundle(tmp_path / "bundle")
    table = write_shards(tmp_path / "input", 2, 5000, 1000)
    small_card(1500)

    manifest: Manifest = score_here(tmp_path, unit_rows=2000, max_batch=4096)

    assert {record.reduced_batch for record in manifest.units} == {1024}
    found = read_scores(tmp_path / "output").column("score").to_numpy()
    np.testing.assert_allclose(found, reference_scores(model, table), atol=1e-5)


def test_a_card_too_small_for_anything_is_a_reason_to_come_again(
    tmp_path: Path, small_card: Small
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 100, 100)
    small_card(10)

    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path)))
    (error,) = outcomes(plan)

    assert isinstance(error, UnitError)
    assert error.kind == "memory"
    assert job_error(error).exit_code == 4


def test_the_driver_says_it_once_a_scorer(
    tmp_path: Path, small_card: Small, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 4000, 1000)
    small_card(1500)
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, unit_rows=1000, max_batch=4096)))
    job = Job(plan, StopSignals(), verbose=False)
    with caplog.at_level(logging.WARNING, "dpiframe.job"):
        for record in outcomes(plan):
            assert isinstance(record, UnitRecord)
            job._warn_of_memory(record)
    assert caplog.text.count("it goes on with 1024 rows") == 1
