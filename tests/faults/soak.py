"""Random SIGKILLs over a job under load: scorers, read workers, raylets, drivers, from a seed.

    python tests/faults/soak.py --kills 100 --seed 7 [--ray own] [--nodes 2]
    python tests/faults/soak.py --kills 100 --seed 7 --device cuda --lanes 6
    python tests/faults/soak.py --kills 300 --seed 7 --output s3 --runner local --lanes 2

Half of the kills hit jobs with a Ray of their own, whose scorers read, half jobs on a cluster of
several nodes, where tasks read; with --ray all of them one kind. Lanes are processes that do so
side by side, on one GPU if need be, each with jobs on a Ray of their own; in every other lane tasks
read. With --output s3 jobs publish to a SeaweedFS of this machine, which is killed and started
again as well; with --runner local there is no Ray, and of the job only the driver can be killed. A
job that ends is started again by the same command. Each finished output is verified: every row
once, in order, with the reference's score, no published file written twice, no file left over.

The last line is JSON: kills, by what they hit, and what they did. Exit code 1, and the job's log
before it, if anything is lost, doubled, wrong, left over or hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]
from ray_nodes import RayNodes  # noqa: E402
from running_job import Case, HangError, RunningJob, wait_for  # noqa: E402

if TYPE_CHECKING:  # what --output s3 needs may be missing
    from weed_server import WeedServer

RAYS = ["own", "nodes"]
# A driver whose Ray is gone must have ended by then; a job must have gone on by then.
END_SECONDS, GO_ON_SECONDS = 60.0, 180.0
POLL_SECONDS = 0.02  # several lanes share the cores with their jobs
FAULTS = [
    *("lost", "doubled", "wrong", "rewritten", "left_over", "problems"),  # `Case.faults`
    *("hanging", "failed"),
]
KINDS = {
    "scorer": ("scorer", "raylet", "driver"),
    "tasks": ("scorer", "reader", "raylet", "driver"),
    "local": ("driver",),
}


class Soak:
    """Jobs one after the other on one kind of Ray, until so many kills are done."""

    def __init__(
        self,
        folder: Path,
        nodes: RayNodes | None,
        seed: int,
        server: WeedServer | None = None,
        **keys: object,
    ) -> None:
        self.folder, self.nodes, self.keys, self.server = folder, nodes, keys, server
        self.random = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.reruns: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.jobs = 0
        self.slowest = 0.0

    def run(self, kills: int) -> None:
        """Kill so many times, then let the last job end; AssertionError if anything is wrong."""
        victims = self._victims(kills)
        kind = next(victims, None)
        while kind is not None:
            self.jobs += 1
            folder = self.folder / f"job-{self.jobs}"
            folder.mkdir()
            address = self.nodes.address if self.nodes else "local"
            case = self._case(folder, address)
            while kind is not None and not case.finished():
                kind = self._one_start(case, kind, victims)
            if not case.finished():
                with case.start() as job:
                    code = job.wait()
                    assert code == 0, f"exit {code}\n{job.text()}"
            found = case.faults(self.published)
            self.faults.update(found)
            print(f"job {self.jobs}: {case.table.num_rows} rows verified: {found}", flush=True)
            if any(found.values()):
                return

    def _case(self, folder: Path, address: str) -> Case:
        if self.server is None:
            return Case(folder, address, **self.keys)
        from s3_server import BUCKET
        from store_case import StoreCase

        return StoreCase(folder, address, f"s3://{BUCKET}/{folder.name}", **self.keys)

    def _victims(self, kills: int) -> Iterator[str]:
        """Every kind equally often, in random order."""
        kinds = KINDS["local" if self.keys["runner"] == "local" else str(self.keys["read_in"])]
        kinds += ("server",) if self.server else ()
        for first in range(0, kills, len(kinds)):
            yield from self.random.sample(kinds, k=len(kinds))[: kills - first]

    def _one_start(self, case: Case, kind: str | None, victims: Iterator[str]) -> str | None:
        """Run the command and kill until it ends; returns the kind to kill next, None at last."""
        with case.start() as job:
            while kind is not None:
                self.published = case.published()
                time.sleep(self.random.uniform(0, 1))
                wait_for(
                    lambda: job.ended() or len(case.published()) > len(self.published),
                    lambda: f"another unit\n{job.text()}",
                    GO_ON_SECONDS,
                    POLL_SECONDS,
                )
                if job.ended():
                    self._ended(job, "none")
                    return kind
                if self._kill(case, job, kind):
                    kind = next(victims, None)
                    if job.ended():
                        return kind
            code = job.wait()
            assert code in (0, 4), f"exit {code}\n{job.text()}"
            return None

    def _kill(self, case: Case, job: RunningJob, kind: str) -> bool:
        """Kill one of a kind and see the job go on or end; False where there was none just now."""
        victim = self._find(job, kind)
        if victim is None:
            return False
        self.published = case.published()
        self._strike(job, kind, victim)
        began = time.monotonic()
        ends = kind == "driver" or (kind == "raylet" and self.nodes is None)
        limit = END_SECONDS if ends else GO_ON_SECONDS
        wait_for(
            lambda: job.ended() or (not ends and len(case.published()) > len(self.published)),
            lambda: (
                f"the job to {'end' if ends else 'go on'} after the kill of a {kind}\n{job.text()}"
            ),
            limit,
            POLL_SECONDS,
        )
        seconds = time.monotonic() - began
        self.slowest = max(self.slowest, seconds)
        self.kills[kind] += 1
        state = f"ended with {job.process.returncode}" if job.ended() else "went on"
        print(
            f"kill {sum(self.kills.values()):3}  {kind:6}  pid {victim.pid:7}  "
            f"at {len(self.published):4} units  {state} after {seconds:.1f} s",
            flush=True,
        )
        if job.ended():
            self._ended(job, kind)
        return True

    def _ended(self, job: RunningJob, kind: str) -> None:
        """Count a start that must be followed by another, and check how it ended."""
        code = job.process.returncode
        if code == 0:
            return
        self.reruns[kind] += 1
        # Without its raylet Ray may end the driver before the job is told.
        allowed = {"driver": [-signal.SIGKILL], "raylet": [4, 1]}.get(kind, [4])
        assert code in allowed, f"exit {code}\n{job.text()}"

    def _find(self, job: RunningJob, kind: str) -> psutil.Process | None:
        """One process of a kind that works for the job."""
        driver = psutil.Process(job.process.pid)
        if kind == "server" and self.server and self.server.process:
            return psutil.Process(self.server.process.pid)
        if kind == "driver":
            return driver
        found = self.nodes.raylets() if self.nodes else named(driver, "raylet")
        if kind != "raylet":
            root = psutil.Process() if self.nodes else driver
            title = "ray::MapWorker(MapBatches(Scorer" if kind == "scorer" else "ray::ReadUnits"
            found = named(root, title)
        return self.random.choice(found) if found else None

    def _strike(self, job: RunningJob, kind: str, victim: psutil.Process) -> None:
        if kind == "server" and self.server:
            self.server.kill()
            time.sleep(self.random.uniform(0, 2))
            self.server.start()
        elif kind == "driver":
            job.kill()
        elif kind == "raylet" and self.nodes:
            self.nodes.kill(victim)
            self.nodes.add()
        else:
            os.kill(victim.pid, signal.SIGKILL)


def named(root: psutil.Process, title: str) -> list[psutil.Process]:
    """Processes below `root` whose name, or title, begins like that."""
    found = []
    for process in root.children(recursive=True):
        try:
            if process.name() == title or "".join(process.cmdline()[:1]).startswith(title):
                found.append(process)
        except psutil.Error:
            continue
    return found


def summary(soaks: list[Soak], **more: int) -> dict[str, Any]:
    """What the soaks did and found."""
    killed = sum((soak.kills for soak in soaks), Counter())
    faults: Counter[str] = Counter(dict.fromkeys(FAULTS, 0))
    for found in (*(soak.faults for soak in soaks), more):
        faults.update(found)
    return {
        "kills": sum(killed.values()),
        "killed": dict(killed),
        "jobs": sum(soak.jobs for soak in soaks),
        "run_again_after": dict(sum((soak.reruns for soak in soaks), Counter())),
        "slowest_s": round(max((soak.slowest for soak in soaks), default=0.0), 1),
        **faults,
    }


def soak_here(options: argparse.Namespace) -> dict[str, Any]:
    """Kill in this process; the summary."""
    soaks = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        keys = {"shards": options.shards, "device": options.device, "runner": options.runner}
        server = None
        if options.output == "s3":
            from weed_server import weed_server

            server = stack.enter_context(weed_server(folder))
        kinds = RAYS if options.ray is None else [options.ray]
        for number, name in enumerate(kinds):
            kills = (options.kills + number) // len(kinds)
            (folder / name).mkdir()
            if name == "own":
                own = {"read_in": options.read_in or "scorer"}
                soaks.append(Soak(folder / name, None, options.seed, server, **own, **keys))
            else:
                nodes = stack.enter_context(RayNodes(options.nodes))
                keys |= {"num_scorers": options.nodes} if options.device == "cpu" else {}
                soaks.append(
                    Soak(folder / name, nodes, options.seed, server, read_in="tasks", **keys)
                )
            try:
                soaks[-1].run(kills)
            except HangError as error:
                print(f"HANGS: {error}", flush=True)
                return summary(soaks, hanging=1)
            except AssertionError as error:
                print(f"FAILED: {error}", flush=True)
                return summary(soaks, failed=1)
    return summary(soaks)


def soak_in_lanes(options: argparse.Namespace) -> dict[str, Any]:
    """Kill in so many processes at once; the sum of their summaries."""
    running = []
    for lane in range(options.lanes):
        kills = (options.kills + lane) // options.lanes
        command = [sys.executable, __file__, "--ray", "own", "--kills", str(kills)]
        command += ["--seed", str(options.seed + lane), "--shards", str(options.shards)]
        read_in = options.read_in or ("scorer", "tasks")[lane % 2]
        command += ["--device", options.device, "--read-in", read_in]
        command += ["--output", options.output, "--runner", options.runner]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    total: dict[str, Any] = summary([])
    for lane, process in enumerate(running):
        text = process.communicate()[0]
        print("".join(f"lane {lane}: {line}\n" for line in text.splitlines()), flush=True)
        try:
            found = json.loads(text.splitlines()[-1])
        except (ValueError, IndexError):
            total["failed"] += 1
            continue
        for name, value in found.items():
            if isinstance(value, dict):
                total[name] = dict(Counter(total[name]) + Counter(value))
            elif name.endswith("_s"):
                total[name] = max(total.get(name, 0.0), value)
            else:
                total[name] += value
    return total


def main() -> int:
    """Parse, kill, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--ray", choices=RAYS, help="default: half of the kills each")
    parser.add_argument("--read-in", choices=list(KINDS), help="of jobs with a Ray of their own")
    parser.add_argument("--nodes", type=int, default=2, help="besides the head")
    parser.add_argument("--lanes", type=int, default=1, help="more: side by side, --ray own")
    parser.add_argument("--shards", type=int, default=10, help="50 units each")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", choices=["folder", "s3"], default="folder")
    parser.add_argument("--runner", choices=["ray", "local"], default="ray")
    options = parser.parse_args()
    if options.runner == "local":
        options.ray = "own"
    began = time.monotonic()
    found = soak_in_lanes(options) if options.lanes > 1 else soak_here(options)
    found["took_s"] = round(time.monotonic() - began, 1)
    print(json.dumps(found))
    return int(any(found[name] for name in FAULTS) or found["kills"] < options.kills)


if __name__ == "__main__":
    sys.exit(main())
