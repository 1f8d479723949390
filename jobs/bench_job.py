"""`dpiframe bench job`: the whole job, measured against Ray Data with PyTorch."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.params import COUNTS, WIDTHS

ROWS = click.IntRange(1)


@click.command("job")
@click.argument("keys", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--rows", type=ROWS, default=1_000_000, help="To score.")
@click.option(
    "--distinct-rows",
    type=ROWS,
    default=20_000_000,
    help="Written at most; their files are listed again and again to make --rows.",
)
@click.option("--repeat-at", type=ROWS, help="Run once more at this number of rows.")
@click.option("--rows-per-file", type=ROWS, default=1_000_000)
@click.option("--row-group-rows", type=ROWS, default=100_000)
@click.option("--form", type=click.Choice(["encoded", "raw"]), default="encoded")
@click.option("--model", type=click.Choice(["wdl", "deepfm", "dcn", "dcnv2"]), default="dcnv2")
@click.option("--dim", type=ROWS, default=16, help="Embedding width D.")
@click.option("--hidden", type=WIDTHS, default="400,400,400", help="Widths of the MLP.")
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Scales the tables' rows (33.8 million at 1).",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--precision", type=click.Choice(["fp32", "tf32", "fp16", "bf16"]), default="fp32")
@click.option("--gpus", type=COUNTS, default="1", help="A run for each number of GPUs.")
@click.option("--cores-per-gpu", type=ROWS, default=16, help="Cores of a run, for each GPU.")
@click.option("--peer/--no-peer", default=True, help="Also run Ray Data with PyTorch.")
@click.option("--peer-rows", type=ROWS, default=20_000_000, help="Of --rows, the peer is slow.")
@click.option("--peer-batch", type=ROWS, default=65536, help="Rows of the peer's batches.")
@click.option("--experiment", default="dpiframe-bench", help="MLflow experiment.")
@click.option("--mlflow-uri", help="Default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Default: a fresh one in /dev/shm where there is room, else in TMPDIR.",
)
@click.option("--keep", is_flag=True, help="Leave rows, bundle, scores and logs there.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write JSON here.")
def command(folder: Path | None, keep: bool, json_path: Path | None, **options: object) -> None:
    """Make rows and a model, score them by the job, say how fast it was and what limits it.

    The job runs as its command line in a process of its own and is timed from the command to
    _SUCCESS. KEY=VALUE are further keys of the job. See docs/bench_job.md.
    """
    from pipeline.bench.job.case import JobCase
    from pipeline.bench.job.measure import bench_job
    from pipeline.bench.job.report import show

    report = bench_job(JobCase.model_validate(options), folder, keep, click.echo)
    if json_path:
        json_path.write_text(report.model_dump_json(indent=1))
    click.echo(show(report))


@click.command("page")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="Markdown.")
def page_command(reports: tuple[Path, ...], output: Path) -> None:
    """Make a page of the JSON that `bench job` wrote."""
    from pipeline.bench.job.report import JobReport, page

    output.write_text(page([JobReport.model_validate_json(p.read_text()) for p in reports]))
