"""The float32 one-kernel forward pass with cross layers: against float64 and the steps."""

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
    logits,
    on_device,
    reference,
    scaled_error,
)

from dpiframe_core import FieldSpec, ModelSpec
from dpiframe_core.engine.cuda.backend import CudaBackend, Faults
from dpiframe_core.model.builtin import MODELS, Add, Concat, CrossV2, Deep, Features, Linear
from dpiframe_core.model.torch_module import CTRModel

MOST = 30_000  # rows of a batch: an arena that is large enough for the narrowest model
# Rows of one tile and around, some of the clusters, each of them once and twice, one more
SIZES = (1, 63, 64, 65, 4096, 4097, 8448, 8449, 20_000)
CRITEO = ([16] * 39, 3, (400, 400, 400))
# dims of the fields, cross layers, columns of the deep levels
FORMS = {
    "criteo": CRITEO,
    "a wide part": CRITEO,
    "one of each": ([16] * 39, 1, (400,)),
    "one deep level": ([16] * 39, 3, (416,)),
    "one cross layer": ([16] * 39, 1, (400, 400)),
    "four of each": ([16] * 40, 4, (512, 512, 512, 512)),
    "dims of four and twelve": ([4, 12, 20, 12] * 13, 2, (405, 403)),
    "a strip of padding": ([12, 4, 8] * 17 + [4], 3, (401, 33, 390)),
    "tiles of 112": ([16] * 26, 3, (409, 416, 397)),
    "narrow": ([4] * 16, 1, (17,)),
    "a wide field": ([4, 4, 4, 4, 4, 616, 4], 2, (33, 1)),
}


@pytest.fixture(autouse=True)
def _on_hopper(monkeypatch):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU of compute capability 9")
    monkeypatch.setattr("dpiframe_core.engine.cuda.fused.FP16X3_STEPS_UP_TO", 0)  # few rows, too


def with_wide(features: Features, deep: Deep, layers: int) -> ModelSpec:
    """A DCNv2 whose logit has a weight of each id, too."""
    modules, x0, _ = features.modules()
    modules += [
        CrossV2(name="cross", inputs=(x0,), layers=layers),
        deep.mlp(x0),
        Concat(name="joint", inputs=("cross", "mlp")),
        Linear(name="both", inputs=("joint",)),
        features.wide(bias=True),
        Add(name="logit", inputs=("wide", "both")),
    ]
    return features.spec("dcnv2", modules)


def fields_of(dims: list[int], rows: tuple[int, ...]) -> Features:
    """Fields of as many rows as there are in turn."""
    return Features(
        [
            FieldSpec(name=f"C{i}", rows=count, dim=dim, oov_row=count // 2)
            for i, dim in enumerate(dims)
            for count in (rows[i % len(rows)],)
        ]
    )


def model_of(name: str, seed: int = 0, rows: tuple[int, ...] = model_zoo.ROWS) -> CTRModel:
    dims, layers, hidden = FORMS[name]
    make = with_wide if name == "a wide part" else MODELS["dcnv2"]
    return even_model(make(fields_of(dims, rows), Deep(hidden), layers=layers), seed)


@lru_cache(maxsize=1)
def criteo() -> tuple[CTRModel, list[Batch]]:
    model = model_of("criteo")
    return model, batches(model, SIZES)


def engine_of(model: CTRModel, **options) -> CudaBackend:
    return cuda_engine(model, **{"precision": "fp32", "max_batch": MOST, **options})


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_within_its_bound(name):
    """Batches after one another, over an arena that holds nothing else's numbers."""
    model = model_of(name)
    made = criteo()[1] if name == "criteo" else batches(model, (65, 4097, 8449))
    engine = engine_of(model, graphs=len(name) % 2 == 0)
    assert (engine.fused_above, engine.fused_up_to) == (0, MOST)
    assert f"those of up to {MOST} in one kernel" in engine.describe()
    for batch, between in zip(made, reversed(made), strict=True):
        engine.poison()
        check(engine, batch, between)
        check_on_device(engine, batch)
    engine.close()


@pytest.mark.parametrize("use_oov", [False, True])
@pytest.mark.parametrize("name", ["criteo", "a wide part"])
def test_ids_outside_their_tables_as_by_the_steps(name, use_oov):
    """Scores, counts and the first of them, for ids of both types."""
    model = model_of(name)
    made = batches(model, (1, 65, 8448, 8449))
    one, steps = (engine_of(model, fused=on) for on in (True, False))
    assert steps.fused_up_to == 0
    check_bad_ids(one, steps, made, use_oov)
    one.close()
    steps.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("criteo", np.inf),
        ("criteo", -np.inf),
        ("criteo", np.nan),
        ("criteo", 3e38),
        ("one cross layer", 1e22),
        ("a strip of padding", np.inf),
    ],
)
def test_numbers_that_are_none_as_by_the_steps(name, value):
    """Infinite, not a number, or so large that a product overflows: in the rows they are in."""
    model = model_of(name, seed=1)
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
    assert not np.isfinite(got[0][~finite]).any()
    assert scaled_error(got[0][finite], expected[0][finite]) < BOUNDS["fp32"]


