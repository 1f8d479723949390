"""CTR models as people write them in plain PyTorch, small, each with example inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

BATCH = 5
ROWS = (3, 7, 11, 4)
FIELDS, DIM, DENSE, LENGTH = len(ROWS), 6, 3, 5


@dataclass(frozen=True)
class Case:
    """A model, and inputs for its forward."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]


MODELS: dict[str, Case] = {}


def ids() -> Tensor:
    """[B, FIELDS], each field below its rows."""
    return torch.stack([torch.randint(0, rows, (BATCH,)) for rows in ROWS], 1)


def dense() -> Tensor:
    """[B, DENSE], positive."""
    return torch.rand(BATCH, DENSE) + 0.1


def history() -> Tensor:
    """[B, LENGTH] ids of field 2, padded with 0 behind; every sample has one at least."""
    lengths = torch.randint(1, LENGTH + 1, (BATCH, 1))
    return torch.where(
        torch.arange(LENGTH) < lengths, torch.randint(1, ROWS[2], (BATCH, LENGTH)), 0
    )


def case(*inputs: Callable[[], Any], **arguments: Any) -> Callable[[type], type]:
    """Decorator: the class is a model, with these inputs; with arguments, one more of its forms."""

    def keep(model: type) -> type:
        name = "-".join([model.__name__, *map(str, arguments.values())])
        MODELS[name] = Case(lambda: model(**arguments), lambda: tuple(make() for make in inputs))
        return model

    return keep


class Embedded(nn.Module):
    """A table for each field: [B, F, D]."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for rows in ROWS)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)


class Joined(nn.Module):
    """One table for all fields, by offsets: [B, F, D]."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(ROWS), dim)
        starts = torch.tensor((0, *ROWS[:-1])).cumsum(0)
        self.register_buffer("offsets", starts, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x + self.offsets.unsqueeze(0))


