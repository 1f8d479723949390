"""`dpiframe bench`: measure against peers."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.params import WIDTHS


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
@click.option("--threads", type=click.IntRange(1), help="Default: torch's.")
@click.option("--repeats", type=click.IntRange(3), default=20, help="Timed batches.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write JSON here.")
def engine(json_path: Path | None, **options: object) -> None:
    """One batch through the engine, torch eager and torch.compile; ratio above 1: we are faster."""
    from pipeline.bench.cases import EngineCase
    from pipeline.bench.engine import bench_engine, show

    case = EngineCase.model_validate(options)
    report = bench_engine(case)
    if json_path:
        json_path.write_text(report.model_dump_json(indent=1))
    click.echo(show(report))
