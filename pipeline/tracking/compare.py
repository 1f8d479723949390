"""`dpiframe compare`: runs side by side, from MLflow or from output folders without MLflow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.publishing.output import Output, open_output
from pipeline.publishing.records import EVALUATION
from pipeline.redaction import without_credentials
from pipeline.storage.address import is_registered, is_remote
from pipeline.storage.mlflow_access import quiet_mlflow, resolve_uri, sqlite_path
from pipeline.storage.registered import registered_digest
from pipeline.tracking.drift import Counts, load_baseline, population_stability_index
from pipeline.tracking.metrics import (
    METRICS,
    count_metrics,
    latency_metrics,
    stage_metrics,
    sum_histograms,
)
from pipeline.tracking.settings import param_text
from pipeline.tracking.spool import StoreState, read_run, run_dirs

if TYPE_CHECKING:
    from mlflow import MlflowClient


# The tags that are compared: what ran, and where. Other tags only name the run.
COMPARED_TAGS = (
    "identity",
    "bundle_digest",
    "host",
    "gpu",
    "git_sha",
    "dpiframe_version",
    "python_version",
    "ray_version",
    "torch_version",
    "pyarrow_version",
    "mlflow_version",
    "baseline_status",
    "problems",
)
WIDEST_CELL = 44
MISSING = "-"


@dataclass
class RunView:
    """Label, parameters, metrics and tags of a run."""

    label: str
    status: str
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


def load_runs(names: list[str], uri: str | None) -> list[RunView]:
    """The runs by name: output folder, registered model (the newest run that has finished with its
    bundle), MLflow run id, MLflow run name.

    Raises ConfigError naming the run that was not found and the store that was searched.
    """
    if all(_is_output(name) for name in names):
        return [run_of_output(name) for name in names]
    with quiet_mlflow():
        not_folders = [name for name in names if not _is_output(name)]
        client = _open_client(resolve_uri(uri), not_folders[0])
        return [
            run_of_output(name) if _is_output(name) else _run_of_store(name, client)
            for name in names
        ]


def _is_output(name: str) -> bool:
    return is_remote(name) or Path(name).is_dir()


def run_of_output(output: str | Path) -> RunView:
    """The last run in an output's spool, else the figures of its manifest."""
    found = open_output(output)
    runs = run_dirs(found.tracking)
    if runs:
        view = _run_of_spool(output, runs[-1])
        view.metrics |= _evaluated(found)
        return view
    manifest = found.manifest()
    if manifest is None:
        raise ConfigError(f"{output} holds neither tracking records nor a _manifest.json")
    units = manifest.units
    metrics = {**count_metrics(units), **stage_metrics(units), **latency_metrics(units)}
    metrics |= _evaluated(found)
    tags = {"identity": manifest.identity, "bundle_digest": manifest.bundle_digest}
    params = {key: param_text(value) for key, value in manifest.config.items()}
    return RunView(str(output), "FINISHED", params, metrics, tags)


def _evaluated(output: Output) -> dict[str, float]:
    """The metrics of the evaluation that lies beside the scores, if there is one."""
    try:
        with output.open(EVALUATION) as file:
            metrics = json.loads(file.read())["metrics"]
            return {str(name): float(value) for name, value in metrics.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _run_of_spool(output: str | Path, run_dir: Path) -> RunView:
    view = RunView(str(output), "RUNNING")
    for event in read_run(run_dir):
        if event["kind"] == "start":
            view.status = "RUNNING"
            view.params = {**event["params"], **view.params}
            view.tags |= event["tags"]
        elif event["kind"] == "finish":
            view.status = event["status"]
            view.metrics |= event["metrics"]
            view.tags |= event["tags"]
    for path in run_dir.glob("store-*.json"):
        view.metrics |= StoreState.load(path, "").derived
    return view


def _open_client(uri: str, name: str) -> MlflowClient:
    """A client of the store in which a run of this name is looked for."""
    database = sqlite_path(uri)
    if database is not None and not database.exists():
        raise ConfigError(
            f"no run {name!r}: it is no output folder, and there is no MLflow database {database} "
            "to look it up in; name one with --mlflow-uri"
        )
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri=uri)
    try:
        client.search_experiments(max_results=1)
    except MlflowException as error:
        raise ConfigError(f"MLflow at {without_credentials(uri)} fails: {error}") from error
    return client


def score_psi(base: str, candidate: str, uri: str | None) -> float | None:
    """PSI of the scores of a run against those of another one; None where one has none."""
    with quiet_mlflow():
        histograms = [_histogram(name, uri) for name in (base, candidate)]
    if histograms[0] is None or histograms[1] is None:
        return None
    return population_stability_index(histograms[0], histograms[1])


