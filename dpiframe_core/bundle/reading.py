"""Bundle: a model as a folder, tied to no GPU, torch version or precision. Never pickle.

Opening needs no torch, which takes seconds to import; see `writing` for how one is saved.

model.json               the spec, and the feature schema where there is one
weights.safetensors      every weight of the spec, by name
vocabulary.safetensors   the schema's vocabularies, where it has some
import.json              how a PyTorch model was converted, and how far its logits are from the
                         module's, where it was
MANIFEST.json            sha256 and size of each of these files
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import safetensors.numpy
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from dpiframe_core.bundle.arrays import map_arrays
from dpiframe_core.bundle.files import (
    IMPORT,
    VOCABULARY,
    WEIGHTS,
    check_file,
    read_json,
    read_manifest,
    read_model,
)
from dpiframe_core.errors import BundleError, SpecError
from dpiframe_core.features import (
    FeatureSchema,
    SchemaError,
    vocabulary_from_tensors,
)
from dpiframe_core.model.fields import ListSpec, problems
from dpiframe_core.model.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Bundle:
    """An opened bundle, every file checked. `digest`: sha256 of its manifest, 64 hex digits."""

    path: Path
    spec: ModelSpec
    digest: str
    schema: FeatureSchema | None = None
    vocabularies: Mapping[str, pa.Array] = field(default_factory=dict)

    def weights(self) -> dict[str, Tensor]:
        """The weights by name as tensors: `arrays` as torch tensors."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.arrays().items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """The weights by name, mapped from the file (not copied); half types widened to float32.

        Lowering computes new weights from these, and must not round them to half a type.
        """
        return map_arrays(self.path / WEIGHTS)

    def report(self) -> dict[str, Any] | None:
        """How the model was imported, plain data; None where it was not."""
        file = self.path / IMPORT
        found = read_json(file) if file.is_file() else None
        return found if isinstance(found, dict) else None


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
        _check_weights(spec, path / WEIGHTS)
        tensors = safetensors.numpy.load_file(path / VOCABULARY) if VOCABULARY in manifest else {}
        vocabularies = vocabulary_from_tensors(tensors)
    except ValidationError as error:
        raise BundleError(f"bundle {path}: feature schema: {problems(error)}") from None
    except (SpecError, SchemaError, SafetensorError) as error:
        raise BundleError(f"bundle {path}: {error}") from None
    check_schema(spec, schema, vocabularies, str(path))
    return Bundle(path, spec, digest, schema, vocabularies)


def _check_weights(spec: ModelSpec, file: Path) -> None:
    """SpecError unless the file holds the spec's weights; reads no more than its header."""
    with safe_open(file, framework="numpy") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
    spec.check_shapes({name: tuple(found.get_shape()) for name, found in slices.items()})
    for name, found in slices.items():
        if not found.get_dtype().startswith(("F", "BF")):
            raise SpecError(f"weight {name} must be of a floating type, got {found.get_dtype()}")


def check_schema(
    spec: ModelSpec,
    schema: FeatureSchema | None,
    vocabularies: Mapping[str, pa.Array],
    where: str,
) -> None:
    """BundleError unless the schema makes what the spec reads, with its vocabularies."""
    if schema is None:
        if vocabularies:
            raise BundleError(f"{where}: vocabularies without a feature schema")
        return
    if not schema.is_fitted:
        raise BundleError(f"{where}: the feature schema is not fitted; run fit_schema first")
    wanted = [(name, f.rows) for name, f in schema.field_features]
    found = [(f.name, f.rows) for f in spec.fields]
    for i, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
        if ours != theirs:
            raise BundleError(f"{where}: field {i} is {ours} in the spec, {theirs} in the schema")
    if len(wanted) != len(found) or schema.dense_names != spec.dense:
        raise BundleError(
            f"{where}: the spec has {len(found)} fields and dense features {spec.dense}, the "
            f"schema {len(wanted)} and {schema.dense_names}"
        )
    _check_lists(spec, schema, where)
    needed = {f.name for f in schema.fields if f.encoding.kind == "vocabulary"}
    if needed != set(vocabularies):
        raise BundleError(
            f"{where}: vocabularies needed for {sorted(needed)}, there are {sorted(vocabularies)}"
        )


def _check_lists(spec: ModelSpec, schema: FeatureSchema, where: str) -> None:
    """BundleError unless the schema's lists are those of the spec."""
    ours = {each.name: each for each in spec.lists}
    theirs = {each.name: each for each in ListSpec.of_schema(schema)}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise BundleError(
                f"{where}: list {name} is {ours.get(name)!r} in the spec, "
                f"{theirs.get(name)!r} in the schema"
            )
