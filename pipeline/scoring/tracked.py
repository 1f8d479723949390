"""What a job reports to its tracker before the first row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dpiframe_core.bundle.files import IMPORT
from pipeline.config.job import JobConfig
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.output import Output
from pipeline.publishing.partitioned import PartitionedOutput
from pipeline.storage.bundle_cache import bundle_folder
from pipeline.tracking.settings import DatasetInfo, ModelInfo, ParamValue, TrackingSettings
from pipeline.tracking.tracker import Tracker


def start_tracker(plan: JobPlan, output: Output | PartitionedOutput, resumed_rows: int) -> Tracker:
    """Open the job's tracker and report what is known: parameters, tags, data set, model."""
    config = plan.config
    settings = TrackingSettings(
        uri=config.mlflow_uri,
        experiment=config.experiment,
        run_name=run_name(config),
        baseline_run=config.baseline_run,
        price_per_hour=config.price_per_hour,
        enabled=config.tracking,
        late=config.runner == "local",
    )
    tracker = Tracker(settings, output.tracking)
    params: dict[str, Any] = config.public()
    sizes = {"units": len(plan.units), "files": len(plan.files), "rows": plan.total_rows}
    tags = {"identity": plan.identity, "form": plan.columns.form, "output": output.address}
    if config.date is not None:
        tags["date"] = config.date
    tracker.start(
        {**params, **sizes, "resumed_rows": resumed_rows},
        tags,
        dataset=DatasetInfo(
            name=dataset_name(plan),
            source=source_of(plan),
            digest=plan.identity,
            rows=plan.total_rows,
            bytes=plan.total_bytes,
        ),
        model=ModelInfo(
            name=Path(config.bundle).name,
            digest=plan.bundle_digest,
            params=import_params(bundle_folder(config.bundle, plan.bundle_digest)),
        ),
    )
    return tracker


def run_name(config: JobConfig) -> str | None:
    """The run's name as configured, else that of the experiment and the date, if there is one."""
    if config.run_name is None and config.date is not None:
        return f"{config.experiment} {config.date}"
    return config.run_name


def import_params(bundle: Path) -> dict[str, ParamValue]:
    """What the report of an imported model says, a parameter each; none of other bundles."""
    file = bundle / IMPORT
    report = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {f"import_{key}": value for key, value in _flat(report).items()}


def _flat(data: Any) -> dict[str, ParamValue]:
    """The values of nested mappings under names such as `differences.CPU.largest`."""
    found: dict[str, ParamValue] = {}
    for key, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": each for inner, each in _flat(value).items()}
        else:
            text = json.dumps(value) if isinstance(value, list) else value
            found[str(key)] = text
    return {re.sub(r"[^\w.-]+", "_", key): value for key, value in found.items()}


def dataset_name(plan: JobPlan) -> str:
    """The folder of the first input file, which is what people call their data by."""
    return Path(plan.files[0].path).parent.name or "input" if plan.files else "input"


def source_of(plan: JobPlan) -> str:
    """The input as configured, in one string."""
    source = plan.config.input
    return ", ".join(source) if isinstance(source, list) else source
