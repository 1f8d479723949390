"""Bundle: a model as a folder, tied to no GPU, torch version or precision. Never pickle.

model.json               the spec, and the feature schema where there is one
weights.safetensors      every weight of the spec, by name
vocabulary.safetensors   the schema's vocabularies, where it has some
MANIFEST.json            sha256 and size of each of these files
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import safetensors.numpy
import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dpiframe_core.bundle_files import (
    FORMAT,
    MANIFEST,
    MODEL,
    VOCABULARY,
    WEIGHTS,
    check_file,
    read_manifest,
    read_model,
    sha256_file,
)
from dpiframe_core.errors import BundleError, SpecError
from dpiframe_core.features import (
    FeatureSchema,
    SchemaError,
    vocabulary_from_tensors,
    vocabulary_to_tensors,
)
from dpiframe_core.modules import problems
from dpiframe_core.spec import ModelSpec
from dpiframe_core.torch_model import check_weights


@dataclass(frozen=True)
class Bundle:
    """An opened bundle, every file checked. `digest`: sha256 of its manifest, 64 hex digits."""

    path: Path
    spec: ModelSpec
    digest: str
    schema: FeatureSchema | None = None
    vocabularies: Mapping[str, pa.Array] = field(default_factory=dict)

    def weights(self) -> dict[str, Tensor]:
        """The weights by name, mapped from the file (not copied); half types widened to float32.

        Lowering computes new weights from these, and must not round them to half a type.
        """
        stored = safetensors.torch.load_file(self.path / WEIGHTS)
        return {name: w if w.dtype.itemsize >= 4 else w.float() for name, w in stored.items()}


def save_bundle(
    path: str | Path,
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    schema: FeatureSchema | None = None,
    vocabularies: Mapping[str, pa.Array] | None = None,
) -> Bundle:
    """Write a bundle at `path`, which must not exist; it appears whole or not at all.

    Weights of any floating type are kept as they are. SpecError or BundleError when weights,
    schema and spec do not fit one another, BundleError for a weight beyond float32.
    """
    path = Path(path)
    if path.exists() or path.is_symlink():
        raise BundleError(f"{path} exists; choose another path or remove it first")
    check_weights(spec, weights)
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor.float()).all()):
            raise BundleError(f"weight {name} holds values that are not finite in float32")
    _check_schema(spec, schema, vocabularies or {}, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        _write(scratch, spec, weights, schema, vocabularies or {})
        scratch.chmod(0o755)
        scratch.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_bundle(path)


def open_bundle(path: str | Path) -> Bundle:
    """Open a bundle and check it; BundleError says which file is missing, changed or unfit."""
    path = Path(path)
    if not path.is_dir():
        raise BundleError(f"there is no bundle at {path}: not a folder")
    manifest, digest = read_manifest(path)
    for name, entry in manifest.items():
        check_file(path / name, entry)
    model = read_model(path)
    try:
        spec = ModelSpec.parse(model.get("spec"))
        raw = model.get("schema")
        schema = None if raw is None else FeatureSchema.model_validate(raw)
        with safe_open(path / WEIGHTS, framework="pt") as file:
            names = list(file.keys())
            stored = {name: file.get_tensor(name).to("meta") for name in names}
        check_weights(spec, stored)
        tensors = safetensors.numpy.load_file(path / VOCABULARY) if VOCABULARY in manifest else {}
        vocabularies = vocabulary_from_tensors(tensors)
    except ValidationError as error:
        raise BundleError(f"bundle {path}: feature schema: {problems(error)}") from None
    except (SpecError, SchemaError, SafetensorError) as error:
        raise BundleError(f"bundle {path}: {error}") from None
    _check_schema(spec, schema, vocabularies, str(path))
    return Bundle(path, spec, digest, schema, vocabularies)


def _write(
    folder: Path,
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    schema: FeatureSchema | None,
    vocabularies: Mapping[str, pa.Array],
) -> None:
    model = {
        "format": FORMAT,
        "spec": spec.model_dump(mode="json"),
        "schema": schema.model_dump(mode="json") if schema else None,
    }
    (folder / MODEL).write_text(json.dumps(model, indent=1, sort_keys=True))
    safetensors.torch.save_file(_apart(weights), folder / WEIGHTS)
    if vocabularies:
        arrays: dict[str, np.ndarray] = vocabulary_to_tensors(vocabularies)
        safetensors.numpy.save_file(arrays, folder / VOCABULARY)
    files = {
        file.name: {"sha256": sha256_file(file), "bytes": file.stat().st_size}
        for file in sorted(folder.iterdir())
    }
    manifest = json.dumps({"format": FORMAT, "files": files}, indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(manifest)
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by name, contiguous and on the CPU; those that share memory are copied."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, weight in sorted(weights.items()):
        tensor = weight.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart


def _check_schema(
    spec: ModelSpec,
    schema: FeatureSchema | None,
    vocabularies: Mapping[str, pa.Array],
    where: str,
) -> None:
    if schema is None:
        if vocabularies:
            raise BundleError(f"{where}: vocabularies without a feature schema")
        return
    if not schema.is_fitted:
        raise BundleError(f"{where}: the feature schema is not fitted; run fit_schema first")
    wanted = [(f.name, f.rows) for f in schema.fields]
    found = [(f.name, f.rows) for f in spec.fields]
    for i, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
        if ours != theirs:
            raise BundleError(f"{where}: field {i} is {ours} in the spec, {theirs} in the schema")
    if len(wanted) != len(found) or tuple(d.name for d in schema.dense) != spec.dense:
        raise BundleError(
            f"{where}: the spec has {len(found)} fields and dense features {spec.dense}, the "
            f"schema {len(wanted)} and {tuple(d.name for d in schema.dense)}"
        )
    needed = {f.name for f in schema.fields if f.encoding.kind == "vocabulary"}
    if needed != set(vocabularies):
        raise BundleError(
            f"{where}: vocabularies needed for {sorted(needed)}, there are {sorted(vocabularies)}"
        )
