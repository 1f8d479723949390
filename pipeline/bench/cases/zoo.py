"""The model zoo: nine CTR models as their users write them in PyTorch, of any shape.

The engine knows none of them: they enter by `from_torch` as any module does. Each is called with
ids [B, F] and dense features [B, N] and returns logits [B, 1]; DIN also takes a target and a
history. `embedded`, their lookup, can be replaced by another one (`peers.Rows`).
"""

# Written as users write them, without a type of each value.
# mypy: disable-error-code="no-any-return, attr-defined"

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LENGTH, ITEMS = 50, 100_000  # of DIN's history, and of the items in it


@dataclass(frozen=True)
class Shape:
    """F fields, embedding width D, N dense features, the MLP's widths H, rows of each table."""

    fields: int = 26
    dim: int = 16
    dense: int = 13
    hidden: tuple[int, ...] = (400, 400)
    rows: tuple[int, ...] = (1000,) * 26

    @property
    def flat(self) -> int:
        """Columns of all embeddings."""
        return self.fields * self.dim

    @property
    def wide(self) -> int:
        """Columns of all embeddings and the dense features."""
        return self.flat + self.dense


class Model(nn.Module):
    """What the models share: their shape and a table for each field."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        self.shape = shape or Shape()
        self.embedded: nn.Module = Embedded(self.shape)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Inputs of two samples."""
        ids = torch.zeros(2, self.shape.fields, dtype=torch.long)
        return ids, torch.rand(2, self.shape.dense)


class Embedded(nn.Module):
    """A table for each field: ids [B, F] to [B, F, D]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, shape.dim) for rows in shape.rows)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.3)  # type: ignore[arg-type]

    def forward(self, ids: Tensor) -> Tensor:
        return torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class XDeepFM(Model):
    """CIN 128-128 (Lian et al., 2018)."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        self.deep = mlp(s.wide, *s.hidden, 1)
        self.convs = nn.ModuleList(nn.Conv1d(s.fields * n, 128, 1) for n in (s.fields, 128))
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


