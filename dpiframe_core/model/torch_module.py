"""CTRModel: any spec as one trainable torch module, which is also the unlowered reference."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dpiframe_core.errors import SpecError
from dpiframe_core.model.modules import TensorInputs
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program.views import DENSE


class CTRModel(torch.nn.Module):
    """The model of `spec` with fresh weights from `seed`; with `sparse` its tables' gradients are
    sparse.

    `state_dict()` holds exactly the weights of a bundle, under the same names
    ("module/part": no dots, so that any field name is a legal key).
    """

    def __init__(self, spec: ModelSpec, seed: int = 0, sparse: bool = False) -> None:
        super().__init__()
        self.spec, self.sparse = spec, sparse
        self._graph = [(module, inputs) for module, inputs, _ in spec.walk()]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for name, parameter in spec.parameters().items():
                tensor = torch.empty(parameter.shape)
                parameter.init(tensor)
                if parameter.trainable:
                    self.register_parameter(name, torch.nn.Parameter(tensor))
                else:
                    self.register_buffer(name, tensor)

    @classmethod
    def from_weights(cls, spec: ModelSpec, weights: Mapping[str, Tensor]) -> CTRModel:
        """The model of `spec` with the given weights (checked by name and shape)."""
        check_weights(spec, weights)
        model = cls(spec)
        model.load_state_dict(dict(weights))
        return model.eval()

    def forward(self, ids: Tensor, dense: Tensor | None = None) -> Tensor:
        """Logits [B] of ids [F, B] (integers) and dense [N, B] (floats; None when N is 0)."""
        ids = in_tables(self.spec, ids)
        if dense is None:
            dtype = next(self.parameters()).dtype
            dense = torch.empty((0, ids.shape[1]), dtype=dtype, device=ids.device)
        weights = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        values = {DENSE: dense.T}
        for module, inputs in self._graph:
            prefix = f"{module.name}/"
            own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
            x = TensorInputs(
                inputs.fields,
                inputs.shapes,
                [values[name] for name in module.inputs],
                ids.long(),
                self.training,
                self.sparse,
            )
            values[module.name] = module.forward(own, x)
        return values[self.spec.output].squeeze(1)


def in_tables(spec: ModelSpec, ids: Tensor) -> Tensor:
    """Ids [F, B] with those in the place of ids of fields with a period that these stand for."""
    if not spec.has_periods:
        return ids
    rows = zip(spec.fields, ids.long(), strict=True)
    return torch.stack([field.in_table(row) for field, row in rows])


def check_weights(spec: ModelSpec, weights: Mapping[str, Tensor]) -> None:
    """SpecError unless `weights` holds exactly the spec's weights, in their shapes."""
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor):
            raise SpecError(f"weight {name} must be a torch tensor, got {type(tensor).__name__}")
    spec.check_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()})
    for name, tensor in weights.items():
        if not tensor.dtype.is_floating_point:
            raise SpecError(f"weight {name} must be of a floating type, got {tensor.dtype}")
