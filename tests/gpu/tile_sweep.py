"""Every tile of the product beside the one that its model chooses, and beside torch, on a GPU.

    python tests/gpu/tile_sweep.py --precision fp16,fp32 --rows 1024,8192 --json sweep.json
    python tests/gpu/tile_sweep.py --precision fp16 --products 65536,1000,1000 --line 16

Shapes are drawn by --seed: rows to 65,536, n and k of hidden layers and wide inputs. Tiles that two
warpgroups share are also tried with their k split over 2, 4 and 8 CTAs. All results
are compared with float64 first. The last lines say how far the choices are from the best.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from dpiframe_core import _core
from dpiframe_core.engine.cuda.device_layout import LINE, row_stride
from pipeline.bench.timing import capture, time_graphs

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
BOUNDS = {"fp32": 1e-6, "tf32": 1e-3, "fp16": 2e-3}
ROWS = (1024, 4096, 8192, 16_384, 65_536)
# A model's are padded to multiples of 8.
WIDTHS = (
    64,
    128,
    200,
    256,
    400,
    408,
    512,
    624,
    832,
    1000,
    1024,
    1250,
    1664,
    2048,
)  # a model's are padded to 8
DEPTHS = (80, 104, 208, 260, 429, 1280, 3328, 4992, 6400, 10_240, *WIDTHS)
INPUTS, LAUNCHES, REPEATS = 3, 6, 5  # rotated, in a graph, of a graph
TORCH, CHOSEN = "torch", "chosen"
MOST_WAVES = 3  # a product of more tiles than so many waves is not split; short tiles run at once


class Product:
    """x [rows, k] by a weight [n, k], ReLU, in one precision; several x. Rows lie as the engine has
    them, or at multiples of other bytes.
    """

    def __init__(self, precision: str, rows: int, n: int, k: int, line_bytes: int = LINE) -> None:
        dtype = TYPES[precision]
        line = line_bytes // dtype.itemsize
        stride = row_stride(k, line)
        self.precision, self.rows, self.n, self.k = precision, rows, n, k
        self.x = [torch.randn(rows, stride, device="cuda").to(dtype)[:, :k] for _ in range(INPUTS)]
        self.w = (torch.randn(n, k, device="cuda") / k**0.5).to(dtype).float()
        self.bias = torch.randn(n, device="cuda")
        self.out = torch.empty(rows, row_stride(n, line), device="cuda", dtype=dtype)
        size = _core.prepared_weight_bytes(precision, n, k)
        self.prepared = torch.empty(size, dtype=torch.uint8, device="cuda")
        weight = (self.w.data_ptr(), n, k, self.prepared.data_ptr())
        _core.prepare_linear_weight(precision, *weight, torch.cuda.current_stream().cuda_stream)
        self.own = self.w.to(dtype), self.bias.to(dtype)

    def params(self, i: int) -> _core.LinearParams:
        params, x = _core.LinearParams(), self.x[i]
        params.rows, params.n, params.k = self.rows, self.n, self.k
        params.w, params.bias = self.prepared.data_ptr(), self.bias.data_ptr()
        params.x, params.ldx = x.data_ptr(), x.stride(0)
        params.out, params.ldo = self.out.data_ptr(), self.out.stride(0)
        params.relu_end = self.n
        return params

    def launches(self, tiles: _core.LinearConfig | None) -> Callable[[], None]:
        """A few products in these tiles; None: torch's."""
        given = [self.params(i) for i in range(INPUTS)]

        def launch() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for i in range(LAUNCHES):
                if tiles is None:
                    torch._addmm_activation(self.own[1], self.x[i % INPUTS], self.own[0].t())
                else:
                    _core.linear(self.precision, given[i % INPUTS], stream, tiles)

        return launch

    def check(self) -> None:
        """The output against the last input's product in float64, of some rows."""
        some = torch.randint(self.rows, (64,), device="cuda")
        x, w = self.x[(LAUNCHES - 1) % INPUTS][some].double(), self.w.double()
        wanted = (x @ w.t() + self.bias).clamp(min=0)
        size = x.norm(dim=1)[:, None] * w.norm(dim=1) + self.bias.abs()
        error = ((self.out[some, : self.n] - wanted).abs() / size).max().item()
        assert error < BOUNDS[self.precision], error


