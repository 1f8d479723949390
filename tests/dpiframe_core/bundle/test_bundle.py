"""Bundles: what is written comes back; what was changed is refused, with the file's name."""

from __future__ import annotations

import hashlib
import json
import os

import model_zoo
import numpy as np
import pytest
import safetensors.torch
import torch

from dpiframe_core import BundleError, FieldSpec, SpecError, open_bundle, save_bundle
from dpiframe_core.bundle import files as bundle_files
from dpiframe_core.features import criteo_schema
from dpiframe_core.model.builtin import Deep, Features, dcn

SPEC = dcn(Features(model_zoo.fields(10), ["I1"], "raw"), Deep((8,), batch_norm=True))


@pytest.fixture
def saved(tmp_path):
    model = model_zoo.random_model(SPEC)
    return model, save_bundle(tmp_path / "bundle", SPEC, model.state_dict())


def test_a_bundle_comes_back_as_it_was(saved):
    model, bundle = saved
    opened = open_bundle(bundle.path)
    assert opened.spec == SPEC
    assert opened.digest == bundle.digest and len(opened.digest) == 64
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(opened.weights()[name], weight, rtol=0, atol=0)
        np.testing.assert_array_equal(opened.arrays()[name], weight)


def test_the_digest_depends_on_spec_and_weights_alone(saved, tmp_path):
    model, bundle = saved
    assert save_bundle(tmp_path / "b", SPEC, model.state_dict()).digest == bundle.digest
    model.state_dict()["logit/bias"].add_(1)
    assert save_bundle(tmp_path / "c", SPEC, model.state_dict()).digest != bundle.digest


def test_a_folder_holds_no_pickle(saved):
    _, bundle = saved
    assert sorted(f.name for f in bundle.path.iterdir()) == [
        "MANIFEST.json",
        "model.json",
        "weights.safetensors",
    ]


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_rights_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = save_bundle(tmp_path / "b", SPEC, model_zoo.random_model(SPEC).state_dict()).path
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o666 & ~umask}
    assert path.stat().st_mode & 0o777 == 0o777 & ~umask


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_changed_file_is_refused(saved, name):
    _, bundle = saved
    data = bytearray((bundle.path / name).read_bytes())
    data[-3] ^= 1
    (bundle.path / name).write_bytes(data)
    with pytest.raises(BundleError, match=f"{name} has sha256 .* it was changed"):
        open_bundle(bundle.path)


@pytest.fixture
def in_parts(tmp_path, monkeypatch):
    """A bundle whose weights were hashed in parts of 111 bytes."""
    monkeypatch.setattr(bundle_files, "PART_BYTES", 111)
    model = model_zoo.random_model(SPEC)
    return save_bundle(tmp_path / "bundle", SPEC, model.state_dict()).path


def test_large_files_are_checked_part_by_part(in_parts):
    entry = json.loads((in_parts / "MANIFEST.json").read_text())["files"]["weights.safetensors"]
    content = (in_parts / "weights.safetensors").read_bytes()
    parts = [content[i : i + 111] for i in range(0, len(content), 111)]
    assert len(parts) > 19
    assert entry["parts"] == [hashlib.sha256(part).hexdigest() for part in parts]
    assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    changed = bytearray(content)
    changed[5 * 111] ^= 1
    (in_parts / "weights.safetensors").write_bytes(changed)
    with pytest.raises(BundleError, match=r"weights\.safetensors has another .* from 555: it was"):
        open_bundle(in_parts)


