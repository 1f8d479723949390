"""The peers (baselines): built-in models as their users would write them in PyTorch.

A peer is a lookup and a dense part, on our weights. Lookups: one nn.Embedding a field; one table
for all fields; FBGEMM's table-batched embedding (TBE), TorchRec's kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpiframe_core import ModelSpec
from dpiframe_core.model.modules import CrossV1, CrossV2
from pipeline.bench.cases.random_data import FlatTable

Weights = Mapping[str, Tensor]
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


class Dense(nn.Module):
    """The layers behind the lookup of a built-in model; each dense feature has an embedding."""

    wide_bias: Tensor
    wide_dense: Tensor
    dense_fields: Tensor

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        super().__init__()
        modules = {module.name: module for module in spec.modules}
        self.name, self.dim, self.num_dense = spec.name, spec.fields[0].dim, len(spec.dense)
        layers = []
        for layer in range(len(modules["mlp"].hidden)):  # type: ignore[union-attr]
            layers += [_linear(weights, f"mlp/{layer}"), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.head = _linear(weights, "logit" if "logit/weight" in weights else "deep_logit")
        for name, key in (
            ("wide_bias", "wide/bias"),
            ("wide_dense", "wide/dense"),
            ("dense_fields", "dense_fields/weight"),
        ):
            self.register_buffer(name, weights.get(key, torch.zeros(1)).clone())
        cross: Any = modules.get("cross")
        self.cross_v1 = isinstance(cross, CrossV1)
        num_cross = cross.layers if isinstance(cross, (CrossV1, CrossV2)) else 0
        self.cross = nn.ModuleList(_cross(weights, layer) for layer in range(num_cross))
        self.cross_layers: list[nn.Linear] = list(self.cross)  # type: ignore[arg-type]

    def forward(self, x0: Tensor, wide: Tensor, dense: Tensor) -> Tensor:
        """Logits [B] of embeddings [B, F*D], the wide sums [B, 1], dense features [B, N]."""
        if self.num_dense:
            x0 = torch.cat([(dense.unsqueeze(2) * self.dense_fields).flatten(1), x0], 1)
        deep = self.mlp(x0)
        if self.cross_layers:
            x = x0
            for layer in self.cross_layers:
                if self.cross_v1:
                    x = x0 * (x @ layer.weight.T) + layer.bias + x
                else:
                    x = x0 * layer(x) + x
            crossed: Tensor = self.head(torch.cat([x, deep], 1)).squeeze(1)
            return crossed
        logit: Tensor = wide + self.wide_bias + self.head(deep)
        if self.num_dense:
            logit = logit + dense @ self.wide_dense.T
        if self.name == "deepfm":
            v = x0.unflatten(1, (-1, self.dim))
            logit = logit + 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)
        return logit.squeeze(1)


class PerField(nn.Module):
    """One nn.Embedding a field; input: ids [F, B]."""

    def __init__(self, tables: Sequence[Tensor], wide: Sequence[Tensor]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(map(_embedding, tables))
        self.wide = nn.ModuleList(map(_embedding, wide))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [B, F*D], wide sums [B, 1]."""
        x0 = torch.cat([table(ids[i]) for i, table in enumerate(self.tables)], 1)
        if not self.wide:
            return x0, x0[:, :1]
        return x0, torch.stack([table(ids[i]) for i, table in enumerate(self.wide)]).sum(0)

    @staticmethod
    def prepare(ids: Tensor) -> tuple[Tensor, ...]:
        """Its input from ids [F, B]."""
        return (ids,)


