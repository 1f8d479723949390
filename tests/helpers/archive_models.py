"""Small models with what exported programs have, and archives of them."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

BATCH = 7


class Tower(torch.nn.Module):
    """Inputs in a dict, tied and half weights, views of one buffer, a constant, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleDict({k: torch.nn.Embedding(5, 4) for k in ("C0", "class")})
        self.first, self.tied = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.tied.weight = self.first.weight
        self.halves = torch.nn.Parameter(torch.randn(8, 8, dtype=torch.bfloat16))
        self.unused = torch.nn.Parameter(torch.randn(3, 2))
        self.norm = torch.nn.BatchNorm1d(8)
        storage = torch.randn(16)
        self.register_buffer("low", storage[:8])
        self.register_buffer("high", storage[4:12])
        self.register_buffer("passing", torch.arange(8.0), persistent=False)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = torch.cat([self.tables[k](features[k]) for k in self.tables], dim=1)
        x = self.norm(self.first(x).relu() + self.tied(x)) * self.low + self.high - self.passing
        x = (x.to(torch.bfloat16) @ self.halves).float() + torch.tensor([0.5] * 8)
        low, high = x.split(4, dim=1)
        best, _ = torch.topk(high, 2, dim=1)
        x = (low.reshape(low.size(0) * 2, 2).sum(1).reshape(-1, 2) + best).masked_fill(
            best < -9, -9.0
        )
        return {"score": torch.sigmoid(x.sum(1)), "parts": x}


class Matrix(torch.nn.Module):
    """One float matrix, of which a column is ids, through nested modules."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 3)
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(5, 4), torch.nn.Sequential(torch.nn.PReLU())
        )
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.deep(torch.cat([self.table(x[:, 0].long()), x[:, 1:]], dim=1)).sum(dim=1)


def tower_inputs() -> dict[str, torch.Tensor]:
    ids = torch.arange(BATCH) % 5
    return {"C0": ids, "class": ids.flip(0), "label": torch.zeros(BATCH)}


def save(
    path: Path,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    batch: object = Dim.AUTO,
    **kwargs: Any,
) -> Path:
    """An archive of the model, with `batch` for the first dimension of each input."""
    shapes = torch.utils._pytree.tree_map(lambda _: {0: batch}, args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model.eval(), args, dynamic_shapes=shapes if batch else None, **kwargs
        )
        torch.export.save(program, path)
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(found: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in found.items():
            archive.writestr(name, data)
    return out.getvalue()


def edited(path: Path, end: str, edit: Callable[[Any], object]) -> Path:
    """The archive again, with the one JSON member of that ending edited."""
    found = members(path)
    (name,) = (name for name in found if name.endswith(end))
    content = json.loads(found[name])
    edit(content)
    path.write_bytes(packed(found | {name: json.dumps(content).encode()}))
    return path
