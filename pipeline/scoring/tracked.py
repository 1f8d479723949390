"""What a job reports to its tracker before the first row."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from dpiframe_core.bundle.files import IMPORT
from pipeline.planning.inputs import InputFile
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.output import Output
from pipeline.publishing.partitioned import PartitionedOutput
from pipeline.sizing.sizes import Sizes
from pipeline.storage.bundle_cache import bundle_folder
from pipeline.tracking.settings import (
    DATASET_DIGEST_LENGTH,
    DatasetInfo,
    ModelInfo,
    ParamValue,
    TrackingSettings,
)
from pipeline.tracking.tracker import Tracker
from pipeline.words import shortened


def start_tracker(
    plan: JobPlan, output: Output | PartitionedOutput, sizes: Sizes | None, resumed_rows: int
) -> Tracker:
    """Open the job's tracker and report what is known: parameters, tags, data set, model.

    `sizes`: None where nothing is left to score.
    """
    config = plan.config
    settings = TrackingSettings(
        uri=config.mlflow_uri,
        experiment=config.experiment,
        run_name=config.run_name or made_up_name(plan),
        baseline_run=config.baseline_run,
        price_per_hour=config.price_per_hour,
        enabled=config.tracking,
        late=config.runner == "local",
    )
    tracker = Tracker(settings, output.tracking)
    if not config.tracking:
        return tracker
    params: dict[str, Any] = config.public()
    work = {"units": len(plan.units), "files": len(plan.files), "rows": plan.total_rows}
    tags = {"identity": plan.identity, "form": plan.columns.form, "output": output.address}
    if config.date is not None:
        tags["date"] = config.date
    if plan.registered is not None:
        tags |= plan.registered.tags
    tags |= {f"bundle_digest_{name}": digest for name, digest in plan.bundles.items()}
    tracker.start(
        {**params, **work, **resolved(sizes), "resumed_rows": resumed_rows},
        tags,
        dataset=DatasetInfo(
            name=dataset_name(plan),
            source=source_of(plan),
            digest=dataset_digest(plan.files),
            rows=plan.total_rows,
            bytes=plan.total_bytes,
        ),
        model=ModelInfo(
            name=bundle_name(plan),
            digest=plan.bundle_digest,
            source=config.bundle,
            params=import_params(bundle_folder(plan.bundle, plan.bundle_digest)),
        ),
    )
    return tracker


def made_up_name(plan: JobPlan) -> str:
    """Bundle, the job's date (without one today's, UTC), rows: `dcn 2026-11-19 45.8M rows`."""
    date = plan.config.date or datetime.now(UTC).date().isoformat()
    return f"{bundle_name(plan)} {date} {shortened(plan.total_rows)} rows"


def bundle_name(plan: JobPlan) -> str:
    """The bundle's folder, or its name in the registry."""
    if plan.registered is not None:
        return plan.registered.name
    return PurePosixPath(plan.config.bundle).name or "bundle"


def resolved(sizes: Sizes | None) -> dict[str, ParamValue]:
    """What the sizes that a job chooses came to, a parameter each beside the configured one."""
    if sizes is None:
        return {}
    return {
        "resolved_device": sizes.device,
        "resolved_num_scorers": sizes.scorers,
        "resolved_threads": sizes.threads,
        "resolved_max_batch": sizes.max_batch,
        "resolved_read_in": sizes.read_in,
        "resolved_max_read_tasks": sizes.read_tasks,
        "resolved_max_tasks_in_flight": sizes.tasks_in_flight,
        "resolved_object_store_bytes": sizes.store_bytes,
    }


def dataset_digest(files: Sequence[InputFile]) -> str:
    """36 hex characters that the input alone gives, wherever it lies and whatever scores it.

    A file counts with its path below the folder that all files share, its size and its footer.
    """
    parts = [file.path.split("/") for file in files]
    folders = zip(*(path[:-1] for path in parts), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, folders))
    facts = [
        ["/".join(path[shared:]), file.size, file.footer_sha256]
        for path, file in zip(parts, files, strict=True)
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:DATASET_DIGEST_LENGTH]


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
