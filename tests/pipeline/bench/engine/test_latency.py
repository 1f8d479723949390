"""The latency benchmark: implementations agree, and its table says what was measured."""

from __future__ import annotations

import mixed_types
import numpy as np
import pytest
import torch

from dpiframe_core import CTRModel, save_bundle
from dpiframe_core.frontend.check import rounding_noise, sigmoid
from dpiframe_core.lowering import lower
from dpiframe_core.program.interpreter import run_program
from dpiframe_core.program.steps import Lookup
from pipeline.bench.cases.engine_case import EngineCase, criteo_fields
from pipeline.bench.cases.random_data import flat_table
from pipeline.bench.engine import latency as bench
from pipeline.bench.engine.ablation import VARIANTS
from pipeline.bench.engine.agreement import AS_OURS, largest_difference
from pipeline.bench.engine.implementations import OURS, Implementation
from pipeline.bench.engine.latency import bench_engine, show
from pipeline.bench.engine.peers import Dense, OneTable, Peer, PerField
from pipeline.bench.engine.reference import exact_logits
from pipeline.bench.engine.torch_models import AUTOCAST, MIXED, UserModel
from pipeline.bench.timing import ROTATED_INPUTS, time_interleaved
from pipeline.errors import ConfigError, DpiframeError

SMALL = {"scale": 1e-5, "hidden": (8, 5), "dim": 4}
MODELS = ("wdl", "deepfm", "dcn", "dcnv2")


@pytest.mark.slow
def test_a_small_case_runs_and_agrees():
    case = EngineCase(model="deepfm", batch=19, **SMALL, dense=3, repeats=3)
    report = bench_engine(case)
    assert report.largest_difference < 1e-5
    peers = {"eager", "one-table", "compile", "one-table, compile"}
    assert set(report.ratios()) == peers, report.failed
    assert report.largest_error < 1e-5
    assert report.of_floor() > 0
    assert "deepfm, batch 19, 39 fields + 3 dense" in show(report)
    assert "of our time" in show(report)


def test_a_turn_is_every_input_uncounted_and_then_counted():
    calls: list[tuple[str, int]] = []
    runs = {name: lambda i, name=name: calls.append((name, i)) for name in "ab"}
    assert set(time_interleaved(runs, ROTATED_INPUTS + 1)) == {"a", "b"}
    turn = [*range(ROTATED_INPUTS)] * 2
    assert calls == [(name, i) for name in "abab" for i in turn]


