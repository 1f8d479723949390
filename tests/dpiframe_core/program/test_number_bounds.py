"""How large a program's numbers can become, and what bf16 is computed in."""

from __future__ import annotations

import math

import model_zoo
import numpy as np
import pytest
import torch

from dpiframe_core.engine.precision import computed_precision, dense_bounds
from dpiframe_core.features.schema import CategoricalFeature, DenseFeature, FeatureSchema
from dpiframe_core.features.schema import ModuloEncoding as Modulo
from dpiframe_core.lowering import DEVICE_PASSES, PASSES, lower
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.program.interpreter import as_tensor
from dpiframe_core.program.number_bounds import holds_in_fp16, input_bounds
from dpiframe_core.program.program import Program
from dpiframe_core.program.steps import Copy, TensorStep
from dpiframe_core.program.tensor_ops import LayerNorm, Operand
from dpiframe_core.program.views import DENSE, State, View, Weight

DENSE_NAMES = ["I1", "I2"]


def weights_of(spec, seed: int = 0) -> dict[str, torch.Tensor]:
    return dict(model_zoo.random_model(spec, seed).state_dict())


def spec_of(name: str, dense_as="field", dense=(), batch_norm=True):
    return MODELS[name](Features(model_zoo.fields(8), dense, dense_as), Deep((19, 8), batch_norm))


@pytest.mark.parametrize("passes", [(), PASSES, DEVICE_PASSES], ids=["plain", "cpu", "device"])
@pytest.mark.parametrize("dense_as", ["field", "raw"])
@pytest.mark.parametrize("name", MODELS)
def test_no_number_of_a_run_is_beyond_its_bound(name, dense_as, passes):
    spec = spec_of(name, dense_as, DENSE_NAMES)
    weights = {n: w.double() for n, w in weights_of(spec).items()}
    program = lower(spec, weights, passes)
    ids, dense = model_zoo.random_inputs(spec, 111, 3)
    buffers = {n: torch.zeros(111, width).double() for n, width in program.buffers.items()}
    buffers[DENSE] = torch.from_numpy(dense).T.double()
    tensors = {n: as_tensor(w) for n, w in program.weights.items()}
    state = State(buffers, tensors, torch.from_numpy(ids.astype(np.int64)))
    bounds = input_bounds(program, np.abs(dense).max(1))
    for step in program.steps:
        step.run(state)
        step.bound(bounds)
        for view in step.writes():
            found = state[view].abs().amax(0).numpy()
            assert (found <= bounds[view] * (1 + 1e-9) + 1e-12).all(), step
            assert np.isfinite(bounds[view]).all(), step


def changed_program(name="wdl", scale=1.0, table=None, dense=()) -> Program:
    """A model whose embeddings are in -1 .. 1, times `scale`; `table`: one number of a table."""
    spec = spec_of(name, dense=dense)
    weights = weights_of(spec)
    tables = [n for n in weights if n.startswith("embedding/")]
    for n in tables:
        weights[n] = weights[n].clamp(-1, 1) * scale
    if table is not None:
        weights[tables[0]][0, 2] = table
    return lower(spec, weights, DEVICE_PASSES)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_ordinary_numbers_are_held(name):
    assert holds_in_fp16(changed_program(name), [])


@pytest.mark.parametrize(
    "kind",
    [
        {"table": 7e4},  # beyond fp16
        {"scale": 2e4},  # what is computed from them
        {"table": math.nan},
        {"table": -math.inf},
        {"scale": 1e-3},  # fp16 would lose bits of it
        {"name": "dcnv2", "scale": 30.0},  # grows in the cross layers
    ],
    ids=str,
)
def test_models_that_bf16_is_for(kind):
    program = changed_program(**kind)
    assert not holds_in_fp16(program, [])
    assert computed_precision("bf16", program, None) == "bf16"


def test_small_numbers_that_products_make_smaller():
    """Tables and weights alone would do; fp16 would lose bits of what is computed from them."""
    spec = spec_of("wdl", batch_norm=False)
    most = {name: 0.0 if name.endswith("bias") else 0.005 for name in weights_of(spec)}
    weights = {name: w.clamp(-most[name], most[name]) for name, w in weights_of(spec).items()}
    assert not holds_in_fp16(lower(spec, weights, DEVICE_PASSES), [])


def test_tables_of_zeros_are_held():
    assert holds_in_fp16(changed_program(scale=0.0), [])


def test_dense_features_must_be_bounded():
    program = changed_program(dense=DENSE_NAMES)
    assert holds_in_fp16(program, [3.0, 3.0])
    assert not holds_in_fp16(program, [3.0, math.inf])
    assert computed_precision("bf16", program, None) == "bf16"


def test_only_bf16_is_changed():
    program = changed_program()
    assert computed_precision("bf16", program, None) == "fp16"
    for precision in ("fp32", "tf32", "fp16"):
        assert computed_precision(precision, program, None) == precision


def test_bounds_of_dense_features_follow_from_the_schema():
    dense = (
        DenseFeature(name="a", column="a", mean=-1.5, std=0.5, fill=-9000.0),
        DenseFeature(name="b", column="b", mean=1.5, std=0.5, fill=-3.0),
        DenseFeature(name="c", column="c", transform="none"),
    )
    field = CategoricalFeature(name="f", column="f", values="integer", encoding=Modulo(modulus=2))
    schema = FeatureSchema(dataset="d", fields=(field,), dense=dense)
    a, b, c = dense_bounds(schema, 3)
    assert a == 9000.0
    assert b == pytest.approx((1024 * math.log(2) + 1.5) * 2)  # of the largest double
    assert c == math.inf
    assert dense_bounds(None, 2) == [math.inf] * 2


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norms_are_bounded_by_their_width_and_weights(affine):
    x, out = View(DENSE, 0, 4), View("out", 0, 4)
    operands = (Operand.whole(2, 2), *((Operand.whole(2),) * 2 if affine else ()))
    names = (Weight("w"), Weight("b")) if affine else ()
    norm = TensorStep("norm", LayerNorm(1, 1e-5), (x,), names, operands, out)
    weights = {"w": np.array([-3.0, 2.0]), "b": np.array([0.5, -1.5])} if affine else {}
    program = Program((), (), (), 4, {"out": 4, DENSE: 4}, (norm,), weights, out)
    bounds = input_bounds(program, [math.inf] * 4)
    norm.bound(bounds)
    expected = 3 * 2**0.5 + 1.5 if affine else 2**0.5
    np.testing.assert_allclose(bounds[out], expected)
    assert program.float_buffers() == frozenset()


def test_a_buffer_that_others_write_beside_a_norm_stays_in_float32():
    x, out = View(DENSE, 0, 2), View("out", 0, 4)
    norm = TensorStep("n", LayerNorm(1, 1e-5), (x,), (), (Operand.whole(2),), out.columns(0, 2))
    copy = Copy("c", x, out.columns(2, 2))
    program = Program((), (), (), 2, {"out": 4, DENSE: 2}, (norm, copy), {}, out)
    assert program.float_buffers() == {"out"}
