"""Any PyTorch module becomes a bundle that scores as the module does, or an error says why not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import dpiframe_core as dpi
from dpiframe_core import BadIdError, CTRModel, ModelImportError
from dpiframe_core.frontend.check import Expected

ROWS, DIM, BATCH = (11, 19), 4, 7


class TwoTables(nn.Module):
    """Ids C1, C2 and a number I1, as a dictionary's entries or an argument each."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.tables = nn.ModuleList(nn.Embedding(rows, DIM) for rows in ROWS)
        self.deep = nn.Sequential(nn.Linear(2 * DIM + 1, 5), nn.ReLU(), nn.Linear(5, 1))
        self.spare = nn.Linear(3, 3)

    def forward(self, C1, C2, I1, label=None):  # noqa: N803
        parts = [self.tables[0](C1), self.tables[1](C2), I1[:, None]]
        return self.deep(torch.cat(parts, 1)).squeeze(1)


class Of(nn.Module):
    """What `made` returns of the logits of another model, on a dictionary of inputs."""

    def __init__(self, made):
        super().__init__()
        self.inner, self.made = TwoTables(), made

    def forward(self, inputs):
        return self.made(self.inner(inputs["C1"], inputs["C2"], inputs["I1"]))


def inputs():
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, rows, (BATCH,), generator=generator) for rows in ROWS]
    return {"C1": ids[0], "C2": ids[1], "I1": torch.randn(BATCH, generator=generator)}


def engine_logits(bundle, given):
    engine = dpi.load_engine(bundle, device="cpu")
    return engine.logits(torch.stack([given["C1"], given["C2"]]).numpy(), given["I1"][None].numpy())


def test_a_module_becomes_a_bundle(tmp_path):
    module = TwoTables().train()
    columns = {"C1": "site id", "C2": "device", "I1": "age"}
    bundle = dpi.from_torch(module, inputs(), columns, path=tmp_path / "bundle")
    assert [(f.name, f.rows, f.dim) for f in bundle.spec.fields] == [
        ("site_id", 11, DIM),
        ("device", 19, DIM),
    ]
    assert bundle.spec.dense == ("age",) and bundle.spec.columns == {"site_id": "site id"}
    assert {p.name for p in bundle.path.iterdir()} == {
        "MANIFEST.json",
        "import.json",
        "model.json",
        "weights.safetensors",
    }
    with torch.no_grad():
        expected = module(**inputs()).numpy()
    assert np.allclose(engine_logits(bundle, inputs()), expected, rtol=1e-6, atol=1e-6)
    assert module.training and module.deep.training  # as it was


def test_the_report_says_what_was_done_and_how_far_logits_are(tmp_path):
    report = dpi.from_torch(TwoTables(), inputs(), path=tmp_path / "bundle").report()
    assert report["model"] == "TwoTables" and report["torch"] == torch.__version__
    assert report["samples"] == {"count": 512, "are": "random"}
    assert report["reference"] == "the module in float64"
    assert report["unused_weights"] == ["spare.weight", "spare.bias"]
    differences = report["differences"]
    assert differences["interpreter, float64"]["largest"] < 1e-12
    assert 0 < differences["CPU, fp32"]["largest"] < 1e-5
    assert sum(report["modules"]["known"].values()) > 0
    json.dumps(report)


class TwoTasks(TwoTables):
    """A click and a conversion, of shared tables and a shared layer."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(2 * DIM, 8)
        self.tower = nn.Linear(8, 1)

    def forward(self, C1, C2, I1):  # noqa: N803
        shared = self.shared(torch.cat([self.tables[0](C1), self.tables[1](C2)], 1)).relu()
        click = super().forward(C1, C2, I1) + shared.sum(1)
        return click.sigmoid(), (self.tower(shared).squeeze(1) * 2 + I1.tanh()).sigmoid()


def test_several_outputs_become_one_bundle_of_tasks(tmp_path):
    module, given = TwoTasks().eval(), inputs()
    bundle = dpi.from_torch(module, given, output=0, tasks={"cvr": 1}, path=tmp_path / "bundle")
    own = [m.name for m in bundle.spec.modules if m.name.startswith("cvr")]
    assert own == ["cvr_linear", "cvr"] and bundle.spec.ending_in("cvr").width == 1
    ids, dense = torch.stack([given["C1"], given["C2"]]).numpy(), given["I1"][None].numpy()
    with torch.no_grad():
        expected = [torch.logit(p.double()).numpy() for p in module(**given)]
    for output, logits in zip((None, "cvr"), expected, strict=True):
        engine = dpi.load_engine(bundle, device="cpu", output=output)
        assert np.allclose(engine.logits(ids, dense), logits, atol=1e-5)
    report = bundle.report()
    assert report["tasks"]["cvr"]["differences"]["CPU, fp32"]["largest"] < 1e-5
    assert not [name for name in report["unused_weights"] if name.startswith("tower")]


class OnlyItsShape(TwoTables):
    def forward(self, C1, C2, I1):  # noqa: N803
        return self.tables[0](C1).sum(1) + I1 + torch.ones_like(self.tables[1](C2)).sum(1)


def test_a_column_of_whose_rows_only_the_shape_is_used_is_no_feature(tmp_path):
    bundle = dpi.from_torch(OnlyItsShape().eval(), inputs(), path=tmp_path / "bundle")
    assert [field.name for field in bundle.spec.fields] == ["C1"]
    assert bundle.report()["unused_inputs"] == ["C2"]


class OneFeatureLess(TwoTables):
    def forward(self, C1, C2, I1):  # noqa: N803
        return super().forward(C1, C2, I1), self.tables[0](C1).sum(1)


def test_a_task_of_other_features_is_refused():
    with pytest.raises(ModelImportError, match="'cvr' reads other features than the score"):
        dpi.from_torch(OneFeatureLess(), inputs(), output=0, tasks={"cvr": 1})


@pytest.mark.parametrize(
    ("made", "output", "told", "sign"),
    [
        (torch.sigmoid, "auto", "whose final sigmoid was taken off", 1),
        (lambda z: {"y_pred": torch.sigmoid(z)[:, None]}, "auto", "y_pred: a probability", 1),
        (lambda z: z, "auto", "output: a logit", 1),
        (lambda z: torch.sigmoid(z), "logit", "output: a logit", None),
        (lambda z: torch.stack([-z, z], 1).div(2).softmax(1), "1", "without a final sigmoid", 1),
        (lambda z: torch.stack([-z, z], 1).sigmoid(), 0, "final sigmoid was taken off", -1),
        (lambda z: torch.cat([z.sigmoid()[:, None], -z[:, None]], 1), "1", "a logit", -1),
        (lambda z: torch.cat([z[:, None], -z[:, None].sigmoid()], 1), "0", "a logit", 1),
        (lambda z: torch.stack([-z, z], 1).sigmoid().flip(1), 1, "sigmoid was taken off", -1),
        (lambda z: torch.stack([(-z).sigmoid(), z.sigmoid()]).T, "1", "sigmoid was taken off", 1),
        (lambda z: torch.where(z > 9, 0.25, z.sigmoid()), "auto", "sigmoid was taken off", 1),
        (lambda z: torch.where(z > z, -z, z.sigmoid()), "auto", "without a final sigmoid", 1),
        (lambda z: {"ctr": z.sigmoid(), "cvr": -z}, "cvr", "cvr: a logit", -1),
        (lambda z: (z.sigmoid(), -z), 0, "0: a probability", 1),
    ],
    ids=range(14),
)
def test_outputs(tmp_path, made, output, told, sign):
    module = Of(made).eval()
    bundle = dpi.from_torch(module, inputs(), output=output, path=tmp_path / "bundle")
    assert told in bundle.report()["output"]
    with torch.no_grad():
        logits = module.inner(**inputs())
    expected = logits.sigmoid() if sign is None else sign * logits
    # A logit of a float32 probability has the probability's rounding.
    assert np.allclose(engine_logits(bundle, inputs()), expected, rtol=1e-5, atol=1e-5)


class Domains(nn.Module):
    """A tower a domain, of which a column chooses; 0 where there is no such domain."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.domain = nn.Embedding(50, 8), nn.Embedding(4, 2)
        self.towers = nn.ModuleList(nn.Linear(10, 1) for _ in range(3))

    def forward(self, x, domain):
        e = torch.cat([self.table(x), self.domain(domain)], 1)
        score = torch.zeros(x.shape[0])
        for number, tower in enumerate(self.towers):
            made = (tower(e).squeeze(1) * 9 + 9).sigmoid()  # near 1
            score = torch.where(domain == number, made, score)
        return score


