"""`dpiframe bench gpu`: every benchmark of the engine on a GPU, as JSON and as a page."""

from __future__ import annotations

import gc
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from pipeline.bench.engine.ablation import VARIANTS, AblationRow, bench_variant, time_of_a_batch
from pipeline.bench.engine.cases import EngineCase
from pipeline.bench.engine.ceilings import ceilings, floor_ms
from pipeline.bench.engine.cuda_engine import require_gpu
from pipeline.bench.engine.implementations import OURS, reason
from pipeline.bench.engine.latency import EngineReport, bench_engine, show
from pipeline.bench.engine.lookup import LookupCase, LookupReport, bench_lookup
from pipeline.bench.engine.lookup import show as show_lookup
from pipeline.bench.engine.memory import MemoryReport, measure_memory
from pipeline.bench.engine.stream import StreamCase, StreamReport, bench_stream
from pipeline.bench.engine.stream import show as show_stream
from pipeline.bench.gpu.page import page
from pipeline.bench.gpu.results import CEILINGS, Part, Report, Results, now
from pipeline.bench.gpu.targets import BATCHES, PRECISIONS
from pipeline.bench.machine import commit, machine
from pipeline.errors import ConfigError

MODELS = ("dcnv2", "deepfm", "dcn", "wdl")
AnyCase = TypeVar("AnyCase")


class Measurement(NamedTuple):
    """One measurement: its title, and the call that makes its reports."""

    title: str
    reports: Callable[[], Iterable[Report]]