@pytest.mark.parametrize("name", ["criteo", "dims of four and twelve"])
def test_rows_of_very_different_magnitudes(name):
    """Samples of 1e-6 to 1e6 side by side, each as exact as its like are large."""
    magnitudes, variants = 13, 8
    model = model_of(name, rows=(magnitudes * variants,))
    powers = 10.0 ** (torch.arange(magnitudes * variants) % magnitudes - 6)
    for key, table in model.state_dict().items():
        if key.startswith("embedding/"):
            table.mul_(powers[:, None].float())
    rng, size = np.random.default_rng(0), 5000
    kind = np.arange(size) % magnitudes
    ids = kind + magnitudes * rng.integers(0, variants, (len(FORMS[name][0]), size))
    dense = np.empty((0, size), np.float32)
    expected = reference(model, ids, dense)
    like = np.array([np.median(np.abs(expected[kind == k])) for k in range(magnitudes)])
    assert like[-1] > 1e6 * max(1, like[0])
    engine = engine_of(model)
    error = np.abs(logits(engine, ids, dense) - expected) / np.maximum(1, like)[kind]
    assert error.max() < BOUNDS["fp32"], [error[kind == k].max() for k in range(magnitudes)]
    engine.close()


@pytest.mark.parametrize("name", ["criteo", "four of each"])
def test_cross_layers_of_unlike_magnitudes(name):
    """Their products are summed, each layer's in powers of two of its own."""
    model = model_of(name)
    weights = {
        key: value
        for key, value in model.state_dict().items()
        if key.startswith("cross/") and value.ndim == 2
    }
    assert len(weights) == FORMS[name][1]
    for number, key in enumerate(sorted(weights)):
        weights[key].mul_((1e-9, 1.0, 0.0, 3e-4)[number])
        weights[key][::3].mul_((1.0, 1e-14, 1.0, 1e-3)[number])
    engine = engine_of(model)
    for batch in batches(model, (65, 4097)):
        check(engine, batch, batch)
    engine.close()


def test_the_same_bits_every_time():
    """Among batches of other sizes, with and without graphs and delays."""
    model, made = criteo()
    there = [next(on_device(batch.ids)) for batch in made]
    firsts: dict[int, torch.Tensor] = {}
    for faults, graphs, turns in ((Faults(), True, 300), (Faults(delay_seed=3), False, 20)):
        engine = engine_of(model, graphs=graphs, faults=faults)
        for turn in range(turns):
            score(engine, there, turn % len(there), firsts)
        engine.close()


def score(
    engine: CudaBackend, there: list[torch.Tensor], number: int, firsts: dict[int, torch.Tensor]
) -> None:
    """The bits of a batch are those of its first time."""
    ids = there[number]
    got = torch.full((ids.shape[1],), torch.nan, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    engine.run_on_device(ids, None, got.data_ptr(), ids.shape[1], False, stream)
    assert not got.isnan().any()
    assert torch.equal(firsts.setdefault(number, got), got)


def test_batches_in_steps_between_those_in_one_kernel(monkeypatch):
    """They share the arena; batches started ahead of one another are in it one after another."""
    monkeypatch.setattr("dpiframe_core.engine.cuda.fused.FP16X3_STEPS_UP_TO", 1536)
    model, made = criteo()
    steps = batches(model, (1, 500, 1000, 1024))
    one = [made[4], made[-1], *batches(model, (1025,))]
    engine = engine_of(model)
    # 1,025 rows run in the bucket of 2,048.
    assert f"those of more than 1024 and up to {MOST} in one kernel" in engine.describe()
    for batch in (*steps, *one):
        check(engine, batch, made[4])
    there = [next(on_device(batch.ids)) for batch in (*steps, *one)]
    firsts: dict[int, torch.Tensor] = {}
    rng = np.random.default_rng(0)
    for turn in rng.integers(0, len(there), 100):
        score(engine, there, turn, firsts)
    outs = [[torch.full((i.shape[1],), torch.nan, device="cuda") for i in there] for _ in range(5)]
    torch.cuda.synchronize()
    for ids, out in ((i, o) for own in outs for i, o in zip(there, own, strict=True)):
        engine.start_on_device(ids, None, out.data_ptr(), ids.shape[1], False)
    engine.finish_on_device()
    for own in outs:
        for number, out in enumerate(own):
            assert torch.equal(firsts.get(number, out), out)
    engine.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("narrow", {"max_batch": 4096}),  # the arena is too small to work in
        ("criteo", {"precision": "tf32"}),
        ("criteo", {"fused": False}),
    ],
)
def test_engines_that_run_in_steps_alone(name, options):
    model = model_of(name)
    engine = engine_of(model, **options)
    assert engine.fused_up_to == 0
    assert "one kernel" not in engine.describe()
    for batch in batches(model, (65, 4096)):
        check(engine, batch, batch)
    engine.close()


def test_an_engine_for_few_rows_runs_in_steps(monkeypatch):
    monkeypatch.setattr("dpiframe_core.engine.cuda.fused.FP16X3_STEPS_UP_TO", 1536)
    engine = engine_of(model_of("criteo"), max_batch=1500)
    assert engine.fused_up_to == 0
    assert "one kernel" not in engine.describe()
    engine.close()


def test_a_refused_launch_makes_the_engine_unusable():
    model, made = criteo()
    engine = engine_of(model, faults=Faults(refused_step=1), graphs=False)
    with pytest.raises(RuntimeError, match="cudaErrorInvalid"):
        logits(engine, made[2].ids, made[2].dense)
    with pytest.raises(RuntimeError, match="failed before and cannot be used any more"):
        logits(engine, made[2].ids, made[2].dense)
    engine.close()
