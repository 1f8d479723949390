"""What a contender is: ours or a peer, made ready on a case; one that fails ends no run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpiframe_core import CTRModel, ModelSpec
from pipeline.bench.engine.peers import Weights
from pipeline.errors import DpiframeError

OURS, EAGER = "dpiframe", "eager"


class Contender(NamedTuple):
    """`run(i)` scores input i and returns when the scores are there; `logits(i)` are [B] float."""

    run: Callable[[int], object]
    logits: Callable[[int], np.ndarray]
    close: Callable[[], None] = lambda: None


Makers = dict[str, Callable[[], Contender]]


class UsersModel(nn.Module):
    """The model of a bundle in plain torch."""

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        super().__init__()
        self.model = CTRModel.from_weights(spec, weights)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Logits [B] of dense features [B, N] and ids [F, B]."""
        logits: Tensor = self.model(ids, dense.T)
        return logits


def compile_module(module: nn.Module, mode: str | None) -> nn.Module:
    """torch.compile for one shape."""
    compiled = torch.compile(module, mode=mode, dynamic=False)
    assert isinstance(compiled, nn.Module)
    return compiled


def make_all(makers: Makers) -> tuple[dict[str, Contender], dict[str, str]]:
    """The contenders, and why those that are not there could not be made. Ours must be there."""
    made: dict[str, Contender] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
            made[name].run(0)
        except Exception as error:
            if name == OURS:
                raise
            made.pop(name, None)
            failed[name] = reason(error)
    return made, failed


def reason(error: Exception) -> str:
    """An error in one line."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return first if isinstance(error, DpiframeError) else f"{type(error).__name__}: {first}"


def close_all(made: Mapping[str, Contender]) -> None:
    """Free what the contenders hold beyond Python's reach."""
    for contender in made.values():
        contender.close()
