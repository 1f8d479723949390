"""`dpiframe status`: what became of many outputs."""

from __future__ import annotations

import click


@click.command("status")
@click.argument("root", metavar="OUTPUT_ROOT", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line an output.")
def command(root: str, as_json: bool) -> None:
    """Show each output at or below OUTPUT_ROOT: done, running (by whom, how fast, how long yet),
    resumable, failed (when and why). Nothing is touched.
    """
    from pipeline.schedule.status import status_of, table

    found = status_of(root)
    click.echo("\n".join(each.model_dump_json() for each in found) if as_json else table(found))
