"""An output in an object store: published once, fenced, read by its head; on a local S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")
pytest.importorskip("moto")
import local_job
from local_job import plan_of, problems_at, publish
from s3_server import BUCKET, s3_server

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, LockedError, ResumableError
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.output import Output, open_output
from pipeline.publishing.publish import SupersededError
from pipeline.publishing.records import Manifest, UnitError, UnitRecord
from pipeline.publishing.scores import open_scores
from pipeline.publishing.store import StoreOutput
from pipeline.publishing.verify import verify_output
from pipeline.scoring.dry_run import output_state
from pipeline.storage import object_store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the input of jobs."""
    found = tmp_path_factory.mktemp("job")
    local_job.write_input(found / "input")
    return found


@pytest.fixture
def address(endpoint: str, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/deep/{request.node.name}"


@pytest.fixture
def plan(folder: Path, address: str) -> JobPlan:
    return plan_of(folder, address, 20)


def store_output(address: str) -> StoreOutput:
    output = open_output(address)
    assert isinstance(output, StoreOutput)
    return output


def score(plan: JobPlan, tidy: bool = True) -> StoreOutput:
    """A finished output of the job."""
    output = store_output(plan.config.output)
    with output.errors(), output.lock() as lock:
        attempt, done = output.claim(plan)
        for unit in plan.units:
            if unit.name not in done:
                assert isinstance(publish(output.publisher(attempt), unit), UnitRecord)
        output.finish(plan, attempt, [], lock.check)
        if tidy:
            output.tidy()
    return output


def keys(output: StoreOutput) -> set[str]:
    return set(output.sizes())


def test_a_finished_output_holds_every_row_once_and_nothing_else(plan: JobPlan) -> None:
    output = score(plan)
    assert problems_at(output.address) == []
    assert open_scores(output.address).count_rows() == local_job.ROWS
    assert output_state(plan).text == "is complete: nothing would be scored"
    assert (
        output.tracking.name.startswith("test_a_finished_output") and not output.tracking.exists()
    )


def test_before_its_end_readers_are_told_that_there_is_no_job(plan: JobPlan) -> None:
    output = store_output(plan.config.output)
    with pytest.raises(ConfigError, match="holds nothing; give the output of a job"):
        verify_output(output.address)
    attempt, _ = output.claim(plan)
    publish(output.publisher(attempt), plan.units[0])
    with pytest.raises(ConfigError, match="holds no finished job"):
        open_scores(output.address)
    assert "the job has not finished" in verify_output(output.address).problems[0]
    assert output_state(plan).text.startswith("1 of 3 units are done")


def test_a_stopped_job_goes_on_where_it_was(plan: JobPlan) -> None:
    output = store_output(plan.config.output)
    attempt, _ = output.claim(plan)
    first = publish(output.publisher(attempt), plan.units[0])
    again, done = output.claim(plan)
    assert again != attempt and list(done.values()) == [first]
    assert output.published_names(plan) == {plan.units[0].name}


def test_of_two_tries_of_a_unit_one_is_published(plan: JobPlan) -> None:
    """Ray takes a slow scorer for a dead one."""
    output = store_output(plan.config.output)
    attempt, _ = output.claim(plan)
    slow, quick = output.publisher(attempt), store_output(output.address).publisher(attempt)
    create = slow.store.create

    def late(key: str, data: bytes) -> str | None:
        publish(quick, plan.units[0])
        return create(key, data)

    slow.store.create = late  # type: ignore[method-assign]
    returned = publish(slow, plan.units[0])
    parts = [key for key in keys(output) if key.startswith("part-")]
    assert isinstance(returned, UnitRecord) and len(parts) == 2
    assert quick.already(plan.units[0].name) == returned
    assert score(plan).sizes().keys() >= {returned.part}
    assert problems_at(output.address) == []


def test_many_workers_publish_a_unit_at_once_and_agree(plan: JobPlan) -> None:
    output = store_output(plan.config.output)
    attempt, _ = output.claim(plan)
    found: list[Any] = []

    def work() -> None:
        found.append(publish(open_output(output.address).publisher(attempt), plan.units[1]))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(each == found[0] for each in found)


def test_a_worker_of_an_older_attempt_puts_nothing_more(plan: JobPlan) -> None:
    output = store_output(plan.config.output)
    old, _ = output.claim(plan)
    worker = output.publisher(old)
    score(plan)
    before = keys(output)
    outcome = publish(worker, plan.units[0])
    assert isinstance(outcome, UnitError) and outcome.kind == "superseded"
    with pytest.raises(SupersededError):
        worker.write_record(next(iter(output.manifest().units)))  # type: ignore[union-attr]
    assert keys(output) == before


def test_a_driver_that_was_superseded_cannot_finish(plan: JobPlan, folder: Path) -> None:
    output = store_output(plan.config.output)
    old, _ = output.claim(plan)
    for unit in plan.units:
        publish(output.publisher(old), unit)
    other = plan_of(folder, plan.config.output, 10, overwrite=True)
    score(other)
    with pytest.raises(LockedError, match="was taken over: it belongs to attempt"):
        output.finish(plan, old, [])
    manifest = output.manifest()
    assert manifest is not None and manifest.identity == other.identity
    assert problems_at(output.address) == []


def test_a_commit_that_was_held_up_fails_at_the_store(
    plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All looks at the head came before the successor's claim, the put comes after it."""
    output = store_output(plan.config.output)
    old, _ = output.claim(plan)
    for unit in plan.units:
        publish(output.publisher(old), unit)
    swap = output.store.swap

    def held_up(key: str, data: bytes, etag: str) -> str | None:
        monkeypatch.setattr(output.store, "swap", swap)
        score(plan)
        return swap(key, data, etag)

    monkeypatch.setattr(output.store, "swap", held_up)
    with pytest.raises(LockedError, match="was taken over"):
        output.finish(plan, old, [])
    assert problems_at(output.address) == []


def test_another_job_is_refused_or_replaces_all(plan: JobPlan, folder: Path) -> None:
    output = score(plan)
    output.store.put("notes.txt", b"mine")
    output.store.put("deep/part-0.parquet", b"mine")
    before = keys(output)
    with pytest.raises(ConfigError, match="unit_rows is 20, this one's 10"):
        output.check_claim(plan_of(folder, output.address, 10))
    other = plan_of(folder, output.address, 10, overwrite=True)
    assert "its scores would be replaced" in output_state(other).text
    score(other)
    assert problems_at(output.address) == ["notes.txt is left"]
    assert {key for key in before & keys(output) if key.startswith("part-")} == set()
    assert output.store.read("deep/part-0.parquet") == b"mine"


def test_parquet_files_of_others_are_never_touched(plan: JobPlan) -> None:
    output = store_output(plan.config.output)
    output.store.put("part-0.parquet", b"foreign")
    with pytest.raises(ConfigError, match=r"part-0\.parquet .* was not written by a job"):
        output.claim(plan)
    assert keys(output) == {"part-0.parquet"}


@pytest.mark.parametrize("cut", [True, False])
def test_a_part_that_is_lost_is_scored_again_and_no_other(plan: JobPlan, cut: bool) -> None:
    output = score(plan)
    manifest = output.manifest()
    assert manifest is not None
    lost = manifest.units[1].part
    output.store.put(lost, b"short") if cut else output.store.delete([lost])
    assert not output.is_whole(manifest, [unit.name for unit in plan.units])
    assert any(lost in problem for problem in verify_output(output.address).problems)

    assert set(output.claim(plan).records) == {plan.units[0].name, plan.units[2].name}
    score(plan)

    again = output.manifest()
    assert again is not None and problems_at(output.address) == []
    assert [a.part == b.part for a, b in zip(manifest.units, again.units, strict=True)] == [
        True,
        False,
        True,
    ]


def test_what_readers_that_know_no_head_follow_is_the_same(plan: JobPlan) -> None:
    output = score(plan)
    copy = Manifest.model_validate_json(output.store.read("_manifest.json"))
    assert copy == output.manifest()
    success = output.success()
    assert success is not None and success.attempt == copy.attempt

    output.store.delete(["_SUCCESS"])
    assert "_SUCCESS is missing" in verify_output(output.address).problems[0]
    output.settle()
    assert problems_at(output.address) == []


def test_a_changed_part_is_found(plan: JobPlan) -> None:
    output = score(plan)
    part = next(key for key in output.sizes() if key.startswith("part-"))
    content = bytearray(output.store.read(part))
    content[10] ^= 1
    output.store.put(part, bytes(content))
    (problem,) = verify_output(output.address).problems
    assert "has sha256" in problem and "remove that part" in problem


def test_verify_removes_what_late_workers_put(plan: JobPlan) -> None:
    output = score(plan, tidy=False)
    part = next(key for key in output.sizes() if key.startswith("part-"))
    output.store.put(part.replace(".parquet", "")[:-4] + "beef.parquet", b"late")
    assert verify_output(output.address).problems == []
    assert problems_at(output.address) == []


def test_a_second_job_ends_with_the_name_of_the_first(plan: JobPlan) -> None:
    output = store_output(plan.config.output)
    with output.lock(), pytest.raises(LockedError, match=r"written by process \d+ on host"):
        store_output(plan.config.output).lock().__enter__()


def test_a_missing_bucket_is_told(folder: Path, endpoint: str) -> None:
    output: Output = open_output("s3://no-such-bucket-here/x")
    told = pytest.raises(ConfigError, match="make the bucket, or choose another output")
    with told, output.errors(), output.lock():
        pass


def test_a_store_out_of_reach_and_refused_credentials_can_be_resumed(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = open_output(f"s3://{BUCKET}/x")
    refused = PermissionError(13, "403 Forbidden", output.address)
    with pytest.raises(ResumableError, match="refuses access to the output s3://"), output.errors():
        raise refused
    monkeypatch.setattr(object_store, "RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    output = open_output(f"s3://{BUCKET}/x")
    with pytest.raises(ResumableError, match=r"fails: .*when it answers again"), output.errors():
        output.sizes()


def test_addresses_of_outputs_are_checked(folder: Path) -> None:
    keys = {"bundle": "b", "input": "i"}
    assert JobConfig(output="s3://bucket/x/", **keys).output == "s3://bucket/x"
    with pytest.raises(ValueError, match="mount another store"):
        JobConfig(output="hdfs://host/x", **keys)
