"""Specs: what does not fit is refused in one plain line; no name disturbs the lowering."""

from __future__ import annotations

import model_zoo
import numpy as np
import pytest

from dpiframe_core import FieldSpec, ModelSpec, SpecError, load_engine, save_bundle
from dpiframe_core.model.builtin import Deep, Features, dcnv2, deepfm, wdl
from dpiframe_core.model.modules import FM, MLP, Add, Concat, Embedding, Linear, Tensor, Wide
from dpiframe_core.model.modules.base import Inputs, Value
from dpiframe_core.program.tensor_ops import Map, MatMul, Operand, Reduce, TopK

FIELDS = model_zoo.fields(4)


def spec_of(*modules, output, dense=(), fields=FIELDS):
    return ModelSpec(fields=tuple(fields), dense=dense, modules=modules, output=output)


def no_weights():
    return spec_of(Concat(name="c", inputs=("dense",)), output="c", dense=("x",), fields=())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FieldSpec(name="a/b", rows=1, dim=1), "name: String should match pattern"),
        (
            lambda: FieldSpec(name="a", rows=3, dim=1, oov_row=3),
            r"oov_row must be in 0\.\.2, got 3",
        ),
        (lambda: spec_of(Add(name="x", inputs=("x",)), output="x"), "no earlier module makes"),
        (lambda: spec_of(Wide(name="dense"), output="dense"), "no module may be named 'dense'"),
        (lambda: spec_of(Wide(name="w"), output="dense", dense=("x",)), "output names no module"),
        (lambda: spec_of(Embedding(name="e"), output="e"), r"must be 1 wide .*, got 28"),
        (lambda: Deep(()).mlp("x"), "hidden: Tuple should have at least 1 item"),
        (lambda: ModelSpec.parse({"fields": [{"name": 1}]}), r"fields\.0: name: Input should be"),
        (lambda: ModelSpec.parse([]), "must be a mapping, got list"),
        (no_weights, "at least one weight"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(make, message):
    with pytest.raises(SpecError, match=message) as error:
        make()
    assert "\n" not in str(error.value) and "pydantic" not in str(error.value)


def tensors(compute, *operands, constants=()):
    """A generic operation over the embeddings, and its sum."""
    made = Tensor(name="t", inputs=("e",), compute=compute, operands=operands, constants=constants)
    size = int(np.prod(compute.shape(operands)))
    total = Tensor(
        name="s", inputs=("t",), compute=Reduce("sum", (0,)), operands=(Operand.whole(size),)
    )
    return spec_of(Embedding(name="e"), made, total, output="s")


def test_a_weight_may_have_more_elements_than_a_sample():
    rows, columns = 28, 1_000_000
    weight = Operand.whole(rows, columns)
    spec = tensors(MatMul(0, 0, 1), Operand.whole(rows), weight, constants=((rows, columns),))
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("compute", "operands", "constants"),
    [
        (Map("x0"), [Operand((28, 1_000_000), (1, 0))], ()),  # columns that are repeated
        (MatMul(0, 0, 1), [Operand.whole(28), Operand((28, 1_000_000), (1, 0))], ((28,),)),
        (MatMul(0, 1, 0), [Operand.whole(28), Operand.whole(1_000_000)], ((1_000_000,),)),
        (TopK(1, places=True), [Operand.whole(28_000_000)], ((28_000_000,),)),
    ],
)
def test_a_sample_has_no_more_elements_than_float32_counts(compute, operands, constants):
    with pytest.raises(SpecError, match=r"module t: .* 28,000,000 elements .*torch.matmul"):
        Tensor(
            name="t", inputs=("e",), compute=compute, operands=tuple(operands), constants=constants
        ).infer(Inputs((), [Value((28,))] * (len(operands) - len(constants))))


def test_a_constant_has_no_more_elements_than_32_bits_count():
    Operand.whole(2**31 - 1)
    for made in (lambda: Operand.whole(2**16, 2**15), lambda: Operand((2,), (2**31 - 1,))):
        with pytest.raises(ValueError, match=r"at most 2,147,483,647 .* split it"):
            made()


def test_a_spec_goes_through_json():
    for spec in model_zoo.all_specs().values():
        assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


NAMES = ["head", "logit_out", "logit", "embedding", "mlp"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_modules_are_free(tmp_path, name):
    spec = spec_of(
        Embedding(name="e"),
        FM(name="f", inputs=("e",)),
        Linear(name=name, inputs=("e",), units=3),
        MLP(name="m", inputs=(name,), hidden=(5,)),
        Linear(name="z", inputs=("m",)),
        Add(name="y", inputs=("z", "f")),
        output="y",
    )
    check(tmp_path, spec)


@pytest.mark.parametrize("name", NAMES)
def test_a_scalar_branch_may_have_any_name(tmp_path, name):
    spec = spec_of(
        Embedding(name="e"),
        FM(name=name, inputs=("e",)),
        Linear(name="z", inputs=("e",)),
        Add(name="y", inputs=("z", name)),
        output="y",
    )
    check(tmp_path, spec)


@pytest.mark.parametrize("name", ["dense", "embedding", "mlp", "head"])
def test_names_of_fields_are_free(tmp_path, name):
    fields = [FIELDS[3].model_copy(update={"name": name, "table": name}), *FIELDS[:3]]
    check(tmp_path, deepfm(Features(fields, [name, "x"], "field"), Deep((8,))))


def test_an_input_of_no_width_adds_nothing(tmp_path):
    spec = spec_of(
        Embedding(name="e"),
        Concat(name="c", inputs=("e", "dense")),
        FM(name="f", inputs=("c",)),
        output="f",
    )
    check(tmp_path, spec)


def test_tables_may_be_shared_and_have_one_row(tmp_path):
    one_row = [FieldSpec(name=f"a{i}", rows=1, dim=4, table="one") for i in range(3)]
    shared = [FieldSpec(name=f"b{i}", rows=19, dim=4, table="many") for i in range(3)]
    for make in (wdl, deepfm, dcnv2):
        check(tmp_path / make.__name__, make(Features([*one_row, *shared]), Deep((8,))))


def check(folder, spec):
    """The engine agrees with the unlowered model in float64."""
    model = model_zoo.random_model(spec)
    engine = load_engine(save_bundle(folder / "bundle", spec, model.state_dict()))
    ids, dense = model_zoo.random_inputs(spec, 19)
    expected = model_zoo.reference_logits(model, ids, dense)
    np.testing.assert_allclose(engine.logits(ids, dense), expected, rtol=1e-5, atol=1e-5)
