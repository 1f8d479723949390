"""Export: make a bundle from a spec and weights that were written elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.numpy
import safetensors.torch
from pydantic import ValidationError
from safetensors import SafetensorError

from dpiframe_core import Bundle, BundleError, ModelSpec, SpecError, save_bundle
from dpiframe_core.features import FeatureSchema, SchemaError, vocabulary_from_tensors
from pipeline.errors import ConfigError


def export(
    spec: Path, weights: Path, schema: Path | None, vocabularies: Path | None, output: Path
) -> Bundle:
    """Read spec (JSON), weights (safetensors), schema (JSON), vocabularies; write the bundle.

    ConfigError names the invalid file and the reason.
    """
    reading = spec
    try:
        parsed = ModelSpec.parse(json.loads(spec.read_text()))
        reading = weights
        tensors = safetensors.torch.load_file(weights)
        reading = schema or weights
        features = FeatureSchema.model_validate_json(schema.read_text()) if schema else None
        reading = vocabularies or reading
        words = safetensors.numpy.load_file(vocabularies) if vocabularies else {}
        return save_bundle(output, parsed, tensors, features, vocabulary_from_tensors(words))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{reading} is not JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{reading} is nested too deeply") from None
    except BundleError as error:
        raise ConfigError(str(error)) from None
    except (SpecError, SchemaError, ValidationError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{reading}: {error}") from None
