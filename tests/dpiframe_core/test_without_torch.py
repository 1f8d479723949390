"""All that a GPU engine does before it meets its GPU leaves torch, slow to import, alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import model_zoo
import pytest

from dpiframe_core import _core, save_bundle
from dpiframe_core.model.builtin import MODELS, Deep, Features

ROOT = Path(__file__).resolve().parents[2]

LOWER = """
import sys
import numpy as np
import dpiframe_core.engine.engine, dpiframe_core.engine.loading
from dpiframe_core import open_bundle
from dpiframe_core.engine.cuda.device_layout import lay_out
from dpiframe_core.engine.cuda.device_program import as_matrix
from dpiframe_core.engine.host_inputs import checked_inputs, on_device
from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.engine.cuda.fused import fused_form

bundle = open_bundle(sys.argv[1])
program = lower(bundle.spec, bundle.arrays(), DEVICE_PASSES)
lay_out(program, "fp16", 512, 4, "breadth_first")
fused_form(program, "fp16")
for weight in program.weights.values():
    as_matrix("numbers", weight)
ids, dense = np.zeros((7, 19), np.int64), np.zeros((2, 19), np.float32)
assert checked_inputs(bundle.spec, list(ids), dense)[2] == 19
assert not on_device(ids) and not on_device(list(ids)) and not on_device(None)
print("torch" in sys.modules)
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not _core.build_info()["cuda"], reason="needs a build with CUDA, but no GPU")
@pytest.mark.parametrize("name", MODELS)
def test_a_bundle_is_made_a_program_for_a_gpu(name, tmp_path):
    features = Features(model_zoo.fields(16), ["I1", "I2"])
    spec = MODELS[name](features, Deep((33, 20), batch_norm=True))
    save_bundle(tmp_path / "bundle", spec, model_zoo.random_model(spec).state_dict())
    assert run(LOWER, str(tmp_path / "bundle")) == "False"
