"""`dpiframe export`: a bundle from a spec and its weights."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("export")
@click.option("--spec", required=True, type=FILE, help="Model spec, JSON.")
@click.option("--weights", required=True, type=FILE, help="The spec's weights, safetensors.")
@click.option("--schema", type=FILE, help="Fitted feature schema, JSON.")
@click.option("--vocabularies", type=FILE, help="The schema's vocabularies, safetensors.")
@click.option("--check", type=FILE, help="ids, dense and logits to be met, safetensors.")
@click.option("--tolerance", default=1e-5, help="Allowed difference of logits, x max(1, |logit|).")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="Bundle.")
def command(
    spec: Path, weights: Path, schema: Path | None, vocabularies: Path | None, check: Path | None,
    tolerance: float, output: Path,
) -> None:  # fmt: skip
    """Write a bundle from a model trained elsewhere.

    The weights are those of `dpiframe_core.CTRModel(spec).state_dict()`, by the same names.
    """
    from pipeline.models.export import Check, export

    wanted = Check(check, tolerance) if check else None
    bundle = export(spec, weights, schema, vocabularies, output, wanted)
    for name, found in ((bundle.report() or {}).get("recorded") or {}).items():
        click.echo(f"{name}: logits differ by {found['largest']:.2g} x max(1, |logit|) at most")
    click.echo(f"bundle {bundle.path} ({bundle.digest[:16]})")
