"""The encoder of a bundle, opened without the model: neither weights nor torch are touched."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import safetensors.numpy
from pydantic import ValidationError
from safetensors import SafetensorError

from dpiframe_core.bundle.files import MODEL, VOCABULARY, check_file, read_manifest, read_model
from dpiframe_core.errors import BundleError
from dpiframe_core.features.encoder import Encoder
from dpiframe_core.features.errors import SchemaError
from dpiframe_core.features.schema import FeatureSchema
from dpiframe_core.features.vocabulary import vocabulary_from_tensors

_TURN = threading.Lock()


def bundled_encoder(path: str, digest: str) -> Encoder:
    """The encoder of the bundle at `path`, kept for the next call: one for a process's threads.

    BundleError when the bundle has another digest, or a file that encoding needs was changed.
    """
    with _TURN:  # its vocabularies may be large: they are not to be read by several threads at once
        return _opened(path, digest)


@functools.lru_cache(maxsize=8)  # a job may have several bundles
def _opened(path: str, digest: str) -> Encoder:
    folder = Path(path)
    manifest, found = read_manifest(folder)
    if found != digest:
        raise BundleError(f"bundle {path} has digest {found}, expected {digest}")
    needed = [name for name in (MODEL, VOCABULARY) if name in manifest]
    for name in needed:
        check_file(folder / name, manifest[name])
    try:
        schema = FeatureSchema.model_validate(read_model(folder).get("schema"))
        tensors = safetensors.numpy.load_file(folder / VOCABULARY) if VOCABULARY in needed else {}
        return Encoder(schema, vocabulary_from_tensors(tensors))
    except (SchemaError, SafetensorError, ValidationError) as error:
        raise BundleError(f"bundle {path}: {error}") from None
