"""`dpiframe calibrate`: a bundle whose scores agree with labels."""

from __future__ import annotations

import click


@click.command("calibrate")
@click.argument("output", type=click.Path())
@click.argument("bundle", type=click.Path())
@click.argument("calibrated", type=click.Path())
@click.option("--label", required=True, help="Column of the label: 0, 1, or null for none.")
@click.option("--labels", help="Parquet files with the label, joined by the output's key columns.")
@click.option(
    "--method",
    type=click.Choice(["platt", "temperature", "isotonic"]),
    default="platt",
    help="platt: scale and shift of the logit; temperature: a scale; isotonic: any rising curve.",
)
def command(
    output: str, bundle: str, calibrated: str, label: str, labels: str | None, method: str
) -> None:
    """Fit a calibration to OUTPUT, which BUNDLE scored, and write the bundle CALIBRATED with it.

    The calibration is the last step of the new bundle's model: a curve over its logit. Fit it on
    impressions that the model was not trained on. Exit codes: 0 done, 2 wrong arguments, 3 labels
    that do not serve.
    """
    from typing import cast

    from pipeline.evaluation.calibrating import Method, calibrate_bundle
    from pipeline.evaluation.question import Question
    from pipeline.publishing.scores import key_columns

    keys = key_columns(output) if labels is not None else ()
    question = Question(label=label, labels=labels, keys=keys)
    before, after = calibrate_bundle(output, bundle, calibrated, question, cast(Method, method))
    click.echo(
        f"wrote {calibrated}: {method}, from {before.rows:,} rows\n"
        f"  logloss      {before.logloss:.6f} -> {after.logloss:.6f}\n"
        f"  calibration  {before.calibration:.4f} -> {after.calibration:.4f} (mean score / label)"
    )
