"""Backfills of hourly partitions from a store into a store and an Iceberg table, under kills.

    python tests/faults/backfills.py --dates 30 --hours 24 --rows 200 --kills 60 --seed 7

`dpiframe backfill` scores so many dates of synthetic Avazu rows, three at a time. Processes of
dates are killed at random moments, and now and then the backfill with all of them; the same command
follows, until it ends with 0. Then the table and the outputs must hold, row for row, what a
backfill without a kill made. The table's catalog is the store's own (REST), or one on sqlite.

The last line is JSON. Exit code 1 if anything is lost, doubled, other or left over.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]
from job_cases import write_config  # noqa: E402
from running_job import COMMAND, ROOT  # noqa: E402
from s3_server import BUCKET  # noqa: E402
from weed_server import WeedServer, file_properties, weed_server  # noqa: E402

from pipeline.data.synth import SynthOptions, synth  # noqa: E402
from pipeline.publishing.scores import open_scores  # noqa: E402
from pipeline.publishing.verify import verify_output  # noqa: E402

FIRST = datetime.date(2026, 11, 1)
PARALLEL = 3
PAUSE_S = 3.0  # at most, between two kills
BACKFILL_EVERY = 5  # kills: the backfill itself


def set_catalog(kind: str, folder: Path, server: WeedServer) -> None:
    """Set the environment for the catalog `lake`, whose tables lie in the store."""
    properties = server.rest_catalog()
    if kind == "sql":
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        properties |= {"warehouse": f"s3://{BUCKET}/warehouse", **file_properties(server.endpoint)}
    for name, value in properties.items():
        name = name.replace(".", "__").replace("-", "_").upper()
        os.environ[f"PYICEBERG_CATALOG__LAKE__{name}"] = value


def upload_rows(folder: Path, endpoint: str, dates: int, hours: int, rows: int) -> int:
    """A file for each hour, of two row groups, and a bundle trained on the first; how many rows."""
    made = {"rows": dates * hours * rows, "rows_per_shard": rows, "cardinality_scale": 0.001}
    synth(SynthOptions(dataset="avazu", output=folder / "rows", **made))
    shards = sorted((folder / "rows").glob("*.parquet"))
    train = ["train", str(shards[0]), "-o", str(folder / "bundle"), "--dataset", "avazu"]
    train += ["--modulus", "1000", "--hidden", "16", "--dim", "8"]
    subprocess.run([*COMMAND, *train], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    client = boto3.client("s3", endpoint_url=endpoint)
    for number, shard in enumerate(shards):
        day = FIRST + datetime.timedelta(days=number // hours)
        # The rows have a column `hour`, of the whole moment, and unsigned keys, which tables lack.
        table, data = pq.read_table(shard), io.BytesIO()
        table = table.set_column(0, "id", table["id"].cast(pa.string()))
        pq.write_table(table, data, row_group_size=-(-rows // 2))
        key = f"rows/date={day}/hh={number % hours:02d}/part-0.parquet"
        client.put_object(Bucket=BUCKET, Key=key, Body=data.getvalue())
    return dates * hours * rows


class Backfills:
    """The same command, whose processes are killed, until it ends with 0."""

    def __init__(self, config: Path, last: datetime.date, seed: int) -> None:
        self.config, self.last = config, last
        self.random = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.starts = 0

    def run(self, name: str, kills: int) -> None:
        """Score all dates into the output and the table `name`; AssertionError: it fails."""
        arguments = [str(self.config), f"output=s3://{BUCKET}/{name}"]
        arguments += [f"table=iceberg://lake/ads.{name}", "--parallel", str(PARALLEL)]
        arguments += ["--from", str(FIRST), "--to", str(self.last)]
        while True:
            self.starts += 1
            with tempfile.TemporaryFile("w+") as log:
                command = [*COMMAND, "backfill", *arguments]
                backfill = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
                killed = self._kill_until_it_ends(backfill, kills)
                log.seek(0)
                text = log.read()
            if backfill.returncode == 0:
                return
            kills -= killed
            assert killed and backfill.returncode in (4, 5, -9), text

    def _kill_until_it_ends(self, backfill: subprocess.Popen[bytes], kills: int) -> int:
        done = 0
        while backfill.poll() is None:
            if done == kills:
                backfill.wait()
                break
            time.sleep(self.random.uniform(0, PAUSE_S))
            dates = psutil.Process(backfill.pid).children() if backfill.poll() is None else []
            if not dates:
                continue
            done += 1
            whole = self.random.randrange(BACKFILL_EVERY) == 0
            self.kills["backfill" if whole else "date"] += 1
            if whole:
                backfill.kill()
            for process in dates if whole else [self.random.choice(dates)]:
                if process.is_running():
                    process.kill()
        return done


def rows_of(table: Any) -> pa.Table:
    """The rows of an Iceberg table, by key."""
    return table.scan().to_arrow().select(["id", "date", "hh", "score"]).sort_by("id")


def problems_of(rows: int) -> dict[str, int]:
    """What is wrong with the output and the table `scores`, by those of `reference`."""
    from pyiceberg.catalog import load_catalog

    lake = load_catalog("lake")
    found, right = (rows_of(lake.load_table(f"ads.{name}")) for name in ("scores", "reference"))
    keys = Counter(found["id"].to_pylist())
    verified = verify_output(f"s3://{BUCKET}/scores")
    print("".join(f"{problem}\n" for problem in verified.problems), end="", flush=True)
    outputs = open_scores(f"s3://{BUCKET}/scores").to_table().sort_by("id")
    return {
        "lost": rows - len(keys),
        "doubled": len(found) - len(keys),
        "other": int(len(right) != rows or not found.equals(right)),
        "other_in_outputs": int(not outputs["score"].equals(right["score"])),
        "problems": len(verified.problems),
    }


def main() -> int:
    """Parse, kill, compare, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("dates", 30), ("hours", 24), ("rows", 200), ("kills", 60), ("seed", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--catalog", choices=["rest", "sql"], default="rest")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="backfills-") as name:
        folder = Path(name)
        with weed_server(folder) as server:
            set_catalog(options.catalog, folder, server)
            from pyiceberg.catalog import load_catalog

            load_catalog("lake").create_namespace("ads")
            sizes = (options.dates, options.hours, options.rows)
            rows = upload_rows(folder, server.endpoint, *sizes)
            config = write_config(
                folder,
                input=f"s3://{BUCKET}/rows/date={{date}}",
                partition_base=f"s3://{BUCKET}/rows",
                partition_by=["date", "hh"],
                key_columns=["id"],
                carry_columns=["click", "date", "hh"],
                runner="local",
                unit_rows=-(-options.rows // 2),
            )
            last = FIRST + datetime.timedelta(days=options.dates - 1)
            work = Backfills(config, last, options.seed)
            work.run("reference", 0)
            work.run("scores", options.kills)
            found = problems_of(rows)
    told = {"rows": rows, "killed": dict(work.kills), "starts": work.starts, **found}
    print(json.dumps(told | {"took_s": round(time.monotonic() - began, 1)}))
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
