"""The project's speed targets on a GPU, and whether a run met them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.bench.cases.zoo import ZOO
from pipeline.bench.engine.endurance import EnduranceReport
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
OVER_ANY, OF_FLOOR = 2.0, 0.70  # of any model and shape: times the lowest peer, or of the floor
OVER_ZOO = 3.5  # geometric mean over the lowest peers
MIB = 2**20
HOST_GROWTH = 16 * MIB  # of a process by 100,000 batches: its allocators come to rest late


class Target(NamedTuple):
    """At least `wanted`, or at most where `at_most`."""

    what: str
    wanted: float
    got: float
    unit: str = "x"  # "x", "%" or "MiB" (the values are bytes)
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the target was met."""
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted

    def text(self, value: float) -> str:
        """The value in the target's unit."""
        if self.unit == "MiB":
            return f"{value / MIB:.1f} MiB"
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
    for zoo in results.reports("zoo", EngineReport):
        found += fast_targets(zoo)
    found += geometric_mean_target(results.reports("zoo", EngineReport))
    shapes = results.reports("shapes", EngineReport)
    for shape in shapes:
        found += fast_targets(shape)
    if lowest := [peer[1] for r in shapes if (peer := r.lowest_peer())]:
        found.append(Target("shapes: the slowest, over its lowest peer", 1.0, min(lowest)))
    for endurance in results.reports("endurance", EnduranceReport):
        found += endurance_targets(endurance)
    return found


def fast_targets(report: EngineReport) -> Iterator[Target]:
    """Of any model and shape: the lowest peer, or else the floor."""
    c, lowest, share = report.case, report.lowest_peer(), report.of_floor()
    shape = "" if c.in_zoo else f" {c.fields}x{c.dim} {'-'.join(map(str, c.hidden))}"
    name = f"{c.model}{shape}, batch {c.batch:,}, {c.precision}"
    if share is not None and share >= OF_FLOOR and not (lowest and lowest[1] >= OVER_ANY):
        yield Target(f"{name}: of the floor", OF_FLOOR, share, "%")
    elif lowest:
        yield Target(f"{name}: over the lowest peer", OVER_ANY, lowest[1])


def geometric_mean_target(reports: Sequence[EngineReport]) -> Iterator[Target]:
    """Of the whole zoo in fp16 at the larger batch: the geometric mean over the lowest peers."""
    ratios = {
        r.case.model: lowest[1]
        for r in reports
        if (r.case.batch, r.case.precision) == (LARGE, "fp16") and (lowest := r.lowest_peer())
    }
    if set(ratios) == set(ZOO):
        name = f"zoo, batch {LARGE:,}, fp16: over the lowest peers, geometric mean"
        yield Target(name, OVER_ZOO, statistics.geometric_mean(ratios.values()))


def endurance_targets(report: EnduranceReport) -> Iterator[Target]:
    """Of memory after many batches."""
    name = f"endurance, {report.batches:,} batches"
    for what, grown, most in (
        ("GPU", report.device_growth, 0),
        ("host", report.host_growth, HOST_GROWTH),
    ):
        yield Target(f"{name}: growth of {what} memory", most, grown, "MiB", at_most=True)


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
