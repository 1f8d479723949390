"""What a model computes is found again as the engine's own modules, however it is written."""

from __future__ import annotations

import pytest
import torch
from imported_models import import_module, import_program
from torch import nn

from dpiframe_core import from_torch
from dpiframe_core.lowering import DEVICE_PASSES, lower
from dpiframe_core.model.builtin import Deep, Features, dcn, dcnv2, deepfm, wdl
from dpiframe_core.model.modules import Add, Linear, Wide
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.model.torch_module import CTRModel

ROWS, FIELDS, DIM, DENSE = 11, 5, 4, 3
BATCH = 9


class Base(nn.Module):
    """Ids [B, F], an embedding table a field, dense features [B, N]."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.tables = nn.ModuleList(nn.Embedding(ROWS, DIM) for _ in range(FIELDS))
        self.width = FIELDS * DIM
        self.head = nn.Linear(self.width, 1)

    def rows(self, ids):
        return torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)


def inputs():
    generator = torch.Generator().manual_seed(1)
    return {"ids": torch.randint(0, ROWS, (BATCH, FIELDS), generator=generator)}


def check(module, found, given):
    reference = module.double()(**given).reshape(-1)
    assert torch.allclose(found.logits(given), reference, atol=1e-5, rtol=1e-5)


FM_STYLES = {
    "square of sum": lambda v: 0.5 * (v.sum(1) ** 2 - (v * v).sum(1)).sum(1, keepdim=True),
    "half last": lambda v: (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1, keepdim=True) * 0.5,
    "pairs": lambda v: sum(
        (v[:, i] * v[:, j]).sum(1, keepdim=True) for i in range(FIELDS) for j in range(i)
    ),
    "products of all": lambda v: torch.triu(torch.bmm(v, v.transpose(1, 2)), diagonal=1).sum(
        (1, 2)
    )[:, None],
    "einsum": lambda v: (
        (torch.einsum("bfd,bgd->b", v, v) - torch.einsum("bfd,bfd->b", v, v))[:, None] / 2
    ),
    "mean": lambda v: (
        (v.mean(1) * FIELDS).square().sum(1, keepdim=True) / 2 - v.square().sum((1, 2))[:, None] / 2
    ),
}


@pytest.mark.parametrize("style", FM_STYLES)
def test_a_factorisation_machine_is_found_in_every_style(style):
    class Model(Base):
        def forward(self, ids):
            v = self.rows(ids)
            return torch.sigmoid(self.head(v.flatten(1)) + FM_STYLES[style](v))

    module = Model().eval()
    found = import_module(module, inputs())
    assert found.kinds == ["embedding", "linear", "fm", "add"] or found.kinds == [
        "embedding", "fm", "linear", "add"]  # fmt: skip
    reference = module.double()(**inputs()).reshape(-1)
    assert torch.allclose(found.logits(inputs()).sigmoid(), reference, atol=1e-6)


def test_what_is_nearly_a_factorisation_machine_is_none():
    class Model(Base):
        def forward(self, ids):
            v = self.rows(ids)
            return self.head(v.flatten(1)) + (v.sum(1) ** 2 - v.pow(2).sum(1)).sum(1, keepdim=True)

    module = Model().eval()
    found = import_module(module, inputs())
    assert "fm" not in found.kinds
    check(module, found, inputs())


CROSS_V2_STYLES = {
    "linear": lambda x0, x, w, b: x0 * nn.functional.linear(x, w, b) + x,
    "residual first": lambda x0, x, w, b: x + (x @ w.T + b) * x0,
    "einsum": lambda x0, x, w, b: torch.einsum("oi,bi->bo", w, x).add(b).mul(x0).add(x),
    "columns": lambda x0, x, w, b: (
        (x0.unsqueeze(2) * (torch.matmul(w, x.unsqueeze(2)) + b[:, None])).squeeze(2) + x
    ),
}


@pytest.mark.parametrize("style", CROSS_V2_STYLES)
def test_a_cross_network_of_matrices_is_found_in_every_style(style):
    class Model(Base):
        def __init__(self):
            super().__init__()
            shapes = [(3, self.width, self.width), (3, self.width)]
            self.w, self.b = (nn.Parameter(torch.randn(s) * 0.2) for s in shapes)

        def forward(self, ids):
            x = x0 = self.rows(ids).flatten(1)
            for w, b in zip(self.w, self.b, strict=True):
                x = CROSS_V2_STYLES[style](x0, x, w, b)
            return self.head(x)

    module = Model().eval()
    found = import_module(module, inputs())
    assert found.kinds == ["embedding", "cross_v2", "linear"]
    check(module, found, inputs())


CROSS_V1_STYLES = {
    "product": lambda x0, x, w, b: x0 * (x @ w)[:, None] + b + x,
    "matrix": lambda x0, x, w, b: x + torch.mul(x0, nn.functional.linear(x, w[None])) + b,
    "tensordot": lambda x0, x, w, b: (
        torch.matmul(x0.unsqueeze(2), torch.tensordot(x.unsqueeze(2), w[:, None], ([1], [0])))
        + b[:, None]
        + x.unsqueeze(2)
    ).squeeze(2),
}


@pytest.mark.parametrize("style", CROSS_V1_STYLES)
def test_a_cross_network_of_vectors_is_found_in_every_style(style):
    class Model(Base):
        def __init__(self):
            super().__init__()
            self.w, self.b = (nn.Parameter(torch.randn(2, self.width) * 0.2) for _ in range(2))

        def forward(self, ids):
            x = x0 = self.rows(ids).flatten(1)
            for w, b in zip(self.w, self.b, strict=True):
                x = CROSS_V1_STYLES[style](x0, x, w, b)
            return self.head(x)

    module = Model().eval()
    found = import_module(module, inputs())
    assert found.kinds == ["embedding", "cross_v1", "linear"]
    check(module, found, inputs())


def test_one_table_with_offsets_is_a_table_a_field():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3 * ROWS, DIM)
            self.register_buffer("offsets", torch.tensor([0, ROWS, 2 * ROWS]))
            self.head = nn.Linear(3 * DIM, 1)

        def forward(self, ids):
            return self.head(self.table(ids + self.offsets).flatten(1))

    module, given = Model().eval(), {"ids": inputs()["ids"][:, :3]}
    found = import_module(module, given)
    assert found.kinds == ["embedding", "linear"]
    assert [field.rows for field in found.spec.fields] == [ROWS] * 3
    check(module, found, given)


def test_shifted_ids_of_one_table_keep_their_rows():
    class Model(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.table, self.head, self.shift = nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1), shift

        def forward(self, item, clicks):
            return self.head(self.table(item + self.shift) * self.table(clicks).sum(1))

    class Next(Model):
        def forward(self, clicks):
            return super().forward(clicks[:, 0], clicks)

    ids = inputs()["ids"] * 0
    count = ids.shape[1]
    for module, given, rows in (
        (Model(1), {"item": ids[:, 0], "clicks": ids}, [ROWS - 1, *[ROWS] * count]),
        (Model(2), {"item": ids[:, 0], "clicks": ids}, [ROWS - 2, *[ROWS] * count]),
        (Next(1), {"clicks": ids}, [ROWS - 1, *[ROWS] * (count - 1)]),
    ):
        found = from_torch(module, given)
        assert [field.rows for field in found.spec.fields] == rows


@pytest.mark.parametrize("rows", [[1, 49, 50], [20, 1, 79], [2, 2, 2]])
def test_fields_of_one_table_end_where_the_next_begins(rows):
    class Model(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.table, self.head = nn.Embedding(sum(rows) + 1, DIM), nn.Linear(3 * DIM, 1)
            self.again = again
            self.register_buffer("offsets", torch.tensor([0, *rows[:2]]).cumsum(0))

        def forward(self, ids):
            found = self.head(self.table(ids + self.offsets).flatten(1))
            return found + self.table(ids[:, 0] + 1).sum(1, True) if self.again else found

    given = (torch.zeros(2, 3, dtype=torch.long),)
    last = rows[2] + 1  # nothing ends it
    assert [f.rows for f in from_torch(Model(False), given).spec.fields] == [*rows[:2], last]
    if rows[0] == 20:  # also where a column begins twice, but at places near to one another
        found = from_torch(Model(True), given).spec.fields
        assert [field.rows for field in found] == [19, last + 1, last]


def test_histories_share_the_table_of_their_target():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(ROWS, DIM, padding_idx=0)
            self.head = nn.Linear(2 * DIM, 1)

        def forward(self, item, history):
            mask = (history != 0).float()
            mean = (self.table(history) * mask[:, :, None]).sum(1) / mask.sum(1, True).clamp(min=1)
            return self.head(torch.cat([self.table(item), mean], 1))

    module = Model().eval()
    given = {"item": inputs()["ids"][:, 0], "history": inputs()["ids"]}
    found = import_module(module, given)
    assert len({field.table for field in found.spec.fields}) == 1
    check(module, found, given)


def test_a_gate_of_twice_as_many_columns_is_no_cross_network():
    class Model(Base):
        def __init__(self):
            super().__init__()
            self.both = nn.Linear(self.width, 2 * self.width)

        def forward(self, ids):
            return self.head(nn.functional.glu(self.both(self.rows(ids).flatten(1))))

    module = Model().eval()
    found = import_module(module, inputs())
    assert not {"cross_v1", "cross_v2"} & set(found.kinds)
    check(module, found, inputs())


def test_tables_of_a_field_for_each_other_field_are_one_lookup():
    class Model(Base):
        def __init__(self):
            super().__init__()
            self.each = nn.ModuleList(nn.Embedding(ROWS, DIM) for _ in range(FIELDS))

        def forward(self, ids):
            rows = [table(ids) for table in self.each]
            pairs = [rows[i][:, j] * rows[j][:, i] for i in range(FIELDS) for j in range(i)]
            return sum(pairs).tanh().sum(1)

    module = Model().eval()
    found = import_module(module, inputs())
    assert found.kinds.count("embedding") == 1
    check(module, found, inputs())


def test_an_item_of_a_history_is_looked_up_once():
    class Model(Base):
        def forward(self, ids):
            table, mask = self.tables[0], ids != 0
            state = table(ids).mean(1)
            for i in range(FIELDS):
                moved = torch.tanh(state * table(ids[:, i]) + 0.3)
                state = torch.where(mask[:, i : i + 1], moved, state)
            return (state * mask.sum(1, keepdim=True)).sum(1)

    module = Model().eval()
    found = import_module(module, inputs())
    assert [len(m.fields) for m in found.spec.modules if m.op == "embedding"] == [FIELDS, FIELDS]
    check(module, found, inputs())


def test_the_largest_number_alone_is_a_reduction():
    class Model(Base):
        def forward(self, ids):
            return self.head.weight[:, :DIM].sum() * self.rows(ids).max(dim=1)[0].sum(1)

    module = Model().eval()
    found = import_module(module, inputs())
    assert "reduce" in found.kinds
    assert "top_k" not in found.kinds
    check(module, found, inputs())


K = 3  # interests, or heads
SUMS_OF_PRODUCTS = {
    "a matrix a field": ((FIELDS, K, DIM), lambda v, w: (v.unsqueeze(2) * w).sum(3)),
    "a matrix for all": ((K, DIM), lambda v, w: (w * v.unsqueeze(2)).sum(-1)),
    "of two axes": ((K, FIELDS, DIM), lambda v, w: (v.unsqueeze(1) * w).sum((2, 3))),
    "of whole rows": ((K, FIELDS * DIM), lambda v, w: (v.flatten(1).unsqueeze(1) * w).sum(2)),
    "columns first": ((K, 1, DIM), lambda v, w: (w * v.unsqueeze(1)).sum(3)),
    "a matrix a field, columns first": (
        (DIM, FIELDS, DIM),
        lambda v, w: ((v.unsqueeze(1) * w).sum(3).transpose(1, 2) * v).sum(2),
    ),
    "of two rows": ((1,), lambda v, w: (v.unsqueeze(1) * (w * v.flip(1)).unsqueeze(2)).sum(3)),
}  # fmt: skip


@pytest.mark.parametrize("form", SUMS_OF_PRODUCTS)
def test_a_sum_of_products_is_a_matrix_product(form):
    shape, compute = SUMS_OF_PRODUCTS[form]

    class Model(Base):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(shape))

        def forward(self, ids):
            return compute(self.rows(ids), self.w).flatten(1).tanh().sum(1, keepdim=True)

    module = Model().eval()
    found = import_module(module, inputs())
    assert {"matmul", "linear"} & set(found.kinds)
    check(module, found, inputs())


@pytest.mark.parametrize(
    "compute",
    [
        lambda v, w: (v.unsqueeze(1)[..., :2] * w[..., :2]).sum(3),  # two numbers
        lambda v, w: (v * v.flip(1)).sum(2),
        lambda v, w: (v.mean(1, keepdim=True) * v).sum(2),
        lambda v, w: (v.unsqueeze(1) * w).sum(1),
        lambda v, w: (v.unsqueeze(2).expand(-1, -1, K, -1) * w.mean(2)).sum(1),
    ],
)
def test_other_sums_of_products_stay_what_they_are(compute):
    class Model(Base):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(K, 1, DIM))

        def forward(self, ids):
            return compute(self.rows(ids), self.w).flatten(1).tanh().sum(1, keepdim=True)

    module = Model().eval()
    found = import_module(module, inputs())
    assert "matmul" not in found.kinds
    check(module, found, inputs())


@pytest.mark.parametrize(
    ("name", "built_in", "dense_as"),
    [
        ("fuxictr_WideDeep", wdl, "field"),
        ("fuxictr_DeepFM", deepfm, "field"),
        ("fuxictr_DCN", dcn, "field"),
        ("fuxictr_DCNv2", dcnv2, "field"),
        ("deepctr_WDL", wdl, "raw"),
        ("deepctr_DeepFM", deepfm, "raw"),
        ("deepctr_DCN", dcn, "raw"),
    ],
)
def test_models_of_libraries_become_the_programs_of_the_built_in_ones(
    shared_exports, name, built_in, dense_as
):
    found = import_program(shared_exports / f"{name}.pt2")
    hidden = next(m.hidden for m in found.spec.modules if m.op == "mlp")
    layers = [m.layers for m in found.spec.modules if m.op.startswith("cross")]
    options = {"layers": layers[0]} if layers else {}
    spec = built_in(
        Features(found.spec.fields, found.spec.dense, dense_as), Deep(hidden), **options
    )
    if name == "deepctr_DCN":  # DCN with a linear part
        spec = with_wide(spec)
    generator = torch.Generator().manual_seed(5)
    weights = {
        key: torch.randn(weight.shape, generator=generator)
        for key, weight in CTRModel(spec).state_dict().items()
    }
    assert steps(lower(found.spec, found.weights, DEVICE_PASSES)) == steps(
        lower(spec, weights, DEVICE_PASSES)
    )


def with_wide(spec: ModelSpec) -> ModelSpec:
    *modules, logit = spec.modules
    deep = Linear(name="deep_logit", inputs=logit.inputs)
    wide = Wide(name="wide", inputs=("dense",), bias=False)
    total = Add(name="logit", inputs=("wide", "deep_logit"))
    return spec.model_copy(update={"modules": (*modules, deep, wide, total)})


def steps(program):
    return [
        (type(s).__name__, [v.width for v in s.reads()], [v.width for v in s.writes()])
        for s in program.steps
    ]