def test_the_sigmoids_of_a_choice_are_taken_off(tmp_path):
    torch.manual_seed(0)
    model = Domains().eval()
    given = {"x": torch.arange(40), "domain": torch.arange(40) % 4}
    bundle = dpi.from_torch(model, given, path=tmp_path / "bundle")
    assert "whose final sigmoid was taken off" in bundle.report()["output"]
    with torch.no_grad():
        scores = model.double()(**given).double()
    ids = torch.stack([given[field.name] for field in bundle.spec.fields]).numpy()
    logits = torch.from_numpy(dpi.load_engine(bundle, device="cpu").logits(ids)).double()
    assert (logits[3::4] == -torch.inf).all() and (scores[3::4] == 0).all()
    there = torch.arange(40) % 4 != 3
    assert torch.allclose(logits[there], scores[there].logit(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("made", "output", "told"),
    [
        (lambda z: (z, -z), "auto", r"returns 2 outputs \(0: 0, 1: 1\): choose"),
        (lambda z: {"a": z, "b": -z}, "c", "output 'c' is none of the model's"),
        (lambda z: torch.stack([-z, z], 1), "auto", "has 2 numbers a sample: choose one"),
        (lambda z: torch.stack([-z, z], 1), "2", "output '2' is none of the model's"),
        (lambda z: z - z.mean(), "auto", "mean.*batch"),
    ],
    ids=range(5),
)
def test_outputs_that_are_not_clear_are_refused(made, output, told):
    with pytest.raises(ModelImportError, match=told):
        dpi.from_torch(Of(made), inputs(), output=output)


class OneMatrix(nn.Module):
    """Ids and numbers in one matrix of floats, with DeepCTR-Torch's index of its columns."""

    def __init__(self):
        super().__init__()
        self.feature_index = {"user": (0, 1), "hist": (1, 4), "age": (4, 5)}
        self.user, self.item = nn.Embedding(11, DIM), nn.Embedding(19, DIM, padding_idx=0)
        self.out = nn.Linear(2 * DIM + 1, 1)

    def forward(self, X):  # noqa: N803
        ids = X.long()
        hist = self.item(ids[:, 1:4]).sum(1)
        return self.out(torch.cat([self.user(ids[:, 0]), hist, X[:, 4:]], 1))


def test_a_matrix_is_read_by_the_model_s_own_index():
    found = dpi.from_torch(OneMatrix(), torch.zeros(3, 5))
    assert [f.name for f in found.spec.fields] == ["user", "hist_0", "hist_1", "hist_2"]
    assert found.spec.lists[0].name == "hist" and found.spec.dense == ("age",)


def test_labels_add_the_quality_of_both():
    labels = np.arange(BATCH) % 2
    report = dpi.from_torch(TwoTables(), inputs(), samples=inputs(), labels=labels).report
    assert report["samples"] == {"count": BATCH, "are": "given"}
    ours, theirs = report["quality"]["the engine"], report["quality"]["the module"]
    assert ours["auc"] == theirs["auc"] and ours["logloss"] == pytest.approx(theirs["logloss"])


def _changed(change):
    module = TwoTables()
    with torch.no_grad():
        change(module)
    return module


def _to_sparse(module):
    module.spare.weight = nn.Parameter(module.spare.weight.to_sparse())


def test_weights_that_are_tied_widened_or_rounded_are_told():
    def change(module):
        module.tables[1].weight = nn.Parameter(module.tables[1].weight.double() / 3)
        module.tables[1].double()

    class Mixed(TwoTables):
        def forward(self, C1, C2, I1):  # noqa: N803
            parts = [self.tables[0](C1).float(), self.tables[1](C2).float(), I1[:, None]]
            return self.deep(torch.cat(parts, 1))

    module = Mixed()
    module.tables[0].bfloat16()
    module.tables[1].double()
    report = dpi.from_torch(module, inputs()).report
    assert report["widened_to_float32"] == ["tables.0.weight"]
    assert report["rounded_to_float32"] == ["tables.1.weight"]
    tied = TwoTables()
    tied.tables[1] = tied.tables[0]
    given = {**inputs(), "C2": inputs()["C1"]}
    found = dpi.from_torch(tied, given)
    assert found.report["tied_weights"] == [["tables.0.weight", "tables.1.weight"]]
    assert len({f.table for f in found.spec.fields}) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m.deep[0].bias[2].fill_(torch.nan), "weight deep.0.bias .* holds 1 numbers"),
        (lambda m: m.tables[1].weight.fill_(torch.inf), "weight tables.1.weight .* not finite"),
        (_to_sparse, "weight spare.weight is sparse"),
    ],
    ids=["nan", "inf", "sparse"],
)
def test_weights_that_cannot_be_are_named(change, told):
    with pytest.raises(ModelImportError, match=told):
        dpi.from_torch(_changed(change), inputs())


@pytest.mark.parametrize("inside", [False, True])
def test_modules_that_were_made_in_inference_mode(inside):
    with torch.inference_mode():
        module = TwoTables().eval()
    with torch.inference_mode(inside):
        assert dpi.from_torch(module, inputs(), precisions=()).report["unused_weights"]


def test_what_a_weight_that_is_not_used_holds_does_not_matter():
    dpi.from_torch(_changed(lambda m: m.spare.weight.fill_(torch.nan)), inputs())


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ({"C1": torch.zeros(3, dtype=torch.long)}, "samples must be tensors of one batch"),
        ({**inputs(), "C1": torch.full((BATCH,), 11)}, "cannot score the samples"),
        ({**inputs(), "I1": torch.zeros(BATCH, 2)}, "input I1 must have sizes"),
    ],
    ids=["missing", "bad id", "shape"],
)
def test_samples_that_do_not_fit_are_named(samples, told):
    with pytest.raises(ModelImportError, match=told):
        dpi.from_torch(TwoTables(), inputs(), samples=samples)


