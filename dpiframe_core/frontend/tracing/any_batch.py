"""Functions of PyTorch that torch.export traces for one batch size alone, or not at all: others
that compute the same are in their place while a model is traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributions import Distribution
from torch.nn.modules import transformer

_DATA: Any = torch._C.TensorBase.data
_CDIST = torch.cdist
_WITHOUT_PRODUCTS = "donot_use_mm_for_euclid_dist"  # PyTorch chooses by the number of rows


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """PyTorch's own makes a number of the batch where it broadcasts."""
    if dim is None:
        return input.flatten().gather(0, indices.flatten())
    dim %= input.dim()
    sizes = torch.broadcast_shapes(
        [1 if i == dim else n for i, n in enumerate(input.shape)],
        [1 if i == dim else n for i, n in enumerate(indices.shape)],
    )

    def expanded(x: Tensor) -> Tensor:
        return x.expand([x.shape[i] if i == dim else n for i, n in enumerate(sizes)])

    return expanded(input).gather(dim, expanded(indices))


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "") -> Tensor:
    return _CDIST(x1, x2, p, _WITHOUT_PRODUCTS)


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Without a look at the mask, which adds the same numbers."""
    return is_causal is True


def _data(x: Tensor) -> Any:
    """PyTorch's own would be a constant of the program."""
    return x.detach() if isinstance(x, FakeTensor | FunctionalTensor) else _DATA.__get__(x)


@contextlib.contextmanager
def functions_for_any_batch() -> Iterator[None]:
    """PyTorch's functions are replaced by these within, and distributions check no numbers."""
    with replaced_within(
        (torch, "take_along_dim", _take_along_dim),
        (Tensor, "take_along_dim", _take_along_dim),
        (torch, "cdist", _cdist),
        (transformer, "_detect_is_causal_mask", _is_causal),
        (Tensor, "data", property(_data, _DATA.__set__, _DATA.__delete__)),
        (Distribution, "_validate_args", False),
    ):
        yield


@contextlib.contextmanager
def replaced_within(*replaced: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes (of what, name, value) are these within."""
    kept = [vars(owner).get(name) for owner, name, _ in replaced]
    for owner, name, ours in replaced:
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for (owner, name, _), given in zip(replaced, kept, strict=True):
            if given is None:  # of a base class
                delattr(owner, name)
            else:
                setattr(owner, name, given)
