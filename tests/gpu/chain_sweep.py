"""Chains of products by how many CTAs share a tile, beside products one by one and beside what the
engine chooses, on a GPU.

    python tests/gpu/chain_sweep.py deepgelu,wdl --batch 1024,4096 --hidden 400,400

A line a case: the engine's choice, then each number of CTAs; us of a synchronised call, of the
kernels of chains and of those by the model of the time.
"""

from __future__ import annotations

import argparse
from unittest.mock import patch

from kernel_times import CALLS, measure

from dpiframe_core.engine.cuda import backend
from dpiframe_core.engine.cuda.chain import grouping
from dpiframe_core.engine.cuda.chain.choice import CLUSTERS, chain_microseconds, fits_gpu
from pipeline.bench.cases.engine_case import EngineCase


def taken(case: EngineCase) -> tuple[float, float, float]:
    """us of a call, of chains in it, and of these by the model of the time."""
    made: list[grouping.ProductChain] = []

    def noted(*args: object) -> object:
        program = grouping.chain_products(*args)  # type: ignore[arg-type]
        made[:] = [s for s in program.steps if isinstance(s, grouping.ProductChain)]
        return program

    with patch.object(backend, "chain_products", noted):
        measured = measure(case, calls=60)
    chains = sum(e.device_time for e in measured.events if e.name == "product_chain")
    said = sum(chain_microseconds(s.layers, s.areas, case.batch) for s in made)
    return 1e3 * measured.call, chains / CALLS, said


def forced(case: EngineCase, ctas: int) -> tuple[float, float, float]:
    """With chains of so many CTAs a tile wherever they fit; 0: without chains."""
    with (
        patch.object(grouping, "CLUSTERS", (ctas or 1,)),
        patch.object(grouping, "chain_rows", lambda x, areas, rows, p: rows if ctas else ()),
    ):
        return taken(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models")
    parser.add_argument("--batch", default="1024,4096")
    parser.add_argument("--hidden", default="400,400")
    parser.add_argument("--fields", type=int, default=26)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--dense", type=int, default=13)
    args = parser.parse_args()
    for model in args.models.split(","):
        for batch in map(int, args.batch.split(",")):
            case = EngineCase(
                model=model, fields=args.fields, dense=args.dense, dim=args.dim, batch=batch,
                hidden=tuple(map(int, args.hidden.split(","))), precision="fp16", device="cuda",
                scale=0.02, peers="none",
            )  # fmt: skip
            found = {"chosen": taken(case)}
            found["apart"] = forced(case, 0)
            found |= {str(n): forced(case, n) for n in CLUSTERS if fits_gpu(n, batch)}
            parts = [f"{k}: {a:.1f} {b:.1f} {c:.1f}" for k, (a, b, c) in found.items()]
            print(f"{model} {args.fields}x{args.dim} {args.hidden} {batch:,} | ", " | ".join(parts))


if __name__ == "__main__":
    main()
