"""The results of a GPU as a Markdown page of tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from pipeline.bench.cases.engine_case import CRITEO_FIELDS, EngineCase
from pipeline.bench.engine.ablation import AblationRow, TimeOfABatch
from pipeline.bench.engine.endurance import EnduranceReport
from pipeline.bench.engine.endurance import show as show_endurance
from pipeline.bench.engine.implementations import EAGER, OURS
from pipeline.bench.engine.latency import EngineReport
from pipeline.bench.engine.lookup import LookupReport
from pipeline.bench.engine.memory import MemoryReport
from pipeline.bench.engine.stream import StreamReport
from pipeline.bench.gpu.results import CEILINGS, Part, Results
from pipeline.bench.gpu.targets import engine_targets, fast_targets, targets
from pipeline.bench.timing import Timing

Lines = Iterator[str]
MIB = 2**20
USUAL_SHAPE = (CRITEO_FIELDS, 16, (400, 400, 400))


def page(results: Results) -> str:
    """Targets first, then each part with its commit and machine."""
    gpu = next((part.machine["gpu"] for part in results.parts.values()), "GPU")
    lines = [f"# {gpu}", "", "Made by `dpiframe bench gpu`; [how to read it](README.md).", ""]
    if len(results.commits()) > 1:
        lines += [f"Parts were measured at several commits: {', '.join(results.commits())}.", ""]
    lines += _targets(results)
    for name, (title, show) in SECTIONS.items():
        if name in results.parts:
            part = results.parts[name]
            lines += [f"## {title}", "", _origin(part), "", *show(part), *_failed(part)]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return text.rstrip() + "\n"


def _origin(part: Part) -> str:
    m = part.machine
    commits = part.commits()
    several = f" Cases were measured at {', '.join(commits)}." if len(commits) > 1 else ""
    return (
        f"Commit {part.commit}, {part.time}, {part.seconds:.0f} s; driver {m['driver']}, "
        f"CUDA {m['cuda']}, torch {m['torch']}, FBGEMM {m['fbgemm_gpu']}, "
        f"{m['cores']} cores of {m['cpu']}.{several}"
    )


def _failed(part: Part) -> Lines:
    for name, why in part.failed.items():
        yield f"- {name} failed: {why}"
    if part.failed:
        yield ""


def _targets(results: Results) -> Lines:
    found = targets(results)
    if not found:
        return
    met = sum(target.met for target in found)
    yield f"{met} of {len(found)} targets met."
    yield ""
    yield from _head("target", "wanted", "got", "met")
    for t in found:
        bound = "at most" if t.at_most else "at least"
        yield _row(t.what, f"{bound} {t.text(t.wanted)}", t.text(t.got), "yes" if t.met else "no")
    yield ""


def _ceilings(part: Part) -> Lines:
    yield from _head("what the machine reaches", "")
    for name, value in part.ceilings.items():
        yield _row(name.replace("_", " "), f"{value:,.2f}")
    yield ""


def _lookup(part: Part) -> Lines:
    yield "Microseconds: a synchronised call, and the GPU's own time (median, 10th to 90th)."
    yield f"`{OURS}` replays a graph of its one kernel and waits in one call (`run_and_wait`), the"
    yield "others make their own call and then synchronise."
    yield ""
    head = ("batch", "ids", "precision", "implementation", "call", "over ours", "GPU", "over ours")
    yield from _head(*head, "G rows/s", "of the plain gather")
    for r in part.reports(LookupReport):
        for name, call in r.call.items():
            yield _row(
                *(f"{r.case.batch:,}", r.case.ids, r.case.precision, name),
                *(_us(call), f"{r.call_ratio(name):.1f}"),
                *(_us(r.gpu[name]), f"{r.gpu_ratio(name):.2f}"),
                *(f"{r.rate(name):.2f}", f"{r.of_gather(name):.0%}"),
            )
    yield ""
    yield from _peers_failed(
        (f"{r.case.batch:,}, {r.case.ids}, {r.case.precision}", r.failed)
        for r in part.reports(LookupReport)
    )


def _models(part: Part) -> Lines:
    yield "One synchronised batch, inputs on the GPU, milliseconds (median, 10th to 90th)."
    yield ""
    head = ("model", "batch", "precision", "ours", "floor", "of floor", "lowest peer", "ratio")
    yield from _head(*head, "target", "over eager", "target")
    for r, result in _with_derived(part, EngineReport):
        c, lowest = r.case, r.lowest_peer()
        ours, floor = r.milliseconds[OURS], result.get("floor_ms")
        wanted = list(engine_targets(r))
        peer = next((t for t in wanted if "lowest" in t.what), None)
        eager = next((t for t in wanted if "eager" in t.what), None)
        yield _row(
            *(c.model, f"{c.batch:,}", c.precision, _ms(ours)),
            *((f"{floor:.3f}", f"{floor / ours.median:.0%}") if floor else ("", "")),
            f"{lowest[0]} {r.milliseconds[lowest[0]].median:.3f}" if lowest else "",
            f"{lowest[1]:.2f}" if lowest else "",
            f"{peer.wanted:.0f}x {'met' if peer.met else 'missed'}" if peer else "",
            f"{r.ratios()[EAGER]:.1f}" if EAGER in r.ratios() else "",
            f"{eager.wanted:.0f}x {'met' if eager.met else 'missed'}" if eager else "",
        )
    yield ""
    yield from _all_implementations(part.reports(EngineReport))


def _fast(part: Part) -> Lines:
    yield "One synchronised batch, inputs on the GPU, milliseconds (median, 10th to 90th). Floor:"
    yield "its bytes at the rate of a copy plus its products, each as fast as `torch.mm` has it."
    yield ""
    head = ("model", "batch", "precision", "ours", "floor: bytes + products", "of floor")
    yield from _head(*head, "lowest peer", "ratio", "target", "error")
    for r in part.reports(EngineReport):
        lowest, floor, share = r.lowest_peer(), r.floor, r.of_floor()
        target = next(fast_targets(r), None)
        yield _row(
            *(_name(r.case), f"{r.case.batch:,}", r.case.precision, _ms(r.milliseconds[OURS])),
            f"{floor.bytes_ms:.3f} + {floor.products_ms:.3f}" if floor else "",
            f"{share:.0%}" if share else "",
            f"{lowest[0]} {r.milliseconds[lowest[0]].median:.3f}" if lowest else "",
            f"{lowest[1]:.2f}" if lowest else "",
            ("met" if target.met else "missed") if target else "",
            f"{r.largest_error:.0e}" if r.largest_error is not None else "",
        )
    yield ""
    yield from _all_implementations(part.reports(EngineReport))


def _name(case: EngineCase) -> str:
    """A model, and where it is a built-in one the shape that is not the usual one."""
    if case.in_zoo or (case.fields, case.dim, case.hidden) == USUAL_SHAPE:
        return case.model
    return f"{case.model}, {case.fields} fields of {case.dim}, {'-'.join(map(str, case.hidden))}"


def _all_implementations(reports: Sequence[EngineReport]) -> Lines:
    names = list(dict.fromkeys(name for r in reports for name in r.milliseconds))
    yield "Every implementation, milliseconds (median):"
    yield ""
    yield from _head("model", "batch", "precision", *names)
    for r in reports:
        cells = (f"{r.milliseconds[n].median:.3f}" if n in r.milliseconds else "" for n in names)
        yield _row(_name(r.case), f"{r.case.batch:,}", r.case.precision, *cells)
    yield ""
    yield from _peers_failed(
        (f"{_name(r.case)}, {r.case.batch:,}, {r.case.precision}", r.failed) for r in reports
    )


def _stream(part: Part) -> Lines:
    yield "From host memory through `Engine.stream`, milliseconds a batch in steady state."
    yield ""
    head = ("model", "batch", "precision", "ids", "memory", "stream", "copy alone")
    yield from _head(*head, "compute alone", "of the smaller rate", "M rows/s")
    for r in part.reports(StreamReport):
        c = r.case
        yield _row(
            *(c.model, f"{c.batch:,}", c.precision, c.id_type, c.inputs),
            *(_ms(r.stream), f"{r.copy_ms:.3f}", _ms(r.compute)),
            *(f"{r.share():.0%}", f"{r.million_rows_s():.0f}"),
        )
    yield ""


def _ablation_rows(part: Part) -> Lines:
    yield "Inputs on the GPU, milliseconds: a synchronised call; a batch where many follow one"
    yield "another; the share of a call that is launching and waiting."
    yield ""
    head = ("model", "batch", "precision", "engine", "call", "back to back")
    yield from _head(*head, "launching and waiting")
    for r in sorted(part.reports(AblationRow), key=lambda r: (r.case.model, r.case.batch)):
        c = r.case
        yield _row(
            *(c.model, f"{c.batch:,}", c.precision, r.label),
            *(_ms(r.call), _ms(r.back_to_back), f"{r.waiting():.0%}"),
        )
    yield ""


def _streams(part: Part) -> Lines:
    yield "A batch as steps, without a fused forward kernel: all on one stream, or branches on"
    yield "streams of their own, launched depth first or breadth first. Last, several engines that"
    yield "score a batch each at one time."
    yield ""
    yield from _ablation_rows(part)


def _endurance(part: Part) -> Lines:
    for r in part.reports(EnduranceReport):
        yield f"{show_endurance(r)}."
        yield ""


def _ablation(part: Part) -> Lines:
    yield from _ablation_rows(part)
    yield "Where the time of a batch from pinned host memory goes, milliseconds; each part alone,"
    yield "the rest by subtraction:"
    yield ""
    parts = ("call from the host", "copy in", "compute", "copy out")
    yield from _head(
        "model",
        "batch",
        "precision",
        *parts,
        "launch and wait",
        "packing and rest",
        "a batch of a stream",
    )
    for t in part.reports(TimeOfABatch):
        yield _row(
            *(t.case.model, f"{t.case.batch:,}", t.case.precision, _ms(t.from_host)),
            *(_ms(x) for x in (t.copy_in, t.compute, t.copy_out)),
            *(f"{x:.3f}" for x in (t.launch_and_wait(), t.packing(), t.streamed)),
        )
    yield ""


def _memory(part: Part) -> Lines:
    yield "MiB: by how much the GPU's free memory fell when an engine was made, and of what."
    yield ""
    head = ("model", "max batch", "precision", "tables", "arena", "counted by the engine", "used")
    yield from _head(*head, "of tables and arena")
    for r in part.reports(MemoryReport):
        sizes = (r.tables, r.arena, r.counted, r.used)
        yield _row(
            *(r.case.model, f"{r.case.batch:,}", r.case.precision),
            *(f"{size / MIB:,.1f}" for size in sizes),
            f"{r.share():.1%}",
        )
    yield ""


SECTIONS: dict[str, tuple[str, Callable[[Part], Lines]]] = {
    "lookup": ("The lookup alone", _lookup),
    "models": ("Whole models", _models),
    "stream": ("From host memory", _stream),
    "ablation": ("What each idea is worth", _ablation),
    "memory": ("GPU memory", _memory),
    "zoo": ("Other models", _fast),
    "shapes": ("Other shapes", _fast),
    "streams": ("What streams are worth", _streams),
    "endurance": ("Many batches", _endurance),
    CEILINGS: ("Ceilings", _ceilings),
}


def _with_derived(
    part: Part, kind: type[EngineReport]
) -> Iterator[tuple[EngineReport, dict[str, float]]]:
    derived = [r["derived"] for r in part.results if r["report"] == kind.__name__]
    yield from zip(part.reports(kind), derived, strict=True)


def _peers_failed(cases: Iterable[tuple[str, dict[str, str]]]) -> Lines:
    """What failed in which cases; what failed for one reason in several is one line."""
    found: dict[str, list[str]] = {}
    for case, failed in cases:
        for name, why in failed.items():
            found.setdefault(f"{name} failed: {why}", []).append(case)
    for what, where in found.items():
        yield f"- {where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''}: {what}"
    yield ""


def _head(*cells: str) -> Lines:
    yield _row(*cells)
    yield "|" + "---|" * len(cells)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _ms(t: Timing) -> str:
    return f"{t.median:.3f} ({t.p10:.3f}-{t.p90:.3f})"


def _us(t: Timing) -> str:
    return f"{1e3 * t.median:.1f} ({1e3 * t.p10:.1f}-{1e3 * t.p90:.1f})"
