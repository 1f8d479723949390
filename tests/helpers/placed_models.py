"""Modules whose layers are a product at each place of an axis."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PerToken(nn.Module):
    """RankMixer's layers: two products a token, with residuals and norms."""

    def __init__(self, tokens: int = 6, width: int = 64, hidden: int = 128) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.table = nn.Embedding(19, tokens * width)
        self.up = nn.Parameter(torch.randn(tokens, width, hidden, generator=generator) / 8)
        self.bias = nn.Parameter(torch.randn(tokens, hidden, generator=generator) / 8)
        self.down = nn.Parameter(torch.randn(tokens, hidden, width, generator=generator) / 8)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids).view(-1, *self.up.shape[:2])
        h = nn.functional.gelu(torch.einsum("btd,tdh->bth", x, self.up) + self.bias)
        x = self.norm(torch.einsum("bth,thd->btd", h, self.down) + x)
        return self.out(x.mean(1))


class Experts(nn.Module):
    """Experts behind a gate; `stacked`: their weights are one parameter a layer, else modules."""

    def __init__(self, experts: int = 5, stacked: bool = True, hidden: int = 192) -> None:
        super().__init__()
        self.table, self.gate = nn.Embedding(19, 48), nn.Linear(48, experts)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, hidden), nn.ReLU())
            for _ in range(experts)
        )
        self.first = nn.Parameter(torch.randn(experts, 48, 128) / 7)
        self.second = nn.Parameter(torch.randn(experts, 128, hidden) / 11)
        self.out, self.stacked = nn.Linear(hidden, 1), stacked

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        if self.stacked:
            h = torch.einsum("bd,edh->beh", x, self.first).relu()
            h = torch.einsum("beh,eho->beo", h, self.second).relu()
        else:
            h = torch.stack([mlp(x) for mlp in self.mlps], 1)
        return self.out((h * self.gate(x).softmax(1).unsqueeze(2)).sum(1))


def placed_models() -> dict[str, nn.Module]:
    """Modules by name, of weights that are the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return {
            "tokens": PerToken(),
            "stacked experts": Experts(),
            "experts": Experts(stacked=False),
        }