def run_suite(
    output: Path, only: str | None, quick: bool, say: Callable[[str], None], match: str = ""
) -> bool:
    """Measure the parts in `only` (comma-separated; None: all); True if nothing failed.

    `match`: only cases whose title holds this text, such as "4096 fp32"; ConfigError where a part
    has none. Files are written after each case, so that an interrupted run leaves what it has.
    """
    chosen = [name.strip() for name in only.split(",")] if only else list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise ConfigError(f"there is no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    planned = {name: [m for m in PARTS[name](quick) if match in m.title] for name in chosen}
    if empty := [name for name in chosen if not planned[name]]:
        raise ConfigError(f"part {empty[0]} has no case whose name holds {match!r}")
    require_gpu()
    facts, at = machine("cuda"), commit()
    path = output / f"{re.sub(r'[^a-z0-9]+', '_', facts['gpu'].lower())}.json"
    output.mkdir(parents=True, exist_ok=True)
    results = Results.read(path)
    began = time.perf_counter()
    rates, failed = ceilings()
    part = Part(commit=at, time=now(), machine=facts, ceilings=rates, failed=failed)
    part.seconds = time.perf_counter() - began
    results.parts[CEILINGS] = part
    say(f"ceilings: {rates} {failed or ''}")
    for name in chosen:
        part = Part(commit=at, time=now(), machine=facts, ceilings=rates)
        results.parts[name] = part
        began = time.perf_counter()
        for measurement in planned[name]:
            _measure(measurement, part, say)
            part.seconds = time.perf_counter() - began
            results.write(path)
            path.with_suffix(".md").write_text(page(results))
        failed |= part.failed
        say(f"{name}: {part.seconds:.0f} s")
    say(f"written: {path} and {path.with_suffix('.md')}")
    return not failed


def _measure(measurement: Measurement, part: Part, say: Callable[[str], None]) -> None:
    """Run one measurement; a failure is recorded in the part, and the suite goes on."""
    try:
        for report in measurement.reports():
            part.add(report, **_derived(report, part.ceilings))
            say(_text(report))
    except Exception as error:
        part.failed[measurement.title] = reason(error)
        say(f"{measurement.title} failed: {reason(error)}")
    torch._dynamo.reset()  # the compile cache would keep the peers' tables
    gc.collect()
    torch.cuda.empty_cache()


def _derived(report: Report, rates: dict[str, float]) -> dict[str, float | None]:
    """Figures derived from a report."""
    if isinstance(report, EngineReport):
        floor = floor_ms(report.case, rates)
        of_floor = floor / report.milliseconds[OURS].median if floor else None
        return {"floor_ms": floor, "of_floor": of_floor}
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
    case = f"{report.case.model}, batch {report.case.batch:,}, {report.case.precision}"
    if isinstance(report, AblationRow):
        call, apart = report.call.median, report.back_to_back.median
        return f"{case}, {report.label}: call {call:.3f} ms, back to back {apart:.3f} ms"
    if isinstance(report, MemoryReport):
        return f"{case}: {report.used:,} bytes used, {report.share():.1%} of tables and arena"
    host, computed = report.from_host.median, report.compute.median
    return f"{case}: {host:.3f} ms from the host, {computed:.3f} ms computing"


def _lookup(quick: bool) -> Iterator[Measurement]:
    for precision, ids, batch in itertools.product(("fp32", "fp16"), ("uniform", "zipf"), BATCHES):
        if quick and (batch, precision) != (BATCHES[0], "fp32"):
            continue
        case = LookupCase.model_validate(
            {"batch": batch, "ids": ids, "precision": precision, "repeats": 24}
        )
        yield Measurement(f"lookup {batch} {ids} {precision}", partial(_one, bench_lookup, case))


def _models(quick: bool) -> Iterator[Measurement]:
    """Every peer at fp16 and fp32; ours at tf32 and bf16 beside the peers that need no compiler."""
    for precisions, peers in ((PRECISIONS, "all"), (("bf16", "tf32"), "plain")):
        for batch, precision, model in itertools.product(BATCHES, precisions, MODELS):
            if quick and (batch != BATCHES[0] or peers != "all"):
                continue
            case = _case(model=model, batch=batch, precision=precision, peers=peers, repeats=64)
            yield Measurement(f"{model} {batch} {precision}", partial(_one, bench_engine, case))


def _stream(quick: bool) -> Iterator[Measurement]:
    options: list[dict[str, Any]] = [
        {"precision": precision, "model": model}
        for precision, model in itertools.product(PRECISIONS, MODELS)
    ]
    options += [{"precision": "fp16", "model": "deepfm", "inputs": "pageable"}]
    options += [{"precision": "fp16", "model": "deepfm", "id_type": "int64"}]
    for chosen in options[:1] if quick else options:
        case = StreamCase.model_validate(chosen)
        yield Measurement(f"stream {chosen}", partial(_one, bench_stream, case))


def _ablation(quick: bool) -> Iterator[Measurement]:
    batches = BATCHES[:1] if quick else BATCHES
    for model in ("deepfm", "dcnv2"):
        case = _case(model=model, precision="fp16", peers="none", repeats=48)
        for label in VARIANTS:
            yield Measurement(f"{model}: {label}", partial(bench_variant, label, case, batches))
        for batch in batches:
            timed = case.model_copy(update={"batch": batch})
            yield Measurement(
                f"time of a batch {model} {batch}", partial(_one, time_of_a_batch, timed)
            )


def _memory(quick: bool) -> Iterator[Measurement]:
    for precision, model in itertools.product(PRECISIONS, ("deepfm", "dcnv2")):
        if quick and model != "deepfm":
            continue
        case = _case(model=model, batch=BATCHES[-1], precision=precision, peers="none")
        yield Measurement(f"memory {model} {precision}", partial(_one, measure_memory, case))


def _one(measure: Callable[[AnyCase], Report], case: AnyCase) -> list[Report]:
    return [measure(case)]


def _case(**options: Any) -> EngineCase:
    return EngineCase.model_validate({"device": "cuda", **options})


PARTS: dict[str, Callable[[bool], Iterator[Measurement]]] = {
    "lookup": _lookup,
    "models": _models,
    "stream": _stream,
    "ablation": _ablation,
    "memory": _memory,
}