def test_a_forward_of_any_number_of_arguments():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, DIM)

        def forward(self, item, *lists, scale=1.0):
            return sum((self.table(item)[:, None] * self.table(x)).sum((1, 2)) for x in lists)

    ids = torch.ones(2, 3, dtype=torch.long)
    report = dpi.from_torch(Several(), (ids[:, 0], ids, ids, ids)).report
    assert report["differences"]["CPU, fp32"]["largest"] < 1e-5


class Nested(nn.Module):
    """Dictionaries whose keys are alike, and lists."""

    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(5, DIM), nn.Embedding(7, DIM)

    def forward(self, user, item, more):
        rows = self.user(user["id"]) + self.item(item["id"])
        return rows.sum(1) + sum(x.sum(1) for x in more["x"])


@pytest.mark.parametrize("by_name", [False, True])
def test_inputs_in_dictionaries_and_lists_have_names_of_their_own(by_name):
    given = {
        "user": {"id": torch.tensor([0, 4])},
        "item": {"id": torch.tensor([6, 1])},
        "more": {"x": [torch.rand(2, 2), torch.rand(2, 1)]},
    }
    found = dpi.from_torch(Nested(), given if by_name else tuple(given.values()), precisions=())
    assert [field.name for field in found.spec.fields] == ["user_id", "item_id"]
    assert found.spec.dense == ("x_0_0", "x_0_1", "x_1")


def test_the_only_one_of_a_list_keeps_its_name():
    class Only(nn.Linear):
        def forward(self, x):
            return super().forward(x[0])

    found = dpi.from_torch(Only(1, 1), {"x": [torch.rand(2, 1)]}, precisions=())
    assert found.spec.dense == ("x",)


@pytest.mark.parametrize("columns", [[1, 1], [2, 2], [1, 2, 1, 3], [0, 0]])
def test_numbers_of_a_matrix_that_are_read_several_times(columns):
    class Pairs(nn.Linear):
        def forward(self, x):
            return super().forward(x[:, columns])

    report = dpi.from_torch(Pairs(len(columns), 1), torch.randn(4, 5), precisions=()).report
    assert max(d["largest"] for d in report["differences"].values()) < 1e-6


class HeadsInTheBatch(nn.Module):
    """Views of an odd number of rows with the heads in the batch, of which torch asks a guard."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.weight, self.out = nn.Linear(6, 2), nn.Linear(66, 1)

    def forward(self, x):
        rows = self.table(x)
        parts = self.linear(rows).view(x.shape[0] * 2, -1, 3)
        weights = self.weight(rows).softmax(1).view(x.shape[0] * 2, -1, 1)
        return self.out((parts * weights).view(x.shape[0], -1))


def test_guards_that_torch_cannot_prove_are_tried():
    report = dpi.from_torch(HeadsInTheBatch(), torch.zeros(4, 11, dtype=torch.long)).report
    assert report["differences"]["interpreter, float64"]["largest"] < 1e-5


class CountsAndPicks(nn.Module):
    """Attends to the rows with the most equal signs, of which many have as many."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(50, DIM), nn.Linear(DIM, 1)

    def forward(self, item, clicks):
        rows = self.table(clicks)
        equal = (rows > 0) == (self.table(item)[:, None] > 0)
        places = equal.sum(2).topk(5, 1)[1]
        return self.linear(rows.gather(1, places[..., None].expand(-1, -1, DIM)).sum(1))


def test_of_equal_numbers_the_first_are_picked():
    given = (torch.zeros(2, dtype=torch.long), torch.zeros(2, 40, dtype=torch.long))
    report = dpi.from_torch(CountsAndPicks(), given).report
    assert report["differences"]["interpreter, float64"]["largest"] < 1e-5


class Logarithms(nn.Module):
    """Of numbers, and attention over a list: it has no number for an empty one."""

    def __init__(self, shift=1.0):
        super().__init__()
        self.table, self.linear, self.shift = nn.Embedding(9, DIM), nn.Linear(DIM + 2, 1), shift
        self.attention = nn.MultiheadAttention(DIM, 1, batch_first=True)

    def forward(self, clicks, numbers):
        rows = self.table(clicks)
        found, _ = self.attention(rows[:, :1], rows, rows, key_padding_mask=clicks == 0)
        return self.linear(torch.cat([found[:, 0], (numbers + self.shift).log()], 1))


def test_samples_are_drawn_that_the_model_has_numbers_for():
    given = {"clicks": torch.ones(2, 3, dtype=torch.long), "numbers": torch.zeros(2, 2)}
    report = dpi.from_torch(Logarithms(), given).report
    assert report["samples"]["are"] == "random, no list empty and no number negative"
    given["numbers"] = torch.rand(2, 2)
    report = dpi.from_torch(Logarithms(), given).report
    assert report["samples"]["are"] == "random, no list empty"


class NamesFloat32(TwoTables):
    """Casts as libraries do that read all features as one type."""

    def forward(self, C1, C2, I1):  # noqa: N803
        parts = [self.tables[0](C1), self.tables[1](C2), I1[:, None]]
        return self.deep(torch.cat(parts, 1).to(torch.float32)).squeeze(1)


def test_a_module_that_names_float32_is_a_reference_in_float64():
    report = dpi.from_torch(NamesFloat32(), inputs()).report
    assert report["reference"] == "the module in float64"
    assert report["differences"]["interpreter, float64"]["largest"] < 1e-12


class TypesOwnEps(TwoTables):
    """Takes what keeps norms and logarithms finite of the type that it computes in."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        for table in self.tables:
            nn.init.normal_(table.weight, std=1e-4)

    def forward(self, C1, C2, I1):  # noqa: N803
        found = self.norm(self.tables[0](C1) * self.tables[1](C2))
        return super().forward(C1, C2, I1) + found.sum(1)


@pytest.mark.parametrize(
    "norm",
    [
        nn.RMSNorm(4),
        lambda x: torch.rms_norm(x, (4,), None),
        lambda x: x.relu().clamp(min=torch.finfo(x.dtype).eps).log(),
    ],
)
def test_the_eps_of_a_type_is_that_of_float32(norm):
    report = dpi.from_torch(TypesOwnEps(norm), inputs()).report
    assert report["reference"] == "the module in float64"
    assert report["differences"]["interpreter, float64"]["largest"] < 1e-6


class Cancels(TwoTables):
    """Loses digits in float32, as nobody who computes it can help."""

    def forward(self, C1, C2, I1):  # noqa: N803
        return super().forward(C1, C2, I1) + 2000.0 - 2000.0


def test_a_module_may_differ_as_far_as_it_is_from_itself_in_float32():
    report = dpi.from_torch(Cancels(), inputs()).report
    assert 2e-5 < report["tolerance"] < 1e-3
    told = r"the module in float64, .*e-05 from itself in float32"
    assert re.fullmatch(told, report["reference"])
    assert dpi.from_torch(TwoTables(), inputs()).report["tolerance"] == 1e-5


class MaximumOfNothing(nn.Module):
    """A maximum over a list, of which an empty one leaves squares of -1e9."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(9, DIM), nn.Linear(DIM, 1)

    def forward(self, clicks):
        pooled = (self.table(clicks) - 1e9 * (clicks == 0).unsqueeze(2)).amax(1)
        return self.linear((pooled + self.table(clicks[:, 0])) ** 2 - pooled**2)


