"""Units whose ids stay pages: which units are decoded instead, and that both publish the same. A
decoder on the host stands in for the GPU's.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_cases import (
    damage,
    encoded_table,
    job_keys,
    read_scores,
    scorer_of,
    tiny_bundle,
    tiny_spec,
    unit_of,
    with_value,
    worker_plan,
    write_shards,
)
from unit_records import record

from dpiframe_core import Engine, _core
from dpiframe_core.engine.cuda.page_scorer import PageScores
from dpiframe_core.errors import DeviceMemoryError
from pipeline.cluster.signals import StopSignals
from pipeline.config.job import JobConfig
from pipeline.errors import UnitFailedError
from pipeline.planning import units
from pipeline.planning.columns import Columns
from pipeline.planning.plan import make_plan
from pipeline.publishing.folder import claim
from pipeline.publishing.records import Outcome, OutputLayout, UnitRecord
from pipeline.reading.read_pages import read_pages
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_file import LocalFile
from pipeline.scoring.engine_thread import MOST_REFUSED, EngineThread, units_behind
from pipeline.scoring.job import Job
from pipeline.scoring.transport import outcomes_from_table, units_to_table
from pipeline.sizing.sizes import Sizes

SPEC = tiny_spec()
NAMES, DENSE = [field.name for field in SPEC.fields], list(SPEC.dense)
COLUMNS = Columns(
    form="encoded",
    key_columns=("row_id",),
    carry_columns=("label",),
    id_columns=tuple(NAMES),
    dense_columns=tuple(DENSE),
)
PLAN = worker_plan(COLUMNS)


class HostDecoder:
    """What `PageScorer` does, by the portable form of its kernels and the CPU's engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def score(self, ids: _core.ColumnPages, memory: np.ndarray, dense: np.ndarray) -> PageScores:
        numbers = decoded(ids, memory)
        if numbers is None:
            raise RuntimeError("a page is corrupt")
        tables = [field.rows for field in SPEC.fields]
        bad, counts = _core.find_bad_ids(list(numbers), tables)
        scores = self.engine.score(np.where(bad.astype(bool), 0, numbers), dense)
        return PageScores(scores, counts, [0.5], 0.1, 0.2, 0.5, 0.1)


def decoded(ids: _core.ColumnPages, memory: np.ndarray) -> np.ndarray | None:
    out = np.empty((ids.columns, ids.rows), {4: "<i4", 8: "<i8"}[ids.number_bytes])
    try:
        ids.decode(memory, out)
    except ValueError:
        return None
    return out


@pytest.fixture(name="beside_gpu")
def _beside_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EngineThread.takes_pages.fget

    def takes_pages(self: EngineThread) -> bool:
        return bool(self._models.result()) and found(self)

    monkeypatch.setattr(EngineThread, "takes_pages", property(takes_pages))
    monkeypatch.setattr(Engine, "page_scorer", lambda self: HostDecoder(self))


def write(folder: Path, table: pa.Table, compression: str = "zstd") -> Path:
    path = folder / "input/a.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(
        table, path, row_group_size=1000, compression=compression, write_statistics=False
    )
    return path


def score(folder: Path, **keys: Any) -> list[Outcome]:
    plan = make_plan(JobConfig.model_validate(job_keys(folder, unit_rows=1000, **keys)))
    attempt, _ = claim(OutputLayout(plan.config.output), plan)
    return list(outcomes_from_table(scorer_of(plan, attempt)(units_to_table(plan.units))))


def readers(found: list[Outcome]) -> list[str]:
    return [outcome.read_by for outcome in found if isinstance(outcome, UnitRecord)]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "none"])
def test_ids_dense_features_and_published_columns(tmp_path: Path, compression: str) -> None:
    table = encoded_table(2500)
    path = write(tmp_path, table, compression)

    found = read_pages(LocalFile(unit_of(path, 1, 3, 1000, 1500)), PLAN, UnitBuffer())

    assert found is not None
    ids = decoded(found.ids, found.memory)
    assert ids is not None
    rows = table.slice(1000)
    for c, name in enumerate(NAMES):
        assert ids[c].tolist() == rows.column(name).to_pylist()
    for n, name in enumerate(DENSE):
        assert found.dense[n].tolist() == rows.column(name).to_pylist()
    assert found.published.equals(rows.select(["row_id", "label"]))
    assert found.facts.group_rows == [1000, 500]


