"""Engine on a GPU as its users see it: page-locked memory, device arrays, one caller, options."""

from __future__ import annotations

import itertools
import os
import threading
import warnings

import model_zoo
import numpy as np
import pytest
import torch
from cuda_cases import free_bytes

from dpiframe_core import BadIdError, _core, load_engine, save_bundle
from dpiframe_core.model.builtin import Deep, Features, dcnv2

PAGE = 2**21  # the driver's own unit
BATCH = 20_000  # rows of ids are long enough for the GPU to read them from a larger array


@pytest.fixture(scope="module", params=[3, 0], ids=["dense", "onehot"])
def bundle(request, tmp_path_factory):
    """A DCNv2 with an oov row in each field."""
    fields = [f.model_copy(update={"oov_row": f.rows // 2}) for f in model_zoo.fields(16)]
    dense = [f"I{i}" for i in range(request.param)]
    spec = dcnv2(Features(fields, dense, "field"), Deep((33, 20)))
    model = model_zoo.random_model(spec)
    return spec, save_bundle(tmp_path_factory.mktemp("bundle") / "b", spec, model.state_dict())


def on_gpu(ids: np.ndarray, dense: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(ids).cuda(), torch.from_numpy(dense).cuda()


def pinned(ids: np.ndarray, dense: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(ids).pin_memory(), torch.from_numpy(dense).pin_memory()


def in_a_larger_one(matrix: torch.Tensor) -> torch.Tensor:
    rows, columns = matrix.shape
    larger = matrix.new_zeros(rows, columns + 8)
    larger[:, 3 : 3 + columns] = matrix
    return larger[:, 3 : 3 + columns]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("max_batch", [BATCH, 9000, 100])  # whole, rows apart, rows too short
def test_page_locked_memory_gives_the_scores_of_any_other(bundle, dtype, max_batch):
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=max_batch)
    sizes = (BATCH, 19, 9001, 1)
    plain = [model_zoo.random_inputs(spec, size, size) for size in sizes]
    plain = [(ids.astype(dtype), dense) for ids, dense in plain]
    expected = [engine.score(*batch) for batch in plain]
    # A batch belongs to nobody but the engine once the next one is asked for.
    for made in (pinned, lambda *x: tuple(t.numpy() for t in pinned(*x))):
        got = list(engine.stream(made(*batch) for batch in plain))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    columns = [([*pinned(ids, dense)[0]], list(dense)) for ids, dense in plain]
    for a, b in zip(engine.stream(columns), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_ids_in_page_locked_memory_are_found(bundle):
    spec, opened = bundle
    ids, dense = model_zoo.random_inputs(spec, BATCH)
    ids[2, 777], ids[5, 10_000], ids[5, 10_001] = 2**32, -(2**40), 2**31
    batch = pinned(ids, dense)
    engine = load_engine(opened, device="cuda", max_batch=BATCH, on_bad_id="oov")
    declared = ids.copy()
    declared[2, 777], declared[5, 10_000:10_002] = 3, 500
    np.testing.assert_array_equal(engine.score(*batch), engine.score(declared, dense))
    engine.score(*batch)
    assert engine.bad_ids.tolist() == [0, 0, 1, 0, 0, 2, 0]
    failing = load_engine(opened, device="cuda", max_batch=BATCH)
    with pytest.raises(BadIdError, match=f"id {2**32} in row 777 of field C2"):
        failing.score(*batch)
    assert failing.bad_ids.tolist() == [0, 0, 1, 0, 0, 2, 0]


class OtherArray:
    """An array on the GPU of a library other than torch, of which one may ask nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self) -> dict:
        return self.tensor.__cuda_array_interface__


needs_exchange = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="this torch has no such functions",
)


@needs_exchange
def test_tensors_are_found_without_asking_them_in_python(bundle, monkeypatch):
    """On torch's current stream, where they come late; what is not found is asked."""
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128, on_bad_id="oov")
    ids, dense = model_zoo.random_inputs(spec, 111)
    ids[2, 7] = -1
    expected, there = engine.score(ids, dense), on_gpu(ids, dense)
    late = torch.zeros_like(there[0])
    engine.score(*there)  # the first one asks
    scorer = engine._tensor_scorer
    for other in ((there[0].T, there[1]), (there[0][:, :0], there[1][:, :0]), (ids, dense)):
        assert scorer.score(*other) is None
    monkeypatch.setattr(engine._backend, "run_in_place", None)
    for _ in range(5):
        with torch.cuda.stream(torch.cuda.Stream()):
            late.zero_()
            torch.cuda._sleep(10**6)
            late.copy_(there[0])
            got = engine.score(late, there[1])
        np.testing.assert_array_equal(got.cpu(), expected)
        assert engine.bad_ids.tolist() == [0, 0, 1, 0, 0, 0, 0]
        assert len(engine.batch_seconds) == 1


@needs_exchange
def test_scores_are_the_callers_whatever_was_made_ahead(bundle):
    """Memory for the next call is taken ahead: of the same size, stream and inference mode."""
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    kept = []
    for size, stream, mode in itertools.product((111, 111, 7), (None, torch.cuda.Stream()), (0, 1)):
        ids, dense = model_zoo.random_inputs(spec, size, len(kept))
        expected, there = engine.score(ids, dense), on_gpu(ids, dense)
        torch.cuda.synchronize()
        for _ in range(3):
            with torch.cuda.stream(stream), torch.inference_mode(bool(mode)):
                got = engine.score(*there)
            assert got.is_inference() == bool(mode)
            kept.append((got, expected))
    torch.cuda.synchronize()
    for got, expected in kept:
        np.testing.assert_array_equal(got.cpu(), expected)


@needs_exchange
def test_close_frees_all_while_an_error_is_handled(bundle, alone):
    """The frames of its traceback hold what scored."""
    spec, opened = bundle
    ids, dense = model_zoo.random_inputs(spec, 111)
    there = on_gpu(ids, dense)
    ids[2, 7] = -1
    bad = on_gpu(ids, dense)
    load_engine(opened, device="cuda", max_batch=BATCH).close()
    before = free_bytes()
    engine = load_engine(opened, device="cuda", max_batch=BATCH)
    engine.score(*there)
    assert before - free_bytes() > PAGE
    scorer = engine._tensor_scorer
    try:
        engine.score(*bad)
    except BadIdError:
        engine.close()
        assert before - free_bytes() <= PAGE
    else:
        raise AssertionError("no error")
    with pytest.raises(RuntimeError, match="the engine is closed"):
        scorer.score(*there)
    with pytest.raises(RuntimeError, match="the engine is closed"):
        engine.score(*there)


@needs_exchange
def test_a_failure_to_make_scores_comes_to_the_call_that_needs_them(bundle):
    """Not to the one that asks ahead; an interrupt comes when its batch is done."""
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    there = on_gpu(*model_zoo.random_inputs(spec, 111))
    expected = engine.score(*there)
    errors: list[BaseException] = []

    def make(batch):
        if errors:
            raise errors.pop()
        return engine._backend.inputs.scores(batch)

    tensors, turn = engine._backend.inputs.tensors, engine._backend._turn
    native = _core.TensorScorer(
        engine._backend._ring, tensors, turn, False, make, torch.is_inference_mode_enabled
    )
    errors[:] = [torch.OutOfMemoryError("none left")]
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        native.score(*there)
    assert torch.equal(native.score(*there)[0], expected)
    errors[:] = [torch.OutOfMemoryError("none left")]  # ahead: there is memory when it is needed
    assert torch.equal(native.score(*there)[0], expected)
    assert not errors and torch.equal(native.score(*there)[0], expected)
    errors[:] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        native.score(*there)
    assert torch.equal(native.score(*there)[0], expected)
    engine.close()


def test_device_batches_of_any_size_and_form(bundle):
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    for size in (0, 1, 128, 129, 1111):
        ids, dense = model_zoo.random_inputs(spec, size, size)
        expected = engine.score(ids, dense)
        there = on_gpu(ids, dense)
        wide = tuple(in_a_larger_one(x) for x in there)
        torch.cuda.synchronize()  # the other array tells of no stream
        for form in (there, wide, tuple(OtherArray(x) for x in there)):
            got = engine.score(*form)
            np.testing.assert_array_equal(torch.as_tensor(got, device="cuda").cpu(), expected)
        assert len(engine.batch_seconds) == (size + 127) // 128
        assert engine.bad_ids.tolist() == [0] * 7


def test_what_the_gpu_took_for_a_call(bundle):
    """Each part took some time, none more than all; the copy no less than PCIe allows."""
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=BATCH)
    ids, dense = model_zoo.random_inputs(spec, 19 * BATCH)
    for form in ((ids, dense), pinned(ids, dense)):
        for _ in range(2):  # nothing is carried over to the next call
            list(engine.stream([form]))
            engine.score(*form)
            took, total = engine.device_seconds, sum(engine.batch_seconds)
            assert all(0 < seconds < total for seconds in took)
            assert took.copy_in > ids.size * 4 / 200e9
    engine.logits(ids[:, :1], dense[:, :1])
    assert 0 < engine.device_seconds.compute < took.compute
    engine.score(*on_gpu(ids, dense))
    assert engine.device_seconds == (0, 0, 0)


def test_a_bad_id_of_a_later_part_on_the_device_has_its_place(bundle):
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    ids, dense = model_zoo.random_inputs(spec, 1111)
    ids[3, 700] = 19
    there = on_gpu(ids, dense)
    for form in (there, tuple(OtherArray(x) for x in there)):
        with pytest.raises(BadIdError, match="id 19 in row 700 of field C3"):
            engine.score(*form)
        assert engine.bad_ids.tolist() == [0, 0, 0, 1, 0, 0, 0]
    ids[3, 700] = 18
    np.testing.assert_array_equal(engine.score(*on_gpu(ids, dense)).cpu(), engine.score(ids, dense))
    assert engine.bad_ids.tolist() == [0] * 7


def test_device_inputs_that_do_not_fit_are_named(bundle):
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    ids, dense = on_gpu(*model_zoo.random_inputs(spec, 19))
    for bad, message in [
        (ids.float(), "ids must be of type <i4 or <i8, got torch.float32"),
        (ids.T.contiguous().T, "ids must be contiguous along the batch"),
        (ids[0], r"ids must have shape \[7, B\], got \[19\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            engine.score(bad, dense)
    if spec.dense:
        with pytest.raises(ValueError, match=r"one batch, got \[5, 19\]"):
            engine.score(ids, dense[:, :5])
        with pytest.raises(ValueError, match="dense must be an array on cuda:0, as the other"):
            engine.score(ids)


@pytest.mark.parametrize("graphs", [False, True])
def test_scores_are_ready_on_return_and_follow_the_callers_stream(bundle, graphs):
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=BATCH, graphs=graphs)
    first, second = (model_zoo.random_inputs(spec, BATCH, seed) for seed in (1, 2))
    expected = engine.score(*second)
    there, late = on_gpu(*first), on_gpu(*second)
    torch.cuda.synchronize()
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10**7)
            for x, y in zip(there, late, strict=True):
                x.copy_(y)
            got = engine.score(*there)
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):  # does not wait for `stream`
            np.testing.assert_array_equal(got.cpu(), expected)
        for x, y in zip(there, on_gpu(*first), strict=True):
            x.copy_(y)
        torch.cuda.synchronize()


def test_one_thread_and_one_process_at_a_time(bundle):
    spec, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    batch = model_zoo.random_inputs(spec, 333)
    there = on_gpu(*batch)
    expected = engine.score(*batch)
    stream = engine.stream([batch, batch])
    next(stream)
    refused = []

    def use() -> None:
        for form in (batch, there):
            try:
                engine.score(*form)
            except RuntimeError as error:
                refused.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(refused) == 2 and all("another thread" in text for text in refused)
    stream.close()
    np.testing.assert_array_equal(engine.score(*batch), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads
        child = os.fork()
    if child == 0:
        try:
            engine.score(*batch)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(engine.score(*there).cpu(), expected)


def test_no_policy_changes_a_score(bundle):
    spec, opened = bundle
    ids, dense = model_zoo.random_inputs(spec, 1111)
    scores = []
    for policy in ("serial", "depth_first", "breadth_first"):
        for graphs in (False, True):
            engine = load_engine(opened, device="cuda", policy=policy, graphs=graphs)
            scores.append(engine.score(ids, dense))
            engine.close()
    for other in scores[1:]:
        np.testing.assert_array_equal(other, scores[0])