def test_samples_are_drawn_of_which_float32_has_the_first_digits():
    report = dpi.from_torch(MaximumOfNothing(), torch.ones(2, 3, dtype=torch.long)).report
    assert report["samples"]["are"] == "random, no list empty"


class AttentionOverNothing(nn.Module):
    """Scores of -1e9 beside which float32 loses what they had: of an empty list all are equal."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(9, DIM), nn.Linear(DIM, 1)
        nn.init.normal_(self.table.weight, std=0.2)

    def forward(self, clicks):
        rows = self.table(clicks) + torch.linspace(-1, 1, 3)[:, None]
        scores = (rows * self.table(clicks[:, :1] + 1)).sum(2)
        weights = scores.masked_fill(clicks == 0, 0) - 1e9 * (clicks == 0) + 0.05 * scores
        return self.linear((torch.softmax(weights, 1).unsqueeze(2) * rows).sum(1))


def test_samples_are_drawn_of_which_float32_has_the_digits_that_are_compared():
    torch.manual_seed(0)
    examples = torch.ones(2, 3, dtype=torch.long)
    report = dpi.from_torch(AttentionOverNothing(), examples).report
    assert report["samples"]["are"] == "random, no list empty"
    assert report["tolerance"] == 1e-5


class Last(nn.Module):
    """The last row of a list, whose length is told: there is none of a list of 0."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(9, DIM), nn.Linear(DIM, 1)

    def forward(self, clicks, length):
        at = (length - 1)[:, None, None].expand(-1, 1, DIM)
        return self.linear(self.table(clicks).gather(1, at)[:, 0])


def test_samples_are_drawn_without_numbers_that_the_model_cannot_take():
    given = {"clicks": torch.ones(2, 3, dtype=torch.long), "length": torch.tensor([1, 3])}
    report = dpi.from_torch(Last(), given).report
    assert report["samples"]["are"].endswith("whole ones as of the examples")


class LastOfShifted(Last):
    """The same of lists that are padded by -1."""

    def forward(self, clicks, length):
        return super().forward(clicks + 1, length)


def test_no_sample_has_the_pad_of_examples_that_is_no_id():
    given = {"clicks": torch.tensor([[3, -1, -1], [1, 2, 7]]), "length": torch.tensor([1, 3])}
    report = dpi.from_torch(LastOfShifted(), given).report
    assert report["samples"]["are"].endswith("whole ones as of the examples")


def test_pads_that_are_no_ids_are_refused_where_scores_depend_on_them():
    class Masked(Last):
        def forward(self, clicks):
            rows = self.table(clicks.clamp(min=0)) * (clicks >= 0)[:, :, None]
            return self.linear(rows.sum(1))

    with pytest.raises(ModelImportError, match=r"input clicks: its examples have -1.*begin at 0"):
        dpi.from_torch(Masked(), torch.tensor([[3, -1, -1], [1, 2, 7]]))


class Counting(nn.Module):
    """A buffer that each call changes, which scores may or may not depend on."""

    def __init__(self, scored, in_place=True):
        super().__init__()
        self.table, self.scored, self.in_place = nn.Embedding(9, 1), scored, in_place
        self.register_buffer("calls", torch.ones(()))

    def forward(self, item):
        if self.in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        return self.table(item) * (self.calls if self.scored else 1)


@pytest.mark.parametrize("in_place", [True, False])
def test_what_a_module_counts_has_no_part_in_its_scores(in_place):
    module = Counting(scored=False, in_place=in_place).eval()
    dpi.from_torch(module, torch.tensor([1, 2]))
    assert module.calls == 1
    with pytest.raises(ModelImportError, match=r"its own buffers while it scores \(calls\)"):
        dpi.from_torch(Counting(True, in_place).eval(), torch.tensor([1, 2]))


