"""PyTorch modules imported, and their logits beside the module's own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dpiframe_core.frontend.assemble import assembled
from dpiframe_core.frontend.columns import choose_features, feeds_of
from dpiframe_core.frontend.convert import Traced
from dpiframe_core.frontend.drafting import choose_output, drafted, keep_output, used_columns
from dpiframe_core.frontend.tracing.capture import of_program, traced
from dpiframe_core.frontend.values import Column
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.model.torch_module import CTRModel


class Imported:
    """A module's spec and weights, and the features that feed it."""

    def __init__(self, program: Traced, dtype: torch.dtype = torch.float32) -> None:
        inputs = {program.input_names[name]: shape for name, shape in program.inputs.items()}
        output = choose_output(program, ["output"], "auto")
        keep_output(program, output)
        ids, dense, *_ = used_columns(program, output)
        features = choose_features(inputs, feeds_of(inputs, _a_column_each(inputs)), ids, dense)
        self.fields: tuple[Column, ...] = features.id_columns
        self.dense: tuple[Column, ...] = features.dense_columns
        draft, _ = drafted(program, output, ids, self.dense)
        self.spec: ModelSpec
        self.weights: dict[str, Tensor]
        self.spec, self.weights = assembled(draft, features.features, "model", dtype)

    @property
    def kinds(self) -> list[str]:
        """What each module is, in order; of a tensor operation its computation."""
        return [m.compute.kind if m.op == "tensor" else m.op for m in self.spec.modules]

    def logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """The reference's logits, in float64."""
        model = CTRModel(self.spec).double().eval()
        model.load_state_dict(self.weights)
        with torch.no_grad():
            return model(*self.rows(inputs))

    def rows(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """The inputs as ids [F, B] and dense [N, B], in float64; None where there are none."""
        ids = [_column(inputs, c).long() for c in self.fields]
        dense = [_column(inputs, c).double() for c in self.dense]
        batch = len(next(iter(inputs.values())))
        return (
            torch.stack(ids) if ids else torch.zeros(0, batch, dtype=torch.long),
            torch.stack(dense) if dense else None,
        )


def _a_column_each(inputs: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Columns for all numbers of an input: its name, or `name_i` for each of several."""
    return {
        name: [f"{name}_{i}" for i in range(math.prod(shape))] if shape else name
        for name, shape in inputs.items()
    }


def _column(inputs: dict[str, Tensor], column: Column) -> Tensor:
    found = inputs[column.input]
    return found.reshape(len(found), -1)[:, column.position]


def import_module(module: nn.Module, inputs: dict[str, Any]) -> Imported:
    """A module whose forward takes these inputs by name."""
    return Imported(traced(module, inputs))


def import_program(path: Any) -> Imported:
    """A program that torch.export wrote; the file is trusted."""
    return Imported(of_program(torch.export.load(path)))
