"""`dpiframe bench`: measure the engine and the job against their peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from jobs.params import COUNTS, WIDTHS

Command = Callable[..., Any]

ROWS = click.IntRange(1)
MODELS = click.Choice(["wdl", "deepfm", "dcn", "dcnv2"])
ZOO = ("xdeepfm", "autoint", "fibinet", "masknet", "finalmlp", "dlrm", "gdcn", "din", "deepgelu")
PRECISIONS = click.Choice(["fp32", "tf32", "fp16", "bf16"])


def _can_be_written(context: object, parameter: object, path: Path | None) -> Path | None:
    """Asked before minutes of measuring."""
    if path is not None and not os.access(path.parent, os.W_OK):
        raise click.BadParameter(f"the folder {path.parent} is not there or cannot be written")
    return path


WRITTEN: dict[str, Any] = {
    "type": click.Path(path_type=Path, dir_okay=False),
    "callback": _can_be_written,
}
DEVICE = click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
HIDDEN = click.option("--hidden", type=WIDTHS, default="400,400,400", help="Widths of the MLP.")
SCALE = click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Scales the tables' rows (33.8 million at 1).",
)
JSON = click.option("--json", "json_path", help="Also write JSON here.", **WRITTEN)
EXPERIMENT = click.option("--experiment", default="dpiframe-bench", help="MLflow experiment.")
MLFLOW_URI = click.option(
    "--mlflow-uri", help="Default: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db."
)
IDS = [
    click.option("--fields", type=click.IntRange(1, 4096), default=39, help="One-hot fields F."),
    click.option("--dim", type=click.IntRange(1, 4096), default=16, help="Embedding width D."),
    click.option(
        "--ids", type=click.Choice(["zipf", "uniform"]), default="zipf", help="How ids are drawn."
    ),
    click.option(
        "--zipf-exponent", type=click.FloatRange(0, min_open=True), default=1.05, help="Of zipf."
    ),
    SCALE,
]
MODEL = [
    click.option("--model", type=click.Choice([*MODELS.choices, *ZOO]), default="dcnv2"),
    click.option(
        "--bundle",
        type=click.Path(path_type=Path),
        help="Your own model instead, beside plain torch.",
    ),
    click.option("--dense", type=click.IntRange(0, 4096), default=0, help="Dense features N."),
    HIDDEN,
]
ENGINE = [
    click.option(
        "--precision",
        type=PRECISIONS,
        default="fp32",
        help="Of ours and of the peers; a CPU computes fp32 for all.",
    ),
    click.option(
        "--policy",
        type=click.Choice(["serial", "depth_first", "breadth_first", "auto"]),
        default="breadth_first",
        help="GPU: order of the steps' launches.",
    ),
    click.option("--streams", type=click.IntRange(1, 64), default=4, help="GPU: streams of steps."),
    click.option("--graphs/--no-graphs", default=True, help="GPU: replay captured graphs."),
    click.option("--threads", type=click.IntRange(1), help="CPU threads. Default: torch's."),
]


def _options(*lists: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """All options of the lists, in their order."""

    def add(function: Command) -> Command:
        for option in reversed([option for options in lists for option in options]):
            function = option(function)
        return function

    return add


def _id_type(default: str) -> Callable[[Command], Command]:
    kinds = click.Choice(["int32", "int64"])
    return click.option("--id-type", type=kinds, default=default, help="Type of the ids.")


def _batch(default: int) -> Callable[[Command], Command]:
    return click.option("--batch", type=click.IntRange(1), default=default, help="Rows B.")


@click.group("bench")
def command() -> None:
    """Measure DPIFrame and its peers on identical weights and inputs."""


@command.command("engine")
@_options(MODEL, [_batch(4096)], IDS, [_id_type("int64")], ENGINE)
@DEVICE
@click.option(
    "--module",
    metavar="FILE.py:NAME",
    help="Your own PyTorch module instead, beside itself.",
)
@click.option(
    "--output", default="auto", help="Which output of the module is the score: its name or number."
)
@click.option(
    "--lookup", type=click.Choice(["fused", "by_table"]), default="fused", help="Ablation."
)
@click.option("--fusion/--no-fusion", default=True, help="Ablation: a step an operation.")
@click.option(
    "--peers",
    type=click.Choice(["all", "plain", "none"]),
    default="all",
    help="plain: without a compiler and other libraries.",
)
@click.option("--repeats", type=click.IntRange(3), default=24, help="Timed batches of a load.")
@click.option(
    "--loads", type=click.IntRange(1), default=1, help="How often all are loaded and timed anew."
)
@JSON
def engine(json_path: Path | None, **options: object) -> None:
    """One batch through the engine and its peers; ratio above 1: we are faster.

    Peers: torch eager and torch.compile, each with a table for each field and with one for all (on
    a GPU in CUDA graphs); for the built-in models and the zoo, where fbgemm_gpu is installed, its
    table-batched lookup. With --bundle and --module the model's own tables are joined. NAME is a
    class made without arguments or a function, and example_inputs() of it or of the file returns
    its inputs. The floor is what the bytes and the products of a batch take at the best rates of
    this machine.
    """
    from pipeline.bench.cases.engine_case import EngineCase
    from pipeline.bench.engine.latency import bench_engine, show

    report = bench_engine(EngineCase.model_validate(options))
    click.echo(show(report))
    if json_path:
        json_path.write_text(report.model_dump_json(indent=1))


@command.command("sweep")
@_options(MODEL, [_batch(4096)], IDS, [_id_type("int64")], ENGINE)
@DEVICE
@click.option(
    "--vary",
    "varied",
    multiple=True,
    required=True,
    metavar="KEY=VALUE,VALUE",
    help="batch=1024,4096; dim=8,16; fields=26,39; precision=fp32,fp16; hidden=64,32/400,400.",
)
@click.option("--peers", type=click.Choice(["all", "plain", "none"]), default="plain")
@click.option("--repeats", type=click.IntRange(3), default=24, help="Timed batches.")
@EXPERIMENT
@MLFLOW_URI
@JSON
def sweep(
    varied: tuple[str, ...],
    experiment: str,
    mlflow_uri: str | None,
    json_path: Path | None,
    **options: object,
) -> None:
    """`bench engine` over all combinations of --vary, as child runs of one MLflow run.

    The runs are called by what they vary, such as "batch=4096 dim=16", and have the same metrics:
    ms_dpiframe, ms_PEER, speedup_over_PEER, rows_per_second, of_floor.
    """
    import json

    from pipeline.bench.engine.sweep import SweepResult, line, run_sweep, sweep_cases

    def measured(results: list[SweepResult]) -> None:
        click.echo(line(results[-1]))
        if json_path:
            json_path.write_text(json.dumps({r.name: r.metrics for r in results}, indent=1))

    run_sweep(sweep_cases(options, varied), experiment, mlflow_uri, measured)


@command.command("lookup")
@_options([_batch(4096)], IDS, [_id_type("int32")])
@click.option("--precision", type=click.Choice(["fp32", "fp16"]), default="fp32")
@click.option("--repeats", type=click.IntRange(3), default=40, help="Timed calls and graphs.")
@JSON
def lookup(json_path: Path | None, **options: object) -> None:
    """The lookup alone on a GPU: ours, a plain gather, the peers.

    call: a synchronised call (dpiframe: run_and_wait, which replays a graph; others: their own
    call, then synchronise); gpu: the GPU's own time, of a graph of 20 lookups; ratios are over
    ours.
    """
    from pipeline.bench.engine.lookup import LookupCase, bench_lookup, show

    report = bench_lookup(LookupCase.model_validate(options))
    click.echo(show(report))
    if json_path:
        json_path.write_text(report.model_dump_json(indent=1))


@command.command("stream")
@_options(MODEL, [_batch(65536)], IDS, [_id_type("int32")], ENGINE)
@click.option(
    "--inputs", type=click.Choice(["pinned", "pageable"]), default="pinned", help="Host memory."
)
@click.option("--batches", type=click.IntRange(49), default=200, help="Streamed batches.")
@JSON
def stream(json_path: Path | None, **options: object) -> None:
    """Batches from host memory through the engine's stream on a GPU, in steady state.

    Beside it what bounds it, measured in the same run: copying alone and computing alone.
    """
    from pipeline.bench.engine.stream import StreamCase, bench_stream, show

    report = bench_stream(StreamCase.model_validate(options))
    click.echo(show(report))
    if json_path:
        json_path.write_text(report.model_dump_json(indent=1))


@command.command("gpu")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="Folder.")
@click.option(
    "--only",
    help="Parts to measure anew, by commas: lookup, models, stream, ablation, memory, zoo, shapes, "
    "streams, endurance. Default: all.",
)
@click.option("--quick", is_flag=True, help="Batch 4,096 and few cases.")
@click.option("--match", default="", help="Only cases of this in their name.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=float("inf"),
    help="Begin no case that would end later.",
)
@click.option("--resume", is_flag=True, help="Keep what was measured at this commit; add to it.")
@click.option("--seed", type=int, default=0, help="Draws the cases of the part shapes.")
def gpu(output: Path, **options: Any) -> None:
    """All results of a GPU: every case against every peer, as JSON and as a page.

    Exit code 1 where something could not be measured; the rest is written all the same.
    """
    from pipeline.bench.gpu.suite import Limits, run_suite

    if not run_suite(output, Limits(**options), click.echo):
        raise SystemExit(1)


@command.command("paper")
@click.argument("results", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", "-o", help="Markdown. Default: print.", **WRITTEN)
def paper(results: Path, output: Path | None) -> None:
    """The paper's claims beside RESULTS, the JSON that `bench gpu` wrote."""
    from pipeline.bench.gpu.paper import paper_page
    from pipeline.bench.gpu.results import Results

    text = paper_page(Results.load(results))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text)


