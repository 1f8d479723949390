"""The modules a spec can hold. A new one is a file of its own and a line here."""

from typing import Annotated

from pydantic import Field

from dpiframe_core.model.modules.base import (
    BaseModule,
    Inputs,
    Parameter,
    TensorInputs,
    Value,
    ViewInputs,
)
from dpiframe_core.model.modules.cross_v1 import CrossV1
from dpiframe_core.model.modules.cross_v2 import CrossV2
from dpiframe_core.model.modules.dense_embedding import DenseEmbedding
from dpiframe_core.model.modules.embedding import Embedding
from dpiframe_core.model.modules.fm import FM
from dpiframe_core.model.modules.joints import Add, Concat, Linear
from dpiframe_core.model.modules.mlp import MLP
from dpiframe_core.model.modules.tensor import Tensor
from dpiframe_core.model.modules.wide import Wide

Module = Annotated[
    Embedding
    | DenseEmbedding
    | Wide
    | FM
    | CrossV1
    | CrossV2
    | MLP
    | Concat
    | Add
    | Linear
    | Tensor,
    Field(discriminator="op"),
]

__all__ = [
    "FM",
    "MLP",
    "Add",
    "BaseModule",
    "Concat",
    "CrossV1",
    "CrossV2",
    "DenseEmbedding",
    "Embedding",
    "Inputs",
    "Linear",
    "Module",
    "Parameter",
    "Tensor",
    "TensorInputs",
    "Value",
    "ViewInputs",
    "Wide",
]
