"""`dpiframe convert`: published text files to parquet shards."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("convert")
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="New folder.")
@click.option("--dataset", type=click.Choice(["criteo", "avazu"]), required=True)
@click.option("--rows-per-shard", type=click.IntRange(1), default=1_000_000, help="Rows a file.")
@click.option(
    "--row-group-rows", type=click.IntRange(1), default=100_000, help="Rows a parquet row group."
)
@click.option("--compression", type=click.Choice(["none", "snappy", "lz4", "zstd"]), default="zstd")
@click.option(
    "--row-ids-from", type=click.IntRange(0), default=0, help="Criteo: row_id of the first row."
)
@click.option(
    "--row-ids-after",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Criteo: begin behind the highest row_id of the shards below this folder; repeatable.",
)
@click.option("--overwrite", is_flag=True, help="Replace the shards that are there.")
def command(**options: object) -> None:
    """Turn downloaded Criteo TSV or Avazu CSV files (plain or .gz) into parquet shards.

    Criteo: train.txt, test.txt, day_0...; Avazu: train.csv, test.csv. Rows keep their order.
    A string field must be empty or 8 hex digits, an integer decimal, a label 0 or 1; the first
    line that breaks this stops the conversion, and nothing is left behind. Criteo rows get a key,
    row_id, which runs over all INPUTS; files converted by several commands share none with
    --row-ids-after, or with --row-ids-from and the number that the command before printed.
    """
    from pipeline.data.convert import ConvertOptions, convert

    total = 0

    def on_rows(rows: int) -> None:
        nonlocal total
        total += rows
        if sys.stderr.isatty():
            click.echo(f"\r{total:,} rows", nl=False, err=True)

    result = convert(ConvertOptions.model_validate(options), on_rows)
    if sys.stderr.isatty():
        click.echo(err=True)
    click.echo(
        f"{result.rows:,} rows in {result.shards} shards, {result.seconds:.1f} s, "
        f"{result.rows / result.seconds:,.0f} rows/s: {options['output']}"
    )
    if result.next_row_id is not None:
        click.echo(f"next row_id: {result.next_row_id}")
