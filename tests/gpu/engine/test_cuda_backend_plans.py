"""Plans on the GPU: random delays before steps, over any number of streams, change no bit."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from cuda_cases import POLICIES, PRECISIONS, cuda_engine, inputs, large_model, logits

from dpiframe_core.engine.cuda.backend import Faults
from dpiframe_core.lowering import DEVICE_FORM
from dpiframe_core.model.torch_module import CTRModel

ROWS = 1111
MAX_BATCH = 400  # three parts that overlap in the ring
WAYS = ("side_by_side", "in_turn", "measured")


@lru_cache(maxsize=2)
def serial(name: str) -> tuple[CTRModel, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """A model, inputs, and the logits of one stream without delays by precision."""
    model, expected = large_model(name), {}
    ids, dense = inputs(model.spec, ROWS)
    for precision in PRECISIONS:
        engine = cuda_engine(
            model,
            precision=precision,
            max_batch=MAX_BATCH,
            streams=1,
            policy="serial",
            graphs=False,
            fused=False,
        )
        expected[precision] = logits(engine, ids, dense)
        engine.close()
    return model, ids, dense, expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["wdl", "deepfm", "dcn", "dcnv2"])
def test_delays_streams_and_graphs_change_no_bit(name, policy):
    model, ids, dense, expected = serial(name)
    for streams in range(1, 9):
        for graphs in (False, True):
            precision = PRECISIONS[(streams + 2 * graphs) % 4]
            engine = cuda_engine(
                model,
                faults=Faults(delay_seed=streams, branches="side_by_side"),
                precision=precision,
                max_batch=MAX_BATCH,
                streams=streams,
                policy=policy,
                graphs=graphs,
                fused=False,
            )
            for _ in range(3):
                engine.poison()
                got = logits(engine, ids, dense)
                np.testing.assert_array_equal(got, expected[precision], f"{engine.options}")
            engine.close()


@pytest.mark.parametrize("branches", WAYS)
@pytest.mark.parametrize("policy", POLICIES)
def test_delays_in_a_program_of_many_small_steps(policy, branches):
    """The unfused program has the most branches and the most reuse of memory."""
    model = large_model("dcnv2")
    ids, dense = inputs(model.spec, ROWS)
    plain = cuda_engine(model, DEVICE_FORM, max_batch=MAX_BATCH, streams=1, policy="serial")
    expected = logits(plain, ids, dense)
    for streams in (2, 3, 5, 8):
        engine = cuda_engine(
            model,
            DEVICE_FORM,
            Faults(delay_seed=streams, branches=branches),
            max_batch=MAX_BATCH,
            streams=streams,
            policy=policy,
        )
        for _ in range(3):
            engine.poison()
            np.testing.assert_array_equal(logits(engine, ids, dense), expected)
        engine.close()
    plain.close()


def test_which_batches_run_on_one_stream_is_told():
    model = large_model("dcnv2")
    options = {"max_batch": 1111, "streams": 4, "policy": "breadth_first", "fused": False}
    rows = {}
    for way in WAYS:
        engine = cuda_engine(model, DEVICE_FORM, Faults(branches=way), **options)
        rows[way] = engine._native.buckets_in_turn
        told = f"all on stream 0 in batches of {', '.join(map(str, rows[way]))} rows"
        assert (told in engine.describe()) == bool(rows[way])
        engine.close()
    assert rows["side_by_side"] == [] and rows["in_turn"] == [512, 1024, 1111]
    assert set(rows["measured"]) <= set(rows["in_turn"])
