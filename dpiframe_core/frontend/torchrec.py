"""TorchRec's DLRM and DLRM_DCN in plain torch, from their weights alone.

TorchRec's own modules take a KeyedJaggedTensor, which torch.export cannot trace. Names of weights
and formulas are those of https://github.com/meta-pytorch/torchrec, `torchrec/models/dlrm.py` and
`torchrec/modules/crossnet.py`; DLRM: Naumov et al., 2019, DLRM_DCN: Wang et al., 2021.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpiframe_core.errors import ModelImportError

_TABLE = re.compile(r".*sparse_arch\.embedding_bag_collection\.embedding_bags\.(\w+)\.weight")


class DLRM(nn.Module):
    """Scores `dense` [B, N] and an id a table; `tables` are their names, in order.

    `state`: what DLRM's or DLRM_DCN's `state_dict()` gives. Its weights keep their names, dots
    written as slashes.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        tables = {match[1]: name for name in state if (match := _TABLE.fullmatch(name))}
        self.tables = list(tables)
        self._prefix = next(iter(tables.values())).split("sparse_arch")[0] if tables else ""
        self._names = [name.removeprefix(self._prefix) for name in state]
        for part in ("sparse_arch", "dense_arch", "over_arch"):
            if not any(name.startswith(f"{part}.") for name in self._names):
                raise ModelImportError(
                    f"these are no weights of DLRM or DLRM_DCN: none is of {part}, there are "
                    f"{', '.join(list(state)[:8])}"
                )
        for name, weight in zip(self._names, state.values(), strict=True):
            self.register_parameter(
                name.replace(".", "/"), nn.Parameter(weight, requires_grad=False)
            )

    def forward(self, dense: Tensor, ids: Mapping[str, Tensor]) -> Tensor:
        """Logits [B] of dense [B, N] and ids, a tensor [B] for each of `tables`."""
        rows = [functional.embedding(ids[name], self._table(name)) for name in self.tables]
        for layer in self._layers("dense_arch"):
            dense = self._linear(layer, dense).relu()
        fields = torch.stack([dense, *rows], 1)
        has_cross = any("crossnet" in name for name in self._names)
        x = self._crossed(fields.flatten(1)) if has_cross else self._dots(dense, fields)
        *hidden, last = self._layers("over_arch")
        for layer in hidden:
            x = self._linear(layer, x).relu()
        return self._linear(last, x).squeeze(1)

    def _weight(self, name: str) -> Tensor:
        return self.get_parameter(name.replace(".", "/"))

    def _table(self, name: str) -> Tensor:
        bags = "sparse_arch.embedding_bag_collection.embedding_bags"
        return self._weight(f"{bags}.{name}.weight")

    def _layers(self, part: str) -> list[str]:
        """The linear layers of a part, in order."""
        names = [n for n in self._names if n.startswith(f"{part}.") and n.endswith(".weight")]
        return [name.removesuffix(".weight") for name in names]

    def _linear(self, layer: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight(f"{layer}.weight"), self._weight(f"{layer}.bias"))

    def _dots(self, dense: Tensor, fields: Tensor) -> Tensor:
        """The dense field, and the products of all pairs of fields [B, 1 + F, D]."""
        i, j = torch.triu_indices(fields.shape[1], fields.shape[1], offset=1)
        return torch.cat([dense, (fields @ fields.transpose(1, 2))[:, i, j]], 1)

    def _crossed(self, x0: Tensor) -> Tensor:
        """The low-rank cross network: x = x0 * (W V x + b) + x for each layer."""
        x, layer = x0, 0
        while f"inter_arch.crossnet.W_kernels.{layer}" in self._names:
            w, v, b = (
                self._weight(f"inter_arch.crossnet.{kind}.{layer}")
                for kind in ("W_kernels", "V_kernels", "bias")
            )
            x = x0 * (x @ v.T @ w.T + b.squeeze(1)) + x
            layer += 1
        return x
