"""`dpiframe verify`: re-check a finished output."""

from __future__ import annotations

import click

SHOWN = 50


@click.command("verify")
@click.argument("output", type=click.Path())
def command(output: str) -> None:
    """Check every hash and row count of OUTPUT, and that each input row has one outcome.

    Exit codes: 0 the output is whole, 3 problems were found (they are listed).
    """
    from pipeline.errors import ContractError
    from pipeline.publishing.verify import verify_output

    found = verify_output(output)
    if found.problems:
        lines = [*found.problems[:SHOWN], *(["..."] if len(found.problems) > SHOWN else [])]
        text = "\n  ".join(lines)
        raise ContractError(f"{found.output}: {len(found.problems)} problems:\n  {text}")
    click.echo(
        f"{found.output} is whole: {found.rows:,} rows = {found.scored:,} scored + "
        f"{found.rejected:,} rejected, in {found.units:,} units, {found.bytes:,} bytes"
    )
