"""Random module graphs, beyond the built-in models: lowering changes no result (float64)."""

from __future__ import annotations

import random

import model_zoo
import numpy as np
import pytest
import torch

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.engine.cpu import CpuBackend
from dpiframe_core.lowering import COMPILED_PASSES, DEVICE_FORM, DEVICE_PASSES, PASSES, lower
from dpiframe_core.model.modules import (
    FM,
    MLP,
    Add,
    Concat,
    CrossV1,
    CrossV2,
    DenseEmbedding,
    Embedding,
    Linear,
    Wide,
)
from dpiframe_core.program.interpreter import run_program


def _random_spec(seed: int) -> ModelSpec:
    """A graph of up to fifteen modules over whatever came before; shared tables, mixed dims."""
    rng = random.Random(seed)
    dim = rng.choice([1, 3, 4])
    fields = [FieldSpec(name=f"C{i}", rows=rng.randint(1, 50), dim=dim) for i in range(4)]
    fields.append(FieldSpec(name="shared", rows=fields[0].rows, dim=dim, table="C0"))
    modules = [
        Embedding(name="embedding"),
        Embedding(name="some", fields=("C2", "shared", "C2")),
        DenseEmbedding(name="dense_fields", inputs=("dense",), dim=dim),
        Wide(name="wide", inputs=rng.choice([(), ("dense",)]), bias=rng.random() < 0.5),
    ]
    rng.shuffle(modules)
    widths = {"dense": 2, "embedding": 5 * dim, "some": 3 * dim, "dense_fields": 2 * dim, "wide": 1}
    for i in range(rng.randint(2, 9)):
        module, width = _random_module(f"m{i}", widths, rng, dim)
        modules.append(module)
        widths[module.name] = width
    ones = [name for name, width in widths.items() if width == 1]
    heads = [Linear(name=f"head_{n}", inputs=(n,)) for n in list(widths)[-3:]]
    total = Add(name="total", inputs=(*ones, *(h.name for h in heads)))
    return ModelSpec(
        fields=fields, dense=("I1", "I2"), modules=(*modules, *heads, total), output="total"
    )


def _random_module(name, widths, rng, dim):
    source = rng.choice(list(widths))
    width = widths[source]
    kind = rng.randrange(8)
    if kind == 0:
        return CrossV1(name=name, inputs=(source,), layers=rng.randint(1, 3)), width
    if kind == 1:
        return CrossV2(name=name, inputs=(source,), layers=rng.randint(1, 3)), width
    if kind == 2:
        parts = tuple(rng.choices(list(widths), k=rng.randint(1, 3)))
        return Concat(name=name, inputs=parts), sum(widths[p] for p in parts)
    if kind == 3:
        parts = rng.sample(["embedding", "some", "dense_fields"], rng.randint(1, 2))
        return FM(name=name, inputs=tuple(parts)), 1
    if kind == 4:
        alike = [n for n, w in widths.items() if w == width]
        return Add(name=name, inputs=tuple(rng.choices(alike, k=2))), width
    if kind == 5:
        units = rng.choice([1, 6])
        return Linear(name=name, inputs=(source,), units=units, bias=rng.random() < 0.5), units
    hidden = tuple(rng.randint(1, 7) for _ in range(rng.randint(1, 3)))
    return MLP(name=name, inputs=(source,), hidden=hidden, batch_norm=rng.random() < 0.5), hidden[
        -1
    ]


def _engine_logits(model, ids, dense):
    """Logits of the CPU engine, which lays its buffers over one another in one arena."""
    engine = CpuBackend(lower(model.spec, model.state_dict()), 19, None)
    logits = np.full(19, np.nan, np.float32)
    engine.run(list(ids), dense, False, logits)
    return logits


@pytest.mark.parametrize("seed", range(60))
def test_lowering_a_random_graph_changes_no_result(seed):
    spec = _random_spec(seed)
    model = model_zoo.random_model(spec, seed)
    ids, dense = model_zoo.random_inputs(spec, 19, seed)
    weights = {name: w.double() for name, w in model.state_dict().items()}
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(_engine_logits(model, ids, dense), expected, rtol=1e-3, atol=1e-3)
    for passes in ((), PASSES, DEVICE_FORM, DEVICE_PASSES, COMPILED_PASSES):
        program = lower(spec, weights, passes)
        got = run_program(program, torch.from_numpy(ids), torch.from_numpy(dense).double())
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-9)
