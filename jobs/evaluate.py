"""`dpiframe evaluate`: the scores of a finished output against labels."""

from __future__ import annotations

import click


@click.command("evaluate")
@click.argument("output", type=click.Path())
@click.option("--label", required=True, help="Column of the label: 0, 1, or null for none.")
@click.option("--labels", help="Parquet files with the label, joined by the output's key columns.")
@click.option("--slice", "slices", multiple=True, help="Evaluate each value of this column apart.")
@click.option("--pairs", is_flag=True, help="Evaluate each pair of slice columns, too.")
@click.option("--group", help="AUC by the groups of this column, such as a user (GAUC).")
@click.option("--threads", default=0, help="Threads; 0: as many as the process may use.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    output: str,
    label: str,
    labels: str | None,
    slices: tuple[str, ...],
    pairs: bool,
    group: str | None,
    threads: int,
    as_json: bool,
) -> None:
    """Evaluate the scores of OUTPUT: AUC, logloss, normalised entropy, calibration.

    The label is a column that the job carried (carry_columns), or comes with --labels. The result
    is written to OUTPUT/_evaluation.json, too. Exit codes: 0 done, 2 no such output or column, 3 a
    label that is neither 0 nor 1.
    """
    from pipeline.evaluation.evaluate import Question, evaluate_output
    from pipeline.evaluation.report import as_text, write_evaluation
    from pipeline.publishing.scores import bundle_names, key_columns

    question = Question(
        label=label,
        labels=labels,
        keys=key_columns(output) if labels is not None else (),
        slices=slices,
        pairs=pairs,
        group=group,
        bundles=bundle_names(output),
    )
    found = evaluate_output(output, question, threads)
    write_evaluation(output, found)
    click.echo(found.model_dump_json(indent=1) if as_json else as_text(found, output))