@pytest.mark.parametrize(
    "change", [{"parts": []}, {"parts": None}, {"part_bytes": 0}, {"part_bytes": 1}]
)
def test_parts_that_are_not_those_of_the_file_are_refused(in_parts, change):
    manifest = json.loads((in_parts / "MANIFEST.json").read_text())
    manifest["files"]["weights.safetensors"] |= change
    (in_parts / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"weights\.safetensors"):
        open_bundle(in_parts)


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors", "MANIFEST.json"])
def test_a_missing_or_cut_file_is_refused(saved, name):
    _, bundle = saved
    data = (bundle.path / name).read_bytes()
    (bundle.path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(BundleError, match=name):
        open_bundle(bundle.path)
    (bundle.path / name).unlink()
    with pytest.raises(BundleError, match=name):
        open_bundle(bundle.path)


def test_a_manifest_cannot_name_files_elsewhere(saved):
    _, bundle = saved
    manifest = json.loads((bundle.path / "MANIFEST.json").read_text())
    manifest["files"]["../x"] = {"sha256": "0", "bytes": 0}
    (bundle.path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="lists files that no bundle has"):
        open_bundle(bundle.path)


def test_no_bundle_there(tmp_path):
    with pytest.raises(BundleError, match="no bundle at"):
        open_bundle(tmp_path / "nothing")


def test_an_existing_path_is_kept(saved):
    model, bundle = saved
    with pytest.raises(BundleError, match="exists"):
        save_bundle(bundle.path, SPEC, model.state_dict())


def test_weights_that_do_not_fit_are_named(tmp_path):
    weights = model_zoo.random_model(SPEC).state_dict()
    lacking = {k: v for k, v in weights.items() if k != "mlp/0/bn/var"}
    with pytest.raises(SpecError, match="lack 1 of the spec's: mlp/0/bn/var"):
        save_bundle(tmp_path / "b", SPEC, lacking)
    with pytest.raises(SpecError, match=r"embedding/tables/C2 must have shape \[7, 10\]"):
        save_bundle(tmp_path / "b", SPEC, {**weights, "embedding/tables/C2": torch.zeros(7, 9)})
    weights["logit/bias"][0] = torch.nan
    with pytest.raises(BundleError, match="logit/bias holds values that are not finite"):
        save_bundle(tmp_path / "b", SPEC, weights)
    assert list(tmp_path.iterdir()) == []


def test_weights_of_any_floating_type_and_tied_ones_are_kept(tmp_path):
    weights = model_zoo.random_model(SPEC).state_dict()
    weights["mlp/0/weight"] = weights["mlp/0/weight"].bfloat16()
    weights["embedding/tables/C2"] = weights["embedding/tables/C2"].double()
    weights["mlp/0/bn/weight"] = weights["mlp/0/bias"]
    opened = save_bundle(tmp_path / "b", SPEC, weights).weights()
    for name, weight in weights.items():
        torch.testing.assert_close(opened[name].double(), weight.double(), rtol=0, atol=0)
    assert {w.dtype for w in opened.values()} == {torch.float32, torch.float64}
    with pytest.raises(BundleError, match=r"mlp/0/bias .* not finite in float32"):
        huge = {**weights, "mlp/0/bias": torch.full((8,), 1e300, dtype=torch.float64)}
        save_bundle(tmp_path / "c", SPEC, huge)
    with pytest.raises(SpecError, match="mlp/0/bias must be a torch tensor, got ndarray"):
        save_bundle(tmp_path / "c", SPEC, {**weights, "mlp/0/bias": np.zeros(8, np.float32)})


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["files"].update({"model.json": 5}),
        lambda m: m["files"].update({"model.json": {}}),
        lambda m: m["files"].pop("weights.safetensors"),
        lambda m: m.update({"files": []}),
        lambda m: m.update({"format": 2}),
        lambda m: m["files"]["weights.safetensors"].update({"bytes": "1"}),
        lambda m: m["files"]["weights.safetensors"].update({"sha256": None}),
    ],
)
def test_a_manifest_of_another_shape_is_refused(saved, change):
    _, bundle = saved
    manifest = json.loads((bundle.path / "MANIFEST.json").read_text())
    change(manifest)
    (bundle.path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError):
        open_bundle(bundle.path)


def test_weights_that_fit_their_checksum_alone_are_refused(saved):
    model, bundle = saved
    weights = {**model.state_dict(), "mlp/0/bias": torch.zeros(8, dtype=torch.int32)}
    safetensors.torch.save_file(weights, bundle.path / "weights.safetensors")
    data = (bundle.path / "weights.safetensors").read_bytes()
    manifest = json.loads((bundle.path / "MANIFEST.json").read_text())
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    manifest["files"]["weights.safetensors"] = entry
    (bundle.path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="mlp/0/bias must be of a floating type"):
        open_bundle(bundle.path)


def test_schema_and_spec_must_agree(tmp_path):
    schema = criteo_schema(modulus=10)
    fields = [FieldSpec(name=f.name, rows=f.rows, dim=4) for f in schema.fields]
    good = dcn(Features(fields), Deep((8,)))
    bundle = save_bundle(tmp_path / "a", good, model_zoo.random_model(good).state_dict(), schema)
    assert open_bundle(bundle.path).schema == schema
    fields[20] = fields[20].model_copy(update={"rows": 13})
    bad = dcn(Features(fields), Deep((8,)))
    with pytest.raises(BundleError, match=r"field 20 is \('C8', 13\) in the spec, \('C8', 12\)"):
        save_bundle(tmp_path / "b", bad, model_zoo.random_model(bad).state_dict(), schema)
