"""Which operators a program of an archive may call: a file names them, so not every one is safe.

Tensor operators are those of aten that compute a tensor (or check one); those that read or write
files, change another tensor's memory or size, or are internal to torch are refused. Whether an
engine can run one is asked later.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from dpiframe_core.errors import ModelImportError

# What computes sizes, by the name that torch.export gives it, with how many arguments it takes.
SIZE_OPERATORS: dict[str, tuple[Callable[..., Any], int]] = {
    "_operator.add": (operator.add, 2),
    "_operator.sub": (operator.sub, 2),
    "_operator.mul": (operator.mul, 2),
    "_operator.floordiv": (operator.floordiv, 2),
    "_operator.truediv": (operator.truediv, 2),
    "_operator.mod": (operator.mod, 2),
    "_operator.eq": (operator.eq, 2),
    "_operator.ne": (operator.ne, 2),
    "_operator.lt": (operator.lt, 2),
    "_operator.le": (operator.le, 2),
    "_operator.gt": (operator.gt, 2),
    "_operator.ge": (operator.ge, 2),
    "_operator.and_": (operator.and_, 2),
    "_operator.or_": (operator.or_, 2),
    "_operator.neg": (operator.neg, 1),
    "_operator.pos": (operator.pos, 1),
    "math.trunc": (math.trunc, 1),
    "torch.sym_int": (torch.sym_int, 1),
    "torch.sym_float": (torch.sym_float, 1),
    "torch.sym_not": (torch.sym_not, 1),
    "torch.sym_max": (torch.sym_max, 2),
    "torch.sym_min": (torch.sym_min, 2),
    "torch.sym_ite": (torch.sym_ite, 3),
}

_CHECKS = r"_assert_(async|scalar|tensor_metadata)|sym_constrain_range(_for_size)?"
# Operators of a leading underscore are internal to torch, but for these, which models do have.
_INTERNAL = re.compile(
    r"__i?(and|lshift|or|rshift|xor)__"
    r"|_adaptive_avg_pool[23]d|_cdist_forward|_conj|_conj_physical|_convolution"
    r"|_embedding_bag|_embedding_bag_forward_only|_euclidean_dist|_fft_(c2c|c2r|r2c)"
    r"|_functional_assert_(async|scalar)|_fused_rms_norm|_local_scalar_dense"
    r"|_native_batch_norm_legit(_functional|_no_training)?|_neg_view|_pdist_forward|_prelu_kernel"
    r"|_(reshape_alias|reshape_copy|shape_as_tensor|stack|to_copy|trilinear|unique2)"
    r"|_(log_|safe_)?softmax|_unsafe_(index|view)|_weight_norm|_weight_norm_interface"
    r"|_scaled_dot_product_(attention_math|efficient_attention|flash_attention(_for_cpu)?)"
    rf"|{_CHECKS}"
)
_UNSAFE = re.compile(
    "from_file|set_?|resize_.*|resize|resize_as|resize_as_sparse|.*sparse.*|data|requires_grad_|"
    "(fbgemm|mkldnn|miopen|cudnn|mps|quantized|fake_quantize)_.*|quantize_.*|q_.*|to_mkldnn|.*_backward.*"
)


def tensor_operator(target: str) -> OpOverload[..., Any]:
    """The operator that a program calls `torch.ops.aten.NAME.OVERLOAD`.

    ModelImportError says of any other, or of one that is not safe or not known, what to do.
    """
    if target.startswith("torch.ops.higher_order."):
        raise ModelImportError(
            f"{target} is a higher-order operator (of torch.cond, a loop, or a block such as "
            "torch.no_grad() in forward); take it out of forward and export again"
        )
    found = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", target)
    if found is None:
        raise ModelImportError(
            f"{target} is no operator of torch.ops.aten; operators of other libraries are not "
            "supported: replace it by operations of torch and export again"
        )
    name, overload = found.groups()
    # Of aten, torch also has operators of TorchScript alone, which may do anything to files.
    qualified = f"aten::{name}" + ("" if overload == "default" else f".{overload}")
    if not torch._C._dispatch_has_kernel(qualified):
        raise ModelImportError(f"torch {torch.__version__} has no operator {target}")
    if _is_unsafe(name):
        raise ModelImportError(
            f"{target} is not supported: it reads files, changes memory or is internal to torch; "
            "replace it by other operations of torch and export again"
        )
    packet = getattr(torch.ops.aten, name)
    assert isinstance(packet, OpOverloadPacket)
    found_operator = getattr(packet, overload)
    assert isinstance(found_operator, OpOverload)
    if any(arg.is_out for arg in found_operator._schema.arguments):
        raise ModelImportError(f"{target} writes into an argument `out`; export again without it")
    if not found_operator._schema.returns and not re.fullmatch(_CHECKS, name):
        raise ModelImportError(f"{target} computes nothing; export again without it")
    return found_operator


def _is_unsafe(name: str) -> bool:
    is_internal = name.startswith("_") and not _INTERNAL.fullmatch(name)
    return is_internal or _UNSAFE.fullmatch(name) is not None
