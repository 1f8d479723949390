"""`dpiframe bench`: measure against peers."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.params import WIDTHS

PRECISIONS = click.Choice(["fp32", "tf32", "fp16", "bf16"])
POLICIES = click.Choice(["serial", "depth_first", "breadth_first"])


@click.group("bench")
def command() -> None:
    """Measure DPIFrame and its peers on identical weights and inputs."""


@command.command("engine")
@click.option("--model", type=click.Choice(["wdl", "deepfm", "dcn", "dcnv2"]), default="dcnv2")
@click.option("--batch", type=click.IntRange(1), default=4096, help="Rows B of a batch.")
@click.option("--dim", type=click.IntRange(1, 4096), default=16, help="Embedding width D.")
@click.option("--hidden", type=WIDTHS, default="400,400,400", help="Widths of the MLP's layers.")
@click.option(
    "--ids", type=click.Choice(["zipf", "uniform"]), default="zipf", help="How ids are drawn."
)
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Scales the tables' rows (33.8 million at 1).",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--precision", type=PRECISIONS, default="fp32", help="Of ours and of the peers.")
@click.option("--policy", type=POLICIES, default="breadth_first", help="GPU: order of launches.")
@click.option("--streams", type=click.IntRange(1, 64), default=4, help="GPU: streams.")
@click.option("--graphs/--no-graphs", default=True, help="GPU: replay captured graphs.")
@click.option(
    "--lookup", type=click.Choice(["fused", "by_table"]), default="fused", help="Ablation."
)
@click.option("--fusion/--no-fusion", default=True, help="Ablation: a step an operation.")
@click.option("--peers/--no-peers", default=True, help="GPU: time the peers too.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads. Default: torch's.")
@click.option("--repeats", type=click.IntRange(3), default=20, help="Timed batches.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write JSON here.")
def engine(json_path: Path | None, **options: object) -> None:
    """One batch through the engine and its peers; ratio above 1: we are faster.

    Peers on the CPU: torch eager and torch.compile. On a GPU also one table for all fields in a
    CUDA graph and, where fbgemm_gpu is installed, its table-batched lookup.
    """
    from pipeline.bench.cases import EngineCase
    from pipeline.bench.engine import bench_engine, show

    case = EngineCase.model_validate(options)
    report = bench_engine(case)
    if json_path:
        json_path.write_text(report.model_dump_json(indent=1))
    click.echo(show(report))


@command.command("gpu")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="Folder.")
@click.option("--quick", is_flag=True, help="Batch 4,096 alone, no ablation.")
def gpu(output: Path, quick: bool) -> None:
    """Every model, batch size and precision against every peer, and the ablation; JSON, table."""
    from pipeline.bench.gpu_check import run_checks

    click.echo(run_checks(output, quick, click.echo))
