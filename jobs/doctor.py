"""`dpiframe doctor`: what works on this machine."""

from __future__ import annotations

import sys

import click


@click.command("doctor")
def command() -> None:
    """Print what is installed, which backends work, and what to do about what does not.

    Exit code 1 when something a job needs does not work.
    """
    from pipeline.doctor import examine, report

    checks = examine()
    click.echo(report(checks))
    sys.exit(1 if any(check.ok is False for check in checks) else 0)
