"""Import: make a bundle of a PyTorch model that torch.export wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from dpiframe_core import Bundle, BundleError, ModelImportError, from_torch, read_archive
from dpiframe_core.frontend.check import Expected
from dpiframe_core.frontend.fuxictr import FuxiSchema, schema_of_feature_map
from pipeline.config.strict_yaml import load_yaml
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class ImportOptions:
    """What the command is told; files may be None."""

    columns: Path | None = None
    output: str = "auto"
    tasks: dict[str, str] = field(default_factory=dict)
    name: str = ""
    feature_map: Path | None = None
    feature_vocab: Path | None = None
    dataset_config: Path | None = None
    check: Path | None = None
    tolerance: float = 1e-5
    precisions: tuple[str, ...] = ()


def import_model(model: Path, bundle: Path, options: ImportOptions) -> Bundle:
    """Convert the .pt2 archive, compare, write the bundle. ConfigError names file and reason."""
    try:
        archived = read_archive(model)
        columns = _read_columns(options.columns) if options.columns else None
        encoding = _encoding(options)
        samples = _read_samples(options.check) if options.check else {}
        more: dict[str, Any] = {"precisions": options.precisions} if options.precisions else {}
        return from_torch(
            archived,
            columns=columns,
            path=bundle,
            name=options.name or model.stem,
            output=options.output,
            tasks=options.tasks,
            encoding=encoding,
            tolerance=options.tolerance,
            **samples,
            **more,
        )
    except (BundleError, ModelImportError) as error:
        raise ConfigError(str(error)) from None


def _encoding(options: ImportOptions) -> FuxiSchema | None:
    """How raw rows are encoded, by FuxiCTR's files."""
    if options.feature_map is None and options.feature_vocab is None:
        return None
    if options.feature_map is None or options.feature_vocab is None:
        raise ConfigError("feature_map.json and feature_vocab.json are needed together")
    return schema_of_feature_map(options.feature_map, options.feature_vocab, options.dataset_config)


def _read_columns(file: Path) -> Any:
    try:
        return load_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _read_samples(file: Path) -> dict[str, Any]:
    """Inputs by name (or input/NAME), and if they are there logit or probability, and label."""
    try:
        tensors = safetensors.torch.load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: {error}") from None
    found: dict[str, Any] = {}
    if "logit" in tensors:
        found["recorded"] = Expected.of_logits(tensors.pop("logit").flatten().numpy())
        tensors.pop("probability", None)
    elif "probability" in tensors:
        recorded = tensors.pop("probability").flatten().numpy()
        found["recorded"] = Expected.of_probabilities(recorded)
    if "label" in tensors:
        found["labels"] = tensors.pop("label").flatten().numpy()
    found["samples"] = {name.removeprefix("input/"): tensor for name, tensor in tensors.items()}
    return found


def in_words(bundle: Bundle) -> Iterator[str]:
    """The report of an import, for people."""
    report = bundle.report() or {}
    fields, dense = len(bundle.spec.fields), len(bundle.spec.dense)
    yield f"{report['model']}: {fields} fields, {dense} dense features; output {report['output']}"
    for kind in ("known", "generic"):
        modules = report["modules"][kind]
        listed = ", ".join(f"{count} {name}" for name, count in modules.items())
        yield f"{sum(modules.values())} {kind} modules" + (f": {listed}" if listed else "")
    samples = report["samples"]
    yield (
        f"logits of {samples['count']} {samples['are']} samples against {report['reference']} "
        "(differences over max(1, |logit|)):"
    )
    compared = {"": report["differences"], " against those recorded": report.get("recorded", {})}
    for task, of_task in report.get("tasks", {}).items():
        compared[f" of {task}, output {of_task['output']}"] = of_task["differences"]
    for what, differences in compared.items():
        for name, found in differences.items():
            yield (
                f"  {name}{what}: largest {found['largest']:.2g}, mean {found['mean']:.2g}, 99.9% "
                f"within {found['within_99_9_percent']:.2g}"
            )
    for name, found in report.get("quality", {}).items():
        yield f"  {name}: AUC {found['auc']:.6f}, logloss {found['logloss']:.6f}"
    yield from report["raw_columns"]
    for key, text in _NOTES.items():
        if found := report.get(key):
            names = [" = ".join(n) if isinstance(n, list) else n for n in found]
            if isinstance(found, dict):
                names = [f"{name} (up to {largest:,})" for name, largest in found.items()]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            yield f"{text}: {', '.join(names[:8])}{more}"


_NOTES = {
    "unused_inputs": "inputs that the model does not use",
    "bounded_numbers": "whole numbers that are ids, of the examples' largest at most",
    "rounded_inputs": "inputs of whole numbers that float32 rounds (above 16,777,216)",
    "unused_weights": "weights that the score does not need, not stored",
    "rounded_to_float32": "weights rounded to float32",
    "widened_to_float32": "weights widened to float32",
    "tied_weights": "weights of several names",
    "stored_several_times": "tables that several modules read, stored for each",
}
