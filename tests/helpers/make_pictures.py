"""The pictures in docs/pictures: a report and MLflow's pages of a job, by headless Chromium.

    python tests/helpers/make_pictures.py [--folder /tmp/demo] [--chromium chromium]

A champion and a challenger are trained on synthetic rows and score others; `make pictures`.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from pipeline.config.job import JobConfig
from pipeline.data.synth import SynthOptions, synth
from pipeline.models.training import TrainOptions, train
from pipeline.report.page import write_report
from pipeline.scoring.job import run_job
from pipeline.tracking.mlflow_store.register import register
from pipeline.tracking.mlflow_store.store import RUNS_VIEW

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
COLOURS = 128  # keeps each file below 200 KB
MODEL = "ctr"  # in the registry
MODELS = {"deepfm_champion": "deepfm", "dcn_challenger": "dcn"}
SECONDS_A_PAGE = 90


def score(folder: Path) -> None:
    """Train both models and score the other rows with each."""
    options = {"dataset": "criteo", "rows": 300_000, "rows_per_shard": 10_000}
    synth(SynthOptions(output=folder / "rows", **options))
    shards = sorted((folder / "rows").glob("*.parquet"))
    for name, model in MODELS.items():
        bundle, output = folder / "models" / name, folder / "scores" / name
        seen, other = tuple(shards[:10]), [str(path) for path in shards[10:]]
        train(TrainOptions(input=seen, output=bundle, model=model, hidden=(64, 32)))
        baseline = None if name == "deepfm_champion" else str(folder / "scores/deepfm_champion")
        config = JobConfig(
            bundle=str(bundle),
            input=other,
            output=str(output),
            date="2026-11-19",
            time_zone="UTC",
            label_column="label",
            slice_columns=["C9", "C20"],
            unit_rows=10_000,
            runner="local",
            price_per_hour=2.5,
            experiment="nightly",
            mlflow_uri=store(folder),
            tracking_wait=120,
            baseline_run=baseline,
        )
        run_job(config)
        register(str(bundle), MODEL, (name.partition("_")[2],), store(folder), "nightly")


def store(folder: Path) -> str:
    return f"sqlite:///{folder.absolute()}/mlflow.db"


@contextlib.contextmanager
def mlflow_ui(folder: Path) -> Iterator[str]:
    """MLflow's server over the jobs' store, on this machine alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", store(folder), "--workers", "1"]
    with (folder / "ui.log").open("w") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            address, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{address}/health", timeout=5).close()
                    break
                time.sleep(0.5)
            yield address
        finally:
            server.terminate()


def picture(
    chromium: str,
    page: str,
    name: str,
    size: tuple[int, int],
    dark: bool = False,
    shown: int | None = None,
) -> None:
    """Save what the browser shows of a page, with few colours; `shown`: so many columns of it."""
    path = PICTURES / f"{name}.png"
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={size[0]},{size[1]}", "--virtual-time-budget=15000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    command += [f"--screenshot={path}", page]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS_A_PAGE)
    image = Image.open(path).convert("RGB").crop((0, 0, shown or size[0], size[1]))
    image.quantize(COLOURS).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def mlflow_pages(folder: Path) -> dict[str, tuple[str, int]]:
    """The addresses of MLflow's pages, by the name of the picture, and how high each is."""
    from mlflow import MlflowClient

    client = MlflowClient(store(folder))
    experiment = client.get_experiment_by_name("nightly").experiment_id
    found = client.search_runs([experiment], order_by=["attributes.start_time DESC"])
    run, before = [each.info.run_id for each in found if each.info.run_name.startswith("d")][:2]
    runs = f"#/experiments/{experiment}/runs"
    both = quote(f'["{run}","{before}"]')
    where = quote(f'["{experiment}"]')
    compared = f"#/compare-runs?runs={both}&experiments={where}&{RUNS_VIEW}"
    return {
        "mlflow_runs": (f"{runs}?{RUNS_VIEW}", 480),
        "mlflow_run": (f"{runs}/{run}?{RUNS_VIEW}", 1000),
        "mlflow_compare": (compared, 1000),
        "mlflow_model": (f"#/models/{MODEL}?{RUNS_VIEW}", 480),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("/tmp/demo"))
    parser.add_argument("--chromium", default="chromium")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    PICTURES.mkdir(exist_ok=True)
    if not (folder / "scores/dcn_challenger/_SUCCESS").exists():
        score(folder)
    scores = folder / "scores"
    page = folder / "report.html"
    write_report(scores / "dcn_challenger", scores / "deepfm_champion", page)
    picture(arguments.chromium, page.as_uri(), "report", (1100, 1750))
    picture(arguments.chromium, page.as_uri(), "report_dark", (1100, 1150), dark=True)
    picture(arguments.chromium, page.as_uri(), "report_phone", (500, 1500))
    with mlflow_ui(folder) as address:
        for name, (place, height) in mlflow_pages(folder).items():
            picture(arguments.chromium, f"{address}/{place}", name, (1700, height), shown=1260)


if __name__ == "__main__":
    main()