class OneTable(nn.Module):
    """All fields in one table; input: ids [B, F], to which it adds the tables' offsets."""

    offsets: Tensor

    def __init__(self, tables: FlatTable, wide: FlatTable | None) -> None:
        super().__init__()
        self.table = _embedding(tables.weight)
        self.wide = _embedding(wide.weight) if wide else None
        offsets = torch.tensor(tables.starts, device=tables.weight.device)
        self.register_buffer("offsets", offsets)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [B, F*D], wide sums [B, 1]."""
        ids = ids + self.offsets
        x0 = self.table(ids).flatten(1)
        return x0, x0[:, :1] if self.wide is None else self.wide(ids).sum(1)

    @staticmethod
    def prepare(ids: Tensor) -> tuple[Tensor, ...]:
        """Its input from ids [F, B]."""
        return (ids.T.contiguous(),)


class Tbe(nn.Module):
    """FBGEMM's inference lookup, bounds checks off; the wide weights (width 1) as in OneTable."""

    offsets: Tensor

    def __init__(self, tables: FlatTable, wide: FlatTable | None) -> None:
        super().__init__()
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
            BoundsCheckMode,
            EmbeddingLocation,
            PoolingMode,
        )
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
            IntNBitTableBatchedEmbeddingBagsCodegen as Codegen,
        )

        kind = SparseType.FP16 if tables.weight.dtype == torch.float16 else SparseType.FP32
        location, dim = EmbeddingLocation.DEVICE, tables.weight.shape[1]
        self.lookup = Codegen(
            [("", rows, dim, kind, location) for rows in tables.rows],
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
            output_dtype=kind,
            device="cuda",
        )
        self.lookup.initialize_weights()
        filled = self.lookup.split_embedding_weights()
        for (table, _), source in zip(filled, tables.tables(), strict=True):
            table[:, : dim * source.element_size()] = source.view(torch.uint8)
        self.wide = _embedding(wide.weight) if wide else None
        offsets = torch.tensor(tables.starts, device=tables.weight.device)
        self.register_buffer("offsets", offsets)

    def forward(self, indices: Tensor, bags: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [B, F*D], wide sums [B, 1]."""
        x0 = self.lookup(indices, bags)
        return x0, x0[:, :1] if self.wide is None else self.wide(ids + self.offsets).sum(1)

    @staticmethod
    def prepare(ids: Tensor) -> tuple[Tensor, ...]:
        """Its input from ids [F, B]: indices [F*B], bag bounds [F*B + 1], ids [B, F]."""
        bags = torch.arange(ids.numel() + 1, dtype=torch.int32, device=ids.device)
        return ids.flatten().int(), bags, ids.T.contiguous()


Lookup = PerField | OneTable | Tbe


class Peer(nn.Module):
    """A lookup and the dense part behind it; input: dense features [B, N], then the lookup's."""

    def __init__(self, lookup: nn.Module, dense: nn.Module) -> None:
        super().__init__()
        self.lookup, self.dense = lookup, dense

    def forward(self, dense: Tensor, *inputs: Tensor) -> Tensor:
        """Logits [B]."""
        logits: Tensor = self.dense(*self.lookup(*inputs), dense)
        return logits


class Rows(nn.Module):
    """A lookup in front of a model of the zoo; input: the lookup's in a tuple, then the rest."""

    def __init__(self, lookup: nn.Module, dim: int, behind: nn.Module) -> None:
        super().__init__()
        self.lookup, self.dim, self.behind = lookup, dim, behind

    def forward(self, inputs: tuple[Tensor, ...], *rest: Tensor) -> Tensor:
        """Logits [B, 1]."""
        rows, _ = self.lookup(*inputs)
        logits: Tensor = self.behind(rows.unflatten(1, (-1, self.dim)), *rest)
        return logits


def _embedding(table: Tensor) -> nn.Embedding:
    embedding: nn.Embedding = nn.Embedding.from_pretrained(table, freeze=True)
    return embedding


def _linear(weights: Weights, name: str) -> nn.Linear:
    weight, bias = weights[f"{name}/weight"], weights[f"{name}/bias"]
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.load_state_dict({"weight": weight, "bias": bias})
    return linear


def _cross(weights: Weights, layer: int) -> nn.Linear:
    """W and b of a layer of either cross network (v1: a [1, W] weight and a [W] bias)."""
    weight, bias = weights[f"cross/{layer}/weight"], weights[f"cross/{layer}/bias"]
    holder = nn.Linear(weight.shape[1], weight.shape[0])
    holder.weight, holder.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return holder
