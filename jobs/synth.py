"""`dpiframe synth`: write a synthetic data set."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click


@click.command("synth")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="New folder.")
@click.option("--dataset", type=click.Choice(["criteo", "avazu"]), default="criteo")
@click.option(
    "--form",
    type=click.Choice(["raw", "encoded"]),
    default="raw",
    help="raw: integers, hex strings, nulls, as published; encoded: int32 ids.",
)
@click.option("--rows", type=click.IntRange(1), default=1_000_000)
@click.option("--rows-per-shard", type=click.IntRange(1), default=1_000_000, help="Rows a file.")
@click.option(
    "--row-group-rows", type=click.IntRange(1), default=100_000, help="Rows a parquet row group."
)
@click.option("--seed", type=click.IntRange(0), default=0)
@click.option(
    "--zipf-exponent",
    type=click.FloatRange(0, 4, min_open=True),
    default=1.05,
    help="How much more frequent popular values are.",
)
@click.option(
    "--cardinality-scale",
    type=click.FloatRange(0, 10, min_open=True),
    default=1.0,
    help="Scales the published numbers of distinct strings.",
)
@click.option("--compression", type=click.Choice(["none", "snappy", "lz4", "zstd"]), default="zstd")
@click.option("--workers", type=click.IntRange(1), help="Threads; default: one a core.")
@click.option("--overwrite", is_flag=True, help="Replace the shards that are there.")
def command(**options: object) -> None:
    """Write Criteo- or Avazu-shaped parquet shards with planted clicks.

    The same options and seed give the same rows, whatever the number of workers.
    """
    from pipeline.data.synth import SynthOptions, synth

    checked = SynthOptions.model_validate(options)
    shown_on = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with click.progressbar(length=checked.rows, file=shown_on) as bar:
        result = synth(checked, on_shard=bar.update)
    click.echo(
        f"{result.rows:,} rows in {result.shards} shards, {result.bytes / 1e6:,.1f} MB, "
        f"{result.seconds:.1f} s, {result.rows / result.seconds:,.0f} rows/s: {options['output']}"
    )
