"""Which kernels a program gets on a GPU, and why, in words: for describe()."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpiframe_core import _core
from dpiframe_core.engine.cuda.chain.choice import chain_microseconds, steps_microseconds
from dpiframe_core.engine.cuda.chain.grouping import ProductChain
from dpiframe_core.engine.cuda.fused import (
    fused_form,
    mlp_buckets,
    mlp_microseconds,
    steps_up_to,
)
from dpiframe_core.engine.cuda.places import PlacedLinear
from dpiframe_core.engine.precision import HALF_PRECISIONS
from dpiframe_core.program.program import MlpForm, Program
from dpiframe_core.program.steps import FusedLinear, Linear, MappedLinear


def whole_model_in_words(
    program: Program, precision: str, fused: bool, most: int, max_batch: int
) -> str:
    """Whether one kernel runs the whole model; `most`: samples that it takes, 0: it takes none."""
    form = program.form
    if form is None:
        return (
            "steps: no kernel runs the whole model; that takes lookups, then an MLP with FM, wide "
            "terms or cross layers, and nothing else"
        )
    what = "an MLP" if isinstance(form, MlpForm) else "cross layers of a full matrix and an MLP"
    if not fused:
        return f"steps: a kernel for {what} as a whole was not wanted"
    if isinstance(form, MlpForm) and precision not in HALF_PRECISIONS:
        return f"steps: the kernel for {what} as a whole is for fp16 and bf16"
    if fused_form(program, precision) is None:
        return f"steps: the kernel for {what} as a whole does not take its sizes in {precision}"
    if isinstance(form, MlpForm):
        return _mlp_in_words(program, form, precision, most, max_batch)
    if most == 0:
        return f"steps: the kernel for {what} as a whole has too little memory to work in"
    return f"a kernel for {what} as a whole takes batches of the sizes above"


def _mlp_in_words(
    program: Program, form: MlpForm, precision: str, most: int, max_batch: int
) -> str:
    sizes = mlp_buckets(max_batch)
    if not sizes:
        return "steps: the kernel for an MLP as a whole is for small batches"
    times = (mlp_microseconds(program, form, precision, samples) for samples in sizes)
    took = ", ".join(
        f"{n}: {one:.0f}, {steps:.0f}" for n, (one, steps) in zip(sizes, times, strict=True)
    )
    if not most and steps_up_to(program, form, precision, max_batch) < sizes[-1]:
        return (
            "steps: this GPU has no kernel for an MLP as a whole in batches that it is faster for"
        )
    verdict = "takes batches of the sizes above" if most else "is slower in batches of all sizes"
    return (
        f"{'' if most else 'steps: '}a kernel for an MLP as a whole {verdict}; about so many us it "
        f"takes, and steps, by samples: {took}"
    )


def products_in_words(program: Program, precision: str, rows: int) -> str:
    """The tiles of the products of so many rows: those of the least time, by a model of it
    (csrc/kernels/gemm/tile_config.cpp).
    """
    # The last two: products in a compiled epilogue, and such products that are one.
    counted: Counter[tuple[int, int, int, int]] = Counter()
    for step in program.steps:
        is_placed = isinstance(step, PlacedLinear)
        for leaf in step.leaves()[:1] if is_placed else step.leaves():
            if isinstance(leaf, (Linear, FusedLinear, MappedLinear)):
                n, k = program.weights[leaf.weight].shape
                mapped = leaf.products if isinstance(leaf, MappedLinear) else 0
                counted[int(k), int(n), mapped, len(step.leaves()) if is_placed else 1] += 1
    lines = []
    for (k, n, mapped, places), count in counted.items():
        tiles = _core.linear_config(precision, rows, n, k, places)
        row_tiles, column_tiles = -(-rows // tiles.rows), -(-n // tiles.tile_n) * places
        how = "in turn by two warpgroups" if tiles.in_turn else "by two warpgroups together"
        if tiles.rows == 64:
            how = "by one warpgroup"
        split = tiles.split
        shared = f", each shared by {split} CTAs with a part of k each" if split > 1 else ""
        times = f", {count} times" if count > 1 else ""
        of = ", of two weights, with an epilogue compiled for both"
        epilogue = ("", ", with an epilogue compiled for it", of)[mapped]
        one = f", {places} places as one" if places > 1 else ""
        lines.append(
            f"product {k} -> {n}{one}{times}{epilogue}: {row_tiles * column_tiles} tiles of "
            f"{tiles.rows} x {tiles.tile_n} at {rows} rows, {how}{shared}"
        )
    return "\n".join(lines) or "no product on its own"


def chains_in_words(program: Program, precision: str) -> str:
    """Which products are one kernel, for which batches, and what the model of its time says."""
    lines = []
    for step in program.steps:
        if not isinstance(step, ProductChain):
            continue
        sizes = " -> ".join(str(k) for k in (step.layers[0].k, *(x.n for x in step.layers)))
        most = step.rows[-1]
        shared = f", {ctas} multiprocessors a tile" if (ctas := step.areas.ctas) > 1 else ""
        together = chain_microseconds(step.layers, step.areas, most)
        apart = steps_microseconds(step.layers, most, precision)
        lines.append(
            f"products {sizes} in one kernel in batches of {', '.join(map(str, step.rows))} rows: "
            f"about {together:.0f} us where they take {apart:.0f} at {most}{shared}"
        )
    return "\n".join(lines) or "no products in chains"


def streams_in_words(in_turn: Sequence[int]) -> str:
    """For which batches one stream was the faster one when the engine was loaded."""
    if not in_turn:
        return ""
    rows = ", ".join(map(str, in_turn))
    return f"\nall on stream 0 in batches of {rows} rows, which took no longer (measured at load)"


__all__ = ["chains_in_words", "products_in_words", "streams_in_words", "whole_model_in_words"]
