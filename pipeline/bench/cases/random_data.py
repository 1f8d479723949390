"""Random weights and inputs of a case; tables and ids, which many cases share, are cached."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpiframe_core import ModelSpec
from pipeline.data.quantile_tables import zipf_table
from pipeline.data.synth_values import permute_ranks

IdDistribution = Literal["zipf", "uniform"]

TABLE_STD = 0.1  # of the tables' weights: logits of order 1, so that differences show
TABLE_MARK = "/tables/"
ALIGNMENT = 64  # rows at which each table starts in one table for all


class FlatTable(NamedTuple):
    """All fields' tables in one [R, D]; field f is rows starts[f] .. starts[f] + rows[f] - 1."""

    weight: Tensor
    starts: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, tables: Sequence[Tensor], dtype: torch.dtype, device: str) -> FlatTable:
        """Copy tables [rows, D] into one, each at a multiple of ALIGNMENT rows."""
        rows = [len(table) for table in tables]
        ends = np.cumsum([-(-n // ALIGNMENT) * ALIGNMENT for n in rows])
        starts = (0, *ends[:-1].tolist())
        weight = torch.zeros(int(ends[-1]), tables[0].shape[1], dtype=dtype, device=device)
        for table, start in zip(tables, starts, strict=True):
            weight[start : start + len(table)].copy_(table)
        return cls(weight, starts, tuple(rows))

    def tables(self) -> list[Tensor]:
        """Each field's table, a view."""
        return [
            self.weight[start : start + n] for start, n in zip(self.starts, self.rows, strict=True)
        ]


def random_weights(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """Weights of a model; a table of one name and shape is made once for all cases."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    parameters = spec.parameters()
    large = [(n, p.shape, seed) for n, p in parameters.items() if TABLE_MARK in n]
    with ThreadPoolExecutor() as pool:  # numpy draws without the interpreter's lock
        list(pool.map(lambda key: host_table(*key), large))
    for name, parameter in parameters.items():
        if TABLE_MARK in name:
            weights[name] = host_table(name, parameter.shape, seed)
        else:
            scale = parameter.shape[-1] ** -0.5 if len(parameter.shape) == 2 else 0.1
            weights[name] = torch.randn(parameter.shape, generator=generator) * scale
    return weights


@functools.lru_cache(maxsize=512)
def host_table(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A table of normal weights, made from its name."""
    # numpy's generator is several times faster here, and a table may have 160 million weights.
    rng = np.random.default_rng([seed, *name.encode()])
    table = _host_memory(shape)
    values = table.numpy()
    rng.standard_normal(dtype=np.float32, out=values)
    values *= TABLE_STD
    return table


def _host_memory(shape: tuple[int, ...]) -> Tensor:
    """Pinned memory where there is a GPU and enough of it: many engines load the same tables."""
    try:
        return torch.empty(shape, pin_memory=torch.cuda.is_available())
    except RuntimeError:
        return torch.empty(shape)


def flat_table(
    spec: ModelSpec, module: str, seed: int, dtype: torch.dtype, device: str
) -> FlatTable | None:
    """The tables of a module, "embedding" or "wide", as `random_weights` makes them; None where the
    model has no such module."""
    parameters = spec.parameters()
    names = [f"{module}{TABLE_MARK}{field.table}" for field in spec.fields]
    if names[0] not in parameters:
        return None
    return flat_of(tuple((n, parameters[n].shape) for n in names), seed, dtype, device)


@functools.lru_cache(maxsize=4)
def flat_of(
    tables: tuple[tuple[str, tuple[int, ...]], ...], seed: int, dtype: torch.dtype, device: str
) -> FlatTable:
    """The `host_table` of each name and shape, in one table."""
    return FlatTable.of([host_table(name, shape, seed) for name, shape in tables], dtype, device)


def forget() -> None:
    """Free the tables and ids that are kept for further cases."""
    for kept in (host_table, flat_of, draw_ids):
        kept.cache_clear()


@functools.lru_cache(maxsize=3)
def draw_ids(
    rows: tuple[int, ...],
    batch: int,
    kind: IdDistribution,
    exponent: float,
    count: int,
    seed: int,
) -> tuple[np.ndarray, ...]:
    """`count` batches of ids [F, B] int64, each field's below its table's `rows`. The arrays are
    cached and shared: do not change them."""

    def batch_of(number: int) -> np.ndarray:
        rng = np.random.default_rng([seed, number])
        ids = np.empty((len(rows), batch), np.int64)
        for field, n in zip(ids, rows, strict=True):
            field[:] = _draw(rng, n, batch, kind, exponent)
        return ids

    with ThreadPoolExecutor() as pool:
        return tuple(pool.map(batch_of, range(count)))


def _draw(
    rng: np.random.Generator, rows: int, batch: int, kind: IdDistribution, exponent: float
) -> np.ndarray:
    if kind == "uniform":
        return rng.integers(0, rows, batch)
    words = rng.integers(0, 2**64, batch, dtype=np.uint64)
    ranks = zipf_table(rows, exponent).draw(words)
    return permute_ranks(ranks, rows).astype(np.int64)


def draw_dense(
    num_dense: int, batch: int, count: int, seed: int, known: np.ndarray | None = None
) -> list[np.ndarray]:
    """`count` batches of dense features [N, B] float32: samples of `known` [N, S], or normal."""
    rng = np.random.default_rng([seed, num_dense])
    if known is None:
        return [rng.standard_normal((num_dense, batch), dtype=np.float32) for _ in range(count)]
    samples = known.T.astype(np.float32)
    drawn = [samples[rng.integers(0, len(samples), batch)] for _ in range(count)]
    return [np.ascontiguousarray(some.T) for some in drawn]
