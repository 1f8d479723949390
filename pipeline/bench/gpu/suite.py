"""`dpiframe bench gpu`: every benchmark of the engine on a GPU, as JSON and as a page."""

from __future__ import annotations

import gc
import itertools
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.cases.random_data import forget
from pipeline.bench.cases.zoo import ZOO
from pipeline.bench.engine.ablation import (
    STREAM_VARIANTS,
    VARIANTS,
    AblationRow,
    bench_together,
    bench_variant,
    time_of_a_batch,
)
from pipeline.bench.engine.ceilings import ceilings
from pipeline.bench.engine.cuda_engine import require_gpu
from pipeline.bench.engine.endurance import EnduranceReport, endure
from pipeline.bench.engine.endurance import show as show_endurance
from pipeline.bench.engine.implementations import OURS, reason
from pipeline.bench.engine.latency import EngineReport, bench_engine, show
from pipeline.bench.engine.lookup import LookupCase, LookupReport, bench_lookup
from pipeline.bench.engine.lookup import show as show_lookup
from pipeline.bench.engine.memory import MemoryReport, measure_memory
from pipeline.bench.engine.stream import StreamCase, StreamReport, bench_stream
from pipeline.bench.engine.stream import show as show_stream
from pipeline.bench.gpu.page import page
from pipeline.bench.gpu.results import CEILINGS, Part, Report, Results, now
from pipeline.bench.gpu.shapes import shape_cases, shape_title, zoo_cases
from pipeline.bench.gpu.targets import BATCHES, PRECISIONS
from pipeline.bench.machine import commit, machine
from pipeline.bench.timing import TimedError
from pipeline.errors import ConfigError

MODELS = ("dcnv2", "deepfm", "dcn", "wdl")
BRANCHED = ("finalmlp", "masknet", "dcnv2", "xdeepfm")  # the first three run side by side, too
ENDURANCE_MINUTES = 10
AnyCase = TypeVar("AnyCase")


class Measurement(NamedTuple):
    """One measurement: its title, and the call that makes its reports."""

    title: str
    reports: Callable[[], Iterable[Report]]
    own_tables: bool = False  # no other case has the same
    case: EngineCase | None = None  # of ours beside its peers

    @classmethod
    def of(cls, title: str, case: EngineCase, own_tables: bool = False) -> Measurement:
        """Ours beside its peers."""
        return cls(title, partial(_one, bench_engine, case), own_tables, case)

    def without(self, peers: Iterable[str]) -> Measurement:
        """The same without these peers."""
        if not (self.case and (lost := tuple(peers))):
            return self
        case = self.case.model_copy(update={"without": lost})
        return self.of(self.title, case, self.own_tables)


class Limits(NamedTuple):
    """How much of the suite a run does. `match`: only cases whose title holds this text. `minutes`:
    no case is begun that would end later, as long as the longest before it. `resume`: cases that
    were measured at this commit are not measured again. `seed`: draws the shapes.
    """

    only: str | None = None
    quick: bool = False
    match: str = ""
    minutes: float = math.inf
    resume: bool = False
    seed: int = 0


