"""Recurrences as one generated kernel that takes turns, and statements that repeat as loops."""

from __future__ import annotations

import random
import re

import pytest
import torch
from random_recurrences import RandomRecurrence
from tile_on_host import largest_error
from torch import nn

from dpiframe_core import from_torch
from dpiframe_core.engine.cuda.tile.grouping import TileGroup, group_steps
from dpiframe_core.engine.cuda.tile.rolled import rolled
from dpiframe_core.lowering import COMPILED_PASSES, lower
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.program import Program

BOUNDS = {"fp32": 1e-5, "fp16": 6e-3, "bf16": 6e-2}
ITEMS, DIM = 23, 12


class Recurrent(nn.Module):
    """A recurrence over a history, and a product of what it leaves."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.items = nn.Embedding(50, DIM)
        width = 24 if kind == "bidirectional" else 20
        self.out = nn.Linear(width, 1)
        if kind in ("gru", "attention"):
            self.layer = nn.GRU(DIM, 20, batch_first=True)
            self.query = nn.Linear(20, 1)
        elif kind == "bidirectional":
            self.layer = nn.GRU(DIM, 12, batch_first=True, bidirectional=True)
        elif kind == "two layers":
            self.layer = nn.GRU(DIM, 20, num_layers=2, batch_first=True)
        elif kind == "lstm":
            self.layer = nn.LSTM(DIM, 20, batch_first=True)
        elif kind == "tanh":
            self.layer = nn.RNN(DIM, 20, batch_first=True)
        elif kind == "gated":  # as DIEN's second: a score a turn says how much of it is taken
            self.score = nn.Linear(DIM, 1)
            self.gates, self.new = nn.Linear(DIM + 20, 40), nn.Linear(DIM + 20, 20)
        else:
            self.cell, self.first = nn.GRUCell(DIM, 20), nn.Linear(DIM, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        e = self.items(x)
        if self.kind == "gated":
            scores = self.score(e).softmax(1)
            state = torch.zeros(x.shape[0], 20)
            for i in range(ITEMS):
                update, reset = self.gates(torch.cat([e[:, i], state], 1)).sigmoid().chunk(2, 1)
                new = self.new(torch.cat([e[:, i], state * reset], 1)).tanh()
                update = update * scores[:, i]
                state = (1 - update) * state + update * new
            return self.out(state)
        if self.kind == "cell":
            state = self.first(e.mean(1)).tanh()
            for i in range(ITEMS):
                there = (x[:, i] != 0)[:, None]
                state = torch.where(there, self.cell(e[:, i], state), state)
            return self.out(state)
        left, _ = self.layer(e)
        if self.kind == "attention":
            return self.out((left * self.query(left).softmax(1)).sum(1))
        return self.out(left[:, -1])


def grouped(kind: str, precision: str) -> tuple[Program, list[TileGroup]]:
    """The program in groups, and those that take turns."""
    torch.manual_seed(3)
    imported = from_torch(Recurrent(kind).eval(), (torch.ones(2, ITEMS, dtype=torch.long),))
    program = group_steps(lower(imported.spec, imported.weights, COMPILED_PASSES), precision)
    found = [step for step in program.steps if isinstance(step, TileGroup)]
    return program, [group for group in found if group.turns is not None]


@pytest.mark.parametrize(
    ("kind", "recurrences"),
    [
        ("gru", 1),
        ("attention", 1),
        ("bidirectional", 2),
        ("two layers", 2),
        ("lstm", 1),
        ("tanh", 1),
        ("cell", 1),
        ("gated", 1),
    ],
)
@pytest.mark.parametrize(("precision", "emulated"), [("fp32", None), ("fp16", "descending")])
def test_a_recurrence_is_one_kernel(kind, recurrences, precision, emulated, tmp_path):
    program, groups = grouped(kind, precision)
    assert len(groups) == recurrences
    for number, group in enumerate(groups):
        (folder := tmp_path / str(number)).mkdir()
        kernel = group.generate(program, program.float_buffers(), precision)
        assert kernel.samples == 32
        assert kernel.source.count("DPIF_ROLLED for") >= 1
        assert kernel.source.count("multiply<") <= ITEMS  # of two a turn at least
        assert largest_error(program, group, precision, 37, folder, emulated) < BOUNDS[precision]


@pytest.mark.parametrize("seed", [2, 5, 8, 13, 21, 31, 45, 48])
def test_random_recurrences(seed, tmp_path):
    torch.manual_seed(seed)
    model = RandomRecurrence(seed).eval()
    imported = from_torch(model, model.inputs())
    ids = torch.stack([torch.randint(0, field.rows, (33,)) for field in imported.spec.fields])
    for precision in ("fp32", "fp16"):
        plain = lower(imported.spec, imported.weights, COMPILED_PASSES)
        program = group_steps(plain, precision)
        logits = [run_program(p, ids, torch.zeros(0, 33)) for p in (plain, program)]
        assert torch.allclose(*logits, rtol=1e-5, atol=1e-5)
        for number, group in enumerate(program.steps):
            if isinstance(group, TileGroup) and group.turns is not None:
                (folder := tmp_path / f"{precision}{number}").mkdir()
                error = largest_error(program, group, precision, 37, folder)
                assert error < BOUNDS[precision]


def test_only_what_others_read_of_a_recurrence_reaches_device_memory():
    _, (group,) = grouped("gru", "fp16")
    assert [view.width for view in group.writes()] == [20]
    _, (group,) = grouped("attention", "fp16")
    assert [view.width for view in group.writes()] == [20] * ITEMS


def test_a_product_of_its_own_a_turn_is_no_recurrence():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), *layers, nn.Linear(16, 1)).eval()
    imported = from_torch(model, (torch.zeros(2, 4, dtype=torch.long),))
    program = group_steps(lower(imported.spec, imported.weights, COMPILED_PASSES), "fp16")
    assert not any(isinstance(s, TileGroup) and s.turns is not None for s in program.steps)


def unrolled(lines: list[str]) -> list[str]:
    """What the loops of `rolled` run, by their own words."""
    found: list[str] = []
    while lines:
        loop = re.match(r"DPIF_ROLLED for \(int turn = 0; turn < (\d+);", lines[0])
        if not loop:
            found.append(lines[0])
            lines = lines[1:]
            continue
        end = lines.index("}")
        for turn in range(int(loop[1])):
            for line in lines[1:end]:
                made = re.sub(
                    r"(\d+) ([+-]) (\d+) \* turn",
                    lambda m, turn=turn: str(int(m[1]) + int(m[2] + m[3]) * turn),
                    line.removeprefix("  "),
                )
                found.append(made)
        lines = lines[end + 1 :]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_loops_run_what_was_written(seed):
    draw = random.Random(seed)
    lines: list[str] = []
    for _ in range(6):
        steps = [draw.choice([0, 0, 8, 40, -8]) for _ in range(3)]
        period = draw.randint(1, 5)
        for turn in range(draw.randint(1, 9)):
            for i in range(period):
                offsets = [500 + 100 * i + step * turn for step in steps]
                lines.append(f"stage<{i}>(a + {offsets[0]}, b * 3 + {offsets[1]}, 0.5f);")
            lines.append("meet();")
        lines += [f"other<{draw.randint(0, 3)}>(c + 0.25f, d + {draw.randint(1, 3)});"]
    made = rolled(lines)
    assert unrolled(made) == lines
    assert len(made) <= len(lines)


def test_what_repeats_with_other_numbers_than_offsets_is_no_loop():
    for lines in (
        [f"multiply<{i}>(a + 8);" for i in range(9)],
        [f"store(a + {i * i});" for i in range(1, 9)],
        [f"store(a * {i} + 8);" for i in range(9)],
        [f"scale(a + 0.{i}f);" for i in range(1, 9)],
    ):
        assert rolled(lines) == lines
