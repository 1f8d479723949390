"""`dpiframe bench engine`: the engine against torch on one machine, one model, one batch size."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from pipeline.bench.cases import EngineCase, Timing, random_weights, time_side_by_side
from pipeline.bench.contenders import OURS, Contenders, cpu_contenders, cuda_contenders
from pipeline.errors import ConfigError, DpiframeError

# Largest difference of two contenders' logits, scaled by max(1, |logit|).
TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 2e-1}


class EngineReport(BaseModel):
    """The result of a case: milliseconds a batch for each contender, and where it was measured."""

    model_config = ConfigDict(frozen=True)

    case: EngineCase
    rows: int  # of all tables
    milliseconds: dict[str, Timing]
    largest_difference: float
    machine: dict[str, str]

    def ratios(self) -> dict[str, float]:
        """Time of each peer over ours: above 1 we are faster."""
        ours = self.milliseconds[OURS].median
        return {n: t.median / ours for n, t in self.milliseconds.items() if n != OURS}


def bench_engine(case: EngineCase) -> EngineReport:
    """Build ours and the peers on the same weights, compare their logits, time them."""
    if case.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch sees no GPU here; see `dpiframe doctor`")
    try:
        spec, weights = case.spec(), random_weights(case)
    except RuntimeError as error:
        raise ConfigError(f"the tables do not fit into memory: {error}; use --scale") from None
    make = cuda_contenders if case.device == "cuda" else cpu_contenders
    contenders = make(spec, weights, case)
    return EngineReport(
        case=case,
        rows=sum(field.rows for field in spec.fields),
        largest_difference=_agree(contenders, case),
        milliseconds=time_side_by_side(
            {name: contender.run for name, contender in contenders.items()}, case.repeats
        ),
        machine=machine(case.device),
    )


def show(report: EngineReport) -> str:
    """The report as a table."""
    case = report.case
    where = report.machine.get("gpu") or f"{report.machine['threads']} threads"
    lines = [
        f"{case.model}, batch {case.batch:,}, {report.rows:,} rows x dim {case.dim}, "
        f"MLP {'-'.join(map(str, case.hidden))}, {case.ids} ids, {case.precision}, {where}",
        f"{'':<22}{'ms':>9}{'p10':>9}{'p90':>9}{'ratio':>9}",
    ]
    for name, timing in report.milliseconds.items():
        ratio = report.ratios().get(name, 1.0)
        cells = f"{timing.median:9.3f}{timing.p10:9.3f}{timing.p90:9.3f}{ratio:9.2f}"
        lines.append(f"{name:<22}{cells}")
    return "\n".join(lines)


def machine(device: str) -> dict[str, str]:
    """Where a measurement was made."""
    facts = {
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = str(torch.version.cuda)
    return facts


def _agree(contenders: Contenders, case: EngineCase) -> float:
    """The largest scaled difference between ours and a peer; DpiframeError above the tolerance."""
    ours = contenders[OURS].logits(0)
    largest = 0.0
    for name, contender in contenders.items():
        difference = np.abs(contender.logits(0) - ours) / np.maximum(1, np.abs(ours))
        if not difference.max() <= TOLERANCES[case.precision]:
            raise DpiframeError(f"the logits of {name} differ from ours by {difference.max():.1e}")
        largest = max(largest, float(difference.max()))
    return largest


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
