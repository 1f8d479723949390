"""The buffer plan against a brute check: what may be live together does not overlap."""

from __future__ import annotations

import itertools

import pytest
from random_graphs import POLICIES, RandomGraph, ordered_pairs, random_graph

from dpiframe_core import _core


def users_of(case: RandomGraph) -> dict[int, set[int]]:
    """Steps that touch each root buffer that is not external."""
    users: dict[int, set[int]] = {}
    for step, (reads, writes) in enumerate(zip(case.reads, case.writes, strict=True)):
        for buffer in reads + writes:
            if not case.external[buffer]:
                users.setdefault(case.ranges[buffer][0], set()).add(step)
    return users


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_streams", [1, 2, 5, 8])
def test_what_may_be_live_together_does_not_overlap(policy: _core.Policy, num_streams: int) -> None:
    for seed in range(60):
        case = random_graph(seed)
        plan = _core.plan(case.graph, num_streams, policy)
        buffers = _core.plan_buffers(case.graph, plan, 64)
        ordered = ordered_pairs(plan)
        users = users_of(case)
        size = {b: case.ranges[b][2] for b in users}
        for b in users:
            assert buffers.offsets[b] % 64 == 0
            assert 0 <= buffers.offsets[b] <= buffers.arena_bytes - size[b]
        for a, b in itertools.combinations(users, 2):
            first, second = buffers.offsets[a], buffers.offsets[b]
            if max(first, second) >= min(first + size[a], second + size[b]):
                continue
            pairs = list(itertools.product(users[a], users[b]))
            assert all(p in ordered for p in pairs) or all(p[::-1] in ordered for p in pairs)


def chain(length: int, size: int) -> _core.Graph:
    graph = _core.Graph()
    last = graph.add_buffer("input", size, external=True)
    for k in range(length):
        here = graph.add_buffer(f"b{k}", size)
        graph.add_step(f"s{k}", [last], [here])
        last = here
    return graph


def test_a_chain_takes_two_buffers() -> None:
    graph = chain(9, 1000)
    buffers = _core.plan_buffers(graph, _core.plan(graph, 1, "serial"))
    assert buffers.arena_bytes == 2 * 1024
    assert buffers.total_bytes == 9 * 1024
    assert str(buffers) == "arena of 2048 bytes for 9216 bytes of buffers"


def test_parallel_branches_do_not_share() -> None:
    graph = _core.Graph()
    for b in range(2):
        source = graph.add_buffer(f"in{b}", 100, external=True)
        middle = graph.add_buffer(f"mid{b}", 100)
        graph.add_step(f"a{b}", [source], [middle])
        graph.add_step(f"b{b}", [middle], [graph.add_buffer(f"out{b}", 100, external=True)])
    parallel = _core.plan_buffers(graph, _core.plan(graph, 2, "breadth_first"))
    serial = _core.plan_buffers(graph, _core.plan(graph, 1, "serial"))
    assert parallel.arena_bytes == 2 * 256
    assert serial.arena_bytes == 256


def test_views_lie_in_their_parent_and_keep_it_alive() -> None:
    graph = _core.Graph()
    whole = graph.add_buffer("whole", 1024)
    left = graph.add_view(whole, 0, 512)
    right = graph.add_view(whole, 512, 512)
    inner = graph.add_view(right, 256, 256)
    other = graph.add_buffer("other", 512)
    graph.add_step("left", [], [left])
    graph.add_step("right", [], [right])
    graph.add_step("other", [left], [other])
    graph.add_step("end", [other, inner], [graph.add_buffer("result", 8, external=True)])
    buffers = _core.plan_buffers(graph, _core.plan(graph, 1, "serial"))
    base = buffers.offsets[whole]
    assert buffers.offsets[:4] == [base, base, base + 512, base + 768]
    assert buffers.arena_bytes == 1536
    assert (0, 1) not in graph.edges()


def test_external_and_untouched_buffers_take_no_memory() -> None:
    graph = _core.Graph()
    external = graph.add_buffer("external", 999, external=True)
    graph.add_view(external, 9, 90)
    graph.add_buffer("untouched", 999)
    graph.add_step("step", [external], [external])
    buffers = _core.plan_buffers(graph, _core.plan(graph, 1, "serial"))
    assert buffers.offsets == [-1, -1, -1]
    assert buffers.arena_bytes == 0
