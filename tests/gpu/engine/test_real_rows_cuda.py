"""Models trained on real Criteo and Avazu rows: logits within bounds and AUC kept on the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from cuda_cases import BOUNDS, PRECISIONS, cuda_options, logits, scaled_error

from dpiframe_core import CTRModel, load_engine
from dpiframe_core.engine.cuda.backend import CudaBackend
from dpiframe_core.evaluation import auc
from dpiframe_core.features import Encoder
from dpiframe_core.lowering import DEVICE_PASSES, lower
from pipeline.data.convert import ConvertOptions, convert
from pipeline.models.training import TrainOptions, train

# data set -> label, how its features are trained
DATA = {
    "criteo": ("label", {"integers": "dense", "dim": 10}),
    "avazu": ("click", {"categoricals": "vocabulary", "dim": 4}),
}
CASES = [(d, m) for d in DATA for m in ("wdl", "deepfm", "dcn", "dcnv2")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def trained(request, tmp_path_factory, shared_data):
    """A bundle, its encoded rows, their labels and the float64 model's logits."""
    name, model_name = request.param
    label, training = DATA[name]
    folder = tmp_path_factory.mktemp(f"{name}_{model_name}")
    source = next(Path(shared_data).glob(f"{name}_*.[ct]sv"))
    convert(ConvertOptions(dataset=name, inputs=(source,), output=folder / "rows"))
    bundle = train(
        TrainOptions(
            input=(folder / "rows",),
            output=folder / "bundle",
            dataset=name,
            model=model_name,
            hidden=(32, 16),
            modulus=1000,
            min_count=2,
            batch_norm=True,
            learning_rate=3e-3,
            epochs=4,
            **training,
        )
    ).bundle
    table = pq.read_table(folder / "rows")
    rows = Encoder(bundle.schema, bundle.vocabularies).encode(table)
    ids, dense = np.stack(rows.ids), np.stack(rows.dense) if rows.dense else None
    model = CTRModel.from_weights(bundle.spec, bundle.weights()).double()
    with torch.no_grad():
        values = None if dense is None else torch.from_numpy(dense).double()
        expected = model(torch.from_numpy(ids), values).numpy()
    return bundle, ids, dense, table[label].to_numpy(), expected


@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_and_auc_of_real_rows(trained, precision):
    bundle, ids, dense, labels, expected = trained
    engine = load_engine(bundle, device="cuda", precision=precision, max_batch=4096)
    found = engine.logits(ids, dense)
    engine.close()
    assert scaled_error(found, expected) < BOUNDS[precision]
    assert auc(labels, expected) > 0.55
    assert abs(auc(labels, found) - auc(labels, expected)) < 1e-4


def test_logits_of_real_rows_in_eight_bits(trained):
    """`load_engine` computes bf16 in fp16 where it can; here it does not."""
    bundle, ids, dense, _, expected = trained
    dense = np.zeros((0, ids.shape[1]), np.float32) if dense is None else dense
    program = lower(bundle.spec, bundle.arrays(), DEVICE_PASSES)
    engine = CudaBackend(program, cuda_options(precision="bf16", max_batch=4096))
    assert scaled_error(logits(engine, ids, dense), expected) < BOUNDS["bf16"]
    engine.close()