def _histogram(name: str, uri: str | None) -> Counts | None:
    """Of the scores of a run that `load_runs` finds; None where it has kept none."""
    if _is_output(name):
        manifest = open_output(name).manifest()
        return None if manifest is None else sum_histograms(manifest.units)
    from mlflow.exceptions import MlflowException

    client = _open_client(resolve_uri(uri), name)
    run = _find_run(name, client)
    try:
        return None if run is None else load_baseline(run.info.run_id, client)
    except (OSError, ValueError, MlflowException):  # the run has no such artifact
        return None


def _run_of_store(name: str, client: MlflowClient) -> RunView:
    run = _find_run(name, client)
    if run is None:
        raise ConfigError(
            f"no run {name!r}: it is no output folder, and no run of the MLflow store at "
            f"{without_credentials(client.tracking_uri)} has that id or name"
        )
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    label = f"{run.info.run_name} ({run.info.run_id[:8]})"
    return RunView(label, run.info.status, dict(run.data.params), dict(run.data.metrics), tags)


def _find_run(name: str, client: MlflowClient) -> Any:
    """The run with this id, else the newest with this name, else None; of a registered model the
    newest that has finished with its bundle.
    """
    from mlflow.exceptions import MlflowException

    if is_registered(name):
        digest = registered_digest(name, client.tracking_uri)
        finished = "attributes.status = 'FINISHED'"
        found = _newest(client, f"tags.bundle_digest = '{digest}' and {finished}")
        if found is None:
            raise ConfigError(f"no finished run has scored by {name}, whose bundle is {digest}")
        return found
    try:
        return client.get_run(name)
    except MlflowException:
        quoted = name.replace("'", "")
        return _newest(client, f"attributes.run_name = '{quoted}'")


def _newest(client: MlflowClient, wanted: str) -> Any:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    order = ["attributes.start_time DESC"]
    found = client.search_runs(experiments, wanted, max_results=1, order_by=order)
    return found[0] if found else None


def compare(runs: Sequence[RunView]) -> dict[str, Any]:
    """The comparison as plain data; relative differences are to the first run.

    `params` and `tags` hold only what differs, a value a run (None: the run has none).
    `metrics` holds every metric that any run has: `values`, and `relative` = value / first - 1.
    """
    params = sorted({key for run in runs for key in run.params})
    known = [name for name in METRICS if any(name in run.metrics for run in runs)]
    return {
        "runs": [{"label": run.label, "status": run.status} for run in runs],
        "params": _differing(params, [run.params for run in runs]),
        "tags": _differing(COMPARED_TAGS, [run.tags for run in runs]),
        "metrics": {name: _metric([run.metrics.get(name) for run in runs]) for name in known},
    }


def format_comparison(comparison: dict[str, Any]) -> str:
    """The comparison as a plain text table, a column a run."""
    runs = comparison["runs"]
    lines = [
        ["run", *(_tail(run["label"]) for run in runs)],
        ["status", *(run["status"] for run in runs)],
    ]
    for title in ("params", "tags"):
        if comparison[title]:
            lines.append([f"{title} that differ"])
            lines += [
                [f"  {key}", *(MISSING if value is None else value for value in values)]
                for key, values in comparison[title].items()
            ]
    lines.append(["metrics (difference to the first run)"])
    for name, metric in comparison["metrics"].items():
        pairs = zip(metric["values"], metric["relative"], strict=True)
        lines.append([f"  {name}", *(_cell(value, relative) for value, relative in pairs)])
    return _align(lines)


def _differing(
    keys: Sequence[str], columns: Sequence[dict[str, str]]
) -> dict[str, list[str | None]]:
    rows = {key: [column.get(key) for column in columns] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _metric(values: list[float | None]) -> dict[str, list[float | None]]:
    relative = [None, *(_relative(value, values[0]) for value in values[1:])]
    return {"values": values, "relative": relative}


def _relative(value: float | None, first: float | None) -> float | None:
    return value / first - 1 if value is not None and first else None


def _cell(value: float | None, relative: float | None) -> str:
    if value is None:
        return MISSING
    whole = float(value).is_integer() and abs(value) < 1e15
    text = f"{int(value):,}" if whole else f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if relative is None:
        return text
    return f"{text} (=)" if relative == 0 else f"{text} ({relative:+.1%})"


def _align(lines: list[list[str]]) -> str:
    """Columns as wide as their widest cell; a line of one cell is a heading."""
    cut = [[_shorten(cell) for cell in line] for line in lines]
    rows = [line for line in cut if len(line) > 1]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = []
    for line in cut:
        if len(line) == 1:
            text.append(f"\n{line[0]}")
        else:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _tail(label: str) -> str:
    return label if len(label) <= WIDEST_CELL else f"...{label[3 - WIDEST_CELL :]}"


def _shorten(cell: str) -> str:
    cell = cell.replace("\n", " ")
    return cell if len(cell) <= WIDEST_CELL else f"{cell[: WIDEST_CELL - 3]}..."
