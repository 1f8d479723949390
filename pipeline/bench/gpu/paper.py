"""The paper's claims beside what `bench gpu` measured, as a Markdown page.

The paper: arXiv 2606.21101. Its ratios are means over its models, data sets and batches; ours are
given a batch size, as geometric mean and range over models or kinds of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from pipeline.bench.engine.ablation import AblationRow
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


class Idea(NamedTuple):
    """One of the paper's ideas, and the two engines of the ablation that differ by it alone."""

    what: str
    without: str
    within: str


IDEAS = (
    Idea(
        "output-first lookup of all tables, over a lookup a table; a kernel an operation",
        "a kernel an operation, a lookup a table",
        "+ one lookup for all tables",
    ),
    Idea("fusion of operations (within a module)", "+ one lookup for all tables", "+ fusion"),
    Idea(
        "streams, breadth first, over one stream (between modules)",
        "+ graphs",
        "+ streams, breadth first",
    ),
    Idea("breadth first over depth first", "depth first", "+ streams, breadth first"),
    Idea(
        "breadth first over depth first, without graphs",
        "depth first, no graphs",
        "breadth first, no graphs",
    ),
)


def paper_page(results: Results) -> str:
    """The claims, and what each of the paper's ideas is worth alone."""
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
    lines += _ideas(results)
    return "\n".join(lines) + "\n"


def _rows(results: Results) -> Iterator[str]:
    for claim in CLAIMS:
        ours = "; ".join(_of_batch(b, r) for b, r in sorted(claim.measure(results).items()))
        command = f"`{claim.command}`" if claim.command else ""
        cells = (claim.what, claim.peer, f"{claim.paper:g}x", ours or "not measured", command)
        yield "| " + " | ".join(cells) + " |"


def _ideas(results: Results) -> Iterator[str]:
    """What each idea is worth: time without over time with it, a synchronised call and the GPU's
    own time.
    """
    rows = results.reports("ablation", AblationRow)
    if not rows:
        return
    made = {(row.case.model, row.case.batch, row.label): row for row in rows}
    cases = sorted({(row.case.model, row.case.batch) for row in rows}, key=lambda c: (c[1], c[0]))
    precisions = ", ".join(sorted({row.case.precision for row in rows}))
    yield from (
        "",
        "## Each idea alone",
        "",
        "The paper does not part what its ideas are worth. Times faster by one of them, all else",
        f"equal ({precisions}): a synchronised call; in brackets batches back to back, the GPU's",
        "own time. `dpiframe bench gpu --only ablation`.",
        "",
        "| idea | " + " | ".join(f"{model}, {batch:,}" for model, batch in cases) + " |",
        "|---|" + "---|" * len(cases),
    )
    for idea in IDEAS:
        cells = []
        for case in cases:
            without, within = (made.get((*case, label)) for label in idea[1:])
            cells.append("" if without is None or within is None else _faster(without, within))
        yield f"| {idea.what} | " + " | ".join(cells) + " |"


def _faster(without: AblationRow, within: AblationRow) -> str:
    call = without.call.median / within.call.median
    return f"{call:.2f} ({without.back_to_back.median / within.back_to_back.median:.2f})"


def _of_batch(batch: int, ratios: Sequence[float]) -> str:
    span = f" ({min(ratios):.1f} to {max(ratios):.1f})" if len(ratios) > 1 else ""
    return f"batch {batch:,}: {geometric_mean(ratios):.1f}x{span}"
