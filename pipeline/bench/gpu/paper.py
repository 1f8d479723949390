"""The paper's claims beside what `bench gpu` measured, as a Markdown page.

The paper: arXiv 2606.21101. Its ratios are means over its models, data sets and batches; ours are
given a batch size, as geometric mean and range over models or kinds of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from pipeline.bench.engine.implementations import EAGER
from pipeline.bench.engine.latency import EngineReport
from pipeline.bench.engine.lookup import PER_FIELD, LookupReport
from pipeline.bench.gpu.results import Results

PRECISION = "fp32"
ENGINE_COMMAND = "dpiframe bench engine --device cuda --model MODEL --batch BATCH"
LOOKUP_COMMAND = "dpiframe bench lookup --batch BATCH --ids IDS"

Ratios = dict[int, list[float]]  # batch -> times faster


class Claim(NamedTuple):
    """One of the paper's figures: times faster than whom; ours of the results, and the command
    that measures one of them.
    """

    what: str
    paper: float
    measure: Callable[[Results], Ratios]
    peer: str
    command: str


def lookup_ratios(results: Results) -> Ratios:
    """The lookup alone, over one nn.Embedding a field, synchronised calls."""
    found: Ratios = {}
    for report in results.reports("lookup", LookupReport):
        if report.case.precision == PRECISION and PER_FIELD in report.call:
            found.setdefault(report.case.batch, []).append(report.call_ratio(PER_FIELD))
    return found


def engine_ratios(results: Results, of: Callable[[str], bool]) -> Ratios:
    """Whole models, over the fastest of the peers that `of` chooses by name."""
    found: Ratios = {}
    for report in results.reports("models", EngineReport):
        ratios = [ratio for name, ratio in report.ratios().items() if of(name)]
        if report.case.precision == PRECISION and ratios:
            found.setdefault(report.case.batch, []).append(min(ratios))
    return found


def not_measured(results: Results) -> Ratios:
    """Of a library that is not among the peers."""
    return {}


CLAIMS = (
    Claim("embedding", 23.0, lookup_ratios, "PyTorch, one nn.Embedding a field", LOOKUP_COMMAND),
    Claim(
        "end to end",
        5.83,
        lambda results: engine_ratios(results, lambda name: name == EAGER),
        "PyTorch, eager",
        ENGINE_COMMAND,
    ),
    Claim(
        "end to end",
        4.29,
        lambda results: engine_ratios(results, lambda name: name.startswith("TBE")),
        "TorchRec: its kernel, FBGEMM's TBE, in a CUDA graph",
        ENGINE_COMMAND,
    ),
    Claim("end to end", 2.15, not_measured, "HugeCTR", ""),
    Claim("end to end", 2.0, not_measured, "OneFlow", ""),
)


def paper_page(results: Results) -> str:
    """The table."""
    gpu = next((part.machine["gpu"] for part in results.parts.values()), "GPU")
    lines = [
        "# The paper's claims, and ours",
        "",
        f"Made by `dpiframe bench paper` of the results of an {gpu}; [how they are measured]"
        "(README.md).",
        "The paper ([arXiv 2606.21101](https://arxiv.org/abs/2606.21101)) gives one ratio for each",
        "of its peers, on other GPUs and with its own settings. Ours: fp32, a synchronised call,",
        "times faster as geometric mean (range) over the four models, or over Zipf's and",
        "uniform ids for the lookup. Every peer has the same weights, ids and precision; what is",
        "not measured is not installed where the results come from, or no peer here.",
        "",
        "| what | faster than | paper | ours | measured by |",
        "|---|---|---|---|---|",
    ]
    lines += _rows(results)
    return "\n".join(lines) + "\n"


def _rows(results: Results) -> Iterator[str]:
    for claim in CLAIMS:
        ours = "; ".join(_of_batch(b, r) for b, r in sorted(claim.measure(results).items()))
        command = f"`{claim.command}`" if claim.command else ""
        cells = (claim.what, claim.peer, f"{claim.paper:g}x", ours or "not measured", command)
        yield "| " + " | ".join(cells) + " |"


def _of_batch(batch: int, ratios: Sequence[float]) -> str:
    span = f" ({min(ratios):.1f} to {max(ratios):.1f})" if len(ratios) > 1 else ""
    return f"batch {batch:,}: {geometric_mean(ratios):.1f}x{span}"
