"""Saving a bundle: it appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from dpiframe_core.bundle.files import (
    FORMAT,
    IMPORT,
    MANIFEST,
    MODEL,
    VOCABULARY,
    WEIGHTS,
    file_entry,
)
from dpiframe_core.bundle.reading import Bundle, check_schema, open_bundle
from dpiframe_core.errors import BundleError
from dpiframe_core.features import FeatureSchema, vocabulary_to_tensors
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.model.torch_module import check_weights


def save_bundle(
    path: str | Path,
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    schema: FeatureSchema | None = None,
    vocabularies: Mapping[str, pa.Array] | None = None,
    report: Mapping[str, Any] | None = None,
) -> Bundle:
    """Write a bundle at `path`, which must not exist; it appears whole or not at all.

    Weights of any floating type are kept as they are; `report` says how the model was imported,
    plain data. SpecError or BundleError when weights,
    schema and spec do not fit one another, BundleError for a weight beyond float32.
    """
    path = Path(path)
    if path.exists() or path.is_symlink():
        raise BundleError(f"{path} exists; choose another path or remove it first")
    check_weights(spec, weights)
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor.float()).all()):
            raise BundleError(f"weight {name} holds values that are not finite in float32")
    check_schema(spec, schema, vocabularies or {}, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        if report is not None:
            (scratch / IMPORT).write_text(json.dumps(report, indent=1))
        _write(scratch, spec, weights, schema, vocabularies or {})
        _follow_umask(scratch)
        scratch.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_bundle(path)


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
    files = {file.name: file_entry(file) for file in sorted(folder.iterdir())}
    manifest = json.dumps({"format": FORMAT, "files": files}, indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(manifest)
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _follow_umask(folder: Path) -> None:
    """Give a folder and its files the rights that ordinary new ones have.

    The folder was made, and safetensors writes, for this user alone.
    """
    rights = stat.S_IMODE((folder / MANIFEST).stat().st_mode)  # of a file made the ordinary way
    for file in folder.iterdir():
        file.chmod(rights)
    folder.chmod(rights | (rights & 0o444) >> 2)


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by name, contiguous and on the CPU; those that share memory are copied."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, weight in sorted(weights.items()):
        tensor = weight.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return apart
