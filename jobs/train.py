"""`dpiframe train`: train a model on raw parquet shards."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("train")
@click.argument("input", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="Bundle.")
@click.option("--dataset", type=click.Choice(["criteo", "avazu"]), default="criteo")
@click.option("--model", type=click.Choice(["wdl", "deepfm", "dcn", "dcnv2"]), default="deepfm")
@click.option(
    "--integers",
    type=click.Choice(["buckets", "dense"]),
    default="buckets",
    help="Criteo's integers: log-bucketed fields, or standardised dense features.",
)
@click.option("--dense-as", type=click.Choice(["field", "raw"]), default="field")
@click.option("--categoricals", type=click.Choice(["hash", "vocabulary"]), default="hash")
@click.option("--modulus", type=click.IntRange(1), default=20_000, help="Hash: rows a field.")
@click.option("--min-count", type=click.IntRange(1), default=10, help="Vocabulary: rarest value.")
@click.option("--dim", type=click.IntRange(1), default=16, help="Embedding width D.")
@click.option("--hidden", default="400,400,400", help="Widths of the MLP's layers.")
@click.option("--batch-norm", is_flag=True)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.0)
@click.option("--epochs", type=click.IntRange(1), default=1)
@click.option("--batch", type=click.IntRange(2), default=2048)
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=1e-3)
@click.option("--max-rows", type=click.IntRange(1), help="Use the first rows only.")
@click.option("--seed", type=int, default=0)
def command(hidden: str, **options: object) -> None:
    """Train a model on INPUT (raw parquet files or folders) and write its bundle."""
    from pipeline.training import TrainOptions, train

    widths = hidden.split(",")
    result = train(TrainOptions.model_validate({**options, "hidden": widths}), click.echo)
    click.echo(
        f"trained on {result.rows:,} rows: AUC {result.auc:.4f}, logloss {result.logloss:.4f} "
        f"on them; bundle {result.bundle.path} ({result.bundle.digest[:16]})"
    )