class Rates(nn.Module):
    """The logit of clicks of views, which of more clicks than views is no number."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(9, 1), nn.Linear(1, 1)

    def forward(self, item, clicks, views):
        rate = (clicks + 1) / (views + 20)
        return self.linear(torch.logit(rate)[:, None] + self.table(item))


def test_numbers_that_go_together_are_those_of_an_example():
    given = {"item": torch.tensor([1, 2, 3]), "clicks": torch.tensor([1, 200, 3])}
    given["views"] = given["clicks"] * 7
    report = dpi.from_torch(Rates(), given).report
    assert report["samples"]["are"] == "random ids beside the numbers of an example"


def test_the_numbers_of_examples_hide_nothing_that_random_ones_show():
    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 1)

        def forward(self, item, x):
            return self.table(item)[:, 0] + torch.sin(x * 1e7) * 50

    with pytest.raises(ModelImportError, match="differs from the model"):
        dpi.from_torch(Steep(), {"item": torch.tensor([1, 2]), "x": torch.zeros(2)})


def test_a_model_that_has_no_numbers_says_so():
    given = {"clicks": torch.ones(2, 3, dtype=torch.long), "numbers": torch.zeros(2, 2)}
    with pytest.raises(ModelImportError, match=r"itself says NaN of \d+ of 512 samples"):
        dpi.from_torch(Logarithms(shift=-0.5), given)


class Hours(nn.Module):
    """Numbers that are made of whole ones which float32 would round, and look nothing up."""

    def forward(self, x, time, many):
        hashed = ((x * 1_048_573) % 9_973).float().mean(1) / 9_973
        hour = torch.div(time, 3600, rounding_mode="trunc") % 24
        own = nn.functional.one_hot(hour, 24).float() @ torch.arange(24.0).sin()
        several = (many.unsqueeze(1) * torch.arange(1, 200) * 7919 + 11) % 1_000_003 % 100_003
        return hashed + own + (several / 100_003).mean(1)


def test_what_float32_would_round_before_a_remainder_is_computed_of_ids():
    given = torch.tensor([[3, 900], [17, 10_000]]), torch.tensor([1_700_000_000, 5])
    given = {"x": given[0], "time": given[1], "many": torch.tensor([700, 3])}
    imported = dpi.from_torch(Hours(), given)
    found = [(field.rows, field.period) for field in imported.spec.fields]
    assert found == [(9973, 9973), (9973, 9973), (86_401, 86_400), (701, None)]
    assert imported.spec.dense == ()
    assert imported.report["bounded_numbers"] == {"many": 700}


@pytest.mark.parametrize("largest", [1, 90_000])
def test_what_repeats_is_a_field_however_small_the_examples_are(largest, tmp_path):
    class Hour(nn.Module):
        def forward(self, time, x):
            is_late = (time // 3600 % 24 > 17).float()
            return is_late * (x == 0) + (time * 7919 % 1000) / 500 - 1

    given = {"time": torch.tensor([0, largest]), "x": torch.tensor([0, 5])}
    imported = dpi.from_torch(Hour(), given)
    assert [(f.name, f.period) for f in imported.spec.fields] == [("time", 432_000)]
    assert imported.spec.dense == ("x",)  # what is near 0 is exact
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Hour(), tuple(given.values()), dynamic_shapes={"time": {0: batch}, "x": {0: batch}}
    )
    torch.export.save(program, tmp_path / "hour.pt2")
    archived = dpi.from_torch(dpi.read_archive(tmp_path / "hour.pt2"))
    time, x = torch.tensor([1_699_999_199, 2_119, 2**40]), torch.tensor([0, 1, 0])
    for made in (imported, archived):
        weights = {name: torch.as_tensor(w) for name, w in made.weights.items()}
        logits = CTRModel.from_weights(made.spec, weights)(time[None], x[None].float())
        np.testing.assert_allclose(logits.detach(), Hour()(time, x), atol=1e-6)


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda x: x % 64, 64),
        (lambda x: x.clamp(max=63), 65),
        (lambda x: x.clamp(0, 63), 65),
        (lambda x: sum((x >= 10**i).long() for i in range(1, 5)), 10_002),
    ],
    ids=["remainder", "clamp", "clamp both", "buckets"],
)
def test_ids_have_no_end_however_small_the_examples_are(function, rows):
    class Of(nn.Embedding):
        def forward(self, x):
            return super().forward(function(x)).sum(1)

    module = Of(64, 4)
    imported = dpi.from_torch(module, torch.tensor([0, 7]), precisions=())
    (field,) = imported.spec.fields
    assert field.rows == rows and field.period
    x = torch.tensor([0, 9, 64, 9_999, 10_000, 123_456_789])
    logits = CTRModel.from_weights(imported.spec, imported.weights)(x[None], torch.zeros(0, len(x)))
    torch.testing.assert_close(logits, module(x))


def test_what_float32_would_round_is_refused_where_there_are_too_many_ids():
    class Hash(nn.Module):
        def forward(self, x):
            return ((x * 1_048_573) // 9_973 % 65_537 % 257_113_007).float().mean(1)

    with pytest.raises(ModelImportError, match="differs from the model"):
        dpi.from_torch(Hash(), torch.tensor([[3, 900], [17, 10**9]]))


class HeadsInBatch(nn.Module):
    """Attention as it is ported from TensorFlow: heads one behind the other along the batch."""

    def __init__(self, apart):
        super().__init__()
        torch.manual_seed(0)
        self.apart, self.item = apart, nn.Embedding(50, 16)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.out = nn.Linear(16, 1)

    def forward(self, items):
        e = self.item(items)
        q, k, v = (
            torch.cat(torch.split(layer(e), 8, dim=2), dim=0) for layer in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(1, 2) / 8**0.5
        is_padding = (items == 0).repeat(2, 1).unsqueeze(1).repeat(1, items.shape[1], 1)
        scores = torch.where(is_padding, torch.ones_like(scores) * -1e4, scores)
        parts = self.apart(scores.softmax(-1) @ v, items)
        return self.out(torch.cat(parts, dim=2).sum(1))


@pytest.mark.parametrize("apart", [
    lambda x, items: torch.split(x, items.shape[0]),
    lambda x, items: x.split(int(items.size(0)), dim=0),
    lambda x, items: x.split(split_size=items.size(0)),
    lambda x, items: torch.chunk(x, 2, dim=0),
    lambda x, items: x.chunk(2),
    lambda x, items: x.view(2, items.shape[0], *x.shape[1:]).unbind(0),
])  # fmt: skip
def test_heads_along_the_batch(apart):
    model = HeadsInBatch(apart).eval()
    imported = dpi.from_torch(model, torch.randint(0, 50, (8, 5)))
    assert max(each["largest"] for each in imported.report["differences"].values()) < 1e-5


def test_what_takes_samples_apart_is_refused():
    for apart in (lambda x, _: x.chunk(4), lambda x, items: x.split(2 * items.shape[0])):
        model = HeadsInBatch(lambda x, items, apart=apart: apart(x[: len(x) // 2], items)).eval()
        with pytest.raises(ModelImportError):
            dpi.from_torch(model, torch.randint(0, 50, (8, 5)))


def test_ids_that_the_model_takes_apart_are_as_many_as_it_has_rows_for():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.quotient, self.rest, self.hashed = (nn.Embedding(n, DIM) for n in (40, 100, 9))

        def forward(self, x, bounded, hashed):
            bounded = bounded.clamp(max=49)
            parts = [self.quotient(x // 100), self.rest(x % 100), self.hashed(hashed * 31 % 7)]
            parts += [self.quotient(bounded // 16), self.rest(bounded % 16)]
            return torch.cat(parts, 1).sin().sum(1)

    given = {"x": [1, 2], "bounded": [3, 4], "hashed": [5, 123_456]}
    imported = dpi.from_torch(Parts(), {name: torch.tensor(ids) for name, ids in given.items()})
    found = {field.name: (field.rows, field.period) for field in imported.spec.fields}
    assert found == {"x": (4000, None), "bounded": (51, 1), "hashed": (7, 7)}


def test_ids_that_become_numbers_keep_their_digits_in_16_bits():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables, self.table = (
                nn.ModuleList(nn.Embedding(5000, 2) for _ in "ab"),
                nn.Embedding(9, 2),
            )

        def forward(self, a, b):
            rows = [self.tables[0](a), self.tables[1](b), self.table((a * 31 + b) % 9)]
            return torch.cat(rows, 1).sum(1)

    given = {"a": torch.tensor([3, 4999]), "b": torch.tensor([17, 4998])}
    imported = dpi.from_torch(Crossed(), given)
    weights = [torch.as_tensor(w) for w in imported.weights.values()]
    numbers = [w for w in weights if w.shape[0] == 5000 and w.abs().max() > 50]
    assert numbers
    for table in numbers:
        assert torch.equal(table.bfloat16().float(), table.float())


class Crosses(nn.Module):
    """Tables of crossed ids, hashed as Python would."""

    def __init__(self, rows, hashed, *, alone=True):
        super().__init__()
        torch.manual_seed(0)
        self.hashed, self.rows, self.alone = hashed, rows, alone
        self.tables = nn.ModuleList(nn.Embedding(count, 2) for count in (30_000, 4000))
        self.crossed, self.wide = nn.Embedding(rows, DIM), nn.Embedding(rows, 1)
        self.out = nn.Linear(4 * alone + DIM, 1)

    def forward(self, a, b, items):
        place = self.hashed(a, b, self.rows)
        parts = [self.tables[0](a), self.tables[1](b)] if self.alone else []
        many = self.wide((items * 7919 + a[:, None]) % self.rows).sum(1)
        return self.out(torch.cat([*parts, self.crossed(place)], 1)) + many

    def example_inputs(self):
        return torch.tensor([3, 29_999]), torch.tensor([17, 3999]), torch.tensor([[5, 900], [0, 1]])


def operations(imported):
    return [m.compute.kind for m in imported.spec.modules if m.op == "tensor"]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    "hashed",
    [
        lambda a, b, rows: (a * 4000 + b) % rows,
        lambda a, b, rows: (a * 2_654_435_761 + b * 40_503 + 17) % rows,
        lambda a, b, rows: (b - a * 131_071) % rows,
        lambda a, b, rows: torch.remainder(a * 1_000_003 + b, rows) // 2,
        lambda a, b, rows: (a * 1000 + b) % rows,
        lambda a, b, rows: (((a * 31 + b) * 31 + a) * 31) % rows,
        lambda a, b, rows: ((a ^ (b * 7)) * 131 + b) % rows,
        lambda a, b, rows: (torch.stack([a * 4001 + b, b, b * 4000 + a], 1) % rows)[:, 0],
        lambda a, b, rows: (torch.cat([(a * 4001 + b)[:, None], b[:, None]], 1) % rows)[:, 0],
    ],
)
def test_crossed_ids_are_hashed_without_rounding(hashed, alone):
    rows = 100_003
    model = Crosses(rows, hashed, alone=alone)
    imported = dpi.from_torch(model, model.example_inputs())
    assert imported.report["differences"]["CPU, fp32"]["largest"] < 1e-5
    assert operations(imported).count("take_along") == 2  # no row of 100,003 zeros and ones


class Clock(nn.Module):
    """Sums that float32 holds, and their remainders."""

    def __init__(self):
        super().__init__()
        self.hour, self.out = nn.Embedding(24, DIM), nn.Linear(DIM + 1, 1)

    def forward(self, hour, zone, price, flag):
        local = (hour * 3600 + zone * 3600) % 86_400 // 3600
        code = ((price.long() * 2048 + hour) % 100).float() * flag
        return self.out(torch.cat([self.hour(local), code[:, None]], 1))


@pytest.mark.parametrize(
    "hashed",
    [
        lambda a, b, rows: (a * 7919 ^ b) % rows,
        lambda a, b, rows: (a * 100_003) ^ (b * 4001) & (rows - 1),
        lambda a, b, rows: (((a * 7919) | b) * 31 + a) % rows,
        lambda a, b, rows: (((a * 7919 + b) & 0x0F0F0F0F) | 0x70000001) % rows,
        lambda a, b, rows: ((a * 7919 + b) ^ -3) % rows,
        lambda a, b, rows: (torch.stack([a * 7919 ^ b, b], 1) % rows)[:, 0],
    ],
)
def test_bits_of_hashes_are_those_of_their_last_bits(hashed):
    model = Crosses(2**14, lambda a, b, rows: hashed(a, b, rows) % rows)
    report = dpi.from_torch(model, model.example_inputs()).report
    assert report["differences"]["CPU, fp32"]["largest"] < 1e-5


def test_sums_that_nothing_rounds_stay_numbers():
    price, flag = torch.tensor([3.5, 900.25, -7.0]), torch.tensor([True, False, True])
    given = (torch.tensor([1, 22, 4]), torch.tensor([-5, 9, 0]), price, flag)
    imported = dpi.from_torch(Clock(), given)
    assert not imported.spec.fields
    assert len(imported.spec.dense) == 4


def test_long_lists_of_computed_ids_pick_from_wide_tables():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table, self.out = nn.Embedding(5000, 128), nn.Linear(128, 1)

        def forward(self, items, user):
            return self.out(self.table((items * 31 + user[:, None]) % 5000).mean(1))

    given = torch.randint(3000, (4, 50)), torch.randint(2000, (4,))
    assert "take_along" in operations(dpi.from_torch(Wide(), given))


def test_few_rows_of_computed_ids_are_multiplied():
    model = Crosses(60, lambda a, b, rows: (a * 7 + b) % rows)
    imported = dpi.from_torch(model, model.example_inputs())
    assert "take_along" not in operations(imported)


def test_computed_ids_pick_from_finite_tables():
    model = Crosses(100_003, lambda a, b, rows: (a * 7 + b) % rows)
    model.crossed.weight.data[3] = torch.inf
    with pytest.raises(ModelImportError, match="not finite"):
        dpi.from_torch(model, model.example_inputs())


def test_what_float32_rounds_is_named():
    class Hours(nn.Module):
        def __init__(self):
            super().__init__()
            self.hour = nn.Embedding(24, DIM)

        def forward(self, time, zone):
            return self.hour(((time + zone * 60) // 3600) % 24).sum(1)

    given = {"time": torch.tensor([1_700_000_000, 3]), "zone": torch.tensor([-300, 540])}
    with pytest.raises(ModelImportError, match=r"16,777,216 such as input time has.*\(hours"):
        dpi.from_torch(Hours(), given)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.int8])
def test_casts_to_types_that_the_engine_does_not_round_to_are_named(kind):
    class Cast(nn.Linear):
        def forward(self, x):
            return super().forward((100 * x).to(kind).float())

    told = rf"differs from the model .* rounds to {kind} by aten\._to_copy .* leave such casts out"
    with pytest.raises(ModelImportError, match=told):
        dpi.from_torch(Cast(2, 1), torch.randn(3, 2), precisions=())


def test_whole_numbers_that_float32_rounds_are_told():
    class Days(nn.Module):
        def __init__(self):
            super().__init__()
            self.days = nn.Linear(1, 1)

        def forward(self, time):
            return self.days(time[:, None] / 864e5)

    report = dpi.from_torch(Days(), {"time": torch.tensor([1_700_000_000_001, 3])}).report
    assert report["rounded_inputs"] == ["time"]


@pytest.mark.parametrize("days", [False, True])
def test_times_between_whole_numbers_that_float32_rounds(days):
    class Gaps(nn.Module):
        """Random samples alone, whose times have nothing to do with each other, would not tell."""

        def __init__(self):
            super().__init__()
            self.gap, self.out = nn.Embedding(32, DIM), nn.Linear(DIM, 1)

        def forward(self, seen, now):
            gap = (now[:, None] - seen).clamp(min=1)
            bucket = gap // 86400 if days else gap.float().log2().long()
            return self.out(self.gap(bucket.clamp(0, 31)).sum(1))

    now = torch.tensor([1_700_000_000, 1_700_400_000])
    given = {"seen": now[:, None] - torch.tensor([[30, 4000], [900, 2_000_000]]), "now": now}
    with pytest.raises(ModelImportError, match=r"float32, which rounds.*\(hours, differences\)"):
        dpi.from_torch(Gaps(), given)


def test_the_last_of_a_list():
    class Latest(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, DIM), nn.Linear(2 * DIM, 1)

        def forward(self, clicks):
            return self.out(self.table(clicks[:, -2:]).flatten(1))

    given = {"clicks": torch.tensor([[3, 1, 8, 0], [1, 2, 7, 4]])}
    found = dpi.from_torch(Latest(), given)
    assert found.spec.lists[0].features == ("clicks_0", "clicks_1", "clicks_2", "clicks_3")
    assert {module.op for module in found.spec.modules} == {"embedding", "linear"}


@dataclass
class Request:
    item: torch.Tensor
    prices: list[torch.Tensor]
    note: torch.Tensor | None = None


class OfRequests(nn.Module):
    """Takes a dataclass; counts samples by len(); has a name that graphs have for themselves."""

    def __init__(self):
        super().__init__()
        self.meta, self.code = nn.Parameter(torch.randn(DIM)), nn.Linear(2, DIM)
        self.table = nn.Embedding(9, DIM)

    def forward(self, request):
        prices = self.code(torch.stack(request.prices, 1))
        rows = self.table(request.item) * self.meta.expand(len(prices), -1)
        return (rows * prices).sum(1)


def test_dataclasses_lengths_and_names_of_graphs():
    model = OfRequests()
    given = Request(torch.tensor([1, 2]), [torch.rand(2), torch.rand(2)])
    found = dpi.from_torch(model, given)
    assert found.spec.dense == ("request_prices_0", "request_prices_1")
    assert set(dict(model.named_parameters())) == {
        "meta", "code.weight", "code.bias", "table.weight"
    }  # fmt: skip


def test_a_batch_as_a_number_of_python():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.start = nn.Embedding(9, DIM), nn.Parameter(torch.randn(DIM))

        def forward(self, item):
            return (self.table(item) * self.start.expand(int(item.shape[0]), -1)).sum(1)

    assert dpi.from_torch(Counts(), {"item": torch.tensor([3, 1])}).report["differences"]


def test_a_part_that_is_a_script_is_named():
    model = nn.Sequential(nn.Linear(3, 4), torch.jit.script(nn.Linear(4, 1)))
    with pytest.raises(ModelImportError, match=r"part 1 is TorchScript.*state_dict"):
        dpi.from_torch(model, torch.rand(2, 3))


def test_what_is_packed_depends_on_the_data():
    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.gru = nn.Embedding(9, DIM), nn.GRU(DIM, 3, batch_first=True)

        def forward(self, clicks):
            packed = pack_padded_sequence(self.table(clicks), (clicks > 0).sum(1), True, False)
            return self.gru(packed)[0].data.sum(1)

    told = r"cannot trace.*data of a packed sequence.*pad_packed_sequence.*test_importing\.py"
    with pytest.raises(ModelImportError, match=told):
        dpi.from_torch(Packs(), {"clicks": torch.tensor([[3, 1, 8, 0], [1, 2, 7, 4]])})
    assert pack_padded_sequence(torch.ones(1, 2, 1), [2], True).data.shape == (2, 1)


class Endless(nn.Module):
    """Ids of 64 bits, times and padded lists of such, of which what is computed repeats."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        sizes = {"user": 500, "item": 300, "hour": 24, "day": 7}
        self.tables = nn.ModuleDict({n: nn.Embedding(size, DIM) for n, size in sizes.items()})
        self.out = nn.Linear(4 * DIM, 1)

    def forward(self, user, time, items):
        mask = (items > 0).float().unsqueeze(-1)
        rows = self.tables["item"](items % 300) * mask
        parts = [self.tables["user"]((user * 31 + 7) % 500), rows.sum(1) / mask.sum(1).clamp(min=1)]
        parts += [self.tables["hour"](time // 3600 % 24), self.tables["day"](time // 86400 % 7)]
        return self.out(torch.cat(parts, 1)).squeeze(1)


def endless_inputs(count, seed=0):
    made = torch.Generator().manual_seed(seed)
    items = torch.randint(0, 2**44, (count, 5), generator=made)
    return {
        "user": torch.randint(-(2**40), 2**40, (count,), generator=made),
        "time": torch.randint(1_600_000_000, 1_800_000_000, (count,), generator=made),
        "items": items * (torch.rand(items.shape, generator=made) < 0.6),
    }


def test_ids_without_an_end_of_which_what_is_computed_repeats(tmp_path):
    bundle = dpi.from_torch(Endless(), endless_inputs(30), path=tmp_path / "bundle")
    found = [(field.rows, field.period) for field in bundle.spec.fields]
    assert found == [(500, 500), (604_800, 604_800), *[(301, 300)] * 5]
    others = endless_inputs(200, seed=1)
    ids = torch.cat([x.reshape(200, -1).T for x in others.values()]).numpy()
    expected = Endless()(**others).detach().numpy()
    weights = {name: torch.as_tensor(w) for name, w in bundle.arrays().items()}
    engine = dpi.load_engine(bundle, device="cpu", max_batch=64)
    forms = [ids, list(ids), *engine.stream([(ids, None)])]
    np.testing.assert_allclose(engine.logits(forms[0]), expected, atol=1e-5)
    np.testing.assert_array_equal(engine.score(forms[1]), forms[2])
    reference = CTRModel.from_weights(bundle.spec, weights)(torch.from_numpy(ids))
    np.testing.assert_allclose(reference.detach().numpy(), expected, atol=1e-5)
    ids[3, 77] = -1  # an item: a negative one is none
    with pytest.raises(BadIdError, match="id -1 in row 77 of field items_1"):
        engine.score(ids)


class Bits(nn.Module):
    """Bits of one column, of two, and of truths that were made numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.own, self.crossed, self.masked = (nn.Embedding(n, DIM) for n in (64, 256, 1024))
        self.out = nn.Linear(3 * DIM, 1)

    def forward(self, x, y, numbers):
        crossed = torch.cat([self.crossed((x ^ y) & 255), self.masked((x & 0x3C0) | (y % 16))], 1)
        hidden = torch.cat([self.own((y ^ (y >> 3)) & 63), crossed], 1)
        signs = (numbers > 0).int()
        return self.out(hidden).squeeze(1) + (signs[:, :3] ^ signs[:, 3:]).sum(1)


def test_bits_of_whole_numbers():
    made = torch.Generator().manual_seed(1)
    x, y = (torch.randint(0, 2**16, (50,), generator=made) for _ in "xy")
    numbers = torch.randn(50, 6, generator=made)
    imported = dpi.from_torch(Bits(), {"x": x, "y": y, "numbers": numbers})
    assert max(each["largest"] for each in imported.report["differences"].values()) < 1e-5


def test_bits_of_one_column_repeat():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(64, DIM)

        def forward(self, x):
            return self.table((x ^ (x >> 3)) & 63).sum(1)

    imported = dpi.from_torch(Own(), {"x": torch.tensor([5, 10**12, 10**9, 77])})
    assert [(f.rows, f.period) for f in imported.spec.fields] == [(512, 512)]


def test_ids_of_which_what_is_computed_does_not_repeat_have_a_row_each():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, DIM)

        def forward(self, x):
            return self.table((x // 1000).clamp(max=6)).sum(1)

    with pytest.raises(
        ModelImportError, match=r"x has ids as large as 1,000,000,000,000, of which"
    ):
        dpi.from_torch(Parts(), {"x": torch.tensor([1, 10**12])})


def test_another_score_is_refused():
    recorded = Expected.of_logits(TwoTables()(**inputs()).detach().numpy() + 1e-3)
    with pytest.raises(ModelImportError, match=r"differs from the model by .* sample "):
        dpi.from_torch(TwoTables(), inputs(), samples=inputs(), recorded=recorded)
    dpi.from_torch(TwoTables(), inputs(), samples=inputs(), recorded=recorded, tolerance=1e-2)


class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x.reshape(-1, 2, 2)).reshape(-1, 4)


@pytest.mark.parametrize("archived", [False, True])
def test_an_operation_that_has_no_form_is_told_with_its_place(tmp_path, archived):
    module, example = nn.Sequential(Inverse(), nn.Linear(4, 1)).eval(), torch.randn(3, 4)
    if archived:
        sizes = {0: torch.export.Dim("batch")}
        program = torch.export.export(module, (example,), dynamic_shapes=(sizes,))
        torch.export.save(program, tmp_path / "model.pt2")
        module = dpi.read_archive(tmp_path / "model.pt2")
    told = r"aten.linalg_inv_ex in 0 \(.*test_importing.py.*\): no form of the engine"
    with pytest.raises(ModelImportError, match=told):
        dpi.from_torch(module, example, ["a", "b", "c", "d"])


def test_a_failed_import_leaves_no_bundle(tmp_path):
    with pytest.raises(ModelImportError):
        dpi.from_torch(Of(lambda z: (z, z)), inputs(), path=tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_models_of_other_libraries_give_their_probabilities(shared_exports):
    """By the probabilities that the libraries themselves gave, in float64."""
    exports = sorted(shared_exports.rglob("*.pt2"))
    assert len(exports) >= 34
    for file in exports:
        stored = load_file(file.with_suffix(".safetensors"))
        probabilities = stored.pop("probability").reshape(-1).numpy()
        given = {name.removeprefix("input/"): tensor for name, tensor in stored.items()}
        archived = dpi.read_archive(file)
        if len(archived.inputs) == 1:
            given = {archived.inputs[0].name: next(iter(given.values()))}
        samples = {
            each.name: given.get(each.name, torch.zeros(len(probabilities)))  # such as a label
            for each in archived.inputs
        }
        about = json.loads(file.with_suffix(".json").read_text())
        tolerance = 1e-5
        if about.get("reference") == "float32":  # what the library computed in
            probabilities, tolerance = probabilities.astype(np.float32), 3e-5
        report = dpi.from_torch(
            archived,
            columns=about.get("columns"),
            samples=samples,
            recorded=Expected.of_probabilities(probabilities),
            tolerance=tolerance,
        ).report
        assert report["differences"]["CPU, fp32"]["largest"] < 1e-5, file.name


class HashedTasks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.ctr, self.cvr = nn.Embedding(500, 1), nn.Embedding(1500, 1)

    def forward(self, x):
        return {"ctr": self.ctr(x % 500).sum(1), "cvr": self.cvr(x % 1500).sum(1)}


def test_tasks_that_hash_one_column_differently():
    options = {"output": "ctr", "tasks": {"cvr": "cvr"}}
    made = dpi.from_torch(HashedTasks(), {"x": torch.tensor([1, 77, 50_000])}, **options)
    assert [(f.rows, f.period) for f in made.spec.fields] == [(50_001, None)]
    with pytest.raises(ModelImportError, match="output 'cvr' reads other features"):
        dpi.from_torch(HashedTasks(), {"x": torch.tensor([1, 77, 2**40])}, **options)


class OneTable(nn.Module):
    """A table looked up with what `row` makes of ids."""

    def __init__(self, row):
        super().__init__()
        torch.manual_seed(2)
        self.table, self.row = nn.Embedding(50, DIM), row

    def forward(self, x):
        return self.table(self.row(x)).sum(1)


@pytest.mark.parametrize(("row", "largest", "kind"), [
    (lambda x: x * 2654435761 % 50, 2**31, torch.int64),
    (lambda x: (x * 31 + 7) % 50, 2**35, torch.int64),
    (lambda x: x * x % 50, 2**30, torch.int64),
    (lambda x: ((x * 31 + 7) % 1000003 * 17 + 3) % 50, 2**35, torch.int64),
    (lambda x: (x * 31 + 7) % 50, 2**20, torch.int32),
    (lambda x: x.int() % 50, 2**20, torch.int64),
    (lambda x: x.to(torch.uint8).long() % 50, 200, torch.int64),
    (lambda x: x.float().long() % 50, 2**20, torch.int64),
    (lambda x: x.clamp(min=0) % 50, 2**40, torch.int64),
    (lambda x: torch.where(x > 9, x % 50, 3), 2**40, torch.int64),
    (lambda x: (x ^ (x >> 7)) & 31, 2**40, torch.int64),
    (lambda x: x % 50, 2**62, torch.int64),
])  # fmt: skip
def test_ids_beyond_the_examples_score_as_the_model_or_are_bad(row, largest, kind):
    module = OneTable(row)
    given = torch.tensor([0, 1, 77, largest - 1], dtype=kind)
    imported = dpi.from_torch(module, {"x": given})
    (field,) = imported.spec.fields
    random = np.random.default_rng(3)
    sizes = 2.0 ** random.uniform(3, 31 if kind == torch.int32 else 63, 4000)
    ids = (sizes * random.choice([-1, 1], 4000)).astype(np.int64)
    inside = field.in_table(ids)
    ids = torch.from_numpy(ids[(inside >= 0) & (inside < field.rows)])
    model = CTRModel.from_weights(imported.spec, imported.weights)
    expected = module(ids.to(kind)).detach()
    np.testing.assert_allclose(model(ids[None]).detach(), expected, atol=1e-5)


def test_an_id_that_the_integers_of_the_model_do_not_hold_is_told(tmp_path):
    module = OneTable(lambda x: (x * 31 + 7) % 50)
    bundle = dpi.from_torch(module, {"x": torch.tensor([1, 10**6])}, path=tmp_path / "bundle")
    engine = dpi.load_engine(bundle, device="cpu")
    with pytest.raises(BadIdError, match=f"id {2**60} in row 1 of field x") as error:
        engine.score(np.array([[5, 2**60]]))
    assert error.value.value == 2**60


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (torch.int64, -1000, 1000),
        (torch.int16, -32768, 32767),
        (torch.int8, -128, 127),
        (torch.uint8, 0, 255),
    ],
)
def test_bits_of_numbers(kind, least, most):
    class Signed(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(5, 1)

        def forward(self, a, b):
            other = a ^ (-3 if a.dtype.is_signed else 3)
            found = torch.stack([a ^ b, a & b, a | b, a & 0x70, other], 1)
            return self.out(found / 1000).squeeze(1)

    made = torch.Generator().manual_seed(1)
    a, b = (torch.randint(least, most + 1, (40,), generator=made).to(kind) for _ in "ab")
    imported = dpi.from_torch(Signed(), {"a": a, "b": b}, output="logit")
    assert imported.spec.dense == ("a", "b")
