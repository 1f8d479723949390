"""Bundles in an object store: copied to the user's cache, checked, by many processes at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_cases import tiny_bundle

pytest.importorskip("moto")
from faulty_proxy import Faults, faulty_proxy
from s3_server import BUCKET, s3_server

from dpiframe_core.errors import BundleError
from pipeline.storage import bundle_cache, objects
from pipeline.storage.bundle_cache import bundle_folder, open_bundle_at
from pipeline.storage.object_store import ObjectStore


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with s3_server() as endpoint, faulty_proxy(endpoint) as found:
        yield found


@pytest.fixture
def store(
    faults: Faults, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ObjectStore:
    monkeypatch.setattr(objects, "PAUSE_S", 0.001)
    monkeypatch.setenv("DPIFRAME_CACHE", str(tmp_path / "cache"))
    store = ObjectStore(f"s3://{BUCKET}/{request.node.name}")
    put_bundle(store, tmp_path / "bundle")
    faults.requests.clear()
    return store


def put_bundle(store: ObjectStore, folder: Path, seed: int = 0) -> None:
    tiny_bundle(folder, seed)
    for path in folder.iterdir():
        store.put(path.name, path.read_bytes())


def copies(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "bundles").iterdir())


def test_a_copy_is_fetched_once(store: ObjectStore, tmp_path: Path, faults: Faults):
    local = open_bundle_at(str(tmp_path / "bundle"))
    bundle = open_bundle_at(store.address)
    assert (bundle.digest, bundle.spec) == (local.digest, local.spec)
    assert bundle.path == tmp_path / "cache" / "bundles" / bundle.digest
    assert copies(tmp_path) == [bundle.digest, f"{bundle.digest}.lock"]
    faults.requests.clear()
    assert open_bundle_at(store.address, bundle.digest).path == bundle.path
    assert faults.requests == []
    open_bundle_at(store.address)
    assert len(faults.requests) == 1  # its manifest


def test_a_damaged_copy_is_fetched_again(store: ObjectStore):
    bundle = open_bundle_at(store.address)
    (bundle.path / "weights.safetensors").write_bytes(b"damaged")
    assert open_bundle_at(store.address, bundle.digest).digest == bundle.digest


def test_a_bundle_that_changed_is_refused(store: ObjectStore, tmp_path: Path):
    digest = open_bundle_at(store.address).digest
    put_bundle(store, tmp_path / "other", seed=1)
    assert open_bundle_at(store.address).digest != digest
    bundle_folder(store.address, digest)  # the planned one is there still
    with pytest.raises(BundleError, match="it must not change while a job runs"):
        bundle_folder(store.address, "0" * 64)


def test_faults_heal_and_what_is_wrong_leaves_nothing(
    store: ObjectStore, tmp_path: Path, faults: Faults
):
    faults.make("cut", 4)
    assert open_bundle_at(store.address).spec
    weights = store.read("weights.safetensors")
    (tmp_path / "cache").rename(tmp_path / "old")
    store.put("weights.safetensors", weights[:-1] + b"!")
    with pytest.raises(BundleError, match=rf"{store.address}/weights.safetensors has sha256"):
        open_bundle_at(store.address)
    store.delete(["weights.safetensors"])
    with pytest.raises(BundleError, match=r"weights\.safetensors is missing, though the manifest"):
        open_bundle_at(store.address)
    with pytest.raises(BundleError, match=r"there is no bundle at .*/no: it holds no MANIFEST"):
        open_bundle_at(f"{store.address}/no")
    assert all(name.endswith(".lock") for name in copies(tmp_path))


def test_old_copies_are_removed_when_a_new_one_comes(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = open_bundle_at(store.address)
    os.utime(old.path, (0, 0))
    put_bundle(store, tmp_path / "other", seed=1)
    new = open_bundle_at(store.address)
    assert not old.path.exists() and new.path.exists()
    monkeypatch.setattr(bundle_cache, "UNUSED_DAYS", 0.0)
    assert open_bundle_at(store.address, new.digest).path.exists()


def test_many_processes_fetch_one_copy(store: ObjectStore, faults: Faults, tmp_path: Path):
    code = (
        "import sys; from pipeline.storage.bundle_cache import open_bundle_at; "
        "print(open_bundle_at(sys.argv[1]).digest)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, store.address], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    found = {process.communicate(timeout=60)[0].decode().strip() for process in started}
    assert len(found) == 1 and len(found.pop()) == 64
    asked = [path for method, path, _ in faults.requests if method == "GET"]
    assert sum("weights" in path for path in asked) == 1
    assert len(copies(tmp_path)) == 2
