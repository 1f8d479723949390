"""The peer of the job: Ray Data with PyTorch, as a good engineer would write it.

read_parquet -> map_batches(an actor a GPU, Arrow batches, one table for all fields, inference mode)
-> write_parquet. It runs in a process of its own, as the job does: `main`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from dpiframe_core import ModelSpec
from dpiframe_core.bundle.files import WEIGHTS
from pipeline.bench.cases.random_data import TABLE_MARK, FlatTable
from pipeline.bench.engine.peers import DTYPES, Dense, OneTable, Peer


class PeerSettings(BaseModel):
    """The input, model and resources of the peer. `actors`: one per GPU; one on the CPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: list[str]
    output: str
    bundle: str
    spec: ModelSpec
    key: str
    device: Literal["cpu", "cuda"]
    precision: Literal["fp32", "tf32", "fp16", "bf16"]
    actors: int
    cores: int
    batch: int


class TorchScorer:
    """The model in torch; called with Arrow batches."""

    def __init__(self, settings_json: str) -> None:
        self.settings = PeerSettings.model_validate_json(settings_json)
        spec, device = self.settings.spec, self.settings.device
        torch.backends.cuda.matmul.allow_tf32 = self.settings.precision == "tf32"
        if device == "cpu":
            torch.set_num_threads(self.settings.cores)
        weights = safetensors.torch.load_file(Path(self.settings.bundle) / WEIGHTS)
        dtype = DTYPES[self.settings.precision] if device == "cuda" else torch.float32
        tables = one_table(spec, weights, "embedding", dtype, device)
        assert tables is not None
        lookup = OneTable(tables, one_table(spec, weights, "wide", dtype, device))
        dense = Dense(spec, {name: weights[name] for name in weights if TABLE_MARK not in name})
        self.model = Peer(lookup.to(device), dense.to(device, dtype)).eval()

    @torch.inference_mode()
    def __call__(self, batch: pa.Table) -> pa.Table:
        """Keys and scores of a batch."""
        names = [field.name for field in self.settings.spec.fields]
        ids = torch.from_numpy(np.stack([batch.column(name).to_numpy() for name in names]))
        ids = ids.to(self.settings.device).long()
        dense = torch.empty(ids.shape[1], 0, device=self.settings.device)
        scores = torch.sigmoid(self.model(dense, *OneTable.prepare(ids)).float())
        key = self.settings.key
        return pa.table({key: batch.column(key), "score": scores.cpu().numpy()})


def one_table(
    spec: ModelSpec, weights: Mapping[str, Tensor], module: str, dtype: torch.dtype, device: str
) -> FlatTable | None:
    """The tables of a module in one tensor; None where the model has no such module."""
    names = [f"{module}{TABLE_MARK}{field.table}" for field in spec.fields]
    if names[0] not in weights:
        return None
    return FlatTable.of([weights[name] for name in names], dtype, device)


def main(settings_path: str) -> None:
    """Score the files; `_SUCCESS` appears in the output at the end."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray
    import ray.data

    settings = PeerSettings.model_validate_json(Path(settings_path).read_text())
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    columns = [settings.key, *(field.name for field in settings.spec.fields)]
    scored: Any = (
        ray.data.read_parquet(settings.files)
        .select_columns(columns)
        .map_batches(
            TorchScorer,
            fn_constructor_args=(settings.model_dump_json(),),
            batch_size=settings.batch,
            batch_format="pyarrow",
            num_cpus=1,
            num_gpus=1 if settings.device == "cuda" else None,
            compute=ray.data.ActorPoolStrategy(size=settings.actors),
        )
    )
    scored.write_parquet(settings.output)
    (Path(settings.output) / "_SUCCESS").touch()
    ray.shutdown()