def mlp(*widths: int, norm: bool = False) -> nn.Sequential:
    """Linear layers with ReLU, batch norm and dropout between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU(),
                   nn.Dropout(0.3)]  # fmt: skip
    return nn.Sequential(*layers[:-2])


@case(ids, dense)
class WideDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = Joined(1), Joined()
        self.linear = nn.Linear(DENSE, 1)
        self.mlp = mlp(FIELDS * DIM + DENSE, 9, 4, 1, norm=True)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        deep = self.mlp(torch.cat([self.deep(x).flatten(1), d], 1))
        return torch.sigmoid(self.wide(x).sum(1) + self.linear(d) + deep).squeeze(1)


@case(ids, dense)
class DeepFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.wide = Embedded(), Embedded(1)
        self.mlp = mlp(FIELDS * DIM + DENSE, 8, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        fm = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True)
        deep = self.mlp(torch.hstack([e.view(x.size(0), -1), torch.log1p(d)]))
        return torch.sigmoid(fm + deep + self.wide(x).sum(dim=1))[:, 0]


@case(ids, by="conv")
@case(ids, by="einsum")
@case(ids, by="half")
class XDeepFM(nn.Module):
    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.embedded, self.out = by, Embedded(), nn.Linear(4 + 4, 1)
        inner = 2 if by == "half" else 4
        self.convs = nn.ModuleList([nn.Conv1d(FIELDS * n, 4, 1) for n in (FIELDS, inner)])

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        hidden, pooled = e, []
        for conv in self.convs:
            if self.by == "einsum":
                outer = torch.einsum("bhd,bmd->bhmd", hidden, e)
                weight = conv.weight.view(4, hidden.size(1), FIELDS)
                hidden = torch.einsum("bhmd,ohm->bod", outer, weight) + conv.bias[None, :, None]
            else:
                outer = hidden.unsqueeze(2) * e.unsqueeze(1)
                hidden = conv(outer.reshape(x.shape[0], -1, DIM)).relu()
            pooled.append(hidden)
            if self.by == "half":
                hidden, _ = torch.split(hidden, 2, dim=1)
        return self.out(torch.cat(pooled, 1).sum(-1)).squeeze(-1)


@case(ids, by="stack")
@case(ids, by="view")
@case(ids, by="batch")
@case(ids, by="module")
class AutoInt(nn.Module):
    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.heads, self.embedded = by, 2, Embedded()
        self.q, self.k, self.v, self.res = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.out = nn.Linear(FIELDS * DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        if self.by == "module":
            mixed, _ = self.attention(e, e, e)
        else:
            mixed = getattr(self, self.by)(self.q(e), self.k(e), self.v(e))
        return self.out((mixed + self.res(e)).relu().flatten(1))

    def stack(self, *parts: Tensor) -> Tensor:
        q, k, v = (torch.stack(torch.split(p, DIM // 2, dim=2)) for p in parts)
        weights = torch.einsum("hbid,hbjd->hbij", q, k).softmax(-1)
        return torch.cat(torch.unbind(weights @ v), -1)

    def view(self, *parts: Tensor) -> Tensor:
        b = parts[0].shape[0]
        q, k, v = (p.view(b, -1, self.heads, DIM // 2).permute(0, 2, 1, 3) for p in parts)
        weights = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(DIM // 2), dim=-1)
        return (weights @ v).transpose(1, 2).contiguous().view(b, -1, DIM)

    def batch(self, *parts: Tensor) -> Tensor:
        """Heads along the batch."""
        q, k, v = (torch.cat(p.chunk(self.heads, dim=-1), dim=0) for p in parts)
        mixed = torch.bmm(torch.bmm(q, k.permute(0, 2, 1)).softmax(2), v)
        b = parts[0].size(0)
        return torch.cat([mixed[h * b : (h + 1) * b] for h in range(self.heads)], dim=-1)


@case(ids, kind="all")
@case(ids, kind="each")
@case(ids, kind="interaction")
class FiBiNET(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.embedded = kind, Embedded()
        self.excite = nn.Sequential(
            nn.Linear(FIELDS, 2), nn.ReLU(), nn.Linear(2, FIELDS), nn.ReLU()
        )
        self.pairs = [(i, j) for i in range(FIELDS) for j in range(i + 1, FIELDS)]
        count = {"all": 1, "each": FIELDS, "interaction": len(self.pairs)}[kind]
        self.bilinear = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(count))
        self.out = nn.Linear(2 * len(self.pairs) * DIM, 1)

    def cross(self, e: Tensor) -> Tensor:
        parts = e.split(1, dim=1)
        found = []
        for n, (i, j) in enumerate(self.pairs):
            layer = self.bilinear[{"all": 0, "each": i, "interaction": n}[self.kind]]
            found.append(layer(parts[i]) * parts[j])
        return torch.cat(found, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        squeezed = e * self.excite(e.mean(-1)).unsqueeze(-1)
        return self.out(torch.cat([self.cross(e), self.cross(squeezed)], 1).flatten(1))


@case(ids, parallel=False)
@case(ids, parallel=True)
class MaskNet(nn.Module):
    def __init__(self, parallel: bool) -> None:
        super().__init__()
        n = FIELDS * DIM
        self.parallel, self.embedded = parallel, Embedded()
        self.norm = nn.ModuleList(nn.LayerNorm(DIM) for _ in ROWS)
        self.masks = nn.ModuleList(mlp(n, 8, w) for w in (n, n if parallel else 7))
        self.hidden = nn.ModuleList(nn.Linear(n if parallel or not i else 7, 7) for i in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(7) for _ in range(2))
        self.out = nn.Linear(14 if parallel else 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        flat = e.flatten(1)
        normed = torch.cat([n(e[:, i, :]) for i, n in enumerate(self.norm)], 1)
        blocks, current = [], normed
        for mask, hidden, norm in zip(self.masks, self.hidden, self.norms, strict=True):
            source = normed if self.parallel else current
            current = norm(hidden(mask(flat) * source)).relu()
            blocks.append(current)
        return self.out(torch.cat(blocks, 1) if self.parallel else current)


@case(ids)
class FinalMLP(nn.Module):
    """Feature gates, two towers, bilinear fusion by heads."""

    def __init__(self) -> None:
        super().__init__()
        n = FIELDS * DIM
        self.embedded = Embedded()
        self.contexts = nn.ParameterList(nn.Parameter(torch.randn(1, DIM)) for _ in range(2))
        self.gates = nn.ModuleList(mlp(DIM, 8, n) for _ in range(2))
        self.towers = nn.ModuleList(mlp(n, 8, 4) for _ in range(2))
        self.x, self.y = nn.Linear(4, 1), nn.Linear(4, 1)
        self.xy = nn.Parameter(torch.randn(2, 2 * 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.embedded(x).flatten(start_dim=1)
        towers = []
        for context, gate, tower in zip(self.contexts, self.gates, self.towers, strict=True):
            towers.append(tower(flat * gate(context.repeat(flat.size(0), 1)).sigmoid() * 2))
        a, b = towers
        out = self.x(a) + self.y(b)
        a, b = a.view(-1, 2, 2), b.view(-1, 2, 2)
        xy = torch.matmul(torch.matmul(a.unsqueeze(2), self.xy.view(2, 2, 2)).squeeze(2)
                          .unsqueeze(2), b.unsqueeze(-1))  # fmt: skip
        return (out + xy.squeeze(-1).sum(dim=1)).squeeze(-1)


class Dice(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.alpha = nn.BatchNorm1d(width, eps=1e-8), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.alpha * x


@case(ids, history, softmax=False)
@case(ids, history, softmax=True)
class DIN(nn.Module):
    def __init__(self, softmax: bool) -> None:
        super().__init__()
        self.softmax, self.table = softmax, nn.Embedding(ROWS[2], DIM, padding_idx=0)
        self.user = nn.Embedding(ROWS[0], DIM)
        self.unit = nn.Sequential(nn.Linear(4 * DIM, 8), Dice(8), nn.Linear(8, 1))
        self.mlp = nn.Sequential(nn.Linear(3 * DIM, 8), Dice(8), nn.Linear(8, 1))

    def forward(self, x: Tensor, hist: Tensor) -> Tensor:
        target, keys, mask = self.table(x[:, 2]), self.table(hist), hist > 0
        query = target.unsqueeze(1).expand(-1, hist.size(1), -1)
        joined = torch.cat([query, keys, query - keys, query * keys], dim=-1)
        score = self.unit(joined.view(-1, 4 * DIM)).view(-1, hist.size(1))
        if self.softmax:
            score = torch.where(mask, score, torch.full_like(score, -1e9)).softmax(-1)
        else:
            score = score * mask.float()
        interest = (score.unsqueeze(-1) * keys).sum(1)
        return self.mlp(torch.cat([self.user(x[:, 0]), target, interest], -1)).sigmoid()


@case(ids, history, kind="GRU")
@case(ids, history, kind="LSTM")
class Recurrent(nn.Module):
    """DIEN's interest extractor: the last state of a GRU."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS[2], DIM)
        self.recurrent = getattr(nn, kind)(DIM, 4, batch_first=True)
        self.out = nn.Linear(4 + DIM, 1)

    def forward(self, x: Tensor, hist: Tensor) -> Tensor:
        states, _ = self.recurrent(self.table(hist))
        lengths = (hist > 0).sum(1)
        last = states[torch.arange(states.size(0)), lengths - 1]
        return self.out(torch.cat([last, self.table(x[:, 2])], 1))


