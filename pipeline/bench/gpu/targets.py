"""The project's speed targets on a GPU, and whether a run met them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.bench.engine.implementations import EAGER, OURS
from pipeline.bench.engine.latency import EngineReport
from pipeline.bench.engine.lookup import GATHER, PER_FIELD, LookupReport
from pipeline.bench.engine.memory import MemoryReport
from pipeline.bench.engine.stream import StreamReport
from pipeline.bench.gpu.results import Results

BATCHES = SMALL, LARGE = 4096, 65536
PRECISIONS = ("fp16", "fp32")
OF_GATHER = 0.80  # of the plain gather's rate, uniform ids
OVER_TBE = 4.0  # times faster, Zipf ids
OVER_PER_FIELD = 50.0  # times faster than one nn.Embedding a field, synchronised calls
OVER_PEER = {SMALL: 3.0, LARGE: 2.0}  # times faster than the fastest peer, by batch
OVER_EAGER = {SMALL: 10.0}
OF_STREAM_BOUND = 0.80  # of the smaller of copy rate and compute rate
MEMORY = 1.05  # of tables and one arena


class Target(NamedTuple):
    """At least `wanted`, or at most where `at_most`."""

    what: str
    wanted: float
    got: float
    unit: str = "x"  # "x" or "%"
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the target was met."""
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted

    def text(self, value: float) -> str:
        """The value in the target's unit."""
        return f"{value:.0%}" if self.unit == "%" else f"{value:.2f}x"


def targets(results: Results) -> list[Target]:
    """All targets that the results can decide."""
    found: list[Target] = []
    for lookup in results.reports("lookup", LookupReport):
        found += lookup_targets(lookup)
    for engine in results.reports("models", EngineReport):
        found += engine_targets(engine)
    for stream in results.reports("stream", StreamReport):
        found += stream_targets(stream)
    for memory in results.reports("memory", MemoryReport):
        found += memory_targets(memory)
    return found


def lookup_targets(report: LookupReport) -> Iterator[Target]:
    """Of the lookup at fp32: the gather's rate, TBE, one nn.Embedding a field."""
    case = report.case
    if case.precision != "fp32":
        return
    name = f"lookup, batch {case.batch:,}, {case.ids} ids"
    if case.ids == "uniform" and case.batch == LARGE and GATHER in report.gpu:
        share = report.of_gather(OURS)
        yield Target(f"{name}: rate, of the plain gather's", OF_GATHER, share, "%")
    tbe = [n for n in report.gpu if n.startswith("TBE")]
    if case.ids == "zipf" and case.batch in (SMALL, LARGE) and tbe:
        ratio = min(report.gpu_ratio(n) for n in tbe)
        yield Target(f"{name}: over FBGEMM's TBE, on the GPU", OVER_TBE, ratio)
    if case.batch == SMALL and PER_FIELD in report.call:
        ratio = report.call_ratio(PER_FIELD)
        yield Target(f"{name}: over one nn.Embedding a field, synchronised", OVER_PER_FIELD, ratio)


def engine_targets(report: EngineReport) -> Iterator[Target]:
    """Of a whole model: the lowest peer, eager."""
    case, lowest = report.case, report.lowest_peer()
    if case.precision not in PRECISIONS or case.peers != "all":
        return
    name = f"{case.model}, batch {case.batch:,}, {case.precision}"
    if lowest and case.batch in OVER_PEER:
        yield Target(f"{name}: over the lowest peer", OVER_PEER[case.batch], lowest[1])
    if EAGER in report.ratios() and case.batch in OVER_EAGER:
        yield Target(f"{name}: over eager", OVER_EAGER[case.batch], report.ratios()[EAGER])


def stream_targets(report: StreamReport) -> Iterator[Target]:
    """Of a stream from pinned memory: the smaller of copy rate and compute rate."""
    case = report.case
    if case.inputs == "pinned" and case.batch == LARGE:
        name = f"stream, {case.model}, {case.precision}, {case.id_type} ids, pinned memory"
        share = report.share()
        yield Target(f"{name}: of the smaller of copy and compute", OF_STREAM_BOUND, share, "%")


def memory_targets(report: MemoryReport) -> Iterator[Target]:
    """Of the GPU's memory: tables, one arena, little else."""
    name = f"memory, {report.case.model}, {report.case.precision}"
    yield Target(f"{name}: of tables and arena", MEMORY, report.share(), "%", at_most=True)
