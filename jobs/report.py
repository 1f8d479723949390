"""`dpiframe report`: a finished output as one HTML page."""

from __future__ import annotations

import click


@click.command("report")
@click.argument("output", type=click.Path())
@click.option("--baseline", help="Output of the job to compare with.")
@click.option("-o", "--out", default="report.html", help="The page to write.")
def command(output: str, baseline: str | None, out: str) -> None:
    """Write a page about OUTPUT: what ran, what came out, how good, how fast, what it cost.

    The page is one file that needs no network. Exit codes: 0 done, 2 no finished output.
    """
    from pathlib import Path

    from pipeline.errors import ConfigError
    from pipeline.report.page import write_report

    try:
        write_report(output, baseline, Path(out))
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None
    click.echo(out)
