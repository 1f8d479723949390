"""What the engine on a GPU takes, as its users call it: host arrays, device arrays, streams."""

from __future__ import annotations

import model_zoo
import numpy as np
import pytest
import torch

from dpiframe_core import BadIdError, load_engine, save_bundle
from dpiframe_core.model.builtin import Deep, Features, dcnv2


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A DCNv2 with dense features and an oov row in each field."""
    fields = [f.model_copy(update={"oov_row": f.rows // 2}) for f in model_zoo.fields(16)]
    spec = dcnv2(Features(fields, ["I1", "I2", "I3"], "field"), Deep((33, 20)))
    model = model_zoo.random_model(spec)
    path = tmp_path_factory.mktemp("bundle") / "b"
    return model, save_bundle(path, spec, model.state_dict())


def test_forms_of_host_input_give_one_result(bundle):
    model, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    ids, dense = model_zoo.random_inputs(model.spec, 333)
    expected = engine.score(ids, dense)
    strided = np.repeat(ids, 2, axis=1)[:, ::2]
    mixed = [c.astype(np.int32) if i % 2 else c for i, c in enumerate(ids)]
    for form in [(strided, dense), (mixed, list(dense)), (ids, np.asfortranarray(dense))]:
        np.testing.assert_array_equal(engine.score(*form), expected)
    reference = 1 / (1 + np.exp(-model_zoo.reference_logits(model, ids, dense)))
    np.testing.assert_allclose(expected, reference, atol=3e-6)
    assert engine.device == "cuda:0" and "FusedLinear" in engine.describe()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_arrays_on_the_device_are_read_where_they_lie(bundle, dtype):
    model, opened = bundle
    engine = load_engine(opened, device="cuda:0", max_batch=128)
    ids, dense = model_zoo.random_inputs(model.spec, 333)
    expected = engine.score(ids, dense)
    there = torch.from_numpy(ids).to("cuda", dtype), torch.from_numpy(dense).cuda()
    assert torch.equal(engine.score(*there).cpu(), torch.from_numpy(expected))
    part = engine.score(there[0][:, 5:50], there[1][:, 5:50])
    # Another bucket: the parts that dots are summed in may differ.
    np.testing.assert_allclose(part.cpu(), expected[5:50], rtol=0, atol=1e-6)
    assert engine.score(there[0][:, :0], there[1][:, :0]).shape == (0,)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**7)
        late = there[0].clone()
        assert torch.equal(engine.score(late, there[1]).cpu(), torch.from_numpy(expected))
    with pytest.raises(ValueError, match="dense must be an array on cuda:0"):
        engine.score(there[0], dense)
    with pytest.raises(ValueError, match=r"ids must have shape \[7, B\], got \[3, 333\]"):
        engine.score(there[0][:3], there[1])


@pytest.mark.parametrize("buffers", [3, 16, 40])
def test_buffers_in_turn_have_the_scores_of_their_own_rows(bundle, buffers):
    """Also more of them than a bucket keeps executable graphs for; batches of two buckets."""
    model, opened = bundle
    engine = load_engine(opened, device="cuda:0", max_batch=1024)
    ids, dense = (torch.from_numpy(x) for x in model_zoo.random_inputs(model.spec, 600 * buffers))
    inputs = [
        (i.contiguous().cuda(), d.contiguous().cuda())
        for i, d in zip(ids.split(600, 1), dense.split(600, 1), strict=True)
    ]
    launches = load_engine(opened, device="cuda:0", max_batch=1024, graphs=False)
    rng = np.random.default_rng(7)
    for k in [*range(buffers)] * 3 + rng.integers(buffers, size=100).tolist():
        size = (600, 600, 300)[rng.integers(3)]
        part = [x[:, :size] for x in inputs[k]]
        assert torch.equal(engine.score(*part), launches.score(*part))


def repeating(tmp_path, **keys):
    """A bundle, and one of the same weights, of which all ids of fields but the first repeat."""
    plain = [f.model_copy(update={"oov_row": f.rows // 2}) for f in model_zoo.fields(16)]
    model = model_zoo.random_model(dcnv2(Features(plain, ["I1"], "field"), Deep((20,))))
    fields = [f.model_copy(update={"period": f.rows, **keys}) for f in plain[1:]]
    spec = dcnv2(Features([plain[0], *fields], ["I1"], "field"), Deep((20,)))
    weights = model.state_dict()
    return save_bundle(tmp_path / "a", model.spec, weights), save_bundle(
        tmp_path / "b", spec, weights
    )


@pytest.mark.parametrize("options", [{}, {"graphs": False}, {"precision": "fp16"}])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("batch", [1, 333, 700, 5000])
def test_ids_of_fields_with_a_period_have_no_end(tmp_path, batch, dtype, options):
    plain, bundle = repeating(tmp_path)
    rows = np.array([f.rows for f in plain.spec.fields])[:, None]
    reach = 2**31 if dtype == torch.int32 else 2**63 - 1
    ids = np.random.default_rng(batch).integers(-reach, reach, (len(rows), batch))
    ids[0] %= rows[0]
    dense = model_zoo.random_inputs(plain.spec, batch)[1]
    options = {"device": "cuda", "max_batch": 4096, **options}
    expected = load_engine(plain, **options).score(np.ascontiguousarray(ids % rows), dense)
    engine = load_engine(bundle, **options)
    given = ids.astype(np.int32) if dtype == torch.int32 else ids
    mixed = [
        (c % r).astype(np.int32) if i % 2 else c
        for i, (c, r) in enumerate(zip(ids, rows, strict=True))
    ]
    pinned = torch.from_numpy(given).pin_memory().numpy()
    for host in (given, list(given), mixed, pinned, np.repeat(given, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(engine.score(host, dense), expected)
        np.testing.assert_array_equal(next(engine.stream([(host, dense)])), expected)
    there = torch.from_numpy(given).cuda(), torch.from_numpy(dense).cuda()
    apart = [torch.empty(len(x), batch + 3, dtype=x.dtype, device="cuda")[:, :batch] for x in there]
    for x, source in zip(apart, there, strict=True):
        x.copy_(source)
    for _ in range(2):
        for form in (there, apart, tuple(OnlyInterface(x) for x in there)):
            torch.cuda.synchronize()
            found = torch.as_tensor(engine.score(*form), device="cuda").cpu()
            assert torch.equal(found, torch.from_numpy(expected))


def test_ids_beyond_the_last_that_repeats_are_told_as_they_were_given(tmp_path):
    plain, bundle = repeating(tmp_path, last=10**6)
    ids, dense = model_zoo.random_inputs(plain.spec, 700)
    declared = ids.copy()
    rows = np.array([f.rows for f in plain.spec.fields])[:, None]
    ids[1:] += rows[1:] * 100  # they repeat; the following are no ids
    ids[3, 600], ids[3, 650], ids[2, 600], ids[0, 610] = 10**6 + 1, -(10**6) - 1, 2**62, 10**6
    for f, sample in ((3, 600), (3, 650), (2, 600), (0, 610)):
        declared[f, sample] = plain.spec.fields[f].oov_row
    there = torch.from_numpy(ids).cuda(), torch.from_numpy(dense).cuda()
    failing = load_engine(bundle, device="cuda", max_batch=512)
    engine = load_engine(bundle, device="cuda", max_batch=512, on_bad_id="oov")
    expected = load_engine(plain, device="cuda", max_batch=512).score(declared, dense)
    for form in [(ids, dense), there, there]:
        with pytest.raises(BadIdError, match=rf"id {2**62} in row 600 of field C2"):
            failing.score(*form)
        found = torch.as_tensor(engine.score(*form), device="cuda").cpu().numpy()
        np.testing.assert_array_equal(found, expected)
        assert engine.bad_ids.tolist() == [1, 0, 1, 2, 0, 0, 0]


class OnlyInterface:
    """An array on the GPU of a library other than torch."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.shape = tensor, tuple(tensor.shape)

    @property
    def __cuda_array_interface__(self) -> dict:
        return self.tensor.__cuda_array_interface__