@case(ids, history, kind="LSTM", width=34, bidirectional=True, num_layers=2, proj_size=3)
@case(ids, history, kind="GRU", width=16, bidirectional=True)
@case(ids, history, kind="RNN", width=12, num_layers=2, nonlinearity="relu", bias=False)
class Packed(nn.Module):
    """Histories that are packed, so that recurrent layers end where these do."""

    def __init__(self, kind: str, width: int, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS[2], DIM)
        self.start = nn.Parameter(torch.randn(4))
        self.recurrent = getattr(nn, kind)(DIM, 4, batch_first=True, **options)
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor, hist: Tensor) -> Tensor:
        lengths = (hist > 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(
            self.table(hist), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        start = None
        if isinstance(self.recurrent, nn.RNN):
            start = self.start.expand(2, len(x), 4).contiguous()
        states, last = self.recurrent(packed, start)
        padded, _ = pad_packed_sequence(states, batch_first=True, padding_value=-1, total_length=7)
        ends = last if isinstance(last, Tensor) else torch.cat(last, 2)
        return self.out(torch.cat([padded.sum(1), ends.transpose(0, 1).flatten(1)], 1))


@case(ids, history)
class BST(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(ROWS[2], DIM), nn.Embedding(LENGTH + 1, DIM)
        self.encoder = nn.TransformerEncoderLayer(
            DIM, 2, 12, dropout=0.1, batch_first=True, activation="gelu"
        )
        self.mlp = mlp((LENGTH + 1) * DIM, 8, 1)

    def forward(self, x: Tensor, hist: Tensor) -> Tensor:
        sequence = torch.cat([hist, x[:, 2:3]], 1)
        places = torch.arange(sequence.size(1)).unsqueeze(0).expand(sequence.size(0), -1)
        e = self.table(sequence) + self.place(places)
        e = self.encoder(e, src_key_padding_mask=sequence == 0)
        return self.mlp(e.masked_fill((sequence == 0).unsqueeze(-1), 0.0).flatten(1))


@case(ids, history, by="own")
@case(ids, history, by="sdpa")
class SASRec(nn.Module):
    """Causal self-attention over the history, and the last place against the target."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.table = by, nn.Embedding(ROWS[2], DIM, padding_idx=0)
        self.place = nn.Parameter(torch.randn(1, LENGTH, DIM))
        self.qkv, self.ffn = nn.Linear(DIM, 3 * DIM), mlp(DIM, 8, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM, eps=1e-8)

    def forward(self, x: Tensor, hist: Tensor) -> Tensor:
        e = self.table(hist) * DIM**0.5 + self.place
        q, k, v = self.qkv(self.norm1(e)).chunk(3, -1)
        if self.by == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            dots = q @ k.mT / DIM**0.5
            hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
            mixed = dots.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        e = e + mixed
        e = e + self.ffn(self.norm2(e))
        last = e.gather(1, (hist.ne(0).sum(1) - 1).view(-1, 1, 1).expand(-1, 1, DIM)).squeeze(1)
        return (last * self.table(x[:, 2])).sum(-1)


@case(history, ids)
class TransAct(nn.Module):
    """Actions beside the candidate through nn.TransformerEncoder with a mask, as a sequence's first
    and a maximum (Xia et al., 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS[2], 4, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = mlp(3 * 8, 8, 1)

    def forward(self, actions: Tensor, x: Tensor) -> Tensor:
        n = actions.shape[1]
        candidate = self.items(x[:, 2]).unsqueeze(1).expand(-1, n, -1)
        both = torch.cat([self.items(actions), candidate], -1)
        later = torch.full((n, n), float("-inf")).triu(1)
        padded = torch.cat([torch.zeros_like(actions[:, :1]), actions[:, 1:]], 1) == 0
        padded = padded & (torch.arange(n) > 0)
        out = self.encoder(both, mask=later, src_key_padding_mask=padded)
        return self.out(torch.cat([out[:, :2].flatten(1), out.amax(1)], 1)).view(-1)


@case(ids, dense, low_rank=False)
@case(ids, dense, low_rank=True)
class DLRM(nn.Module):
    """Dot products of pairs; DLRM-DCN crosses at low rank in their place."""

    def __init__(self, low_rank: bool) -> None:
        super().__init__()
        self.low_rank, self.tables = low_rank, nn.ModuleList(
            nn.EmbeddingBag(rows, DIM, mode="sum") for rows in ROWS)  # fmt: skip
        self.bottom = mlp(DENSE, 8, DIM)
        n = (FIELDS + 1) * DIM
        self.down = nn.ModuleList(nn.Linear(n, 3, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(3, n) for _ in range(2))
        self.top = mlp(n if low_rank else DIM + (FIELDS + 1) * FIELDS // 2, 8, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        first = self.bottom(d)
        rest = [table(x[:, i : i + 1]) for i, table in enumerate(self.tables)]
        joined = torch.stack([first, *rest], 1)
        if self.low_rank:
            x0 = crossed = joined.flatten(1)
            for down, up in zip(self.down, self.up, strict=True):
                crossed = x0 * up(down(crossed)) + crossed
            return self.top(crossed)
        dots = torch.bmm(joined, joined.transpose(1, 2))
        i, j = torch.tril_indices(FIELDS + 1, FIELDS + 1, offset=-1)
        return self.top(torch.cat([first, dots[:, i, j]], 1))


@case(ids)
class DCNMix(nn.Module):
    """DCNv2 with a mixture of low-rank experts (Wang et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        n = FIELDS * DIM
        self.embedded = Joined()
        self.u, self.v = (nn.Parameter(torch.randn(2, 3, n, 4) / n) for _ in range(2))
        self.c = nn.Parameter(torch.randn(2, 3, 4, 4))
        self.gates = nn.ModuleList(nn.Linear(n, 1, bias=False) for _ in range(3))
        self.bias, self.out = nn.Parameter(torch.randn(2, n, 1)), nn.Linear(n, 1)

    def forward(self, x: Tensor) -> Tensor:
        x0 = self.embedded(x).view(x.size(0), -1).unsqueeze(2)
        current = x0
        for i in range(2):
            experts, gates = [], []
            for e in range(3):
                gates.append(self.gates[e](current.squeeze(2)))
                inner = torch.tanh(torch.matmul(self.v[i][e].t(), current))
                inner = torch.tanh(torch.matmul(self.c[i][e], inner))
                outer = torch.matmul(self.u[i][e], inner)
                experts.append((x0 * (outer + self.bias[i])).squeeze(2))
            mixed = torch.matmul(torch.stack(experts, 2), torch.stack(gates, 1).softmax(1))
            current = mixed + current
        return self.out(current.squeeze())


@case(ids)
class PNN(nn.Module):
    """Inner and outer products of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, pairs = Embedded(), FIELDS * (FIELDS - 1) // 2
        self.i, self.j = torch.triu_indices(FIELDS, FIELDS, 1).tolist()
        self.kernel = nn.Parameter(torch.randn(DIM, pairs, DIM))
        self.mlp = mlp(FIELDS * DIM + 2 * pairs, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        p, q = e[:, self.i], e[:, self.j]
        inner = (p * q).sum(2)
        kp = torch.sum(p.unsqueeze(1) * self.kernel, dim=-1).permute(0, 2, 1)
        outer = (kp * q).sum(-1)
        return self.mlp(torch.cat([e.flatten(1), inner, outer], 1))


@case(ids)
class NFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.wide = Joined(), Joined(1)
        self.bn, self.mlp = nn.BatchNorm1d(DIM), mlp(DIM, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        pooled = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1))
        return torch.add(self.wide(x).squeeze(-1).sum(1, keepdim=True), self.mlp(self.bn(pooled)))


@case(ids)
class AFM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.attention = Embedded(), nn.Linear(DIM, 4)
        self.h, self.p = nn.Linear(4, 1, bias=False), nn.Linear(DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        rows = [i for i in range(FIELDS) for _ in range(i + 1, FIELDS)]
        columns = [j for i in range(FIELDS) for j in range(i + 1, FIELDS)]
        inner = e[:, rows] * e[:, columns]
        weights = F.softmax(self.h(self.attention(inner).relu()), dim=1)
        return self.p(F.dropout((weights * inner).sum(1), 0.2, training=self.training))


@case(ids, kind="fwfm")
@case(ids, kind="fmfm")
@case(ids, kind="ffm")
@case(ids, kind="hofm")
class Pairwise(nn.Module):
    """FwFM, FmFM, FFM and a third-order FM."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.embedded = kind, Embedded()
        self.r = nn.Parameter(torch.randn(FIELDS, FIELDS))
        self.m = nn.Parameter(torch.randn(FIELDS, FIELDS, DIM, DIM))
        self.each = nn.ModuleList(Joined(3) for _ in ROWS)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        if self.kind == "hofm":
            power = [(e**k).sum(1) for k in (1, 2, 3)]
            return ((power[0] ** 3 - 3 * power[0] * power[1] + 2 * power[2]) / 6).sum(-1)
        total = 0
        if self.kind == "ffm":
            own = [table(x) for table in self.each]
            for i in range(FIELDS - 1):
                for j in range(i + 1, FIELDS):
                    total = total + (own[j][:, i] * own[i][:, j]).sum(-1)
            return total
        for i in range(FIELDS):
            for j in range(i + 1, FIELDS):
                if self.kind == "fwfm":
                    total = total + self.r[i, j] * torch.sum(e[:, i] * e[:, j], -1)
                else:
                    total = total + torch.mul(torch.matmul(e[:, i], self.m[i, j]), e[:, j]).sum(-1)
        return total


@case(ids)
class AFN(nn.Module):
    """Logarithmic neurons (Cheng et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.orders = Embedded(), nn.Linear(FIELDS, 7)
        self.log_bn, self.exp_bn = nn.BatchNorm1d(7), nn.BatchNorm1d(7)
        self.out = nn.Linear(7 * DIM, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.clamp(self.embedded(x).abs(), min=1e-5)
        logs = self.log_bn(self.orders(e.log().transpose(2, 1)).transpose(1, 2))
        return self.out(self.exp_bn(torch.exp(logs)).flatten(1)).view(-1)


@case(ids, dense)
class DeepCrossing(nn.Module):
    """Residual units with layer norm and GELU."""

    def __init__(self) -> None:
        super().__init__()
        n = FIELDS * DIM + DENSE
        self.embedded = Embedded()
        self.a, self.b = (nn.ModuleList(nn.Linear(n, n) for _ in range(2)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(2))
        self.out = nn.Linear(n, 1, bias=False)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        h = torch.cat((self.embedded(x).flatten(1), d), -1)
        for a, b, norm in zip(self.a, self.b, self.norms, strict=True):
            h = norm(h + b(F.gelu(a(h), approximate="tanh")))
        return self.out(h).sigmoid()


@case(ids)
class MMoE(nn.Module):
    """Gated experts, with the product of two tasks' probabilities as its one output."""

    def __init__(self) -> None:
        super().__init__()
        n = FIELDS * DIM
        self.embedded, self.shape = Joined(), (3, 5)
        self.experts = nn.Parameter(torch.randn(n, 3, 5) / n)
        self.gates = nn.ModuleList(nn.Linear(n, 3) for _ in range(2))
        self.towers = nn.ModuleList(nn.Linear(5, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.embedded(x).flatten(1)
        experts = torch.tensordot(flat, self.experts, dims=1).relu()
        found = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = gate(flat).softmax(1).unsqueeze(-1)
            found.append(tower((experts * weights).sum(1)).sigmoid())
        return (found[0] * found[1]).squeeze(1)


@case(ids)
class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedded = Embedded()
        self.user, self.item = mlp(2 * DIM, 8, 4), mlp(2 * DIM, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        user, item = self.embedded(x).flatten(1).tensor_split(2, dim=1)
        return F.cosine_similarity(self.user(user), self.item(item), dim=-1) / 0.07


@case(ids, history, mode="sum")
@case(ids, history, mode="mean")
@case(ids, history, mode="max")
class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS[2], DIM, mode=mode, padding_idx=0)
        self.whole = nn.EmbeddingBag(ROWS[2], DIM, mode=mode)
        self.weighted = nn.EmbeddingBag(ROWS[2], DIM, mode="sum")
        self.out = nn.Linear(3 * DIM, 1)

    def forward(self, x: Tensor, hist: Tensor) -> Tensor:
        weights = (hist > 0).to(self.out.weight.dtype) * 0.5 + 0.1
        weighted = self.weighted(hist, per_sample_weights=weights)
        return self.out(torch.cat([self.bag(hist), self.whole(hist), weighted], 1))


@case(ids)
class Norms(nn.Module):
    """Norms over fields and groups, gated units."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.batch = Embedded(), nn.BatchNorm1d(FIELDS)
        self.group, self.rms = nn.GroupNorm(2, FIELDS), nn.RMSNorm(DIM, eps=1e-6)
        self.plain = nn.LayerNorm([FIELDS, DIM], elementwise_affine=False)
        self.gate, self.up = nn.Linear(DIM, 8), nn.Linear(DIM, 8)
        self.down, self.out = nn.Linear(8, DIM), nn.Linear(FIELDS * DIM // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        e = self.batch(e) + self.group(e) + self.rms(e) + self.plain(e)
        e = e + self.down(F.silu(self.gate(e)) * self.up(e))
        return self.out(F.glu(e, dim=-1).flatten(1))


@case(ids)
class CNN(nn.Module):
    """CCPM and FGCNN: convolutions over fields, pooling by window and by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.conv = Embedded(), nn.Conv2d(1, 3, (3, 1), padding=(1, 0))
        self.depthwise = nn.Conv1d(FIELDS, FIELDS * 2, 3, stride=2, groups=FIELDS, dilation=1)
        self.pool, self.mean = nn.MaxPool2d((2, 1)), nn.AvgPool1d(2)
        self.best, self.adaptive = nn.AdaptiveMaxPool1d(1), nn.AdaptiveAvgPool2d((1, 2))
        self.out = nn.LazyLinear(1)
        with torch.no_grad():
            self.forward(torch.zeros(2, FIELDS, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        image = self.conv(e.unsqueeze(1)).tanh()
        top, _ = image.topk(2, dim=2)
        narrow = self.depthwise(e)
        parts = [
            self.pool(image),
            top,
            narrow,
            self.mean(narrow),
            self.best(e),
            self.adaptive(image),
        ]
        return self.out(torch.cat([p.flatten(1) for p in parts], 1))


@case(ids, dense)
class Features(nn.Module):
    """Features that models make of their inputs: bins, one-hot ids, hashes, crosses, logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor([0.2, 0.4, 0.8]))
        self.bins, self.pair = nn.Embedding(4, DIM), nn.Embedding(ROWS[0] * ROWS[1], DIM)
        self.hashed, self.ordinal = nn.Embedding(5, DIM), nn.Embedding(ROWS[2] + 1, DIM)
        self.table = nn.Parameter(torch.randn(FIELDS, max(ROWS), DIM))
        self.one_hot = nn.Linear(ROWS[3], DIM)
        self.out = nn.Linear(DIM, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        bins = self.bins(torch.bucketize(d[:, 0].contiguous(), self.edges))
        pair = self.pair(x[:, 0] * ROWS[1] + x[:, 1])
        hashed = self.hashed((x[:, 2] * 31 + 7) % 5)
        shifted = self.ordinal(x[:, 2] + 1)
        stacked = self.table[torch.arange(FIELDS), x].sum(1)
        hot = self.one_hot(F.one_hot(x[:, 3], ROWS[3]).to(d.dtype))
        numbers = (d.log() + d.clamp(0.2, 0.7).exp() + torch.where(d > 0.5, d, -d)).sum(1, True)
        known = (x == 0).any(dim=1, keepdim=True).to(d.dtype)
        return self.out(bins + pair + hashed + shifted + stacked + hot) + numbers * known


def minutes() -> Tensor:
    """[B, DENSE], numbers that 16 bits round."""
    return torch.randint(2**14, 2**15, (BATCH, DENSE)) / 4


@case(ids, minutes)
class Times(nn.Module):
    """Rows are picked by what is computed of numbers that a linear layer takes as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.hours = Embedded(), nn.Embedding(24, DIM)
        self.minutes = nn.Embedding(60, DIM)
        self.linear, self.out = nn.Linear(DENSE, 8), nn.Linear((FIELDS + 2) * DIM + 8, 1)
        with torch.no_grad():
            self.linear.weight.mul_(2e-4)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        when = (d[:, 0] + d[:, 1]).long()
        hours, minutes = self.hours(when // 60 % 24), self.minutes(when % 60)
        numbers = self.linear(d).relu()
        parts = torch.cat([self.embedded(x).flatten(1), hours, minutes, numbers], 1)
        return self.out(parts).squeeze(1)


def floats() -> Tensor:
    """[B, FIELDS + DENSE]: ids and dense features in one matrix of floats."""
    return torch.cat([ids().float(), dense()], 1)


@case(floats)
class Matrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.out = Embedded(), nn.Linear(FIELDS * DIM + DENSE + 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x[:, :FIELDS].long())
        whole = (x[:, -1:] * 10).int().float()
        return self.out(torch.cat([e.flatten(1), x[:, FIELDS:], whole], dim=1))


def lengths() -> Tensor:
    """[B] lengths of histories."""
    return torch.randint(1, LENGTH + 1, (BATCH,), dtype=torch.int32)


def small() -> Tensor:
    """[B, LENGTH] ids of 8 bits."""
    return torch.randint(0, ROWS[1], (BATCH, LENGTH), dtype=torch.int8)


@case(small, lengths)
class ByLength(nn.Module):
    """A history with its length: means by a mask, sums up to each place, the last place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(ROWS[1], DIM), nn.Linear(3 * DIM, 1)

    def forward(self, hist: Tensor, length: Tensor) -> Tensor:
        e = self.table(hist.int())
        mask = torch.arange(hist.size(1))[None, :] < length[:, None]
        shown = e * mask.unsqueeze(-1)
        mean = shown.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        most = e.masked_fill(~mask.unsqueeze(2), float("-inf")).amax(1)
        running = shown.cumsum(1)[torch.arange(hist.shape[0]), length.long() - 1]
        return self.out(torch.cat([mean, most, running / length.unsqueeze(1)], dim=1))


@case(ids)
class Inplace(nn.Module):
    """Assignments, indices, statistics and products of other forms."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.bilinear = Embedded(), nn.Bilinear(DIM, DIM, 3)
        self.prelu, self.out = nn.PReLU(FIELDS), nn.Linear(FIELDS * DIM + 3 + 4 * FIELDS, 1)

    def forward(self, x: Tensor) -> Tensor:
        e = self.embedded(x)
        e = self.prelu(e)
        changed = torch.zeros_like(e)
        changed[:, 0] = e[:, 1]
        changed[:, 1:3] = e[:, 2:4] * 2
        changed[:, 3, ::2] = 1.5
        changed[:, :, [1, 3]] += e[:, :, [0, 2]]
        pair = self.bilinear(e[:, 0], e[:, 1])
        moments = [e.std(-1), e.var(-1, unbiased=False), e.norm(dim=-1), e.norm(p=1, dim=2)]
        unit = F.normalize(e, dim=-1).movedim(1, 2).reshape(x.size(0), DIM, 2, -1)
        unit = unit.flatten(2).unflatten(-1, (2, 2)).transpose(-1, -2).reshape(-1, DIM * FIELDS)
        outer = e[:, 0, :, None] * e[:, 1, None, :]
        both = changed.flatten(1) + unit + outer.flatten(1).softmax(1)[:, : FIELDS * DIM]
        return self.out(torch.cat([both, pair, *moments], 1))


class Twice(nn.Module):
    """A model in other numbers, inside regions."""

    def __init__(self) -> None:
        super().__init__()
        self.model = DeepFM()

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        with torch.no_grad():
            scale = d.sum(1).tanh()
        return self.model(x, d) * scale


MODELS["Region"] = Case(Twice, lambda: (ids(), dense()))


@case(ids, dense)
class Halves(nn.Module):
    """Weights in bfloat16, numbers in float64, and a graph that some nodes are not needed of."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.unused = Joined(), nn.Linear(DIM, 2)
        self.weight = nn.Parameter(torch.randn(DIM, 1, dtype=torch.bfloat16))

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x.to(torch.int16).long())
        self.unused(e).topk(1)
        return (e.mean(1).double() @ self.weight.double()).squeeze(1) + d.double().norm(dim=1)