def test_a_run_that_fails_is_named():
    with pytest.raises(DpiframeError, match="b failed while it was timed: "):
        time_interleaved({"a": lambda i: i, "b": lambda i: 1 // i}, 1)


def test_a_bundle_of_ones_own(tmp_path):
    case = EngineCase(model="dcn", fields=5, dense=2, **SMALL)
    save_bundle(tmp_path / "mine", *case.load())
    report = bench_engine(
        EngineCase(bundle=tmp_path / "mine", batch=19, peers="plain", repeats=3, id_type="int32")
    )
    assert report.largest_difference < 1e-5
    assert set(report.milliseconds) == {OURS, "eager", "one-table"}
    assert "5 fields + 2 dense" in report.title
    with pytest.raises(ConfigError, match="there is no bundle at"):
        bench_engine(EngineCase(bundle=tmp_path / "other"))


def test_ids_stay_inside_their_tables_and_follow_the_distribution():
    for ids in ("zipf", "uniform"):
        case = EngineCase(batch=1111, ids=ids, scale=1e-3)
        spec = case.spec()
        drawn = case.draw(spec)[0].ids
        assert drawn.shape == (39, 1111)
        assert (drawn >= 0).all() and (drawn.max(1) < [f.rows for f in spec.fields]).all()
        share = np.bincount(drawn[15]).max() / 1111
        assert (share > 0.05) == (ids == "zipf")


def test_fields_repeat_after_39():
    fields = criteo_fields(41, 8, scale=1e-3)
    assert [f.name for f in fields[-3:]] == ["C26", "I1_2", "I2_2"]
    assert len({f.name for f in fields}) == 41
    assert fields[15].rows == 10131
    assert [f.name for f in criteo_fields(26, 8)] == [f"C{n + 1}" for n in range(26)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dense", [0, 3])
def test_peers_compute_the_model(model, dense):
    case = EngineCase(model=model, batch=19, **SMALL, dense=dense)
    spec, weights = case.load()
    batch = case.draw(spec)[0]
    ids, values = torch.from_numpy(batch.ids), torch.from_numpy(batch.dense)
    expected = CTRModel.from_weights(spec, weights)(ids, values)
    tables, wide = (
        flat_table(spec, m, case.seed, torch.float32, "cpu") for m in ("embedding", "wide")
    )
    per_field = PerField(tables.tables(), wide.tables() if wide else [])
    for lookup in (per_field, OneTable(tables, wide)):
        peer = Peer(lookup, Dense(spec, weights))
        logits = peer(values.T, *type(lookup).prepare(ids))
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fusion", [True, False])
def test_ablation_changes_no_result(model, fusion):
    case = EngineCase(model=model, batch=19, **SMALL, lookup="by_table", fusion=fusion)
    spec, weights = case.load()
    weights = {name: weight.double() for name, weight in weights.items()}
    ids = torch.from_numpy(case.draw(spec)[0].ids)
    program = lower(spec, weights, case.passes())
    expected = run_program(lower(spec, weights, ()), ids, torch.empty(0, 19))
    torch.testing.assert_close(run_program(program, ids, torch.empty(0, 19)), expected)
    assert len([s for s in program.steps if isinstance(s, Lookup) and s.out]) == 39


def test_rows_of_the_ablation_are_options_of_a_case():
    cases = [EngineCase(**options) for options in VARIANTS.values()]
    assert len({case.model_dump_json() for case in cases}) == len(VARIANTS)
    assert cases[5] == EngineCase()  # what an engine does by default


def _implementation(logit: float) -> Implementation:
    return Implementation(lambda i: None, lambda i: np.full(7, logit, np.float32))


def _replace(monkeypatch, made) -> None:
    """Let these be all implementations, and 1 the logit that is right."""
    monkeypatch.setattr(bench, "implementations", lambda *_: made)
    monkeypatch.setattr(bench, "exact_logits", lambda *_: np.ones(7))


def _refuses() -> Implementation:
    raise RuntimeError("no kernel image\nand more")


def test_a_peer_that_fails_ends_no_run(monkeypatch):
    made = {
        OURS: lambda: _implementation(1.0),
        "eager": lambda: _implementation(1.0),
        "another": lambda: _implementation(2.0),
        "broken": _refuses,
    }
    _replace(monkeypatch, made)
    report = bench_engine(EngineCase(**SMALL, repeats=3))
    assert set(report.milliseconds) == {OURS, "eager"}
    assert report.failed == {
        "broken": "RuntimeError: no kernel image",
        "another": "the logits of another differ from ours by 1.0e+00",
    }
    assert "failed: RuntimeError: no kernel image" in show(report)
    said = report.model_copy(update={"notes": {"eager": "half of it is cast"}})
    assert "eager                   half of it is cast" in show(said)


@pytest.mark.parametrize(
    ("calls", "method", "why"),
    [(2, "run", "eager failed while it was timed: "), (0, "logits", "OutOfMemoryError: ")],
)
def test_a_peer_that_finds_no_memory_is_left_out(monkeypatch, calls, method, why):
    """While it is timed, after it was built and warmed up, or when it is compared."""

    def fails(_: int) -> None:
        nonlocal calls
        if (calls := calls - 1) < 0:
            raise torch.OutOfMemoryError("tried to allocate 13 GiB")

    made = {
        OURS: lambda: _implementation(1.0),
        "eager": lambda: _implementation(1.0)._replace(**{method: fails}),
        "another": lambda: _implementation(1.0),
    }
    _replace(monkeypatch, made)
    report = bench_engine(EngineCase(**SMALL, repeats=3))
    assert set(report.milliseconds) == {OURS, "another"}
    assert f"{why}tried to allocate" in report.failed["eager"]


def test_another_result_than_plain_torch_is_our_fault(monkeypatch):
    made = {OURS: lambda: _implementation(1.0), "eager": lambda: _implementation(1.1)}
    _replace(monkeypatch, made)
    with pytest.raises(DpiframeError, match="the logits of eager differ from ours"):
        bench_engine(EngineCase(**SMALL, repeats=3))


def test_another_result_than_float64_is_our_fault(monkeypatch):
    _replace(monkeypatch, {OURS: lambda: _implementation(1.1)})
    with pytest.raises(DpiframeError, match=r"our logits differ from float64's by 1.0e-01, not"):
        bench_engine(EngineCase(**SMALL, repeats=3))


MODULE = """
import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(50, 4), nn.Linear(3 * 4 + 2, 1)

    def forward(self, ids, dense, unused):
        e = self.table(ids)
        e = torch.softmax(e @ e.mT, -1) @ e
        return torch.sigmoid(self.out(torch.cat([e.flatten(1), dense], 1))).squeeze(1)


def example_inputs():
    return torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 2), torch.ones(2)


class Counts(nn.Module):
    # Numbers that normal ones are not: a place, a length, what has a logarithm.
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(50, 4), nn.Linear(4 + 1, 1)

    def example_inputs(self):
        place, length = torch.tensor([0, 2]), torch.tensor([3, 1])
        return torch.tensor([[1, 2, 3], [4, 5, 6]]), place, length, torch.rand(2, 1)

    def forward(self, ids, place, length, clicks):
        e = self.table(ids) * (torch.arange(3) < length[:, None]).unsqueeze(2)
        picked = e.gather(1, place.view(-1, 1, 1).expand(-1, 1, 4)).squeeze(1)
        return self.out(torch.cat([picked, torch.log(clicks + 0.1)], 1))


class Picks(nn.Module):
    # The two nearest of a history, and when they were: equal items are equally near.
    def __init__(self):
        super().__init__()
        self.items, self.out = nn.Embedding(9, 4), nn.Linear(2, 1)

    def example_inputs(self):
        return torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.tensor([3, 5]), torch.rand(2, 4)

    def forward(self, history, item, ages):
        nearness = (self.items(history) * self.items(item)[:, None]).sum(2)
        return self.out(ages.gather(1, nearness.topk(2)[1]))


class Hashes(nn.Module):
    # The nearest of a list by bits, of which many are as near; a probability that float32 ends.
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, 8)
        self.register_buffer("planes", torch.randn(8, 4))

    def example_inputs(self):
        return torch.arange(2), torch.randint(300, (2, 30))

    def forward(self, item, shown):
        bits = [self.table(x) @ self.planes > 0 for x in (item, shown)]
        apart = (bits[0].unsqueeze(1) ^ bits[1]).sum(2)
        nearest = torch.topk(apart, 3, largest=False).indices
        rows = self.table(shown.gather(1, nearest)).sum((1, 2))
        return torch.sigmoid(3 * rows)


class Tasks(Scorer):
    def forward(self, *args):
        return {"click": super().forward(*args), "buy": torch.sigmoid(3 * super().forward(*args))}


def no_module():
    return 3
"""


@pytest.fixture
def scorers(tmp_path):
    """The file of these modules."""
    file = tmp_path / "scorer.py"
    file.write_text(MODULE)
    return file


@pytest.mark.slow
def test_a_module_of_ones_own_beside_itself(scorers):
    report = bench_engine(EngineCase(module=f"{scorers}:Scorer", batch=19, repeats=3))
    assert report.largest_difference < 1e-5
    assert set(report.milliseconds) == {OURS, "eager", "compile"}
    assert set(report.failed) == {"one-table", "one-table, compile"}
    assert "DpiframeError" not in str(report.failed)
    assert f"{scorers}:Scorer, batch 19, 3 fields + 2 dense, 150 rows x dim 4" in report.title


def test_an_output_of_a_module_of_several(scorers):
    case = EngineCase(module=f"{scorers}:Tasks", batch=19, repeats=3, peers="plain", output="buy")
    report = bench_engine(case)
    assert "eager" in report.milliseconds and report.largest_difference < 1e-5
    click, alone = (
        case.model_copy(update=to)
        for to in ({"output": "click"}, {"module": f"{scorers}:Scorer", "output": "auto"})
    )
    names = [type(of.user_module().scorer()).__name__ for of in (alone, case)]
    assert names == ["Scorer", "_Scorer"]  # the peer calls a module of one output as it is
    batch = case.draw(case.load()[0])[0]
    bought, clicked = (exact_logits(*of.load(), batch) for of in (case, click))
    np.testing.assert_allclose(bought, 3 / (1 + np.exp(-clicked)), rtol=1e-6)
    with pytest.raises(ConfigError, match=r"2 outputs \(0: click, 1: buy\): choose the score"):
        bench_engine(EngineCase(module=f"{scorers}:Tasks"))
    with pytest.raises(ConfigError, match="give it with a module"):
        bench_engine(EngineCase(model="wdl", output="buy"))


@pytest.mark.parametrize("mixed", [False, True])
def test_a_module_that_mixes_types_runs_under_autocast_in_16_bits(scorers, mixed):
    module = f"{mixed_types.__file__}:NamesFloat32" if mixed else f"{scorers}:Scorer"
    case = EngineCase(module=module, batch=19)
    spec, weights = case.load()
    batches = case.draw(spec)
    model = UserModel(case, batches, spec, weights)
    model.dtype = torch.bfloat16
    exact = exact_logits(spec, weights, batches[0])
    for called in (model.per_field(), *([model.one_table()] if mixed else [])):
        assert called.note.startswith(f"{AUTOCAST}, since in one type: mat1" if mixed else "")
        assert bool(called.note) == mixed
        args, kwargs = called.inputs[0]
        with torch.no_grad():
            logits = called.logits(called.module(*args, **kwargs))
        assert 0 < largest_difference(logits, exact) < 3e-2


@pytest.mark.parametrize("batch", [1, 190])
@pytest.mark.parametrize(
    ("name", "how"), [("Masked", MIXED), ("Recurrent", AUTOCAST), ("FloatIds", AUTOCAST)]
)
def test_a_module_that_16_bits_do_not_hold_has_a_peer(name, how, batch):
    case = EngineCase(module=f"{mixed_types.__file__}:{name}", batch=batch)
    spec, weights = case.load()
    batches = case.draw(spec)
    model = UserModel(case, batches, spec, weights)
    model.dtype = torch.float16
    exact = exact_logits(spec, weights, batches[0])
    called = model.per_field()
    assert called.note.startswith(f"{how}, since in one type: ")
    with torch.no_grad():
        logits = [called.logits(called.module(*args, **kwargs)) for args, kwargs in called.inputs]
    assert largest_difference(logits[0], exact) < 3e-2


def test_a_part_in_float64_stays_so_and_is_told():
    module = f"{mixed_types.__file__}:HeadInFloat64"
    report = bench_engine(EngineCase(module=module, batch=19, repeats=3, peers="plain"))
    assert report.largest_difference < 1e-5
    assert report.notes["eager"].startswith(f"{MIXED}, since in one type: ")


def test_what_torch_picks_of_equal_numbers_is_left_out_of_the_comparison(scorers):
    case = EngineCase(module=f"{scorers}:Picks", batch=300, repeats=3, peers="plain", ids="uniform")
    report = bench_engine(case)
    assert "eager" in report.milliseconds and report.largest_difference < 1e-5
    assert f"{report.left_out} of 300 samples were not compared" in show(report)

    model = UserModel(case, case.draw(case.load()[0]), *case.load())
    untied = model.per_field().untied(0)
    assert 0.2 < untied.mean() < 0.9 and report.left_out == (~untied).sum()


@pytest.mark.parametrize(("ours", "ends"), [(3.9e-5, False), (4.2e-5, True)])
def test_a_module_may_be_as_far_from_float64_as_float32_takes_torch(
    monkeypatch, scorers, ours, ends
):
    """Four times as far as torch is on the same samples, beyond what its probability hides."""
    hidden = rounding_noise(sigmoid(np.ones(1)), torch.float32, times=1)[0]
    eager = _implementation(1 + 1e-5 + hidden)
    made = {OURS: lambda: _implementation(1 + ours), "eager": lambda: eager}
    _replace(monkeypatch, made)
    case = EngineCase(module=f"{scorers}:Scorer", batch=19, repeats=3)
    if ends:
        with pytest.raises(DpiframeError, match="our logits differ from float64's by 4"):
            bench_engine(case)
    else:
        report = bench_engine(case)
        assert report.largest_error == pytest.approx(ours, rel=1e-2)
        assert "logits within 4e-05 of float64's, 4e-05 is allowed" in show(report)


def test_dense_features_of_a_module_are_as_in_its_import(scorers):
    case = EngineCase(module=f"{scorers}:Counts", batch=300, repeats=3, peers="plain")
    report = bench_engine(case)
    assert "eager" in report.milliseconds and report.largest_error < 1e-5
    spec, _ = case.load()
    dense = dict(zip(spec.dense, case.draw(spec)[0].dense, strict=True))
    assert set(np.unique(dense["place"])) == {0.0, 1.0, 2.0}
    assert dense["clicks"].min() >= 0.0 and len(np.unique(dense["clicks"])) > 50


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}", "give FILE.py:NAME"),
        ("{folder}/other.py:Scorer", "there is no Python file"),
        ("{file}:Other", "has no class or function 'Other'"),
        ("{file}:no_module", "made a int"),
        ("{bare}:Linear", "neither it nor .*bare.py has a function example_inputs"),
        ("{bare}:Wrong", "module .*Wrong: .*batch"),
    ],
)
def test_a_module_that_cannot_be_had_is_refused(scorers, tmp_path, name, message):
    bare = tmp_path / "bare.py"
    bare.write_text(
        "import torch\nfrom torch import nn\n\ndef Linear():\n    return nn.Linear(3, 1)\n\n"
        "class Wrong(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 1)\n\n"
        "    def example_inputs(self):\n        return torch.ones(2, 3)\n\n"
        "    def forward(self, x):\n        return super().forward(x) - x.mean()\n"
    )
    given = name.format(file=scorers, bare=bare, folder=tmp_path)
    with pytest.raises(ConfigError, match=message):
        EngineCase(module=given).load()


def test_a_bundle_and_a_module_are_too_many():
    with pytest.raises(ConfigError, match="not both"):
        EngineCase(module="a.py:A", bundle="b").load()


def test_where_most_samples_are_tied_eager_takes_the_first(scorers):
    case = EngineCase(module=f"{scorers}:Hashes", batch=300, repeats=3, peers="plain")
    report = bench_engine(case)
    assert report.notes["eager"] == AS_OURS and report.left_out == 0
    assert set(report.milliseconds) == {OURS, "eager", "one-table"}
    assert report.largest_difference < 1e-4
