"""CTR models of benchmark size in plain PyTorch, for `dpiframe bench engine --module`.

26 categorical fields of dim 16 and 13 dense features, MLP 400-400 unless said otherwise. Each takes
ids [B, 26] and dense [B, 13], and all but DLRM ignore the dense features' order of size.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIELDS, DIM, DENSE, ROWS, LENGTH = 26, 16, 13, 1000, 50
WIDE = FIELDS * DIM + DENSE
PAIRS = list(itertools.combinations(range(FIELDS), 2))


def example_inputs() -> tuple[Tensor, Tensor]:
    """Inputs of two samples."""
    return torch.randint(0, ROWS, (2, FIELDS)), torch.rand(2, DENSE)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Embedded(nn.Module):
    """A table for each field: [B, F, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, DIM) for _ in range(FIELDS))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)


class XDeepFM(nn.Module):
    """CIN 128-128 (Lian et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.deep = Embedded(), mlp(WIDE, 400, 400, 1)
        self.convs = nn.ModuleList(nn.Conv1d(FIELDS * n, 128, 1) for n in (FIELDS, 128))
        self.out = nn.Linear(256, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        hidden, pooled = e, []
        for conv in self.convs:
            outer = torch.einsum("bhd,bmd->bhmd", hidden, e).flatten(1, 2)
            hidden = conv(outer).relu()
            pooled.append(hidden.sum(-1))
        deep = self.deep(torch.cat([e.flatten(1), d], 1))
        return self.out(torch.cat(pooled, 1)) + deep


class AutoInt(nn.Module):
    """Three layers of self-attention over fields, 2 heads of 32 (Song et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = Embedded()
        widths = [DIM, 64, 64]
        self.qkvr = nn.ModuleList(
            nn.ModuleList(nn.Linear(w, 64, bias=False) for _ in range(4)) for w in widths
        )
        self.deep, self.out = mlp(WIDE, 400, 400, 1), nn.Linear(FIELDS * 64, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        h = e
        for layer in self.qkvr:
            q, k, v, r = (part(h) for part in layer)
            q, k, v = (p.view(p.shape[0], FIELDS, 2, 32).transpose(1, 2) for p in (q, k, v))
            weights = (q @ k.transpose(-1, -2) / 32**0.5).softmax(-1)
            h = ((weights @ v).transpose(1, 2).flatten(2) + r).relu()
        return self.out(h.flatten(1)) + self.deep(torch.cat([e.flatten(1), d], 1))


class FiBiNET(nn.Module):
    """Squeeze and excitation, bilinear pairs (Huang et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = Embedded()
        self.excite = nn.Sequential(
            nn.Linear(FIELDS, 8, bias=False), nn.ReLU(), nn.Linear(8, FIELDS, bias=False), nn.ReLU()
        )
        self.bilinear = nn.ParameterList(
            nn.Parameter(torch.randn(FIELDS, DIM, DIM) * 0.2) for _ in range(2)
        )
        self.i, self.j = (list(part) for part in zip(*PAIRS, strict=True))
        self.deep = mlp(2 * len(PAIRS) * DIM + DENSE, 400, 400, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        squeezed = e * self.excite(e.mean(-1)).unsqueeze(-1)
        parts = []
        for source, weight in zip((e, squeezed), self.bilinear, strict=True):
            left = torch.einsum("bfd,fde->bfe", source, weight)
            parts.append((left[:, self.i] * source[:, self.j]).flatten(1))
        return self.deep(torch.cat([*parts, d], 1))


class MaskNet(nn.Module):
    """Three mask blocks side by side (Wang et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        n = FIELDS * DIM
        self.embedded = Embedded()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(FIELDS))
        self.masks = nn.ModuleList(mlp(n, 400, n) for _ in range(3))
        self.hidden = nn.ModuleList(nn.Linear(n, 400, bias=False) for _ in range(3))
        self.after = nn.ModuleList(nn.LayerNorm(400) for _ in range(3))
        self.deep = mlp(1200 + DENSE, 400, 400, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        flat = e.flatten(1)
        normed = torch.cat([norm(e[:, i]) for i, norm in enumerate(self.norms)], 1)
        blocks = [
            after(hidden(mask(flat) * normed)).relu()
            for mask, hidden, after in zip(self.masks, self.hidden, self.after, strict=True)
        ]
        return self.deep(torch.cat([*blocks, d], 1))


class FinalMLP(nn.Module):
    """Two gated towers, bilinear fusion by heads (Mao et al., 2023)."""

    def __init__(self) -> None:
        super().__init__()
        n = FIELDS * DIM
        self.embedded = Embedded()
        self.gates = nn.ModuleList(mlp(DENSE, 64, n) for _ in range(2))
        self.towers = nn.ModuleList(mlp(n, 400, 400) for _ in range(2))
        self.x, self.y = nn.Linear(400, 1), nn.Linear(400, 1)
        self.xy = nn.Parameter(torch.randn(10, 40, 40) * 0.05)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        flat = self.embedded(x).flatten(1)
        a, b = (
            tower(flat * gate(d).sigmoid() * 2)
            for gate, tower in zip(self.gates, self.towers, strict=True)
        )
        heads = torch.einsum("bhi,hij,bhj->bh", a.view(-1, 10, 40), self.xy, b.view(-1, 10, 40))
        return self.x(a) + self.y(b) + heads.sum(1, keepdim=True)


class DLRM(nn.Module):
    """Dot products of pairs (Naumov et al., 2019), 512-256-16 and 1024-1024-512-256."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.bottom = Embedded(), mlp(DENSE, 512, 256, DIM)
        count = FIELDS + 1
        self.i, self.j = torch.tril_indices(count, count, -1).tolist()
        self.top = mlp(DIM + count * FIELDS // 2, 1024, 1024, 512, 256, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        dense = self.bottom(d).relu()
        e = torch.cat([dense.unsqueeze(1), self.embedded(x)], 1)
        dots = (e @ e.transpose(1, 2))[:, self.i, self.j]
        return self.top(torch.cat([dense, dots], 1))


class GDCN(nn.Module):
    """Three gated cross layers (Wang et al., 2023) and a deep tower."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = Embedded()
        self.cross = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(3))
        self.gate = nn.ModuleList(nn.Linear(WIDE, WIDE, bias=False) for _ in range(3))
        self.deep, self.out = mlp(WIDE, 400, 400), nn.Linear(WIDE + 400, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        x0 = torch.cat([self.embedded(x).flatten(1), d], 1)
        xl = x0
        for cross, gate in zip(self.cross, self.gate, strict=True):
            xl = x0 * cross(xl) * gate(xl).sigmoid() + xl
        return self.out(torch.cat([xl, self.deep(x0)], 1))


class DIN(nn.Module):
    """Attention of a target over a history (Zhou et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.items = Embedded(), nn.Embedding(ROWS, DIM, padding_idx=0)
        self.unit, self.deep = mlp(4 * DIM, 64, 16, 1), mlp(WIDE + DIM, 400, 400, 1)

    @staticmethod
    def example_inputs() -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of two samples."""
        return *example_inputs(), torch.randint(0, ROWS, (2, LENGTH))

    def forward(self, x: Tensor, d: Tensor, history: Tensor) -> Tensor:
        keys, target = self.items(history), self.items(x[:, 0])
        query = target.unsqueeze(1).expand_as(keys)
        score = self.unit(torch.cat([query, keys, query - keys, query * keys], -1))
        interest = (score * (history != 0).unsqueeze(-1) * keys).sum(1)
        return self.deep(torch.cat([self.embedded(x).flatten(1), interest, d], 1))


class DeepGELU(nn.Module):
    """LayerNorm, GELU, SiLU, residuals, two normalised towers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.inward = Embedded(), nn.Linear(WIDE, 400)
        self.norms = nn.ModuleList(nn.LayerNorm(400) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(400, 400) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(400, 400) for _ in range(3))
        self.towers = nn.ModuleList(nn.Linear(400, 64) for _ in range(2))
        self.out = nn.Linear(400, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        h = F.silu(self.inward(torch.cat([self.embedded(x).flatten(1), torch.log1p(d.abs())], 1)))
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            h = h + down(F.gelu(up(norm(h))))
        a, b = (F.normalize(tower(h), dim=-1) for tower in self.towers)
        return self.out(h) + (a * b).sum(-1, keepdim=True)
