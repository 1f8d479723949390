"""Models with the faces and names of other libraries, and the files that these write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 12
VALUES = {"__PAD__": 0, **{f"v{n}": n for n in range(1, ROWS - 1)}, "__OOV__": ROWS - 1}


class FuxiModel(nn.Module):
    """As FuxiCTR's models: one dictionary, which holds the label too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_layer = nn.ModuleDict({n: nn.Embedding(ROWS, 4) for n in ("user", "item")})
        self.out = nn.Linear(9, 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = [table(inputs[name].long()) for name, table in self.embedding_layer.items()]
        x = torch.cat([*rows, inputs["price"].float().view(-1, 1)], 1)
        return {"y_pred": self.out(x).sigmoid()}


def fuxi_batch() -> dict[str, Tensor]:
    ids = torch.tensor([1, 2, 3])
    return {"user": ids, "item": ids, "price": torch.ones(3), "label": torch.zeros(3)}


def write_feature_map(folder: Path) -> None:
    """feature_map.json and feature_vocab.json of `FuxiModel`."""
    rows: dict[str, Any] = {"type": "categorical", "vocab_size": ROWS, "padding_idx": 0}
    features = [{"user": rows}, {"item": rows}, {"price": {"type": "numeric"}}]
    whole = {"dataset_id": "shop", "labels": ["label"], "features": features}
    (folder / "feature_map.json").write_text(json.dumps(whole))
    words = {"user": VALUES, "item": VALUES}
    (folder / "feature_vocab.json").write_text(json.dumps(words))


class DeepCTRModel(nn.Module):
    """As DeepCTR-Torch's models: one matrix, and an index of its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_index = {"user": (0, 1), "item": (1, 2), "price": (2, 3)}
        self.embedding_dict = nn.ModuleDict({n: nn.Embedding(ROWS, 4) for n in ("user", "item")})
        self.linear = nn.Linear(9, 1)

    def forward(self, X: Tensor) -> Tensor:  # noqa: N803
        parts = [
            table(X[:, slice(*self.feature_index[name])].long()).squeeze(1)
            for name, table in self.embedding_dict.items()
        ]
        return torch.sigmoid(self.linear(torch.cat([*parts, X[:, 2:3]], 1)))


def torchrec_state(dcn: bool) -> dict[str, Tensor]:
    """Weights of a DLRM or DLRM_DCN by TorchRec's names: two tables, three dense features."""
    generator = torch.Generator().manual_seed(5)
    dim, rank = 4, 2
    width = 3 * dim if dcn else dim + 3
    shapes: dict[str, tuple[int, ...]] = {
        f"sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{i}.weight": (ROWS, dim)
        for i in range(2)
    }
    for part, sizes in (
        ("dense_arch.model._mlp.0._linear", (5, 3)),
        ("dense_arch.model._mlp.1._linear", (dim, 5)),
        ("over_arch.model.0._mlp.0._linear", (6, width)),
        ("over_arch.model.1", (1, 6)),
    ):
        shapes |= {f"{part}.weight": sizes, f"{part}.bias": sizes[:1]}
    for layer in range(2 if dcn else 0):
        names = ("W_kernels", (width, rank)), ("V_kernels", (rank, width)), ("bias", (width, 1))
        shapes |= {f"inter_arch.crossnet.{name}.{layer}": shape for name, shape in names}
    return {name: torch.randn(shape, generator=generator) / 2 for name, shape in shapes.items()}
