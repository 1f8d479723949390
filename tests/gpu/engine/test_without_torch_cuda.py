"""A GPU engine scores host arrays in a process without torch, and tensors once there is torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import model_zoo
import numpy as np
import pytest

from dpiframe_core import load_engine, save_bundle
from dpiframe_core.model.builtin import MODELS, Deep, Features

ROOT = Path(__file__).resolve().parents[3]

SCORE = """
import sys
import numpy as np
from dpiframe_core import load_engine

folder, precision = sys.argv[1:]
batch = np.load(f"{folder}/batch.npz")
engine = load_engine(f"{folder}/bundle", device="cuda", precision=precision, max_batch=512)
scores = engine.score(list(batch["ids"]), batch["dense"])
(streamed,) = engine.stream([(batch["ids"], batch["dense"])])
np.testing.assert_array_equal(streamed, scores)
np.save(f"{folder}/scores.npy", scores)
print("torch" in sys.modules)

import torch

ids, dense = (torch.from_numpy(batch[name]).cuda() for name in ("ids", "dense"))
np.testing.assert_array_equal(engine.score(ids, dense).cpu().numpy(), scores)
engine.close()
"""


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_host_arrays_are_scored_without_torch(name, precision, tmp_path):
    features = Features(model_zoo.fields(16), ["I1", "I2"])
    spec = MODELS[name](features, Deep((33, 20), batch_norm=True))
    bundle = save_bundle(tmp_path / "bundle", spec, model_zoo.random_model(spec).state_dict())
    ids, dense = model_zoo.random_inputs(spec, 1111)
    np.savez(tmp_path / "batch.npz", ids=ids, dense=dense)
    command = [sys.executable, "-c", SCORE, str(tmp_path), precision]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    engine = load_engine(bundle, device="cuda", precision=precision, max_batch=512)
    scores = np.load(tmp_path / "scores.npy")
    np.testing.assert_array_equal(scores, engine.score(ids, dense))
    expected = load_engine(bundle, device="cpu").score(ids, dense)
    np.testing.assert_allclose(scores, expected, atol=1e-5 if precision == "fp32" else 2e-2)
