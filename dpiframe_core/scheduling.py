"""Scheduling: a program's steps as the scheduler's graph, in bytes of one arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpiframe_core import _core
from dpiframe_core.modules import DENSE
from dpiframe_core.program import Program, View

Policy = Literal["serial", "depth_first", "breadth_first"]


@dataclass(frozen=True)
class Schedule:
    """When and where each step runs, and where each buffer lies in the arena [bytes]."""

    plan: _core.Plan
    offsets: dict[str, int]
    arena_bytes: int


def schedule(
    program: Program,
    batch: int,
    streams: int,
    policy: Policy,
    external: frozenset[str] = frozenset(),
) -> Schedule:
    """Plan a program for batches of up to `batch` rows of float32.

    Buffers named in `external`, and the dense features, are left out of the arena.
    """
    graph, ids = _core.Graph(), {}
    outside = external | {DENSE}
    for name, width in program.buffers.items():
        ids[name] = graph.add_buffer(name, 4 * width * batch, external=name in outside)
    views: dict[View, int] = {}

    def handle(view: View) -> int:
        # A column range is no byte range of a row-major buffer; for hazards, which compare
        # ranges only, columns scaled by the batch stand for it.
        if view not in views:
            size = 4 * batch
            views[view] = graph.add_view(ids[view.buffer], view.start * size, view.width * size)
        return views[view]

    for step in program.steps:
        cost = float(sum(v.width for v in step.writes()))
        graph.add_step(
            step.name, [handle(v) for v in step.reads()], [handle(v) for v in step.writes()], cost
        )
    plan = _core.plan(graph, streams, policy)
    buffers = _core.plan_buffers(graph, plan)
    offsets = {n: buffers.offsets[i] for n, i in ids.items() if n not in outside}
    return Schedule(plan, offsets, buffers.arena_bytes)
