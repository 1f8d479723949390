"""Engines that end in another module: embeddings, and the logits of other tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from model_zoo import all_specs, random_inputs, random_model

from dpiframe_core import ModelSpec, load_engine, save_bundle
from dpiframe_core.errors import BadIdError, SpecError
from dpiframe_core.lowering import lower
from dpiframe_core.model.torch_module import CTRModel
from dpiframe_core.program.interpreter import run_program

SPECS = {
    name: all_specs()[name] for name in ("dcnv2-d10-field-bn", "deepfm-d1-raw", "wdl-mixed-raw-bn")
}


@pytest.fixture(params=SPECS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> CTRModel:
    model = random_model(SPECS[request.param])
    save_bundle(tmp_path / "bundle", model.spec, model.state_dict())
    return model


def expected(model: CTRModel, spec: ModelSpec, ids: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """The module's output in float64, by plain torch operations."""
    weights = {name: weight.double() for name, weight in model.state_dict().items()}
    program = lower(spec, weights, passes=())
    found: np.ndarray = run_program(
        program, torch.from_numpy(ids).long(), torch.from_numpy(dense).double()
    ).numpy()
    return found


def test_every_module_is_an_output(model: CTRModel, tmp_path: Path) -> None:
    ids, dense = random_inputs(model.spec, 111)
    for module in model.spec.modules:
        spec = model.spec.ending_in(module.name)
        engine = load_engine(
            tmp_path / "bundle", device="cpu", max_batch=40, light=True, output=module.name
        )
        assert engine.width == spec.width
        wanted = expected(model, spec, ids, dense)
        found = engine.logits(ids, dense) if spec.width == 1 else engine.embed(ids, dense)
        assert found.shape == ((111,) if spec.width == 1 else (111, spec.width))
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5, err_msg=module.name)


def test_an_embedding_is_no_score(tmp_path: Path) -> None:
    model = random_model(SPECS["dcnv2-d10-field-bn"])
    save_bundle(tmp_path / "bundle", model.spec, model.state_dict())
    wide = next(m.name for m in model.spec.modules if model.spec.ending_in(m.name).width > 1)
    ids, dense = random_inputs(model.spec, 19)
    engine = load_engine(tmp_path / "bundle", device="cpu", output=wide)
    for refused in (engine.score, engine.logits):
        with pytest.raises(ValueError, match="use embed"):
            refused(ids, dense)
    with pytest.raises(ValueError, match="use embed"):
        next(iter(engine.stream([(ids, dense)])))
    with pytest.raises(BadIdError):
        engine.embed(ids + 10_000, dense)
    with pytest.raises(ValueError, match="use score"):
        load_engine(tmp_path / "bundle", device="cpu").embed(ids, dense)
    with pytest.raises(SpecError, match="no module 'x'"):
        load_engine(tmp_path / "bundle", device="cpu", output="x")
