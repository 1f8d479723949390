"""`dpiframe bench sweep`: `bench engine` over combinations of options, a run of MLflow each.

All are children of one run, which has the plots and the reports as JSON.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from pipeline.bench.cases.engine_case import EngineCase
from pipeline.bench.engine.implementations import OURS
from pipeline.bench.engine.latency import EngineReport, bench_engine
from pipeline.errors import ConfigError
from pipeline.storage.mlflow_access import experiment_id, quiet_mlflow, resolve_uri
from pipeline.tracking.settings import param_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CASES = 200
PARENT = "mlflow.parentRunId"


class SweepCase(NamedTuple):
    """One combination, by the name of its run: `batch=4096 dim=16`."""

    name: str
    case: EngineCase


class SweepResult(NamedTuple):
    """What was measured of a combination."""

    name: str
    report: EngineReport

    @property
    def metrics(self) -> dict[str, float]:
        """The figures by their names in MLflow, the same in every run."""
        report = self.report
        found: dict[str, float] = {}
        for name, timing in report.milliseconds.items():
            found |= {f"ms_{metric_name(name)}": timing.median}
            found |= {f"ms_{metric_name(name)}_p90": timing.p90}
        found |= {f"speedup_over_{metric_name(n)}": r for n, r in report.ratios().items()}
        ours = report.milliseconds[OURS].median
        found["rows_per_second"] = 1e3 * report.case.batch / ours
        if report.floor is not None:
            found |= {"floor_ms": report.floor.ms, "of_floor": report.floor.ms / ours}
        return found


def sweep_cases(base: Mapping[str, Any], varied: Sequence[str]) -> list[SweepCase]:
    """The combinations of `KEY=VALUE,VALUE...`, the last key varying fastest. ConfigError."""
    keys: dict[str, list[str]] = {}
    for text in varied:
        key, given, values = text.partition("=")
        keys_known = [name for name in EngineCase.model_fields if name != "without"]
        if not given or key not in keys_known or not values:
            known = ", ".join(keys_known)
            raise ConfigError(f"--vary takes KEY=VALUE,VALUE with a key of {known}; got {text!r}")
        separator = "/" if key == "hidden" else ","  # its values have commas
        keys[key] = values.split(separator)
    found = []
    for chosen in product(*keys.values()):
        one = dict(zip(keys, chosen, strict=True))
        parsed = {k: v.split(",") if k == "hidden" else v for k, v in one.items()}
        try:
            case = EngineCase.model_validate({**base, **parsed})
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(f"--vary: {first['loc'][0]}: {first['msg']}") from None
        found.append(SweepCase(" ".join(f"{k}={v}" for k, v in one.items()), case))
    if not keys or len(found) > MOST_CASES:
        raise ConfigError(f"--vary gives {len(found)} cases, 1 to {MOST_CASES} can be swept")
    return found


def run_sweep(
    cases: Sequence[SweepCase],
    experiment: str,
    uri: str | None,
    measured: Callable[[list[SweepResult]], None],
) -> list[SweepResult]:
    """Measure all cases; each is in MLflow as soon as it is measured. `measured` is called with all
    so far, the newest last.
    """
    first = cases[0].case
    keys = ", ".join(part.partition("=")[0] for part in cases[0].name.split(" "))
    results: list[SweepResult] = []
    with quiet_mlflow():
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=resolve_uri(uri))
        where = experiment_id(client, experiment)
        title = f"engine sweep {first.model} {first.device}: {keys}"
        parent = client.create_run(where, run_name=title).info.run_id
        try:
            for name, case in cases:
                result = SweepResult(name, bench_engine(case))
                results.append(result)
                child = client.create_run(where, run_name=name, tags={PARENT: parent})
                _log(client, child.info.run_id, result)
                measured(results)
            with tempfile.TemporaryDirectory() as folder:
                write_results(Path(folder), results)
                client.log_artifacts(parent, folder)
        except BaseException:
            client.set_terminated(parent, "FAILED")
            raise
        client.set_terminated(parent)
    return results


def line(result: SweepResult) -> str:
    """A case in one line."""
    report = result.report
    ratios = "".join(f"  {n} {r:.2f}x" for n, r in report.ratios().items())
    floor = "" if result.report.floor is None else f"  of floor {result.metrics['of_floor']:.0%}"
    return f"{result.name:<32} {report.milliseconds[OURS].median:9.3f} ms{ratios}{floor}"


def write_results(folder: Path, results: Sequence[SweepResult]) -> None:
    """`sweep.json` and the plots."""
    reports = [
        {"name": r.name, "metrics": r.metrics, "report": r.report.model_dump(mode="json")}
        for r in results
    ]
    (folder / "sweep.json").write_text(json.dumps(reports, indent=1))
    for name, figure in figures(results):
        figure.savefig(folder / f"{name}.png", dpi=110)


def figures(results: Sequence[SweepResult]) -> Iterator[tuple[str, Figure]]:
    """Milliseconds and speedups, a group of bars each case; the share of the floor."""
    ours = {metric_name(OURS): [r.report.milliseconds[OURS].median for r in results]}
    peers = {n: [r.report.ratios().get(n) for r in results] for n in _peers(results)}
    times = ours | {
        name: [t.median if (t := r.report.milliseconds.get(name)) else None for r in results]
        for name in _peers(results)
    }
    names = [result.name for result in results]
    yield "latency", _bars("Latency of a batch", "milliseconds", names, times)
    if peers:
        yield "speedup", _bars("Time of a peer over ours", "times", names, peers)
    shares = [None if r.report.floor is None else r.metrics["of_floor"] for r in results]
    if any(share is not None for share in shares):
        yield "floor", _bars("Floor's time over ours", "share", names, {OURS: shares})


def metric_name(name: str) -> str:
    """The name of an implementation as part of a metric's: `TBE, graph` is `tbe_graph`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _peers(results: Sequence[SweepResult]) -> list[str]:
    return list(dict.fromkeys(name for r in results for name in r.report.ratios()))


def _bars(
    title: str, unit: str, names: Sequence[str], values: Mapping[str, Sequence[float | None]]
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure((max(8.0, 0.5 * len(names) * len(values)), 4.5), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(values)
    for i, (label, heights) in enumerate(values.items()):
        places = [n + (i + 0.5) * width - 0.4 for n in range(len(names))]
        axes.bar(places, [h or 0.0 for h in heights], width, label=label)
    axes.set(title=title, ylabel=unit, xticks=range(len(names)))
    axes.set_xticklabels(names, rotation=30, ha="right")
    if unit != "share":
        axes.set_yscale("log")
    axes.legend()
    return figure


def _log(client: Any, run_id: str, result: SweepResult) -> None:
    from mlflow.entities import Metric, Param

    now = int(1000 * time.time())
    metrics = [Metric(name, value, now, 0) for name, value in result.metrics.items()]
    settings = result.report.case.model_dump(mode="json") | result.report.machine
    params = [
        Param(key, json.dumps(value) if isinstance(value, list) else param_text(value))
        for key, value in settings.items()
    ]
    client.log_batch(run_id, metrics=metrics, params=params)
    client.set_terminated(run_id)
