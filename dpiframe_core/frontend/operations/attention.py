"""Attention that PyTorch keeps as one operation: softmax(q k^T scale + mask) v."""

from __future__ import annotations

import math
from typing import Any

import torch

from dpiframe_core.frontend.building import Building, CannotConvertError, transposed
from dpiframe_core.frontend.operations.moving import repeat_interleave
from dpiframe_core.frontend.operations.reducing import safe_softmax
from dpiframe_core.frontend.operations.table import Table, as_value
from dpiframe_core.frontend.values import Value, of_tensor
from dpiframe_core.program.expression import Expression

TABLE = Table()


def attended(build: Building, q: Value, k: Value, v: Value, mask: Any, causal: bool, scale: Any
             ) -> Value:  # fmt: skip
    """q [.., L, E], k [.., S, E], v [.., S, D] to [.., L, D]; a mask is of truths or is added."""
    if k.sizes[:-2] != q.sizes[:-2] or v.sizes[:-2] != q.sizes[:-2]:
        raise CannotConvertError("queries, keys and values of other batches and heads")
    scale = 1 / math.sqrt(q.sizes[-1]) if scale is None else scale
    lead = q.sizes[:-2]
    flat = [build.view(x, [math.prod(lead), *x.sizes[-2:]]) for x in (q, k, v)]
    dots = build.product(flat[0], transposed(flat[1]))
    dots = build.view(dots, [*lead, *dots.sizes[1:]])
    dots = build.mapped(("mul", "x0", float(scale)), [dots])
    if causal:
        mask = of_tensor(torch.ones(dots.sizes[-2], dots.sizes[-1], dtype=torch.bool).tril())
    if mask is None:
        weights = build.softmax(dots, len(dots.dims) - 1)
    else:
        mask = as_value(mask)
        truth: Expression = ("where", "x1", "x0", -math.inf)
        dots = build.mapped(truth if mask.is_integer else ("add", "x0", "x1"), [dots, mask])
        weights = safe_softmax(build, dots, -1)
    flat_weights = build.view(weights, [math.prod(lead), *weights.sizes[-2:]])
    found = build.product(flat_weights, flat[2])
    return build.view(found, [*lead, *found.sizes[1:]])


@TABLE.of("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
def flash(build: Building, q: Value, k: Value, v: Value, dropout: float = 0.0,
          causal: bool = False, *rest: Any, attn_mask: Any = None, scale: Any = None,
          ) -> tuple[Value, None]:  # fmt: skip
    """Of PyTorch's kernels for the CPU or CUDA."""
    return attended(build, q, k, v, attn_mask, causal, scale), None


@TABLE.of("_scaled_dot_product_efficient_attention")
def efficient(build: Building, q: Value, k: Value, v: Value, mask: Any, logs: bool,  # noqa: PLR0913
              dropout: float = 0.0, causal: bool = False, *, scale: Any = None,
              ) -> tuple[Value, None]:  # fmt: skip
    """Of PyTorch's other kernel for CUDA."""
    return attended(build, q, k, v, mask, causal, scale), None


@TABLE.of("scaled_dot_product_attention")
def whole(build: Building, q: Value, k: Value, v: Value, mask: Any = None, dropout: float = 0.0,  # noqa: PLR0913
          causal: bool = False, *, scale: Any = None, enable_gqa: bool = False,
          ) -> Value:  # fmt: skip
    """As a model calls it; with grouped queries, each key is of several heads."""
    if enable_gqa and k.sizes[-3] != q.sizes[-3]:
        k, v = (_shared(build, x, q.sizes[-3]) for x in (k, v))
    return attended(build, q, k, v, mask, causal, scale)


@TABLE.of("_scaled_dot_product_attention_math")
def by_formula(build: Building, q: Value, k: Value, v: Value, *args: Any, dropout_mask: Any = None,
               **options: Any) -> tuple[Value, None]:  # fmt: skip
    """The same as operations."""
    return whole(build, q, k, v, *args[:3], **options), None


def _shared(build: Building, x: Value, heads: int) -> Value:
    """x [.., H, S, E] with every head repeated."""
    dim = len(x.dims) - 3
    return repeat_interleave(build, x, heads // x.sizes[dim], dim)
