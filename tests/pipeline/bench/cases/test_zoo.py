"""Models of the zoo as benchmark cases: real tables in the place of small ones, in all forms."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from jobs import bench
from pipeline.bench.cases.engine_case import EngineCase, ModelName
from pipeline.bench.cases.zoo import ZOO, Shape
from pipeline.bench.engine.implementations import OURS
from pipeline.bench.engine.latency import bench_engine
from pipeline.bench.engine.one_table import one_table
from pipeline.errors import ConfigError, DpiframeError

SMALL = {"fields": 4, "dense": 3, "dim": 4, "hidden": (20, 20), "scale": 1e-4}
SHAPE = Shape(fields=4, dim=4, dense=3, hidden=(20, 20), rows=(7, 3, 11, 5))


def test_forms_of_a_model_agree():
    case = EngineCase(model="din", batch=19, peers="plain", repeats=3, **SMALL)
    report = bench_engine(case)
    assert set(report.milliseconds) == {OURS, "eager", "one-table"}, report.failed
    assert report.largest_error < 1e-5 and report.largest_difference < 1e-5
    spec, _ = case.load()
    assert [f.rows for f in spec.fields[:4]] == [2, 2, 1013, 220]


def test_the_command_and_the_case_know_every_model():
    assert tuple(ZOO) == bench.ZOO
    assert get_args(ModelName) == (*bench.MODELS.choices, *ZOO)


def test_the_zoo_wants_dense_features():
    with pytest.raises(ConfigError, match="dlrm: the models of the zoo want dense features"):
        EngineCase(model="dlrm", fields=4).load()


@pytest.mark.parametrize("name", ZOO)
def test_one_table_for_all_changes_no_bit(name):
    torch.manual_seed(0)
    module = ZOO[name](SHAPE).eval()
    inputs = tuple(torch.cat([x] * 10)[:19] for x in module.example_inputs())
    inputs[0].copy_(torch.stack([torch.randint(rows, (19,)) for rows in SHAPE.rows], 1))
    joined = one_table(module, inputs, {})
    with torch.no_grad():
        assert torch.equal(joined(*inputs), module(*inputs))
    lookups = [n for n in joined.graph.nodes if n.target is torch.ops.aten.embedding.default]
    assert len(lookups) == 1


class Chained(torch.nn.Module):
    """Ids that come from a table themselves, a table of another width, and one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Embedding(7, 4), torch.nn.Embedding(5, 4)
        self.c = torch.nn.Embedding(5, 3)
        self.register_buffer("other", torch.tensor([[3.0], [1.0], [4.0], [1.0], [2.0], [0], [2]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = torch.nn.functional.embedding(x[:, 0], self.other)[:, 0].long()
        parts = [self.a(x), self.b(x[:, :1]), self.a(again).unsqueeze(1)]
        return torch.cat([*parts, self.c(x[:, :1]).mean(2, keepdim=True).expand(-1, -1, 4)], 1)


def test_lookups_of_looked_up_ids_stay():
    module, x = Chained().eval(), torch.randint(5, (19, 2))
    joined = one_table(module, (x,), {})
    with torch.no_grad():
        assert torch.equal(joined(x), module(x))


def test_one_lookup_cannot_be_joined():
    with pytest.raises(DpiframeError, match="no two lookups"):
        one_table(torch.nn.Embedding(5, 3), (torch.zeros(19, dtype=torch.long),), {})
