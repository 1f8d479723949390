"""Torch's types of activations, by precision."""

import torch

TORCH_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
