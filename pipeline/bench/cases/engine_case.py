"""A benchmark case: a model of the Criteo Kaggle shape or a user's own, and its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dpiframe_core import FieldSpec, ModelSpec, open_bundle
from dpiframe_core.engine.cuda.mapped_linear import device_passes
from dpiframe_core.errors import BundleError
from dpiframe_core.lowering import DEVICE_FORM, PASSES, Pass
from dpiframe_core.lowering.fold_batch_norm import fold_batch_norm
from dpiframe_core.lowering.fuse_lookup import fuse_lookup
from dpiframe_core.model.builtin import MODELS, Deep, Features
from dpiframe_core.program.program import Program
from dpiframe_core.program.schedule import Policy
from dpiframe_core.program.steps import Lookup, Step
from pipeline.bench.cases.random_data import (
    TABLE_MARK,
    IdDistribution,
    draw_dense,
    draw_ids,
    host_table,
    random_weights,
)
from pipeline.bench.cases.user_module import UserModule, load_user_module, load_zoo_module
from pipeline.bench.cases.zoo import ZOO
from pipeline.bench.timing import ROTATED_INPUTS
from pipeline.data.cardinalities import CRITEO_CARDINALITIES
from pipeline.errors import ConfigError

INTEGER_BUCKETS = 100
CRITEO_ROWS = {f"I{i + 1}": INTEGER_BUCKETS for i in range(13)} | CRITEO_CARDINALITIES
CRITEO_FIELDS = len(CRITEO_ROWS)
ModelName = Literal[
    "wdl", "deepfm", "dcn", "dcnv2",
    "xdeepfm", "autoint", "fibinet", "masknet", "finalmlp", "dlrm", "gdcn", "din", "deepgelu",
]  # fmt: skip
CONFIG = ConfigDict(frozen=True, extra="forbid")
# No fusion of lookup, head, siblings, concat, activations or cross layers: a kernel an operation.
NO_FUSION: tuple[Pass, ...] = (fold_batch_norm,)


class Batch(NamedTuple):
    """Inputs in host memory."""

    ids: np.ndarray  # [F, B] int32 or int64
    dense: np.ndarray  # [N, B] float32


def criteo_fields(num: int, dim: int, scale: float = 1.0) -> list[FieldSpec]:
    """The fields of Criteo Kaggle: 13 bucketed integers, 26 of the published cardinalities.

    Up to 26 are the first of the latter, more than 39 are all of them again and again, each with
    tables of its own.
    """
    names = list(CRITEO_ROWS if num > len(CRITEO_CARDINALITIES) else CRITEO_CARDINALITIES)
    fields = []
    for i in range(num):
        repeat, index = divmod(i, len(names))
        name = names[index]
        rows = CRITEO_ROWS[name]
        if name in CRITEO_CARDINALITIES:
            rows = max(2, round(rows * scale))
        fields.append(
            FieldSpec(name=f"{name}_{repeat + 1}" if repeat else name, rows=rows, dim=dim)
        )
    return fields


class EngineCase(BaseModel):
    """One benchmark case. `scale` shrinks the published cardinalities.

    `model`: a built-in one or one of the zoo. `bundle` or `module` (file.py:Name): a user's own
    model, which replaces the options that describe one of these. `output`: which one of a module's.
    `peers`: which of them run; "plain" are the quick ones, in torch without a compiler.
    `loads`: all are loaded so often, each time `repeats` batches are timed: the times of all calls
    of a load differ from those of the next, by its place in memory or by what else runs.
    `tuned`: the compiler behind TBE times kernels for each product in fp16, which takes longer than
    all else.
    """

    model_config = CONFIG

    model: ModelName = "dcnv2"
    bundle: Path | None = None
    module: str | None = None
    output: str = "auto"
    batch: int = Field(default=4096, ge=1)
    fields: int = Field(default=CRITEO_FIELDS, ge=1, le=4096)
    dense: int = Field(default=0, ge=0, le=4096)
    dim: int = Field(default=16, ge=1)
    hidden: tuple[int, ...] = (400, 400, 400)
    ids: IdDistribution = "zipf"
    zipf_exponent: float = Field(default=1.05, gt=0)
    id_type: Literal["int32", "int64"] = "int64"
    scale: float = Field(default=1.0, gt=0, le=1)
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "fp32"
    policy: Policy = "breadth_first"
    streams: int = Field(default=4, ge=1, le=64)
    graphs: bool = True
    one_kernel: bool = True
    lookup: Literal["fused", "by_table"] = "fused"
    fusion: bool = True
    peers: Literal["all", "plain", "none"] = "all"
    tuned: bool = True
    without: tuple[str, ...] = ()  # peers that lost the GPU in an earlier turn
    threads: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=24, ge=3)
    loads: int = Field(default=1, ge=1)
    seed: int = 0

    @property
    def computed(self) -> str:
        """The precision that the device computes in."""
        return self.precision if self.device == "cuda" else "fp32"

    @property
    def in_zoo(self) -> bool:
        """Whether the model is one of the zoo."""
        return self.model in ZOO and not (self.bundle or self.module)

    def user_module(self) -> UserModule | None:
        """The user's module or the zoo's (its tables small ones); None for other models."""
        if self.module:
            return load_user_module(self.module, self.output)
        if self.in_zoo:
            return load_zoo_module(self.model, self.fields, self.dense, self.dim, self.hidden)
        return None

    def load(self) -> tuple[ModelSpec, dict[str, Tensor]]:
        """The spec and its weights."""
        if self.bundle and self.module:
            raise ConfigError("give a bundle or a module, not both")
        if self.output != "auto" and not self.module:
            raise ConfigError("output: it is one of a module's, give it with a module")
        user = self.user_module()
        if user:
            imported = user.imported
            if self.in_zoo:
                return self._with_tables(imported.spec, imported.weights)
            return imported.spec, dict(imported.weights)
        if self.bundle:
            try:
                opened = open_bundle(self.bundle)
            except BundleError as error:
                raise ConfigError(str(error)) from None
            return opened.spec, opened.weights()
        spec = self.spec()
        return spec, random_weights(spec, self.seed)

    def spec(self) -> ModelSpec:
        """The spec of a built-in model."""
        features = Features(self.fields_of_tables(), [f"x{n + 1}" for n in range(self.dense)])
        return MODELS[self.model](features, Deep(self.hidden))

    def fields_of_tables(self) -> list[FieldSpec]:
        """The fields of a built-in model or of the zoo, each with a table of its name."""
        return criteo_fields(self.fields, self.dim, self.scale)

    def _with_tables(
        self, spec: ModelSpec, weights: Mapping[str, Tensor]
    ) -> tuple[ModelSpec, dict[str, Tensor]]:
        """A model of the zoo with tables of the case's rows: field x_i is the i-th one."""
        real = {f"x_{i}": field for i, field in enumerate(self.fields_of_tables())}
        fields = [
            f.model_copy(update={"rows": real[f.name].rows}) if f.name in real else f
            for f in spec.fields
        ]
        found = dict(weights)
        for name in weights:
            _, is_table, of = name.partition(TABLE_MARK)
            if is_table and of in real:
                field = real[of]
                shape = (field.rows, field.dim)
                found[name] = host_table(f"embedding{TABLE_MARK}{field.name}", shape, self.seed)
        return spec.model_copy(update={"fields": tuple(fields)}), found

    def passes(self) -> tuple[Pass, ...]:
        """The lowering passes that the case asks for (ablation)."""
        passes = device_passes(0) if self.device == "cuda" else PASSES
        if not self.fusion:
            passes = (*NO_FUSION, *(DEVICE_FORM if self.device == "cuda" else ()))
        if self.lookup == "fused":
            return passes
        return (split_lookup_by_table, *(p for p in passes if p is not fuse_lookup))

    def draw(self, spec: ModelSpec) -> list[Batch]:
        """Several batches, so that no repeat finds its own embedding rows in a cache."""
        rows = tuple(field.rows for field in spec.fields)
        ids = draw_ids(rows, self.batch, self.ids, self.zipf_exponent, ROTATED_INPUTS, self.seed)
        user = self.user_module() if self.module else None
        known = user.imported.dense if user else None
        dense = draw_dense(len(spec.dense), self.batch, ROTATED_INPUTS, self.seed, known)
        kind = np.dtype(self.id_type)
        return [Batch(i.astype(kind, copy=False), d) for i, d in zip(ids, dense, strict=True)]

    def describe(self, spec: ModelSpec) -> str:
        """The case in one line."""
        rows = sum(field.rows for field in spec.fields)
        dims = sorted({field.dim for field in spec.fields})
        dim = f"{dims[0]} to {dims[-1]}" if len(dims) > 1 else "".join(map(str, dims))
        tables = f"{rows:,} rows x dim {dim}" if dims else "no tables"
        asked = "" if self.computed == self.precision else f", for {self.precision} on a CPU"
        own = self.bundle or self.module
        deep = "" if own or self.model == "dlrm" else f", MLP {'-'.join(map(str, self.hidden))}"
        dense = f" + {len(spec.dense)} dense" if spec.dense else ""
        return (
            f"{own or self.model}, batch {self.batch:,}, {len(spec.fields)} fields{dense}, "
            f"{tables}{deep}, {self.ids} {self.id_type} ids, {self.computed}{asked}"
        )


def split_lookup_by_table(program: Program) -> Program:
    """One lookup step a table instead of one for all tables (ablation); for an unfused program."""
    steps: list[Step] = []
    for step in program.steps:
        if not isinstance(step, Lookup) or step.out is None or step.fm_out or step.wide_out:
            steps.append(step)
            continue
        for i, slot in enumerate(step.slots):
            out = step.out.columns(slot.column, slot.dim)
            name = f"{step.name}.{i}"
            steps.append(Lookup(name, (replace(slot, column=0),), out))
    return program.changed(steps=tuple(steps))