@pytest.fixture(name="behind", params=[False, True])
def _behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineThread, "is_behind", request.param)


@pytest.mark.usefixtures("beside_gpu", "behind")
def test_both_ways_publish_the_same(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(4321))

    assert readers(score(tmp_path)) == ["gpu"] * 5
    write(tmp_path, encoded_table(4321), "gzip")
    assert readers(score(tmp_path, output=str(tmp_path / "again"))) == ["cpu"] * 5

    assert read_scores(tmp_path / "output").equals(read_scores(tmp_path / "again"))


@pytest.mark.usefixtures("beside_gpu", "behind")
@pytest.mark.parametrize("carried", [[], ["label"]])
def test_a_joined_unit_is_as_its_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carried: list[str]
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 4, 250, 100)
    alone = score(tmp_path, carry_columns=carried)
    monkeypatch.setattr(units, "FEW_UNITS", 3)
    joined = score(tmp_path, carry_columns=carried, output=str(tmp_path / "again"))
    assert (readers(alone), readers(joined)) == (["gpu"] * 4, ["gpu"])
    assert read_scores(tmp_path / "output").equals(read_scores(tmp_path / "again"))


@pytest.mark.parametrize(
    ("calls", "cpus", "units"),
    [(1, 1, 6), (5, 3, 6), (12, 12, 6), (18, 12, 6), (20, 12, 8), (20, 0.5, 20), (32, 12, 20)],
)
def test_how_many_units_a_gpu_has_in_hand_when_it_is_behind(
    calls: int, cpus: float, units: int
) -> None:
    sizes = Sizes("cuda", 1, cpus, 1, read_cpus=1, threads=1, read_tasks=calls)
    assert units_behind(sizes) == units


@pytest.mark.usefixtures("beside_gpu")
def test_readers_unpack_any_page_while_units_wait_for_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(9000))
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, unit_rows=1000)))
    attempt, _ = claim(OutputLayout(plan.config.output), plan)
    scorer, works = scorer_of(plan, attempt), HostDecoder.score
    arrived, goes_on, engine = threading.Semaphore(0), threading.Event(), threading.Lock()
    sizes: list[int] = []

    def waiting(self: HostDecoder, ids: _core.ColumnPages, *rest: np.ndarray) -> PageScores:
        sizes.append(ids.compressed_bytes)
        arrived.release()
        assert goes_on.wait(60)
        with engine:
            return works(self, ids, *rest)

    monkeypatch.setattr(HostDecoder, "score", waiting)
    with ThreadPoolExecutor(8) as threads:
        running = []
        for unit in plan.units[:8]:  # one after another: each is read when those before it wait
            running.append(threads.submit(scorer.outcome, unit))
            assert arrived.acquire(timeout=60)
        goes_on.set()
        assert all(isinstance(each.result(), UnitRecord) for each in running)
    assert not scorer.engine.is_behind
    scorer.outcome(plan.units[8])
    few, many = [*sizes[:6], sizes[8]], sizes[6:8]
    assert max(few) < min(many)


@pytest.mark.usefixtures("beside_gpu")
@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("C2", 7, "id outside its table of 7 rows"),
        ("I2", float("nan"), "dense value is not finite"),
        ("C1", None, "null id"),
        ("row_id", None, "null key"),
    ],
)
def test_a_unit_with_a_bad_row_is_read_again(
    tmp_path: Path, column: str, value: Any, reason: str
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, with_value(encoded_table(3000), column, 1234, value))

    found = score(tmp_path, on_bad_row="reject")

    assert readers(found)[::2] == ["gpu", "gpu"]
    assert readers(found)[1] in ("cpu", "arrow")
    rejected = pq.read_table(next((tmp_path / "output/_rejected").glob("*.parquet")))
    assert rejected.column("reason")[0].as_py().startswith(reason)
    assert rejected.column("row").to_pylist() == [234]  # of the unit
    assert read_scores(tmp_path / "output").column("score").null_count == 1