def sweep(precision: str, rows: int, n: int, k: int, line_bytes: int = LINE) -> dict[str, float]:
    """Microseconds of each tile by its name, of the chosen one and of torch."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    product = Product(precision, rows, n, k, line_bytes)
    chosen = _core.linear_config(precision, rows, n, k)
    graphs = {TORCH: capture(product.launches(None))[0]}
    graphs[CHOSEN] = capture(product.launches(chosen))[0]
    for tiles in all_tiles(precision, rows, n, k):
        launches = product.launches(tiles)
        product.out.fill_(math.nan)
        launches()
        product.check()
        graphs[name_of(tiles)] = capture(launches)[0]
    timings = time_graphs(graphs, LAUNCHES, REPEATS)
    return {name: 1e3 * timing.median for name, timing in timings.items()}


def all_tiles(precision: str, rows: int, n: int, k: int) -> Iterator[_core.LinearConfig]:
    """Every configuration that makes sense for the shape."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    for whole in _core.all_linear_configs(precision):
        tiles = -(-rows // whole.rows) * -(-n // whole.tile_n)
        most = (2 if whole.rows == 64 else MOST_WAVES) * multiprocessors
        if whole.rows == 128 or tiles <= most:
            yield whole
        k_tiles = -(-k * TYPES[precision].itemsize // 128)
        for split in () if whole.in_turn else (2, 4, 8):
            if k_tiles >= 2 * split and 16 * split <= whole.rows and tiles * split <= most:
                yield _core.LinearConfig(whole.tile_n, False, split, whole.rows)


def name_of(tiles: _core.LinearConfig) -> str:
    """Such as 128x128t: 128 columns, in turn; 64x64/4: k is split over four."""
    how = f"/{tiles.split}" if tiles.split > 1 else "t" if tiles.in_turn else ""
    return f"{tiles.rows}x{tiles.tile_n}{how}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="fp16,fp32")
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--products", default="", help="ROWS,N,K;... instead of drawn ones")
    parser.add_argument("--line", type=int, default=LINE, help="bytes; rows start at multiples")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    drawn = random.Random(options.seed)
    row_counts = [int(rows) for rows in options.rows.split(",")]
    shapes = [
        (drawn.choice(row_counts), drawn.choice(WIDTHS), drawn.choice(DEPTHS))
        for _ in range(options.shapes)
    ]
    if options.products:
        given = [map(int, product.split(",")) for product in options.products.split(";")]
        shapes = [(rows, n, k) for rows, n, k in given]
    found = []
    for precision in options.precision.split(","):
        away, over = [], []
        for rows, n, k in shapes:
            taken = sweep(precision, rows, n, k, options.line)
            best = min(taken.keys() - {TORCH}, key=taken.__getitem__)
            away.append(taken[CHOSEN] / taken[best])
            over.append(taken[TORCH] / taken[CHOSEN])
            config = name_of(_core.linear_config(precision, rows, n, k))
            found.append({"precision": precision, "rows": rows, "n": n, "k": k, "us": taken})
            print(
                f"{precision} {rows:>6} x {k:>6} -> {n:>4}: {config} {taken[CHOSEN]:.1f} us, best "
                f"{best} {taken[best]:.1f}, torch {taken[TORCH]:.1f}",
                flush=True,
            )
        print(
            f"{precision}: chosen over best {statistics.geometric_mean(away):.3f} (most "
            f"{max(away):.2f}), torch over chosen {statistics.geometric_mean(over):.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
