"""The whole GPU evidence in one go: every case, ceilings of the machine, JSON and a table."""

from __future__ import annotations

import gc
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.bench.cases import EngineCase, time_side_by_side
from pipeline.bench.contenders import OURS
from pipeline.bench.engine import EngineReport, bench_engine, machine, show

MODELS = ("wdl", "deepfm", "dcn", "dcnv2")
BATCHES = (4096, 65536)
PRECISIONS = ("fp16", "fp32")
COPY_BYTES = 2**31
GEMM = 8192


def run_checks(output: Path, quick: bool, say: Callable[[str], None]) -> str:
    """Run every case, writing after each one, so that a run that is cut short leaves its part."""
    facts: dict[str, Any] = {**machine("cuda"), "commit": _commit(), "driver": _driver()}
    facts["ceilings"] = ceilings()
    reports: list[EngineReport] = []
    output.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"\W+", "_", facts["gpu"].lower())
    for case in cases(quick):
        reports.append(bench_engine(case))
        say(show(reports[-1]))
        rows = [r.model_dump(mode="json") | {"floor_ms": floor_ms(r, facts)} for r in reports]
        (output / f"{slug}.json").write_text(json.dumps(facts | {"cases": rows}, indent=1))
        (output / f"{slug}.md").write_text(table(facts, reports))
        torch._dynamo.reset()  # compiled peers would keep their tables
        gc.collect()
        torch.cuda.empty_cache()
    return table(facts, reports)


def cases(quick: bool) -> Iterator[EngineCase]:
    """The cases, most telling first."""
    for batch, precision, model in itertools.product(BATCHES, PRECISIONS, MODELS):
        if not (quick and batch != BATCHES[0]):
            yield _case(model=model, batch=batch, precision=precision)
    if quick:
        return
    for batch, model in itertools.product(BATCHES, ("deepfm", "dcnv2")):
        alone = {"model": model, "batch": batch, "precision": "fp16", "peers": False}
        yield _case(**alone, lookup="by_table", fusion=False, policy="serial", graphs=False)
        yield _case(**alone, fusion=False, policy="serial", graphs=False)
        for policy in ("serial", "depth_first", "breadth_first"):
            yield _case(**alone, policy=policy, graphs=False)
            yield _case(**alone, policy=policy)


def _case(**options: Any) -> EngineCase:
    return EngineCase.model_validate({"device": "cuda", "repeats": 100, **options})


def ceilings() -> dict[str, float]:
    """What this machine reaches: copies (TB/s, read and written), large products (TFLOP/s)."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found = {"copy_tb_s": 2 * COPY_BYTES / _seconds(lambda: target.copy_(source)) / 1e12}
    kinds = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
    for name, kind in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(GEMM, GEMM, device="cuda", dtype=kind) for _ in range(2))
        seconds = _seconds(partial(torch.matmul, a, b))
        found[f"{name}_tflop_s"] = 2 * GEMM**3 / seconds / 1e12
    return found


def floor_ms(report: EngineReport, facts: dict[str, Any]) -> float:
    """The larger of: rows gathered and written at the copy rate, products at the product rate."""
    case, rates = report.case, facts["ceilings"]
    width = case.dim * len(case.spec().fields)
    size = 4 if case.precision in ("fp32", "tf32") else 2
    gathered = 2 * size * case.batch * width / (rates["copy_tb_s"] * 1e12)
    widths = [width, *case.hidden]
    products = sum(a * b for a, b in itertools.pairwise(widths))
    products += {"dcnv2": 3 * width * width}.get(case.model, 0)
    # fp32 accuracy costs three tf32 products at best
    rate = rates.get(f"{case.precision}_tflop_s", rates["fp16_tflop_s"])
    if case.precision == "fp32":
        rate = max(rate, rates["tf32_tflop_s"] / 3)
    floor: float = 1e3 * max(gathered, 2 * products * case.batch / (rate * 1e12))
    return floor


def table(facts: dict[str, Any], reports: list[EngineReport]) -> str:
    """Markdown: whole models against their peers, then the ablation."""
    lines = [
        f"# {facts['gpu']}: one synchronised batch, inputs on the GPU, milliseconds",
        "",
        f"commit {facts['commit']}, torch {facts['torch']}, CUDA {facts['cuda']}, driver "
        f"{facts['driver']}; `dpiframe bench gpu`. Ratio: lowest peer over ours.",
        "",
        "| model | batch | precision | ours | floor | of floor | lowest peer | ratio | eager |",
        "|" + "---|" * 9,
    ]
    for r in [r for r in reports if r.case.peers]:
        c, ours, floor = r.case, r.milliseconds[OURS].median, floor_ms(r, facts)
        peer, ratio = min(r.ratios().items(), key=lambda item: item[1])
        lines.append(
            f"| {c.model} | {c.batch:,} | {c.precision} | {ours:.3f} | {floor:.3f} | "
            f"{floor / ours:.0%} | {peer} {ours * ratio:.3f} | {ratio:.2f} | "
            f"{r.ratios()['eager']:.1f} |"
        )
    lines += ["", "| model | batch | lookup | fusion | policy | graphs | ms |", "|" + "---|" * 7]
    for r in [r for r in reports if not r.case.peers]:
        c = r.case
        lines.append(
            f"| {c.model} | {c.batch:,} | {c.lookup} | {c.fusion} | {c.policy} | {c.graphs} | "
            f"{r.milliseconds[OURS].median:.3f} |"
        )
    return "\n".join(lines) + "\n"


def _seconds(work: Callable[[], object]) -> float:
    def run(_: int) -> None:
        work()
        torch.cuda.synchronize()

    return time_side_by_side({"": run}, 20)[""].median / 1e3


def _commit() -> str:
    return _output(["git", "rev-parse", "--short", "HEAD"])


def _driver() -> str:
    return _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
