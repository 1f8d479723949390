"""`dpiframe import`: a bundle from a PyTorch model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jobs.params import Pair

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("import")
@click.argument("model", type=FILE)
@click.option("--bundle", "-o", required=True, type=click.Path(path_type=Path), help="Bundle.")
@click.option("--columns", type=FILE, help="Which column feeds which input, YAML or JSON.")
@click.option("--output", default="auto", help="Which output is the score, or what it is: "
              "probability, logit, its name or number.")  # fmt: skip
@click.option("--task", "tasks", multiple=True, type=Pair("NAME=OUTPUT"),
              help="Another output, by name or number: a job scores it as NAME.")  # fmt: skip
@click.option("--feature-map", type=FILE, help="FuxiCTR's feature_map.json, for raw rows.")
@click.option("--feature-vocab", type=FILE, help="FuxiCTR's feature_vocab.json.")
@click.option("--dataset-config", type=FILE, help="FuxiCTR's dataset_config.yaml, where it tells "
              "types, padding and fills.")  # fmt: skip
@click.option("--name", default="", help="Name of the model; default: the file's.")
@click.option("--check", type=FILE, help="Samples to compare on, safetensors: the inputs, and if "
              "known logit or probability, label.  [default: random ones]")  # fmt: skip
@click.option("--tolerance", default=1e-5, help="Allowed difference of logits, x max(1, |logit|).")
@click.option("--precision", "precisions", multiple=True,
              type=click.Choice(["fp32", "tf32", "fp16", "bf16"]),
              help="Precisions to report where there is a GPU.  [default: all]")  # fmt: skip
def command(model: Path, bundle: Path, tasks: tuple[tuple[str, str], ...], **options: Any) -> None:
    """Convert MODEL, what torch.export.save wrote, to a bundle.

    Nothing in the file is executed as Python. The bundle is written if both score samples alike.
    """
    from pipeline.models.importing import ImportOptions, import_model, in_words

    made = import_model(model, bundle, ImportOptions(tasks=dict(tasks), **options))
    for line in in_words(made):
        click.echo(line)
    click.echo(f"bundle {made.path} ({made.digest[:16]})")
