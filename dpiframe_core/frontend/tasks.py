"""Several outputs of one model as one spec: modules that they share are there once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from dpiframe_core.errors import ModelImportError, SpecError
from dpiframe_core.model.modules import Module
from dpiframe_core.model.spec import ModelSpec


class Converted(NamedTuple):
    """A spec with its weights by name."""

    spec: ModelSpec
    weights: Mapping[str, Tensor]


def joined(first: Converted, tasks: Mapping[str, Converted]) -> Converted:
    """The first one's spec, and for each task a module of its name that makes the task's logit.

    ModelImportError: they do not read the same features.
    """
    modules, weights = list(first.spec.modules), dict(first.weights)
    for task, (spec, own) in tasks.items():
        _check_features(first.spec, spec, task)
        names: dict[str, str] = {}
        taken = {module.name for module in modules}
        for module in spec.modules:
            inputs = tuple(names.get(name, name) for name in module.inputs)
            parts = _parts(module.name, own)
            is_logit = module.name == spec.output
            same = None if is_logit else _same(module, inputs, parts, modules, weights)
            if same is None:
                name = task if is_logit else f"{task}_{module.name}"
                if name in taken:
                    raise ModelImportError(f"output {task!r}: the model has a module {name!r}")
                modules.append(module.model_copy(update={"name": name, "inputs": inputs}))
                weights |= {f"{name}/{part}": weight for part, weight in parts.items()}
                taken.add(name)
                same = name
            names[module.name] = same
    try:
        whole = first.spec.model_dump(mode="python") | {
            "modules": [module.model_dump(mode="python") for module in modules]
        }
        return Converted(ModelSpec(**whole), weights)
    except (SpecError, ValueError) as error:
        raise ModelImportError(f"the outputs make no spec together: {error}") from None


def _check_features(first: ModelSpec, other: ModelSpec, task: str) -> None:
    for what in ("fields", "dense", "lists", "columns"):
        if getattr(first, what) != getattr(other, what):
            raise ModelImportError(
                f"output {task!r} reads other features than the score ({what}): import it as a "
                "bundle of its own, and score both in one job (bundles)"
            )


def _same(
    module: Module,
    inputs: tuple[str, ...],
    parts: Mapping[str, Tensor],
    modules: list[Module],
    weights: Mapping[str, Tensor],
) -> str | None:
    """The name of a module that computes the same of the same."""
    for other in modules:
        if other.model_copy(update={"name": ""}) != module.model_copy(
            update={"name": "", "inputs": inputs}
        ):
            continue
        found = _parts(other.name, weights)
        if found.keys() == parts.keys() and all(torch.equal(found[p], parts[p]) for p in parts):
            return other.name
    return None


def _parts(module: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = f"{module}/"
    return {name.removeprefix(own): w for name, w in weights.items() if name.startswith(own)}
