"""The built-in models, each a function that returns a spec.

`dense_as` says how dense features enter: "field" projects each to a field as wide as the others
(FuxiCTR's way: the interactions see F + N fields), "raw" sets the numbers beside the embeddings
for the MLP and cross network alone (DeepCTR's way).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dpiframe_core.errors import SpecError
from dpiframe_core.features.schema import FeatureSchema
from dpiframe_core.model.fields import FieldSpec, ListSpec
from dpiframe_core.model.modules import (
    FM,
    MLP,
    Add,
    Concat,
    CrossV1,
    CrossV2,
    DenseEmbedding,
    Embedding,
    Linear,
    Module,
    Wide,
)
from dpiframe_core.model.spec import ModelSpec
from dpiframe_core.program.views import DENSE

Structure = Literal["parallel", "stacked", "cross_only"]
DenseAs = Literal["field", "raw"]


@dataclass(frozen=True)
class Deep:
    """Options of the deep part that all models share."""

    hidden: tuple[int, ...] = (400, 400, 400)
    batch_norm: bool = False
    dropout: float = 0.0

    def mlp(self, source: str) -> MLP:
        """The MLP module over `source`."""
        return MLP(
            name="mlp",
            inputs=(source,),
            hidden=self.hidden,
            batch_norm=self.batch_norm,
            dropout=self.dropout,
        )


@dataclass(frozen=True)
class Features:
    """The inputs of a model: fields, dense features and how the latter enter."""

    fields: Sequence[FieldSpec]
    dense: Sequence[str] = field(default=())
    dense_as: DenseAs = "field"
    lists: Sequence[ListSpec] = ()

    def __post_init__(self) -> None:
        if self.dense_as not in ("field", "raw"):
            raise SpecError(f"dense_as must be 'field' or 'raw', got {self.dense_as!r}")

    @classmethod
    def of_schema(cls, schema: FeatureSchema, dim: int, dense_as: DenseAs = "field") -> Features:
        """The inputs that a fitted schema makes, every field `dim` wide."""
        fields = [
            FieldSpec(name=name, rows=f.rows, dim=dim, table=f.name, oov_row=f.unseen_row)
            for name, f in schema.field_features
        ]
        return cls(fields, schema.dense_names, dense_as, ListSpec.of_schema(schema))

    def modules(self) -> tuple[list[Module], str, list[str]]:
        """Modules up to the deep input, the name of that input, the inputs for FM."""
        modules: list[Module] = [Embedding(name="embedding")] if self.fields else []
        parts = [m.name for m in modules]
        if self.dense and self.dense_as == "field":
            dims = sorted({f.dim for f in self.fields}) or [1]
            if len(dims) != 1:
                raise SpecError(f"dense_as='field' needs fields of one width, got widths {dims}")
            modules.append(DenseEmbedding(name="dense_fields", inputs=(DENSE,), dim=dims[0]))
            parts.insert(0, "dense_fields")
        interacting = list(parts)
        if self.dense and self.dense_as == "raw":
            parts.append(DENSE)
        if len(parts) == 1:
            return modules, parts[0], interacting
        modules.append(Concat(name="x0", inputs=tuple(parts)))
        return modules, "x0", interacting

    def wide(self, bias: bool) -> Wide:
        """The linear part over all fields and dense features."""
        return Wide(name="wide", inputs=(DENSE,) if self.dense else (), bias=bias)

    def spec(self, name: str, modules: list[Module]) -> ModelSpec:
        """The spec whose output is the last module."""
        return ModelSpec(
            name=name,
            fields=tuple(self.fields),
            dense=tuple(self.dense),
            lists=tuple(self.lists),
            modules=tuple(modules),
            output=modules[-1].name,
        )


def wdl(features: Features, deep: Deep | None = None) -> ModelSpec:
    """Wide & Deep (Cheng et al., 2016): wide + linear(MLP(x0))."""
    modules, x0, _ = features.modules()
    modules += [
        features.wide(bias=False),
        (deep or Deep()).mlp(x0),
        Linear(name="deep_logit", inputs=("mlp",)),
        Add(name="logit", inputs=("wide", "deep_logit")),
    ]
    return features.spec("wdl", modules)


def deepfm(features: Features, deep: Deep | None = None) -> ModelSpec:
    """DeepFM (Guo et al., 2017): wide + FM + linear(MLP(x0))."""
    modules, x0, interacting = features.modules()
    modules += [
        features.wide(bias=True),
        FM(name="fm", inputs=tuple(interacting)),
        (deep or Deep()).mlp(x0),
        Linear(name="deep_logit", inputs=("mlp",)),
        Add(name="logit", inputs=("wide", "fm", "deep_logit")),
    ]
    return features.spec("deepfm", modules)


def dcn(
    features: Features,
    deep: Deep | None = None,
    layers: int = 3,
    structure: Structure = "parallel",
) -> ModelSpec:
    """DCN (Wang et al., 2017): cross network of vectors beside or before the MLP."""
    modules, x0, _ = features.modules()
    cross = CrossV1(name="cross", inputs=(x0,), layers=layers)
    return features.spec("dcn", modules + _cross_and_deep(cross, x0, deep or Deep(), structure))


def dcnv2(
    features: Features,
    deep: Deep | None = None,
    layers: int = 3,
    structure: Structure = "parallel",
) -> ModelSpec:
    """DCNv2 (Wang et al., 2021): cross network of matrices beside or before the MLP."""
    modules, x0, _ = features.modules()
    cross = CrossV2(name="cross", inputs=(x0,), layers=layers)
    return features.spec("dcnv2", modules + _cross_and_deep(cross, x0, deep or Deep(), structure))


def _cross_and_deep(
    cross: CrossV1 | CrossV2, x0: str, deep: Deep, structure: Structure
) -> list[Module]:
    if structure == "parallel":
        joint = Concat(name="joint", inputs=("cross", "mlp"))
        return [cross, deep.mlp(x0), joint, Linear(name="logit", inputs=("joint",))]
    if structure == "stacked":
        return [cross, deep.mlp("cross"), Linear(name="logit", inputs=("mlp",))]
    if structure == "cross_only":
        return [cross, Linear(name="logit", inputs=("cross",))]
    raise SpecError(f"structure must be parallel, stacked or cross_only, got {structure!r}")


MODELS = {"wdl": wdl, "deepfm": deepfm, "dcn": dcn, "dcnv2": dcnv2}
