"""`dpiframe train`: train a model on raw parquet shards."""

from __future__ import annotations

from pathlib import Path

import click

from jobs.params import WIDTHS


@click.command("train")
@click.argument("input", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output", "-o", required=True, type=click.Path(path_type=Path), help="Bundle: a new folder."
)
@click.option("--dataset", type=click.Choice(["criteo", "avazu"]), default="criteo")
@click.option("--model", type=click.Choice(["wdl", "deepfm", "dcn", "dcnv2"]), default="deepfm")
@click.option(
    "--integers",
    type=click.Choice(["buckets", "dense"]),
    default="buckets",
    help="Criteo's integers: log-bucketed fields, or standardised dense features.",
)
@click.option(
    "--dense-as",
    type=click.Choice(["field", "raw"]),
    default="field",
    help="Dense features: each as an embedding, or as they are beside the embeddings.",
)
@click.option("--categoricals", type=click.Choice(["hash", "vocabulary"]), default="hash")
@click.option("--modulus", type=click.IntRange(1), default=20_000, help="Hash: rows a field.")
@click.option("--min-count", type=click.IntRange(1), default=10, help="Vocabulary: rarest value.")
@click.option("--dim", type=click.IntRange(1, 4096), default=16, help="Embedding width D.")
@click.option("--hidden", type=WIDTHS, default="400,400,400", help="Widths of the MLP's layers.")
@click.option("--batch-norm", is_flag=True, help="Normalise batches in the MLP.")
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.0)
@click.option("--epochs", type=click.IntRange(1), default=1)
@click.option("--batch", type=click.IntRange(2), default=2048)
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=1e-3)
@click.option("--max-rows", type=click.IntRange(1), help="Use the first rows only.")
@click.option("--seed", type=int, default=0)
def command(**options: object) -> None:
    """Train a model on INPUT (raw parquet files, or folders of them) and write its bundle.

    Small and plain: the encoded rows are held in memory. A large model is trained elsewhere and
    brought in by `dpiframe export`.
    """
    from pipeline.models.training import TrainOptions, train

    result = train(TrainOptions.model_validate(options), click.echo)
    click.echo(
        f"trained on {result.rows:,} rows: AUC {result.auc:.4f}, logloss {result.logloss:.4f} "
        f"on them; bundle {result.bundle.path} ({result.bundle.digest[:16]})"
    )
