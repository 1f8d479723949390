"""Random modules that go over a history step by step, as no library has them."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn


class RandomRecurrence(nn.Module):
    """A random cell, first state, order, mask and attention, and a random use of its states."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.seed, self.steps = seed, draw.randint(4, 9)
        self.dim, self.width = d, h = draw.choice([5, 8, 12, 16]), draw.choice([4, 8, 10, 16, 20])
        self.items, self.user = nn.Embedding(30, d), nn.Embedding(20, h)
        sizes = {
            "x": (d, h), "h": (h, h), "again": (h, h), "gate": (d + h, h), "x3": (d, 3 * h),
            "h3": (h, 3 * h), "query": (h, h), "score": (h, 1), "out": (h, 1), "both": (2 * h, 1),
        }  # fmt: skip
        self.of = nn.ModuleDict(
            {name: nn.Linear(*size, bias=draw.random() < 0.7) for name, size in sizes.items()}
        )

    def inputs(self) -> tuple[Tensor, Tensor]:
        """A batch of 4."""
        return torch.randint(0, 30, (4, self.steps)), torch.randint(0, 20, (4,))

    def forward(self, x: Tensor, user: Tensor) -> Tensor:
        draw, of = random.Random(self.seed + 1), self.of
        e, u = self.items(x), self.user(user)
        kind = draw.choice(["tanh", "gate", "gru", "feedback", "two", "mixed", "norm"])
        first = [torch.zeros_like(u), u, of["query"](u).tanh(), e[:, 0, :1].expand(-1, self.width)]
        h = other = draw.choice(first)
        projected = of["x"](e) if draw.random() < 0.5 else None
        gates = of["x3"](e) if draw.random() < 0.5 else None
        attention = of["score"](of["x"](e)).softmax(1) if draw.random() < 0.4 else None
        backwards, masked = draw.random() < 0.3, draw.random() < 0.3
        if draw.random() < 0.2:
            e = e.flip(1)
        states: list[Tensor] = []
        for i in range(self.steps)[::-1] if backwards else range(self.steps):
            item = projected[:, i] if projected is not None else of["x"](e[:, i])
            if kind == "gate":
                gate = of["gate"](torch.cat([e[:, i], h], 1)).sigmoid()
                new = gate * h + (1 - gate) * (of["h"](gate * h) + item).tanh()
            elif kind == "gru":
                a = (gates[:, i] if gates is not None else of["x3"](e[:, i])).chunk(3, 1)
                b = of["h3"](h).chunk(3, 1)
                update, reset = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
                new = (a[2] + reset * b[2]).tanh() * (1 - update) + update * h
            elif kind == "feedback":
                new = (item + of["h"](h) + (states[-2] if len(states) > 1 else u)).relu() / 2
            elif kind == "two":
                new = (item + of["h"](h)).tanh()
                other = (of["again"](other) + of["query"](new)).tanh()
            elif kind == "mixed":
                new = (item + of["h"](h) + of["again"](other)).tanh()
                other = (of["again"](other) + new).tanh()
            elif kind == "norm":
                new = nn.functional.layer_norm(item + of["h"](h), (self.width,)).tanh()
            else:
                new = (item + of["h"](h)).tanh()
            if attention is not None:
                new = new * attention[:, i] + h * (1 - attention[:, i])
            h = torch.where((x[:, i] != 0)[:, None], new, h) if masked else new
            states.append(h)
        return self._score(draw, torch.stack(states, 1), h, other, u)

    def _score(self, draw: random.Random, states: Tensor, h: Tensor, other: Tensor, u: Tensor):
        end = draw.choice(["last", "sum", "attention", "both", "middle"])
        if end == "sum":
            return self.of["out"](states.sum(1) + other)
        if end == "attention":
            weights = (states @ u[:, :, None]).softmax(1)
            return self.of["out"]((states * weights).sum(1))
        if end == "both":
            return self.of["both"](torch.cat([h, other], 1))
        return self.of["out"](states[:, states.shape[1] // 2] * h if end == "middle" else h)