@pytest.mark.usefixtures("beside_gpu", "behind")
def test_a_damaged_page_is_told_by_the_host(tmp_path: Path) -> None:
    tiny_bundle(tmp_path / "bundle")
    path = write(tmp_path, encoded_table(2000))
    damage(path, group=1, column=NAMES.index("C3") + 2)

    first, second = score(tmp_path)

    assert isinstance(first, UnitRecord)
    assert not isinstance(second, UnitRecord)
    assert second.kind == "corrupt"


@pytest.mark.usefixtures("beside_gpu")
@pytest.mark.parametrize("error", [DeviceMemoryError("full"), RuntimeError("failed")])
def test_what_the_gpu_does_not_unpack_the_host_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(20_000))
    calls = []
    works = HostDecoder.score

    def sometimes(*unit: Any) -> PageScores | None:
        calls.append(1)
        if len(calls) == 7:
            return works(*unit)
        raise error

    monkeypatch.setattr(HostDecoder, "score", sometimes)

    found = score(tmp_path)

    assert readers(found) == ["cpu"] * 6 + ["gpu"] + ["cpu"] * 13
    assert len(calls) == 7 + MOST_REFUSED  # and does not try for ever
    told = [unit.unpack_error for unit in found if isinstance(unit, UnitRecord)]
    given_up = f"{MOST_REFUSED} units in a row could not be scored that way"
    assert told == [str(error)] * 6 + [""] + [str(error)] * MOST_REFUSED + [given_up] * 5


@pytest.mark.usefixtures("beside_gpu")
def test_a_gpu_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(engine: Engine) -> HostDecoder:
        raise DeviceMemoryError("full")

    monkeypatch.setattr(Engine, "page_scorer", refuse)
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(2000))

    found = score(tmp_path)

    assert readers(found) == ["cpu"] * 2
    assert {unit.unpack_error for unit in found if isinstance(unit, UnitRecord)} == {"full"}


@pytest.mark.usefixtures("beside_gpu")
def test_an_error_of_the_gpu_is_told_with_the_one_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("the first")

    monkeypatch.setattr(HostDecoder, "score", fail)
    tiny_bundle(tmp_path / "bundle")
    damage(write(tmp_path, encoded_table(1000)), group=0, column=NAMES.index("C3") + 2)

    (found,) = score(tmp_path)

    assert not isinstance(found, UnitRecord)
    assert found.kind == "corrupt"
    assert found.message.endswith("; before that the GPU did not unpack it: the first")


def test_the_driver_says_once_a_scorer_that_units_are_left_to_the_cpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write(tmp_path, encoded_table(1000))
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path)))
    job = Job(plan, StopSignals(), verbose=False)
    with caplog.at_level(logging.WARNING, "dpiframe.job"):
        for scorer, error in (("a", ""), ("a", "full"), ("a", "other"), ("b", "full")):
            job._warn_of_unpacking(record(scorer=scorer, stop_row_group=3, unpack_error=error))
    assert [message.split(":")[0] for message in caplog.messages] == ["scorer a", "scorer b"]
    assert "row groups 0..2 of x.parquet" in caplog.messages[0]
    assert caplog.messages[0].endswith("full")


def test_other_files_are_left_to_the_ordinary_way(tmp_path: Path) -> None:
    table = encoded_table(1000)
    assert read_pages(LocalFile(unit_of(write(tmp_path, table), 0, 1, 0, 1000)), PLAN, UnitBuffer())
    mixed = table.set_column(2, NAMES[0], table.column(NAMES[0]).cast(pa.int64()))
    unit = unit_of(write(tmp_path, mixed), 0, 1, 0, 1000)
    with pytest.raises(ValueError, match="has numbers of 4 bytes"):
        read_pages(LocalFile(unit), PLAN, UnitBuffer())
    path = write(tmp_path, table, "gzip")
    with pytest.raises(ValueError, match="codec 2"):
        read_pages(LocalFile(unit_of(path, 0, 1, 0, 1000)), PLAN, UnitBuffer())
    path.unlink()
    with pytest.raises(UnitFailedError):
        read_pages(LocalFile(unit), PLAN, UnitBuffer())
