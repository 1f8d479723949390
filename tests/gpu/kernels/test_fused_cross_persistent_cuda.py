"""The one-kernel forward pass for large batches: against float64 and the steps."""

from __future__ import annotations

from functools import lru_cache

import model_zoo
import numpy as np
import pytest
import torch
from cuda_cases import (
    BOUNDS,
    Batch,
    batches,
    check,
    check_bad_ids,
    check_on_device,
    cuda_engine,
    even_model,
    inputs,
    logits,
    on_device,
    scaled_error,
)

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.engine.cuda.backend import CudaBackend, Faults
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.model.modules import Add, Wide
from dpiframe_core.model.torch_module import CTRModel

MOST = 26_016
# One tile a cluster, not all of them; as many as clusters; one more; up to four, the last a row
SIZES = (4097, 8448, 8449, MOST - 31, MOST)
CRITEO = ([16] * 39, 3, (400, 400, 400))
# dims of the fields, cross layers, columns of the deep levels
FORMS = {
    "criteo": CRITEO,
    "one of each": ([16] * 39, 1, (400,)),
    "one deep level": ([16] * 39, 3, (416,)),
    "one cross layer": ([16] * 39, 1, (400, 400)),
    "four of each": ([16] * 40, 4, (512, 512, 512, 512)),
    "a chunk of zeros": ([16, 8, 24] * 13, 2, (405, 403)),
    "tiles of 104": ([16] * 26, 3, (409, 416, 397)),
    "unequal halves": ([16] * 20 + [8] * 20, 1, (512,)),
    "a small half first": ([8] * 12 + [16] * 28, 3, (400, 400)),
    "a small half last": ([16] * 28 + [8] * 12, 4, (416,)),
}


@pytest.fixture(autouse=True)
def _on_hopper():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9")


def with_wide_sum(spec: ModelSpec) -> ModelSpec:
    """The spec, to whose logit each field adds a weight of its own, too."""
    *modules, logit = spec.modules
    modules += [
        logit.model_copy(update={"name": "crossed"}),
        Wide(name="wide"),
        Add(name="logit", inputs=("wide", "crossed")),
    ]
    return ModelSpec(fields=spec.fields, modules=tuple(modules), output="logit")


def model_of(name: str, seed: int = 0, wide: bool = False) -> CTRModel:
    dims, layers, hidden = FORMS[name]
    fields = [
        FieldSpec(name=f"C{i}", rows=rows, dim=dim, oov_row=rows // 2)
        for i, dim in enumerate(dims)
        for rows in (model_zoo.ROWS[i % 7],)
    ]
    spec = MODELS["dcnv2"](Features(fields), Deep(hidden), layers=layers)
    return even_model(with_wide_sum(spec) if wide else spec, seed)


@lru_cache(maxsize=1)
def criteo() -> tuple[CTRModel, list[Batch]]:
    model = model_of("criteo")
    return model, batches(model, SIZES)


def engine_of(model: CTRModel, **options) -> CudaBackend:
    return cuda_engine(model, **{"precision": "fp16", "max_batch": MOST, **options})


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_within_its_bound(name, precision):
    """Batches after one another, over an arena that holds nothing else's numbers."""
    model = model_of(name)
    made = criteo()[1] if name == "criteo" else batches(model, (SIZES[2], MOST))
    engine = engine_of(model, precision=precision, graphs=precision == "fp16")
    assert engine.fused_up_to == MOST
    assert f"up to {MOST} in one kernel" in engine.describe()
    for batch, between in zip(made, reversed(made), strict=True):
        engine.poison()
        check(engine, batch, between)
        check_on_device(engine, batch)
    engine.close()


@pytest.mark.parametrize("use_oov", [False, True])
def test_ids_outside_their_tables_as_by_the_steps(use_oov):
    """Scores, counts and the first of them, for ids of both types."""
    model, made = criteo()
    one, steps = (engine_of(model, fused=on) for on in (True, False))
    check_bad_ids(one, steps, made[2:4], use_oov)
    one.close()
    steps.close()


@pytest.mark.parametrize("use_oov", [False, True])
def test_wide_sums_are_added(use_oov):
    """Of good ids within the bound, of others as by the steps; blocks gather unlike halves."""
    model = model_of("unequal halves", wide=True)
    made = batches(model, (8449, 4097))
    one, steps = (engine_of(model, fused=on) for on in (True, False))
    assert one.fused_up_to == MOST
    check(one, *made)
    check_bad_ids(one, steps, made, use_oov)
    one.close()
    steps.close()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 6e4])
def test_numbers_that_are_none_as_by_the_steps(value):
    """Infinite, not a number, or so large that a product overflows: in the rows they are in."""
    model = model_of("criteo", seed=1)
    model.state_dict()["embedding/tables/C5"][3, 2] = value
    batch = batches(model, (5000,))[0]
    batch.ids[5] = np.arange(5000) % 5
    got, expected = [], []
    for found, on in ((got, True), (expected, False)):
        engine = engine_of(model, fused=on)
        found.append(logits(engine, batch.ids, batch.dense))
        engine.close()
    for is_such in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_such(got[0]), is_such(expected[0]))
    finite = np.arange(5000) % 5 != 3
    assert np.isfinite(got[0][finite]).all()
    assert scaled_error(got[0][finite], expected[0][finite]) < BOUNDS["fp16"]


def test_the_same_bits_every_time():
    """Among batches of other sizes, with and without graphs and delays."""
    model, made = criteo()
    there = [next(on_device(batch.ids)) for batch in made]
    firsts: dict[int, torch.Tensor] = {}
    for faults, graphs, turns in ((Faults(), True, 300), (Faults(delay_seed=3), False, 20)):
        engine = engine_of(model, graphs=graphs, faults=faults)
        for turn in range(turns):
            ids = there[turn % len(there)]
            got = torch.full((ids.shape[1],), torch.nan, device="cuda")
            stream = torch.cuda.current_stream().cuda_stream
            engine.run_on_device(ids, None, got.data_ptr(), ids.shape[1], False, stream)
            assert torch.equal(firsts.setdefault(turn % len(there), got), got)
        engine.close()


def test_the_same_bits_among_batches_that_run_in_steps():
    """Both work in one arena, right behind one another: neither needs what the other leaves."""
    model, sizes = criteo()[0], (16_384, 1024, 4097, 1, 8449, 517)
    engine = engine_of(model)
    assert engine.fused_above == 1024
    there = [next(on_device(inputs(model.spec, size)[0])) for size in sizes]
    stream = torch.cuda.current_stream().cuda_stream
    outs = [torch.empty(size, device="cuda") for size in sizes]
    firsts = []
    for ids, out in zip(there, outs, strict=True):
        engine.poison()
        engine.run_on_device(ids, None, out.data_ptr(), len(out), False, stream)
        firsts.append(out.clone())
    for _ in range(20):
        for ids, out in zip(there, outs, strict=True):
            out.fill_(torch.nan)
            engine.start_on_device(ids, None, out.data_ptr(), len(out), False, stream)
        assert not engine.finish_on_device().any()
        assert all(map(torch.equal, outs, firsts))
    engine.close()


def test_a_model_that_would_be_padding_runs_in_steps():
    """So does one whose arena is too small to work in."""
    fields = [FieldSpec(name=f"C{i}", rows=100, dim=16) for i in range(30)]
    model = even_model(MODELS["dcnv2"](Features(fields), Deep((300, 300)), layers=2))
    for found, most in ((model, MOST), (criteo()[0], 4200)):
        engine = engine_of(found, max_batch=most)
        assert engine.fused_up_to == 4096
        engine.close()
