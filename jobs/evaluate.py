"""`dpiframe evaluate`: the scores of a finished output against labels."""

from __future__ import annotations

from typing import Any

import click

from jobs.params import Pair


@click.command("evaluate")
@click.argument("output", type=click.Path())
@click.option("--label", required=True, help="Column of the label: 0, 1, or null for none.")
@click.option("--labels", help="Parquet files with the label, joined by the output's key columns.")
@click.option("--slice", "slices", multiple=True, help="Evaluate each value of this column apart.")
@click.option("--pairs", is_flag=True, help="Evaluate each pair of slice columns, too.")
@click.option("--group", help="AUC by the groups of this column, such as a user (GAUC).")
@click.option(
    "--output-label",
    "output_labels",
    multiple=True,
    type=Pair("NAME=COLUMN"),
    help="Evaluate score_NAME, of another task, against this column.",
)
@click.option(
    "--workers", type=click.IntRange(0), default=0, help="Processes; 0: as many as are worth it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    output: str,
    output_labels: tuple[tuple[str, str], ...],
    workers: int,
    as_json: bool,
    **asked: Any,
) -> None:
    """Evaluate the scores of OUTPUT: AUC, logloss, normalised entropy, calibration.

    The label is a column that the job carried (carry_columns), or comes with --labels. The result
    is written to OUTPUT/_evaluation.json, too. Exit codes: 0 done, 2 no such output or column, 3 a
    label that is neither 0 nor 1. Run it again to go on with one that was stopped.
    """
    from pipeline.evaluation.evaluate import evaluate_output
    from pipeline.evaluation.question import Question
    from pipeline.evaluation.report import as_text, write_evaluation
    from pipeline.publishing.scores import bundle_names, key_columns

    question = Question(
        **asked,
        keys=key_columns(output) if asked["labels"] is not None else (),
        bundles=bundle_names(output),
        outputs=dict(output_labels),
    )
    found = evaluate_output(output, question, workers)
    write_evaluation(output, found)
    click.echo(found.model_dump_json(indent=1) if as_json else as_text(found, output))
