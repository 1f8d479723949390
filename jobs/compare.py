"""`dpiframe compare`: runs side by side, verdicts, rows that differ, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pipeline.evaluation.gates import Gates


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="BASE CANDIDATE [...]")
@click.option("--mlflow-uri", help="MLflow store; default: sqlite:///mlflow.db.")
@click.option("--rows", is_flag=True, help="Compare the scores of two outputs row by row, by key.")
@click.option("--max-psi", type=float, help="Fail where the scores drift by more than this PSI.")
@click.option("--min-auc-ratio", type=float, help="Fail where AUC / AUC of BASE is below this.")
@click.option(
    "--max-slowdown", type=float, help="Fail where steady rows/s drop by more (0.05: 5%)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with everything that differs.")
def command(
    runs: tuple[str, ...],
    mlflow_uri: str | None,
    rows: bool,
    max_psi: float | None,
    min_auc_ratio: float | None,
    max_slowdown: float | None,
    as_json: bool,
) -> None:
    """Compare runs: each is an output folder, an MLflow run id, the name of an MLflow run, or a
    registered model (models:/NAME@ALIAS: the newest run that has finished with it).

    Or two JSON files of `dpiframe bench engine`, for --max-slowdown of the engine alone.

    Exit codes: 0 done and every gate kept, 2 no such run, 3 a gate is broken or cannot be told.
    """
    import json

    from pipeline.errors import ContractError
    from pipeline.evaluation.gates import Gates, auc_verdict, broken, throughput_verdict
    from pipeline.tracking.compare import compare, format_comparison, load_runs, score_psi

    if len(runs) < 2:
        raise click.UsageError("name at least two runs")
    gates = Gates(max_psi, min_auc_ratio, max_slowdown)
    if len(runs) > 2 and (rows or any(limit is not None for limit in gates)):
        raise click.UsageError("--rows and gates take two runs: BASE CANDIDATE")
    if all(run.endswith(".json") for run in runs):
        if rows:
            raise click.UsageError("--rows compares scores; measurements of the engine have none")
        _compare_engines(runs, gates, as_json)
        return
    views = load_runs(list(runs), mlflow_uri)
    found: dict[str, Any] = compare(views)
    text = format_comparison(found)
    if len(runs) == 2:
        base, candidate = views
        verdicts = [throughput_verdict(base, candidate), auc_verdict(base, candidate)]
        found["verdicts"] = [verdict._asdict() for verdict in verdicts]
        text += "\n\n" + "\n".join(f"{v.figure}: {v.text}" for v in verdicts)
        psi = found["psi"] = score_psi(runs[0], runs[1], mlflow_uri)
        text += f"\nPSI of the scores: {'-' if psi is None else format(psi, '.4f')}"
        found["broken_gates"] = broken(gates, base, candidate, psi)
    if rows:
        from pipeline.evaluation.differences import compare_scores
        from pipeline.evaluation.report import differences_text

        differences = compare_scores(runs[0], runs[1])
        found["rows"] = differences.model_dump(mode="json")
        text += f"\n\n{differences_text(differences)}"
    click.echo(json.dumps(found, indent=1, default=str) if as_json else text)
    if found.get("broken_gates"):
        raise ContractError("; ".join(found["broken_gates"]))


def _compare_engines(reports: tuple[str, ...], gates: Gates, as_json: bool) -> None:
    from pathlib import Path

    from pipeline.bench.engine.comparing import compare_engines, read_engine_report, show
    from pipeline.errors import ContractError
    from pipeline.evaluation.gates import too_slow

    if len(reports) != 2 or gates.max_psi is not None or gates.min_auc_ratio is not None:
        raise click.UsageError("measurements of the engine: two of them, with --max-slowdown alone")
    base, candidate = (read_engine_report(Path(path)) for path in reports)
    found = compare_engines(base, candidate)
    click.echo(found.model_dump_json(indent=1) if as_json else show(found, candidate.title))
    if gates.max_slowdown is not None and (broken := too_slow(gates.max_slowdown, found.verdict)):
        raise ContractError("; ".join(broken))
