"""Jobs whose input and bundle lie in an object store, by the command line and in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from job_cases import (
    job_keys,
    outcomes,
    read_scores,
    reference_scores,
    score_here,
    tiny_bundle,
    write_config,
    write_shards,
)

pytest.importorskip("moto")
from faulty_proxy import Faults, faulty_proxy
from s3_server import BUCKET, s3_server

from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, UnitFailedError
from pipeline.planning import units
from pipeline.planning.plan import make_plan
from pipeline.publishing.records import UnitError
from pipeline.publishing.verify import verify_output
from pipeline.reading.reader import read_unit
from pipeline.reading.unit_buffers import UnitBuffer
from pipeline.reading.unit_data import UnitPages
from pipeline.scoring.dry_run import dry_run
from pipeline.scoring.job import job_error
from pipeline.storage import objects
from pipeline.storage.object_store import ObjectStore


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    monkeypatch.setenv("DPIFRAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "PAUSE_S", 0.001)
    with s3_server() as endpoint, faulty_proxy(endpoint) as found:
        yield found


@pytest.fixture
def store(faults: Faults, tmp_path: Path) -> ObjectStore:
    """The bundle and three shards of 111 rows, there and in the folder of the test."""
    store = ObjectStore(f"s3://{BUCKET}/job")
    tiny_bundle(tmp_path / "bundle")
    write_shards(tmp_path / "input", 3, 111, 19)
    for path in [*(tmp_path / "bundle").iterdir(), *(tmp_path / "input").iterdir()]:
        store.put(str(path.relative_to(tmp_path)), path.read_bytes())
    return store


def keys_of(store: ObjectStore, output: str = "remote") -> dict[str, object]:
    addresses = {"bundle": store.path("bundle"), "input": store.path("input")}
    return addresses | {"output": output, "unit_rows": 40}


def test_scores_are_those_of_local_files(store: ObjectStore, tmp_path: Path, faults: Faults):
    score_here(tmp_path, unit_rows=40)
    manifest = score_here(tmp_path, **keys_of(store, str(tmp_path / "remote")))
    assert read_scores(tmp_path / "remote").equals(read_scores(tmp_path / "output"))
    assert [file.etag for file in manifest.files] == [o.etag for o in store.list("input")]
    assert {unit.read_by for unit in manifest.units} == {"cpu"}
    assert verify_output(tmp_path / "remote").problems == []
    store.delete([info.key for info in store.list("input")])
    assert verify_output(tmp_path / "remote").problems == []  # the input may be gone by now


def test_small_objects_are_joined_and_read_side_by_side(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "FEW_UNITS", 2)
    keys = keys_of(store, str(tmp_path / "remote")) | {"unit_rows": 333}
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, **keys)))
    pages = read_unit(plan.units[0], plan.for_workers, UnitBuffer(), pages=True)

    manifest = score_here(tmp_path, **keys)

    assert isinstance(pages, UnitPages) and pages.ids.rows == 333
    assert [len(unit.more) for unit in manifest.units] == [2]
    score_here(tmp_path, unit_rows=40)
    assert read_scores(tmp_path / "remote").equals(read_scores(tmp_path / "output"))
    assert verify_output(tmp_path / "remote").problems == []
    *_, last = [info.key for info in store.list("input")]
    store.put(last, (tmp_path / "input/shard-000.parquet").read_bytes())
    with pytest.raises(UnitFailedError, match=f"{last} was replaced after planning"):
        read_unit(plan.units[0], plan.for_workers, UnitBuffer())


def test_verify_reads_the_input_again(store: ObjectStore, tmp_path: Path):
    score_here(tmp_path, **keys_of(store, str(tmp_path / "remote")))
    path = tmp_path / "remote" / "_manifest.json"
    etag = next(store.list("input")).etag.strip('"')
    text = path.read_text()
    assert etag in text
    path.write_text(text.replace('"rows":111', '"rows":112'))
    assert any("the manifest says 112" in p for p in verify_output(tmp_path / "remote").problems)


def test_the_dry_run_names_addresses(store: ObjectStore, tmp_path: Path):
    keys = keys_of(store, str(tmp_path / "remote"))
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, **keys)))
    text = dry_run(plan, 40)
    assert store.path("bundle") in text and store.path("input/shard-000.parquet") in text
    assert not (tmp_path / "remote").exists()


def test_an_object_that_is_replaced_in_mid_job_breaks_the_contract(
    store: ObjectStore, tmp_path: Path
):
    keys = keys_of(store, str(tmp_path / "remote"))
    plan = make_plan(JobConfig.model_validate(job_keys(tmp_path, **keys)))
    store.put("input/shard-001.parquet", store.read("input/shard-002.parquet"))
    store.delete(["input/shard-002.parquet"])
    errors = [found for found in outcomes(plan) if isinstance(found, UnitError)]
    assert [error.kind for error in errors] == ["changed"] * 3 + ["removed"] * 3
    assert {job_error(error).exit_code for error in errors} == {3}


def dpiframe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def test_refused_credentials_are_told_without_them(
    store: ObjectStore, tmp_path: Path, faults: Faults
):
    faults.make("refused", 1000)
    keys = keys_of(store)
    for wanted in ("bundle", "input"):
        with pytest.raises(ConfigError, match=r"privileges|refused") as found:
            make_plan(JobConfig.model_validate(job_keys(tmp_path, **keys)))
        assert f"{store.address}/{wanted}" in str(found.value)
        assert "tests-of-stores" not in str(found.value)
        keys["bundle"] = str(tmp_path / "bundle")


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "ray"])
def test_the_command_scores_through_faults(
    store: ObjectStore, tmp_path: Path, faults: Faults, runner: str
):
    def fault(method: str, path: str) -> None:
        count = len(faults.requests)
        if count % 7 == 3:
            faults.make(("slow_down", "reset", "cut", "half")[count % 4], 1, ".parquet")

    faults.before = fault
    config = write_config(tmp_path, **keys_of(store), runner=runner)
    done = dpiframe(tmp_path, "score", str(config))
    assert done.returncode == 0, done.stderr
    table = write_shards(tmp_path / "again", 3, 111, 19)
    found = read_scores(tmp_path / "remote")
    assert found.column("row_id").equals(table.column("row_id"))
    expected = reference_scores(tiny_bundle(tmp_path / "same"), table)
    np.testing.assert_allclose(found.column("score").to_numpy(), expected, atol=1e-5)
    assert dpiframe(tmp_path, "verify", "remote").returncode == 0
