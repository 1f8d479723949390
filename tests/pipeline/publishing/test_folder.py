"""The output folder: claimed whatever late workers do, replaced for good, ended, tidied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import local_job
import pytest
from job_cases import job_keys, tiny_bundle, write_shards
from local_job import plan_of, problems_of, publish

from pipeline.config.job import JobConfig
from pipeline.errors import ContractError
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.plan import make_plan
from pipeline.publishing import atomic
from pipeline.publishing import folder as folder_output
from pipeline.publishing.checks import check_rejected
from pipeline.publishing.folder import claim, finish_output, tidy, tidy_finished
from pipeline.publishing.lock import OutputLock, Owner
from pipeline.publishing.publish import FolderPublisher
from pipeline.publishing.records import OutputLayout, UnitError, UnitRecord
from pipeline.publishing.verify import verify_output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds the input of jobs."""
    local_job.write_input(tmp_path / "input")
    return tmp_path


def score(plan: JobPlan) -> OutputLayout:
    """Everything that a job does before it tidies."""
    layout = OutputLayout(plan.config.output)
    attempt, _ = claim(layout, plan)
    for unit in plan.units:
        assert isinstance(publish(FolderPublisher(plan.config.output, attempt), unit), UnitRecord)
    finish_output(layout, plan, [])
    return layout


def hidden(layout: OutputLayout) -> list[str]:
    return [path.name for path in layout.root.rglob(".*")]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders that are pushed to the disk, each with what lay in it."""
    seen: list[str] = []
    sync = atomic.sync_folder

    def noted(folder: Path) -> None:
        sync(folder)
        seen.append(f"{folder.name}: {len(list(folder.glob('part-*')))}")

    monkeypatch.setattr(atomic, "sync_folder", noted)
    monkeypatch.setattr(folder_output, "sync_folder", noted)
    return seen


def test_what_is_replaced_is_gone_for_good(folder: Path, syncs: list[str]) -> None:
    score(plan_of(folder, folder / "output", 10))
    syncs.clear()

    layout = OutputLayout(folder / "output")
    claim(layout, plan_of(folder, folder / "output", 20, overwrite=True))

    assert not layout.parts() and not list(layout.rejected.iterdir())
    assert syncs[0] == "output: 6"  # _SUCCESS and the manifest go before a part does
    assert syncs[-3:] == ["_units: 0", "_rejected: 0", "output: 0"]


def test_new_folders_are_pushed_to_the_disk(tmp_path: Path, syncs: list[str]) -> None:
    made = atomic.make_folders(tmp_path / "deep" / "output")
    assert made == [tmp_path / "deep", tmp_path / "deep" / "output"]
    assert syncs == [f"{tmp_path.name}: 0", "deep: 0"]


def test_a_folder_of_an_earlier_start_is_pushed_as_well(tmp_path: Path, syncs: list[str]) -> None:
    (tmp_path / "output").mkdir()
    assert atomic.make_folders(tmp_path / "output") == []
    assert syncs == [f"{tmp_path.name}: 0"]


@pytest.mark.parametrize("unit_rows", [10, 20])
def test_a_worker_that_looked_before_the_next_attempt_publishes_nothing_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch, unit_rows: int
) -> None:
    """It is held up between its look at the identity and its rename."""
    plan = plan_of(folder, folder / "output", 10)
    later = plan_of(folder, folder / "output", unit_rows, overwrite=True)
    layout = OutputLayout(folder / "output")
    attempt, _ = claim(layout, plan)
    worker = FolderPublisher(plan.config.output, attempt)
    look = worker._check_attempt

    def held_up() -> None:
        look()
        claim(layout, later)

    monkeypatch.setattr(worker, "_check_attempt", held_up)
    outcome = publish(worker, plan.units[0])

    assert isinstance(outcome, UnitError)
    assert not layout.parts() and not hidden(layout)


def test_what_a_late_worker_left_is_removed_under_the_new_identity(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes a part and a temporary file at the last moment at which it may."""
    plan = plan_of(folder, folder / "output", 10)
    later = plan_of(folder, folder / "output", 20, overwrite=True)
    layout = OutputLayout(folder / "output")
    claim(layout, plan)
    write = folder_output.write_json

    def last_moment(path: Path, *args: object) -> None:
        layout.part(plan.units[0].name).write_bytes(b"late")
        (layout.root / f".part-x{atomic.TEMP_MARK}0123456789ab").write_bytes(b"late")
        write(path, *args)

    monkeypatch.setattr(folder_output, "write_json", last_moment)
    claim(layout, later)

    assert not layout.parts() and not hidden(layout)


def test_tidying_never_fails_a_finished_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout = score(plan_of(folder, folder / "output", 10))

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        tidy(layout)

    assert "is finished, but not tidy" in caplog.text
    assert problems_of(layout.root) == []  # verify has tidied


def leave(layout: OutputLayout, owner: Owner | None = None) -> None:
    """What a driver leaves that is killed right after `_SUCCESS`."""
    (layout.root / f"._SUCCESS{atomic.TEMP_MARK}0123456789ab").write_bytes(b"half")
    if owner is not None:
        handle = os.open(layout.root / "_lock", os.O_RDWR | os.O_CREAT)
        owner.write(handle)
        os.close(handle)


def of_verify(layout: OutputLayout) -> None:
    assert verify_output(layout.root).problems == []


def of_a_start(layout: OutputLayout) -> None:
    tidy_finished(layout, wait=True)


@pytest.mark.parametrize("next_look", [of_verify, of_a_start])
def test_what_a_crash_after_the_end_left_is_removed(
    folder: Path, next_look: Callable[[OutputLayout], None]
) -> None:
    layout = score(plan_of(folder, folder / "output", 10))
    leave(layout, replace(Owner.this_process(), pid=1 << 30))

    next_look(layout)

    assert not hidden(layout) and not layout.units.exists()
    assert not (layout.root / "_lock").exists()
    assert problems_of(layout.root) == []


@pytest.mark.parametrize("next_look", [of_verify, of_a_start])
def test_nothing_is_removed_while_a_job_holds_the_output(
    folder: Path, next_look: Callable[[OutputLayout], None]
) -> None:
    layout = score(plan_of(folder, folder / "output", 10))
    leave(layout)
    with OutputLock(layout.root):
        next_look(layout)
        assert hidden(layout) and layout.units.exists()


def test_verify_leaves_the_lock_of_another_host_alone(folder: Path) -> None:
    layout = score(plan_of(folder, folder / "output", 10))
    leave(layout, replace(Owner.this_process(), host_id="other"))
    of_verify(layout)
    assert hidden(layout) and (layout.root / "_lock").exists()


def test_verify_removes_nothing_of_an_output_that_is_not_whole(folder: Path) -> None:
    layout = score(plan_of(folder, folder / "output", 10))
    leave(layout)
    layout.parts()[0].unlink()
    assert verify_output(layout.root).problems
    assert hidden(layout) and list(layout.units.iterdir())


@pytest.mark.parametrize(("allowed", "rejected"), [(0.29, 29), (0.07, 7), (0, 0), (1, 100)])
def test_exactly_the_allowed_fraction_may_be_rejected(
    tmp_path: Path, allowed: float, rejected: int
) -> None:
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 1, 100, 100)
    keys = job_keys(tmp_path, max_rejected_fraction=allowed)
    plan = make_plan(JobConfig.model_validate(keys))

    check_rejected(plan, rejected)
    with pytest.raises(ContractError, match=f"{rejected + 1} of 100 rows are rejected"):
        check_rejected(plan, rejected + 1)