def test_arrays_of_other_libraries_on_the_device(bundle):
    model, opened = bundle
    engine = load_engine(opened, device="cuda:0", max_batch=128)
    ids, dense = model_zoo.random_inputs(model.spec, 111)
    there = torch.from_numpy(ids).cuda(), torch.from_numpy(dense).cuda()
    torch.cuda.synchronize()  # the interface tells of no stream
    got = engine.score(*(OnlyInterface(x) for x in there))
    np.testing.assert_array_equal(torch.as_tensor(got).cpu(), engine.score(ids, dense))


def test_bad_ids_fail_or_score_as_the_oov_row(bundle):
    model, opened = bundle
    ids, dense = model_zoo.random_inputs(model.spec, 333)
    declared = ids.copy()
    ids[3, 200], ids[3, 300], ids[0, 200] = 19, -7, 2**40
    declared[3, [200, 300]], declared[0, 200] = 9, 0
    there = torch.from_numpy(ids).cuda(), torch.from_numpy(dense).cuda()
    failing = load_engine(opened, device="cuda", max_batch=128)
    for form in [(ids, dense), there]:
        with pytest.raises(BadIdError, match=f"id {2**40} in row 200 of field C0") as error:
            failing.score(*form)
        assert (error.value.field, error.value.row, error.value.value) == ("C0", 200, 2**40)
    engine = load_engine(opened, device="cuda", max_batch=128, on_bad_id="oov")
    expected = engine.score(declared, dense)
    for _ in range(2):  # counters start anew
        np.testing.assert_array_equal(engine.score(ids, dense), expected)
        assert engine.bad_ids.tolist() == [1, 0, 0, 2, 0, 0, 0]
        assert torch.equal(engine.score(*there).cpu(), torch.from_numpy(expected))
        assert engine.bad_ids.tolist() == [1, 0, 0, 2, 0, 0, 0]


def test_a_stream_of_batches_of_all_sizes(bundle):
    model, opened = bundle
    engine = load_engine(opened, device="cuda", max_batch=128)
    batches = [
        model_zoo.random_inputs(model.spec, size, size)
        for size in (0, 1, 500, 0, 128, 129, 19, 1111, 0)
    ]
    expected = [engine.score(*batch) for batch in batches]
    got = list(engine.stream(iter(batches)))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    next(engine.stream(iter(batches[1:])))  # left early: the engine stays usable
    np.testing.assert_array_equal(engine.score(*batches[2]), expected[2])
    batches[4][0][2, 77] = 99
    with pytest.raises(BadIdError, match="id 99 in row 77 of field C2"):
        list(engine.stream(iter(batches)))
    np.testing.assert_array_equal(engine.score(*batches[2]), expected[2])


def test_wrong_devices_are_named(bundle):
    _, opened = bundle
    with pytest.raises(ValueError, match="device cuda:99: this machine has"):
        load_engine(opened, device="cuda:99")
    with pytest.raises(ValueError, match="device must be one of auto, cpu, cuda"):
        load_engine(opened, device="tpu")
    assert load_engine(opened, max_batch=64).device == "cuda:0"
