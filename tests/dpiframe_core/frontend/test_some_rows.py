"""Branches on whether a batch has samples of a kind, and those that mean more than that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpiframe_core import from_torch
from dpiframe_core.errors import ModelImportError

EXAMPLES = {"x": torch.tensor([[0, 49], [3, 7], [9, 2]]), "domain": torch.tensor([0, 2, 1])}


class Domains(nn.Module):
    """A tower for each domain; `route` scores the samples e [B, 8] of a domain."""

    def __init__(self, route) -> None:
        super().__init__()
        self.table, self.route = nn.Embedding(50, 4), route
        towers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(3)]
        self.towers = nn.ModuleList(towers)

    def forward(self, x, domain):
        e = self.table(x).flatten(1)
        out = e.new_zeros(len(e), 1)
        for i, tower in enumerate(self.towers):
            out = self.route(out, e, domain == i, tower)
        return out


def _of_mask(out, e, mask, tower):
    out[mask] = tower(e[mask])
    return out


def _if_any(out, e, mask, tower):
    return _of_mask(out, e, mask, tower) if mask.any() else out


def _if_not_any(out, e, mask, tower):
    return out if not torch.any(mask) else _of_mask(out, e, mask, tower)


def _if_none(out, e, mask, tower):
    return out if bool(~mask.any()) else _of_mask(out, e, mask, tower)


def _if_any_as_number(out, e, mask, tower):
    return _of_mask(out, e, mask, tower) if mask.any().item() else out


def _if_counted(out, e, mask, tower):
    return out if mask.sum() == 0 else _of_mask(out, e, mask, tower)


def _if_places(out, e, mask, tower):
    places = mask.nonzero(as_tuple=True)[0]
    if places.numel() == 0:
        return out
    return out.index_copy(0, places, tower(e[places]))


def _if_length(out, e, mask, tower):
    places = torch.nonzero(mask).squeeze(1)
    if len(places) > 0:
        out.index_add_(0, places, tower(e.index_select(0, places)))
    return out


ROUTES = [_of_mask, _if_any, _if_not_any, _if_none, _if_any_as_number, _if_counted, _if_places,
          _if_length]  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_samples_of_a_kind_go_alone(route):
    torch.manual_seed(0)
    module = Domains(route).eval()
    imported = from_torch(module, EXAMPLES, precisions=())
    assert imported.report["samples"]["are"] == "random"
    assert max(d["largest"] for d in imported.report["differences"].values()) < 1e-6


class Tiers(nn.Module):
    """Frequent ids in a table of 20 rows, rare ones in one of 100, those of neither as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.frequent, self.rare = nn.Embedding(20, 4), nn.Embedding(100, 4)

    def forward(self, x):
        out = torch.full((*x.shape, 4), 0.5)
        out[x < 20] = self.frequent(x[x < 20])
        rare = (x >= 20) & (x < 120)
        out[rare] = self.rare(x[rare] - 20)
        return out.flatten(1).sum(1)


@pytest.mark.parametrize("examples", [[0, 19, 20, 119, 150], [[3, 150], [150, 20]]])
def test_ids_that_a_mask_keeps_from_a_table_do_not_limit_them(examples):
    imported = from_torch(Tiers().eval(), torch.tensor(examples), precisions=())
    assert {field.rows for field in imported.spec.fields} == {151}
    assert max(d["largest"] for d in imported.report["differences"].values()) < 1e-6


class TableOfEach(nn.Module):
    """Each domain has a table of items of its own, of 100 rows and of 20."""

    def __init__(self, told) -> None:
        super().__init__()
        self.tables, self.told = nn.ModuleList([nn.Embedding(100, 4), nn.Embedding(20, 4)]), told

    def forward(self, x, domain):
        out = torch.zeros(len(x), 4)
        for i, table in enumerate(self.tables):
            mask = domain == i
            out[mask] = table((torch.where(mask, x, 0) if self.told else x)[mask])
        return out.sum(1)


def test_a_mask_of_pads_copies_no_table():
    class History(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(50, 4)

        def forward(self, item, clicks):
            out = torch.zeros(*clicks.shape, 4)
            out[clicks != 0] = self.items(clicks[clicks != 0])
            return (out * self.items(item).unsqueeze(1)).sum((1, 2))

    given = torch.tensor([1, 49]), torch.tensor([[3, 49, 0], [9, 0, 0]])
    imported = from_torch(History().eval(), given, precisions=())
    tables = [weight for weight in imported.weights.values() if tuple(weight.shape) == (50, 4)]
    assert len(tables) == 1


def test_ids_that_another_column_keeps_from_a_table_are_told():
    given = {"x": torch.tensor([99, 19]), "domain": torch.tensor([0, 1])}
    with pytest.raises(ModelImportError, match=r"input x has id 99 .* ids below 20: .*where\(mask"):
        from_torch(TableOfEach(False).eval(), given, precisions=())
    imported = from_torch(TableOfEach(True).eval(), given, precisions=())
    assert max(d["largest"] for d in imported.report["differences"].values()) < 1e-6


def _if_any_of_all(out, e, mask, tower):
    return out + tower(e) * (2 if mask.any() else 1)


def _if_all(out, e, mask, tower):
    return out + tower(e) * (2 if mask.all() else 1)


def _if_several(out, e, mask, tower):
    return out + tower(e) * (2 if mask.sum() > 1 else 1)


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (_if_any_of_all, "sample 0 has another score alone than in its batch"),
        (_if_several, "has another score alone|differs from the model"),
        (_if_all, "depends on the data; use torch.where in place of if"),
    ],
)
def test_what_depends_on_the_other_samples_is_refused(route, words):
    torch.manual_seed(0)
    with pytest.raises(ModelImportError, match=words):
        from_torch(Domains(route).eval(), EXAMPLES, precisions=())


class Murmur(nn.Module):
    """Rows by a hash of 32 bits, whose products need 59."""

    def __init__(self, rounds) -> None:
        super().__init__()
        self.table, self.linear, self.rounds = nn.Embedding(97, 4), nn.Linear(4, 1), rounds

    def forward(self, item):
        h = item ^ 0x9747
        for _ in range(self.rounds):
            h = ((h ^ (h >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        return self.linear(self.table((h ^ (h >> 16)) % 97))


@pytest.mark.parametrize("rounds", [2, 6])
def test_a_hash_of_products_beyond_float64(rounds):
    torch.manual_seed(0)
    examples = torch.tensor([0, 999, 5, 17])
    imported = from_torch(Murmur(rounds).eval(), examples, precisions=())
    assert max(d["largest"] for d in imported.report["differences"].values()) < 1e-6
