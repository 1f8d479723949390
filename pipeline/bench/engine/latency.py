"""`dpiframe bench engine`: latency of a batch, the engine against its peers, on one machine."""

from __future__ import annotations

from functools import partial

import torch
from pydantic import BaseModel, ConfigDict, Field

from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine.agreement import ExactLogits, agree, free_memory, scaled_error
from pipeline.bench.engine.cuda_engine import require_gpu
from pipeline.bench.engine.floors import Floor, floor
from pipeline.bench.engine.implementations import (
    EAGER,
    OURS,
    Implementation,
    build_all,
    close_all,
    implementations,
    reason,
)
from pipeline.bench.engine.peers import DTYPES
from pipeline.bench.engine.reference import exact_logits
from pipeline.bench.machine import commit, machine
from pipeline.bench.timing import TimedError, TimeRatio, Timing, interleaved
from pipeline.errors import ConfigError

LOST = "the GPU answered no call any more after it, in an earlier turn"


class EngineReport(BaseModel):
    """Milliseconds a batch of each implementation on a case, and the machine."""

    model_config = ConfigDict(frozen=True)

    case: EngineCase
    title: str
    rows: int  # of all tables
    milliseconds: dict[str, Timing]
    over_ours: dict[str, TimeRatio] = {}  # time of each peer over ours, turn by turn
    commit: str = ""
    failed: dict[str, str] = Field(
        default_factory=dict
    )  # implementations that were not timed, and why
    notes: dict[str, str] = {}  # what is to be said of how implementations run
    left_out: int = 0  # samples that were not compared: rounding decides what their model picks
    largest_difference: float  # of a peer's logits from ours, scaled by max(1, |logit|)
    largest_error: float | None = None  # of our logits, from the model in float64, likewise
    allowed_error: float | None = None  # beside what rounding the weights to 16 bits brings
    floor: Floor | None = None
    machine: dict[str, str]

    def ratios(self) -> dict[str, float]:
        """Time of each peer over ours: above 1 we are faster."""
        ours = self.milliseconds[OURS].median
        return {n: t.median / ours for n, t in self.milliseconds.items() if n != OURS}

    def of_floor(self) -> float | None:
        """The floor's share of our time."""
        return self.floor.ms / self.milliseconds[OURS].median if self.floor else None

    def lowest_peer(self) -> tuple[str, float] | None:
        """The fastest peer and its ratio; None where none was timed."""
        return min(self.ratios().items(), key=lambda item: item[1], default=None)


def bench_engine(case: EngineCase) -> EngineReport:
    """Build the engine and its peers on the same weights, compare their logits, time them.

    Ours are also compared with the model in float64. A peer that fails, or whose logits differ, is
    not timed; the report says why. DpiframeError names the one that fails later.
    """
    if case.device == "cuda":
        require_gpu()
    try:
        spec, weights = case.load()
    except RuntimeError as error:
        raise ConfigError(f"the tables do not fit into memory: {error}; use --scale") from None
    factories = implementations(spec, weights, case)
    made, failed = build_all({n: make for n, make in factories.items() if n not in case.without})
    failed |= {name: LOST for name in factories if name in case.without}
    try:
        batch = case.draw(spec)[0]
        user = case.user_module() if case.module else None
        own = user.imported.report["tolerance"] if user else 0.0
        exact = ExactLogits(
            partial(exact_logits, spec, weights, batch),
            case.computed,
            own,
            DTYPES[case.computed] if user and user.imported.is_probability else None,
            made.get(EAGER),
        )
        if user and case.computed == "fp32":
            exact.widen()
        away = scaled_error(made[OURS].logits(0), exact)
        difference = agree(made, failed, exact, is_imported=user is not None)
        notes = {name: of.note for name, of in made.items() if of.note}
        taken = [_timed(made, failed, case.repeats)]
        for _ in range(1, case.loads):
            close_all(made)
            made, lost = build_all({name: factories[name] for name in made})
            failed |= lost
            taken.append(_timed(made, failed, case.repeats))
    finally:
        close_all(made)
    least = None
    try:
        least = floor(spec, weights, case)
    except Exception as error:  # the times stand without it
        failed["floor"] = reason(error)
    return EngineReport(
        case=case,
        title=case.describe(spec),
        rows=sum(field.rows for field in spec.fields),
        largest_difference=difference,
        largest_error=away,
        allowed_error=exact.bound,
        floor=least,
        milliseconds={n: Timing.of([t for load in taken for t in load[n]]) for n in made},
        over_ours={
            name: _over_ours([load[name] for load in taken], [load[OURS] for load in taken])
            for name in made
            if name != OURS
        },
        commit=commit(),
        failed=failed,
        notes={name: note for name, note in notes.items() if name in made},
        left_out=exact.left_out,
        machine=machine(case.device),
    )


def show(report: EngineReport) -> str:
    """The report as a table."""
    where = report.machine.get("gpu") or f"{report.machine['threads']} threads"
    lines = [
        f"{report.title}, {where}",
        f"{'':<22}{'ms':>9}{'p10':>9}{'p90':>9}{'ratio':>9}",
    ]
    for name, timing in report.milliseconds.items():
        ratio = report.ratios().get(name, 1.0)
        cells = f"{timing.median:9.3f}{timing.p10:9.3f}{timing.p90:9.3f}{ratio:9.2f}"
        lines.append(f"{name:<22}{cells}")
    if report.floor and (share := report.of_floor()):
        floor = report.floor
        lines.append(
            f"{'floor':<22}{floor.ms:9.3f}  bytes {floor.bytes_ms:.3f}, "
            f"products {floor.products_ms:.3f}: {share:.0%} of our time"
        )
    if report.largest_error is not None:
        within = f"logits within {report.largest_error:.0e} of float64's"
        allows = f", {report.allowed_error:.0e} is allowed" if report.allowed_error else ""
        lines.append(within + allows)
    if report.left_out:
        lines.append(
            f"{report.left_out} of {report.case.batch} samples were not compared: which of equal "
            "numbers a top k or sort takes first decides their scores"
        )
    lines += [f"{name:<22}  {note}" for name, note in report.notes.items()]
    lines += [f"{name:<22}  failed: {why}" for name, why in report.failed.items()]
    return "\n".join(lines)


def _timed(
    made: dict[str, Implementation], failed: dict[str, str], repeats: int
) -> dict[str, list[float]]:
    """Milliseconds of each; a peer that finds no memory goes from `made` to `failed`, and the
    others are timed anew. TimedError names the one that fails otherwise.
    """
    while True:
        try:
            return interleaved({n: c.run for n, c in made.items()}, repeats)
        except TimedError as error:
            if error.name == OURS or not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
            failed[error.name] = reason(error)
            made.pop(error.name).close()
        free_memory()


def _over_ours(peer: list[list[float]], ours: list[list[float]]) -> TimeRatio:
    """Of the milliseconds of each load."""
    if len(ours) == 1:
        return TimeRatio.of(peer[0], ours[0])
    return TimeRatio.of_turns(peer, ours)
