"""`dpiframe verify`: re-check a finished output."""

from __future__ import annotations

import sys

import click

from jobs.json_output import errors_as_json, print_json

SHOWN = 50


@click.command("verify")
@click.argument("output", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(output: str, as_json: bool) -> None:
    """Check every hash and row count of OUTPUT, and that each input row has one outcome.

    OUTPUT is a folder, or an address of an object store.

    Exit codes: 0 the output is whole, 3 problems were found (they are listed).
    """
    from pipeline.errors import ContractError
    from pipeline.publishing.verify import verify_output

    with errors_as_json(as_json):
        found = verify_output(output)
    if as_json:
        code = ContractError.exit_code if found.problems else 0
        status = "damaged" if found.problems else "whole"
        print_json({"exit_code": code, "status": status, **found.model_dump(mode="json")})
        sys.exit(code)
    if found.problems:
        lines = [*found.problems[:SHOWN], *(["..."] if len(found.problems) > SHOWN else [])]
        text = "\n  ".join(lines)
        raise ContractError(f"{found.output}: {len(found.problems)} problems:\n  {text}")
    click.echo(
        f"{found.output} is whole: {found.rows:,} rows = {found.scored:,} scored + "
        f"{found.rejected:,} rejected, in {found.units:,} units, {found.bytes:,} bytes"
    )
