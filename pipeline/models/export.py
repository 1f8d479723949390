"""Export: make a bundle from a spec and weights that were written elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from dpiframe_core import Bundle, BundleError, ModelSpec, SpecError, save_bundle
from dpiframe_core.features import FeatureSchema, SchemaError, vocabulary_from_tensors
from dpiframe_core.frontend.check import TOLERANCE, Expected, compare, engine_logits
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Check:
    """Samples of safetensors with what they must score: ids [F, B], dense [N, B] (where the model
    has dense features) and logits [B], which may differ by `tolerance` x max(1, |logit|).
    """

    file: Path
    tolerance: float = TOLERANCE


def export(
    spec: Path,
    weights: Path,
    schema: Path | None,
    vocabularies: Path | None,
    output: Path,
    check: Check | None = None,
) -> Bundle:
    """Read spec (JSON), weights (safetensors), schema (JSON), vocabularies; write the bundle.

    With a check its differences are kept in the bundle's report. ConfigError names the invalid file
    and the reason.
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
        reading = check.file if check else reading
        report = _compared(parsed, tensors, check) if check else None
        known = vocabulary_from_tensors(words)
        return save_bundle(output, parsed, tensors, features, known, report)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{reading} is not JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{reading} is nested too deeply") from None
    except BundleError as error:
        raise ConfigError(str(error)) from None
    except (SpecError, SchemaError, ValidationError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{reading}: {error}") from None


def _compared(spec: ModelSpec, weights: Mapping[str, torch.Tensor], check: Check) -> dict[str, Any]:
    """The report of a comparison; ValueError where the engine scores otherwise."""
    spec.check_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()})
    samples = safetensors.numpy.load_file(check.file)
    wanted = {"ids", "logits"} | ({"dense"} if spec.dense else set())
    if set(samples) != wanted:
        raise ValueError(f"must hold {', '.join(sorted(wanted))}, got {', '.join(sorted(samples))}")
    ids, logits = samples["ids"].astype(np.int64), samples["logits"].reshape(-1)
    count = len(logits)
    dense = samples.get("dense", np.zeros((0, count)))
    if ids.shape != (len(spec.fields), count) or dense.shape != (len(spec.dense), count):
        raise ValueError(
            f"ids must be [{len(spec.fields)}, {count}] and dense [{len(spec.dense)}, {count}] for "
            f"{count} logits, got {list(ids.shape)} and {list(dense.shape)}"
        )
    found = engine_logits(spec, {k: w.float() for k, w in weights.items()}, ids, dense)
    differences = compare(found, Expected.of_logits(logits), check.tolerance)
    return {
        "samples": {"count": count, "are": "given"},
        "tolerance": check.tolerance,
        "recorded": differences,
    }
