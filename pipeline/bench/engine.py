"""`dpiframe bench engine`: the engine against torch on one machine, one model, one batch size."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from dpiframe_core import CTRModel
from dpiframe_core.cpu_engine import CpuEngine
from dpiframe_core.errors import SpecError
from dpiframe_core.lowering import lower
from pipeline.bench.cases import EngineCase, Timing, time_side_by_side
from pipeline.errors import DpiframeError

Run = Callable[[np.ndarray], np.ndarray]
OURS = "dpiframe"
TOLERANCE = 1e-4  # float32 against float32, on the logit


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
    spec = case.spec()
    try:
        model = CTRModel(spec, case.seed).eval()
    except RuntimeError as error:
        raise SpecError(f"the tables do not fit into memory: {error}; use --scale") from None
    inputs = case.inputs(spec)
    runs = {OURS: _ours(model, case), "eager": _torch(model), "compile": _torch(_compiled(model))}
    difference = max(_difference(runs[OURS], run, inputs[0]) for run in runs.values())
    if difference > TOLERANCE:
        raise DpiframeError(f"the contenders' logits differ by {difference:.1e}")
    return EngineReport(
        case=case,
        rows=sum(field.rows for field in spec.fields),
        milliseconds=time_side_by_side(runs, inputs, case.repeats),
        largest_difference=difference,
        machine=machine(),
    )


def show(report: EngineReport) -> str:
    """The report as a table."""
    case = report.case
    lines = [
        f"{case.model}, batch {case.batch:,}, {report.rows:,} rows x dim {case.dim}, "
        f"MLP {'-'.join(map(str, case.hidden))}, {case.ids} ids, fp32, "
        f"{report.machine['threads']} threads",
        f"{'':<10}{'ms':>9}{'p10':>9}{'p90':>9}{'ratio':>9}",
    ]
    for name, timing in report.milliseconds.items():
        ratio = report.ratios().get(name, 1.0)
        cells = f"{timing.median:9.2f}{timing.p10:9.2f}{timing.p90:9.2f}{ratio:9.2f}"
        lines.append(f"{name:<10}{cells}")
    return "\n".join(lines)


def machine() -> dict[str, str]:
    """Where a measurement was made."""
    return {
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        **{name: version(name) for name in ("dpiframe", "torch", "numpy")},
    }


def _ours(model: CTRModel, case: EngineCase) -> Run:
    program = lower(model.spec, model.state_dict())
    engine = CpuEngine(program, case.batch, case.threads)
    dense = np.empty((0, case.batch), np.float32)

    def run(ids: np.ndarray) -> np.ndarray:
        logits = np.empty(ids.shape[1], np.float32)
        engine.run(list(ids), dense, False, logits)
        return logits

    return run


def _compiled(model: CTRModel) -> torch.nn.Module:
    compiled = torch.compile(model)
    assert isinstance(compiled, torch.nn.Module)
    return compiled


def _torch(model: torch.nn.Module) -> Run:
    @torch.no_grad()
    def run(ids: np.ndarray) -> np.ndarray:
        logits: np.ndarray = model(torch.from_numpy(ids)).numpy()
        return logits

    return run


def _difference(ours: Run, peer: Run, ids: np.ndarray) -> float:
    return float(np.abs(ours(ids) - peer(ids)).max())


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:  # noqa: PTH123
            return next(
                line.split(":")[1].strip() for line in info if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.machine()