@command.command("job")
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
@click.option(
    "--writer",
    type=click.Choice(["synth", "pyarrow"]),
    default="synth",
    help="Of the files; the next four are of pyarrow.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]),
    default="zstd",
)
@click.option("--id-type", type=click.Choice(["int32", "int64"]), default="int32")
@click.option("--data-page-version", type=click.Choice(["1.0", "2.0"]), default="1.0")
@click.option(
    "--list-length",
    type=click.IntRange(min=0),
    default=0,
    help="Of lists of ids beside the 26 categorical fields; 0: none.",
)
@click.option("--model", type=MODELS, default="dcnv2")
@click.option("--dim", type=ROWS, default=16, help="Embedding width D.")
@_options([HIDDEN, SCALE, DEVICE])
@click.option("--precision", type=PRECISIONS, default="fp32")
@click.option("--gpus", type=COUNTS, default="1", help="A run for each number of GPUs.")
@click.option("--cores-per-gpu", type=ROWS, default=16, help="Cores of a run, for each GPU.")
@click.option("--peer/--no-peer", default=True, help="Also run Ray Data with PyTorch.")
@click.option("--peer-rows", type=ROWS, default=20_000_000, help="Of --rows, the peer is slow.")
@click.option("--peer-batch", type=ROWS, default=65536, help="Rows of the peer's batches.")
@EXPERIMENT
@MLFLOW_URI
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Default: a fresh one in /dev/shm where there is room, else in TMPDIR.",
)
@click.option("--keep", is_flag=True, help="Leave rows, bundle, scores and logs there.")
@JSON
def job(folder: Path | None, keep: bool, json_path: Path | None, **options: object) -> None:
    """Make rows and a model, score them by the job, say how fast it was and what limits it.

    The job runs as its command line in a process of its own and is timed from the command to
    _SUCCESS. KEY=VALUE are further keys of the job. See docs/bench_job.md.
    """
    from pipeline.bench.job.case import JobCase
    from pipeline.bench.job.measure import bench_job
    from pipeline.bench.job.report import show

    report = bench_job(JobCase.model_validate(options), folder, keep, click.echo)
    click.echo(show(report))
    if json_path:
        json_path.write_text(report.model_dump_json(indent=1))


@command.command("page")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--output", "-o", required=True, help="Markdown.", **WRITTEN)
def page(reports: tuple[Path, ...], output: Path) -> None:
    """Make a page of the JSON that `bench job` wrote."""
    from pipeline.bench.job.report import page as markdown
    from pipeline.bench.pages import read_job_report

    output.write_text(markdown([read_job_report(path) for path in reports]))


@command.command("pages")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--readme", type=click.Path(path_type=Path, exists=True), help="Its tables, too.")
def pages(folder: Path, readme: Path | None) -> None:
    """Make every page of FOLDER anew from the JSON that lies there, without measuring."""
    from pipeline.bench.pages import job_reports, made_pages, with_headlines

    for path, text in made_pages(folder).items():
        path.write_text(text)
        click.echo(path)
    if readme is not None:
        readme.write_text(with_headlines(readme.read_text(), job_reports(folder)))