def run_suite(output: Path, limits: Limits, say: Callable[[str], None]) -> bool:
    """Measure the parts in `only` (comma-separated; None: all); True if nothing failed.

    ConfigError where a part has no case that matches. Files are written after each case, so that an
    interrupted run leaves what it has. Stops where the GPU answers no call any more.
    """
    only = limits.only
    chosen = [name.strip() for name in only.split(",")] if only else list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise ConfigError(f"there is no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    planned = {n: [m for m in PARTS[n](limits) if limits.match in m.title] for n in chosen}
    if empty := [name for name in chosen if not planned[name]]:
        raise ConfigError(f"part {empty[0]} has no case whose name holds {limits.match!r}")
    require_gpu()
    clock = Clock(limits.minutes)
    facts, at = machine("cuda"), commit()
    path = output / f"{re.sub(r'[^a-z0-9]+', '_', facts['gpu'].lower())}.json"
    output.mkdir(parents=True, exist_ok=True)
    results = Results.read(path)
    rates, failed = ceilings()
    part = Part(commit=at, time=now(), machine=facts, ceilings=rates, failed=failed)
    part.seconds = clock.passed()
    results.parts[CEILINGS] = part
    say(f"ceilings: {rates} {failed or ''}")
    for name in chosen:
        part = Part(commit=at, time=now(), machine=facts, ceilings=rates)
        if limits.resume and name in results.parts:
            before = results.parts[name]
            kept = ("results", "failed", "lost", "seconds")
            part = part.model_copy(update={name: getattr(before, name) for name in kept})
        results.parts[name] = part
        left = [m for m in planned[name] if not part.has(m.title)]
        left.sort(key=lambda m: m.title in part.failed)  # one may have lost the GPU
        for number, measurement in enumerate(left):
            if not clock.has_time():
                say(f"{name}: the time is over, {len(left) - number} of {len(left)} cases are left")
                break
            began = clock.passed()
            part.drop(measurement.title)
            _measure(measurement, part, say)
            clock.ended(began)
            part.seconds += clock.passed() - began
            results.write(path)
            path.with_suffix(".md").write_text(page(results))
            say(f"{measurement.title}: {clock.passed() - began:.1f} s, {clock.passed():.0f} in all")
            if measurement.title in part.failed and not gpu_answers():
                say("the GPU answers no call of this process any more: go on with --resume")
                return False
        failed |= part.failed
        say(f"{name}: {part.seconds:.0f} s")
    say(f"written: {path} and {path.with_suffix('.md')}")
    return not failed


class Clock:
    """Seconds since it was made, and whether another case can end within the minutes."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._began = now, now()
        self._seconds, self._longest = 60 * minutes, 0.0

    def passed(self) -> float:
        """Seconds since the beginning."""
        return self._now() - self._began

    def ended(self, began: float) -> None:
        """A case has ended that began at this time."""
        self._longest = max(self._longest, self.passed() - began)

    def has_time(self) -> bool:
        """Whether a case as long as the longest would end in time."""
        return self.passed() + self._longest <= self._seconds


def _measure(measurement: Measurement, part: Part, say: Callable[[str], None]) -> None:
    """Run one measurement; a failure is recorded in the part, and the suite goes on."""
    try:
        for report in measurement.without(part.lost.get(measurement.title, ())).reports():
            part.add(report, measurement.title, **_derived(report))
            say(_text(report))
    except Exception as error:
        part.failed[measurement.title] = reason(error)
        say(f"{measurement.title} failed: {reason(error)}")
        if not gpu_answers():
            if isinstance(error, TimedError) and error.name != OURS:
                part.lost.setdefault(measurement.title, []).append(error.name)
            return
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # the compile cache would keep the peers' tables
    if measurement.own_tables:
        forget()
    gc.collect()
    torch.cuda.empty_cache()


def gpu_answers() -> bool:
    """Whether the GPU can be used by this process: after some errors of CUDA it cannot."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _derived(report: Report) -> dict[str, float | None]:
    """Figures derived from a report."""
    if isinstance(report, EngineReport):
        floor = report.floor.ms if report.floor else None
        return {"floor_ms": floor, "of_floor": report.of_floor()}
    if isinstance(report, LookupReport):
        return {"g_rows_s": report.rate(OURS), "of_plain_gather": report.of_gather(OURS)}
    if isinstance(report, StreamReport):
        return {"of_smaller_rate": report.share(), "million_rows_s": report.million_rows_s()}
    return {}


def _text(report: Report) -> str:
    """A report as lines of progress."""
    if isinstance(report, EngineReport):
        return show(report)
    if isinstance(report, LookupReport):
        return show_lookup(report)
    if isinstance(report, StreamReport):
        return show_stream(report)
    if isinstance(report, EnduranceReport):
        return show_endurance(report)
    case = f"{report.case.model}, batch {report.case.batch:,}, {report.case.precision}"
    if isinstance(report, AblationRow):
        call, apart = report.call.median, report.back_to_back.median
        return f"{case}, {report.label}: call {call:.3f} ms, back to back {apart:.3f} ms"
    if isinstance(report, MemoryReport):
        return f"{case}: {report.used:,} bytes used, {report.share():.1%} of tables and arena"
    host, computed = report.from_host.median, report.compute.median
    return f"{case}: {host:.3f} ms from the host, {computed:.3f} ms computing"


def _lookup(limits: Limits) -> Iterator[Measurement]:
    for precision, ids, batch in itertools.product(("fp32", "fp16"), ("uniform", "zipf"), BATCHES):
        if limits.quick and (batch, precision) != (BATCHES[0], "fp32"):
            continue
        case = LookupCase.model_validate(
            {"batch": batch, "ids": ids, "precision": precision, "repeats": 24}
        )
        yield Measurement(f"lookup {batch} {ids} {precision}", partial(_one, bench_lookup, case))


def _models(limits: Limits) -> Iterator[Measurement]:
    """Every peer at fp16 and fp32; ours at tf32 and bf16 beside the peers that need no compiler."""
    for precisions, peers in ((PRECISIONS, "all"), (("bf16", "tf32"), "plain")):
        for batch, precision, model in itertools.product(BATCHES, precisions, MODELS):
            if limits.quick and (batch != BATCHES[0] or peers != "all"):
                continue
            case = _case(model=model, batch=batch, precision=precision, peers=peers, repeats=64)
            yield Measurement.of(f"{model} {batch} {precision}", case)


def _stream(limits: Limits) -> Iterator[Measurement]:
    options: list[dict[str, Any]] = [
        {"precision": precision, "model": model}
        for precision, model in itertools.product(PRECISIONS, MODELS)
    ]
    options += [{"precision": "fp16", "model": "deepfm", "inputs": "pageable"}]
    options += [{"precision": "fp16", "model": "deepfm", "id_type": "int64"}]
    for chosen in options[:1] if limits.quick else options:
        case = StreamCase.model_validate(chosen)
        yield Measurement(f"stream {chosen}", partial(_one, bench_stream, case))


def _ablation(limits: Limits) -> Iterator[Measurement]:
    batches = BATCHES[:1] if limits.quick else BATCHES
    for model in ("deepfm", "dcnv2"):
        case = _case(model=model, precision="fp16", peers="none", repeats=48)
        for label, options in VARIANTS.items():
            variant = partial(bench_variant, label, options, case, batches)
            yield Measurement(f"{model}: {label}", variant)
        for batch in batches:
            timed = case.model_copy(update={"batch": batch})
            yield Measurement(
                f"time of a batch {model} {batch}", partial(_one, time_of_a_batch, timed)
            )


def _memory(limits: Limits) -> Iterator[Measurement]:
    for precision, model in itertools.product(PRECISIONS, ("deepfm", "dcnv2")):
        if limits.quick and model != "deepfm":
            continue
        case = _case(model=model, batch=BATCHES[-1], precision=precision, peers="none")
        yield Measurement(f"memory {model} {precision}", partial(_one, measure_memory, case))


def _zoo(limits: Limits) -> Iterator[Measurement]:
    for case in zoo_cases():
        if not limits.quick or (case.batch == BATCHES[0] and case.precision == "fp16"):
            title = f"{case.model} {case.batch} {case.precision}"
            yield Measurement.of(title, case)


def _shapes(limits: Limits) -> Iterator[Measurement]:
    cases = shape_cases(limits.seed)
    for case in cases[: 4 if limits.quick else None]:
        yield Measurement.of(shape_title(case), case, own_tables=True)


def _streams(limits: Limits) -> Iterator[Measurement]:
    """Models with branches alone, then side by side on the GPU."""
    batches = BATCHES[:1] if limits.quick else (1024, *BATCHES)
    shape = {"fields": 26, "dense": 13, "hidden": (400, 400), "scale": 0.1}
    cases = [
        _case(**shape, model=model, precision="fp16", peers="none", repeats=48)
        for model in BRANCHED
    ]
    for case, (label, options) in itertools.product(cases, STREAM_VARIANTS.items()):
        variant = partial(bench_variant, label, options, case, batches)
        yield Measurement(f"{case.model}: {label}", variant)
    for batch, (label, options) in itertools.product(batches, STREAM_VARIANTS.items()):
        several = [case.model_copy(update={**options, "batch": batch}) for case in cases[:3]]
        names = ", ".join(case.model for case in several)
        title = f"{names} at one time, {label}"
        yield Measurement(f"{title} {batch}", partial(bench_together, title, several))


def _endurance(limits: Limits) -> Iterator[Measurement]:
    models = MODELS[:2] if limits.quick else (*MODELS, *ZOO)
    shape = {"fields": 26, "dense": 13, "hidden": (400, 400), "scale": 1e-2, "batch": 8192}
    cases = [
        _case(**shape, model=model, precision=precision)
        for precision, model in itertools.product(PRECISIONS, models)
    ]
    minutes = min(limits.minutes, ENDURANCE_MINUTES)
    yield Measurement("endurance", partial(_one, partial(endure, minutes=minutes), cases))


def _one(measure: Callable[[AnyCase], Report], case: AnyCase) -> list[Report]:
    return [measure(case)]


def _case(**options: Any) -> EngineCase:
    return EngineCase.model_validate({"device": "cuda", **options})


PARTS: dict[str, Callable[[Limits], Iterator[Measurement]]] = {
    "lookup": _lookup,
    "models": _models,
    "stream": _stream,
    "ablation": _ablation,
    "memory": _memory,
    "zoo": _zoo,
    "shapes": _shapes,
    "streams": _streams,
    "endurance": _endurance,
}