class AutoInt(Model):
    """Three layers of self-attention over fields, 2 heads of 32 (Song et al., 2019)."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        widths = [s.dim, 64, 64]
        self.qkvr = nn.ModuleList(
            nn.ModuleList(nn.Linear(w, 64, bias=False) for _ in range(4)) for w in widths
        )
        self.deep, self.out = mlp(s.wide, *s.hidden, 1), nn.Linear(s.fields * 64, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        h = e
        for layer in self.qkvr:
            q, k, v, r = (part(h) for part in layer)
            q, k, v = (p.view(p.shape[0], -1, 2, 32).transpose(1, 2) for p in (q, k, v))
            weights = (q @ k.transpose(-1, -2) / 32**0.5).softmax(-1)
            h = ((weights @ v).transpose(1, 2).flatten(2) + r).relu()
        return self.out(h.flatten(1)) + self.deep(torch.cat([e.flatten(1), d], 1))


class FiBiNET(Model):
    """Squeeze and excitation, bilinear pairs (Huang et al., 2019)."""

    pairs: Tensor  # [2, pairs]

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        self.excite = nn.Sequential(
            nn.Linear(s.fields, 8, bias=False),
            nn.ReLU(),
            nn.Linear(8, s.fields, bias=False),
            nn.ReLU(),
        )
        self.bilinear = nn.ParameterList(
            nn.Parameter(torch.randn(s.fields, s.dim, s.dim) * 0.2) for _ in range(2)
        )
        self.register_buffer("pairs", torch.triu_indices(s.fields, s.fields, 1))
        self.deep = mlp(s.fields * (s.fields - 1) * s.dim + s.dense, *s.hidden, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        squeezed = e * self.excite(e.mean(-1)).unsqueeze(-1)
        parts, (i, j) = [], self.pairs
        for source, weight in zip((e, squeezed), self.bilinear, strict=True):
            left = torch.einsum("bfd,fde->bfe", source, weight)
            parts.append((left[:, i] * source[:, j]).flatten(1))
        return self.deep(torch.cat([*parts, d], 1))


class MaskNet(Model):
    """Three mask blocks side by side (Wang et al., 2021)."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        n, width = s.flat, s.hidden[0]
        self.norms = nn.ModuleList(nn.LayerNorm(s.dim) for _ in range(s.fields))
        self.masks = nn.ModuleList(mlp(n, width, n) for _ in range(3))
        self.hidden = nn.ModuleList(nn.Linear(n, width, bias=False) for _ in range(3))
        self.after = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.deep = mlp(3 * width + s.dense, *s.hidden, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        e = self.embedded(x)
        flat = e.flatten(1)
        normed = torch.cat([norm(e[:, i]) for i, norm in enumerate(self.norms)], 1)
        blocks = [
            after(hidden(mask(flat) * normed)).relu()
            for mask, hidden, after in zip(self.masks, self.hidden, self.after, strict=True)
        ]
        return self.deep(torch.cat([*blocks, d], 1))


class FinalMLP(Model):
    """Two gated towers, bilinear fusion by heads (Mao et al., 2023)."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        width = s.hidden[-1]
        heads = math.gcd(10, width)
        self.gates = nn.ModuleList(mlp(s.dense, 64, s.flat) for _ in range(2))
        self.towers = nn.ModuleList(mlp(s.flat, *s.hidden) for _ in range(2))
        self.x, self.y = nn.Linear(width, 1), nn.Linear(width, 1)
        self.xy = nn.Parameter(torch.randn(heads, width // heads, width // heads) * 0.05)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        flat = self.embedded(x).flatten(1)
        a, b = (
            tower(flat * gate(d).sigmoid() * 2)
            for gate, tower in zip(self.gates, self.towers, strict=True)
        )
        size = self.xy.shape[:2]
        heads = torch.einsum("bhi,hij,bhj->bh", a.view(-1, *size), self.xy, b.view(-1, *size))
        return self.x(a) + self.y(b) + heads.sum(1, keepdim=True)


class DLRM(Model):
    """Dot products of pairs (Naumov et al., 2019), 512-256-16 and 1024-1024-512-256."""

    pairs: Tensor  # [2, pairs]

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        self.bottom = mlp(s.dense, 512, 256, s.dim)
        count = s.fields + 1
        self.register_buffer("pairs", torch.tril_indices(count, count, -1))
        self.top = mlp(s.dim + count * s.fields // 2, 1024, 1024, 512, 256, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        dense = self.bottom(d).relu()
        e = torch.cat([dense.unsqueeze(1), self.embedded(x)], 1)
        i, j = self.pairs
        dots = (e @ e.transpose(1, 2))[:, i, j]
        return self.top(torch.cat([dense, dots], 1))


class GDCN(Model):
    """Three gated cross layers (Wang et al., 2023) and a deep tower."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        self.cross = nn.ModuleList(nn.Linear(s.wide, s.wide) for _ in range(3))
        self.gate = nn.ModuleList(nn.Linear(s.wide, s.wide, bias=False) for _ in range(3))
        self.deep = mlp(s.wide, *s.hidden)
        self.out = nn.Linear(s.wide + s.hidden[-1], 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        x0 = torch.cat([self.embedded(x).flatten(1), d], 1)
        xl = x0
        for cross, gate in zip(self.cross, self.gate, strict=True):
            xl = x0 * cross(xl) * gate(xl).sigmoid() + xl
        return self.out(torch.cat([xl, self.deep(x0)], 1))


class DIN(Model):
    """Attention of a target over a history (Zhou et al., 2018)."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        self.items = nn.Embedding(ITEMS, s.dim, padding_idx=0)
        self.unit = mlp(4 * s.dim, 64, 16, 1)
        self.deep = mlp(s.wide + s.dim, *s.hidden, 1)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Inputs of two samples: also the target [B] and the history [B, L], 0: none."""
        inputs = super().example_inputs()
        return *inputs, torch.ones(2, dtype=torch.long), torch.ones(2, LENGTH, dtype=torch.long)

    def forward(self, x: Tensor, d: Tensor, item: Tensor, history: Tensor) -> Tensor:
        keys, target = self.items(history), self.items(item)
        query = target.unsqueeze(1).expand_as(keys)
        score = self.unit(torch.cat([query, keys, query - keys, query * keys], -1))
        interest = (score * (history != 0).unsqueeze(-1) * keys).sum(1)
        return self.deep(torch.cat([self.embedded(x).flatten(1), interest, d], 1))


class DeepGELU(Model):
    """LayerNorm, GELU, SiLU, residuals, two normalised towers."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape)
        s = self.shape
        width = s.hidden[0]
        self.inward = nn.Linear(s.wide, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.towers = nn.ModuleList(nn.Linear(width, 64) for _ in range(2))
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor, d: Tensor) -> Tensor:
        h = F.silu(self.inward(torch.cat([self.embedded(x).flatten(1), torch.log1p(d.abs())], 1)))
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            h = h + down(F.gelu(up(norm(h))))
        a, b = (F.normalize(tower(h), dim=-1) for tower in self.towers)
        return self.out(h) + (a * b).sum(-1, keepdim=True)


ZOO: dict[str, type[Model]] = {
    "xdeepfm": XDeepFM,
    "autoint": AutoInt,
    "fibinet": FiBiNET,
    "masknet": MaskNet,
    "finalmlp": FinalMLP,
    "dlrm": DLRM,
    "gdcn": GDCN,
    "din": DIN,
    "deepgelu": DeepGELU,
}
