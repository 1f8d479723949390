"""Graph and plan: every hazard is ordered, no wait is there twice, parallel branches spread."""

from __future__ import annotations

import pytest
from random_graphs import POLICIES, ordered_pairs, random_graph

from dpiframe_core import _core

SEEDS = range(60)


def described(plan: _core.Plan) -> list[tuple[int, int, tuple[int, ...], int]]:
    return [(p.step, p.stream, tuple(p.waits), p.record) for p in plan.steps]


def branches(lengths: list[int], costs: list[float] | None = None) -> _core.Graph:
    """A source, parallel chains, and a join. Steps: source, chain by chain, join."""
    graph = _core.Graph()
    source = graph.add_buffer("source", 8)
    graph.add_step("source", [], [source])
    ends = []
    for b, length in enumerate(lengths):
        last = source
        for k in range(length):
            here = graph.add_buffer(f"chain{b}.{k}", 8)
            graph.add_step(f"chain{b}.{k}", [last], [here], costs[b] if costs else 1.0)
            last = here
        ends.append(last)
    graph.add_step("join", ends, [graph.add_buffer("result", 8, external=True)])
    return graph


@pytest.mark.parametrize("seed", SEEDS)
def test_edges_are_the_hazards(seed: int) -> None:
    case = random_graph(seed)
    assert case.graph.edges() == sorted(case.hazards())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_streams", [1, 2, 3, 8])
def test_every_hazard_is_ordered(policy: _core.Policy, num_streams: int) -> None:
    for seed in SEEDS:
        case = random_graph(seed)
        plan = _core.plan(case.graph, num_streams, policy)
        assert sorted(p.step for p in plan.steps) == list(range(case.graph.num_steps))
        assert all(0 <= p.stream < num_streams for p in plan.steps)
        assert set(case.hazards()) <= ordered_pairs(plan)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_streams", [1, 2, 3, 8])
def test_events_are_recorded_before_they_are_awaited(
    policy: _core.Policy, num_streams: int
) -> None:
    for seed in SEEDS:
        plan = _core.plan(random_graph(seed).graph, num_streams, policy)
        recorded: dict[int, int] = {}
        awaited: set[int] = set()
        for planned in plan.steps:
            for event in planned.waits:
                assert recorded[event] != planned.stream
                awaited.add(event)
            if planned.record >= 0:
                assert planned.record not in recorded
                recorded[planned.record] = planned.stream
        assert awaited == set(recorded) == set(range(plan.num_events))


class WithoutWait:
    """A plan's steps with one wait left out."""

    def __init__(self, plan: _core.Plan, step: int, event: int) -> None:
        self.steps = [_Step(p, event if p.step == step else -1) for p in plan.steps]


class _Step:
    def __init__(self, planned: _core.PlannedStep, without: int) -> None:
        self.step, self.stream, self.record = planned.step, planned.stream, planned.record
        self.waits = [event for event in planned.waits if event != without]


@pytest.mark.parametrize("policy", ["depth_first", "breadth_first"])
def test_no_wait_is_redundant(policy: _core.Policy) -> None:
    for seed in SEEDS:
        case = random_graph(seed)
        plan = _core.plan(case.graph, 3, policy)
        for planned in plan.steps:
            for event in planned.waits:
                without = ordered_pairs(WithoutWait(plan, planned.step, event))
                assert not set(case.hazards()) <= without


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_graph_gives_the_same_plan(policy: _core.Policy) -> None:
    for seed in range(9):
        first = _core.plan(random_graph(seed).graph, 4, policy)
        second = _core.plan(random_graph(seed).graph, 4, policy)
        assert described(first) == described(second)
        assert str(first) == str(second)


def test_serial_is_the_program_on_one_stream() -> None:
    plan = _core.plan(branches([2, 3]), 4, "serial")
    assert described(plan) == [(s, 0, (), -1) for s in range(7)]


def test_breadth_first_launches_siblings_together_on_different_streams() -> None:
    plan = _core.plan(branches([3, 3, 3]), 3, "breadth_first")
    order = [p.step for p in plan.steps]
    assert order == [0, 1, 4, 7, 2, 5, 8, 3, 6, 9, 10]
    streams = {p.step: p.stream for p in plan.steps}
    for level in ((1, 4, 7), (2, 5, 8), (3, 6, 9)):
        assert {streams[step] for step in level} == {0, 1, 2}
    # One event out of the source, one from each of the two other branches into the join.
    assert plan.num_events == 3


def test_depth_first_follows_a_branch_to_its_end() -> None:
    plan = _core.plan(branches([3, 3]), 2, "depth_first")
    assert [p.step for p in plan.steps] == [0, 1, 2, 3, 4, 5, 6, 7]
    streams = [p.stream for p in plan.steps]
    assert streams[:7] == [0, 0, 0, 0, 1, 1, 1]


def test_the_dearest_branch_starts_first() -> None:
    for policy in ("depth_first", "breadth_first"):
        plan = _core.plan(branches([2, 2, 2], costs=[1.0, 9.0, 3.0]), 2, policy)
        assert plan.steps[1].step == 3


def test_text_of_a_plan() -> None:
    text = str(_core.plan(branches([1, 1]), 2, "breadth_first"))
    assert text.splitlines()[:3] == [
        "breadth_first, 4 steps, 2 streams, 2 events",
        "  stream 0  source  records e0",
        "  stream 0  chain0.0",
    ]


def test_an_empty_graph() -> None:
    plan = _core.plan(_core.Graph(), 2, "breadth_first")
    assert plan.steps == []
    assert plan.num_events == 0
