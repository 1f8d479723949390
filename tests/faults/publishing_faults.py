"""Every file-system call of publishing crashes, fails, or is the last before a power loss.

    python tests/faults/publishing_faults.py --seed 7 --seconds 600

Jobs of three to six units, with the true lock, claim, publishing and end (no Ray, no engine), run
over the shim. After each fault the same job runs again without one; then the output must verify,
hold every row once, and nothing else. A finished output must be whole for readers after every
fault, and after every power loss that follows exit code 0. The cases are tried in random order
until the time is over, and between them random power losses after a crash and another start. Exit
code 1, and each case that went wrong, with its log, if anything is lost, doubled, wrong, left, or
hangs.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]
import fault_shim  # noqa: E402
import local_job  # noqa: E402
from fault_cases import arguments, try_all  # noqa: E402
from power_loss import MODELS, Disk, random_model  # noqa: E402

from pipeline.errors import ConfigError  # noqa: E402
from pipeline.planning.job_plan import JobPlan  # noqa: E402
from pipeline.publishing import atomic  # noqa: E402
from pipeline.publishing import folder as folder_output  # noqa: E402
from pipeline.publishing.lock import Owner  # noqa: E402
from pipeline.publishing.records import Manifest, OutputLayout, read_json  # noqa: E402
from pipeline.publishing.scores import open_scores  # noqa: E402
from pipeline.publishing.verify import content_problems  # noqa: E402

HANG_SECONDS = 5.0
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EROFS": errno.EROFS}
CRASHES = ("crash", "crash-after", "half")
WRONG, FAILED = 98, 99  # exit codes of a child: the output is wrong; a traceback


class Case(NamedTuple):
    """A fault at call `at` of a scenario; `how`: of the shim, or a model of what a disk keeps."""

    scenario: str
    kind: str  # "crash", "fail" or "power"
    at: int
    how: str
    error: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [self.scenario, f"call {self.at}", self.how, self.error]))


class Faults:
    """The scenarios, their traces, and what came of the cases."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.disk, self.output = folder / "disk", folder / "disk" / "deep" / "output"
        self.log, self.trace = folder / "log", folder / "trace"
        local_job.write_input(folder / "input")
        self.small = local_job.plan_of(folder, self.output, 10, overwrite=True)
        self.large = local_job.plan_of(folder, self.output, 20, overwrite=True)
        self.plans: dict[str, JobPlan] = {}
        self.calls: dict[str, list[fault_shim.Call]] = {}
        self.counts: dict[str, int] = {}
        self.tried: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.before: set[str] = set()  # what readers see where a scenario begins
        self._prepare()

    def _prepare(self) -> None:
        """Make the state that each scenario starts from, and trace it without a fault."""
        self.disk.mkdir()
        self._keep("fresh", self.large)
        assert self._run(self.small) == 0, self.log.read_text()
        self._keep("overwrite", self.large)
        self._keep("finished", self.small)
        next(self.output.glob("part-u000003*")).unlink()
        self._keep("lost part", self.small)
        calls = self.calls["fresh"]
        records = [i for i, call in enumerate(calls) if "/_units/u" in call.to]
        self._reset("fresh")
        assert self._run(self.large, at=records[1] + 5, mode="crash") < 0  # two are published
        self._keep("resume", self.large)
        self._reset("finished")
        layout = OutputLayout(self.output)
        layout.units.mkdir()
        manifest = read_json(layout.manifest, Manifest)
        assert manifest is not None
        for record in manifest.units[:2]:
            layout.record(record.unit).write_text(record.model_dump_json())
        for name in ("._SUCCESS", f".part-{record.unit}.parquet"):
            (self.output / f"{name}.dpiframe-tmp-0123456789ab").write_bytes(b"half")
        dead = replace(Owner.this_process(), pid=1 << 30)
        layout.root.joinpath("_lock").write_text(json.dumps(asdict(dead)))
        self._keep("untidy", self.small)

    def _keep(self, name: str, plan: JobPlan) -> None:
        shutil.copytree(self.disk, self.folder / name)
        self.plans[name] = plan
        self._reset(name)
        self.before |= set(reader_problems(self.output))
        assert self._run(plan, trace=True) == 0, self.log.read_text()
        self.calls[name] = fault_shim.read_trace(self.trace)
        self.counts[name] = int((self.folder / "count").read_text())
        self._reset(name)

    def _reset(self, name: str) -> None:
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(self.folder / name, self.disk)

    def _run(
        self, plan: JobPlan, at: int = 0, mode: str = "", error: int = 0, trace: bool = False
    ) -> int:
        """Do a job in a child over the armed shim; its exit code."""

        def work() -> int:
            fault_shim.arm(self.disk, at, mode, error, self.trace if trace else None)
            code = local_job.run(plan)
            (self.folder / "count").write_text(str(fault_shim.count()))
            return code

        self.trace.unlink(missing_ok=True)
        return self._child(work)

    def _finish(self, plan: JobPlan) -> int:
        """Do a job without a fault, and look at its output."""

        def work() -> int:
            return local_job.run(plan) or self._look()

        return self._child(work)

    def _look(self) -> int:
        problems = local_job.problems_of(self.output)
        print(*problems, sep="\n", file=sys.stderr, flush=True)
        return WRONG if problems else 0

    def _child(self, work: Callable[[], int]) -> int:
        """What `work` returns in a forked process, the negative signal that ended it."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = FAILED
            try:
                code = work()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        began = time.monotonic()
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            spent = time.monotonic() - began
            if spent > HANG_SECONDS and spent - waited_for_processor(child) > HANG_SECONDS:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return FAILED
            time.sleep(0.0005)

    def cases(self) -> list[Case]:
        """Every case there is, in random order."""
        found = []
        for name, calls in self.calls.items():
            numbers = range(1, self.counts[name] + 1)
            found += [Case(name, "crash", at, how) for at in numbers for how in CRASHES]
            kinds = itertools.product(numbers, ("once", "forever"), ERRORS)
            found += [Case(name, "fail", at, how, error) for at, how, error in kinds]
            found += [Case(name, "fail", at, "short") for at in numbers]
            points = itertools.product(range(len(calls) + 1), MODELS)
            found += [Case(name, "power", at, model) for at, model in points]
        self.random.shuffle(found)
        return found

    def try_case(self, case: Case) -> None:
        """Do a case, and note what is wrong."""
        self.log.write_text("")
        problem = self._power(case) if case.kind == "power" else self._fault(case)
        self.note(case.scenario, case.kind, str(case), problem)

    def note(self, scenario: str, kind: str, what: str, problem: str | None) -> None:
        self.tried[scenario, kind] += 1
        if problem is not None:
            self.wrong.append(what)
            log = "\n    ".join(self.log.read_text().strip().splitlines()[-6:])
            print(f"WRONG {what}: {problem}\n    {log}", flush=True)

    def _fault(self, case: Case) -> str | None:
        plan = self.plans[case.scenario]
        self._reset(case.scenario)
        code = self._run(plan, case.at, case.how, ERRORS.get(case.error, 0))
        if case.kind == "fail":
            if code not in (0, 4):
                return f"exit code {code}"
            if code == 0 and (code := self._child(self._look)):
                return f"exit code 0, but the output is not whole ({code})"
        elif code not in (-signal.SIGKILL, 0):
            return f"exit code {code}"
        return self._after(plan)

    def _power(self, case: Case) -> str | None:
        calls = self.calls[case.scenario]
        disk = Disk(self.disk, self.folder / case.scenario)
        disk.replay(calls[: case.at])
        return self._lose(disk, MODELS[case.how], case.at == len(calls), self.plans[case.scenario])

    def _lose(self, disk: Disk, model: object, ended: bool, plan: JobPlan) -> str | None:
        shutil.rmtree(self.disk, ignore_errors=True)
        disk.write(self.disk, model)
        if ended and self._child(self._look):
            return "a finished job did not outlive a power loss"
        return self._after(plan)

    def _after(self, plan: JobPlan) -> str | None:
        """What a fault left must not mislead readers, and another start must finish the job."""
        problems = [text for text in reader_problems(self.output) if text not in self.before]
        if problems:
            return f"readers see {problems[0]}"
        code = self._finish(plan)
        return None if code == 0 else f"the next start ends with {code}"

    def try_double(self) -> None:
        """A crash, another start, and a power loss at any call of it, or after its end."""
        name = self.random.choice(list(self.plans))
        plan = self.plans[name]
        self.log.write_text("")
        self._reset(name)
        disk = Disk(self.disk, self.folder / name)
        first = self.random.randint(1, self.counts[name])
        self._run(plan, first, self.random.choice(CRASHES), trace=True)
        disk.replay(fault_shim.read_trace(self.trace) if self.trace.exists() else [])
        disk.crash()
        code = self._run(plan, trace=True)
        calls = fault_shim.read_trace(self.trace) if self.trace.exists() else []
        second, seed = self.random.randint(0, len(calls)), self.random.randrange(1 << 30)
        if self.random.random() < 0.2:
            second = len(calls)
        disk.replay(calls[:second])
        ended = second == len(calls)
        problem = f"exit code {code}" if code else self._lose(disk, random_model(seed), ended, plan)
        what = f"{name} crash at {first}, power loss at {second} of {len(calls)}, coin {seed}"
        self.note(name, "crash, then power", what, problem)


def waited_for_processor(pid: int) -> float:
    """Seconds that threads of a process were ready, but others had the processors."""
    waits = [path.read_text().split()[1] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, waits)) / 1e9


def reader_problems(output: Path) -> list[str]:
    """What is wrong for those who read by the manifest; nothing while no job is finished."""
    layout = OutputLayout(output)
    try:
        open_scores(output)
    except ConfigError:
        return []
    except OSError as error:
        return [str(error)]
    manifest = read_json(layout.manifest, Manifest)
    assert manifest is not None
    found = []
    for record in manifest.units:
        with (layout.root / record.part).open("rb") as file:
            found += content_problems(file, record.part, record.sha256, record.bytes)
    return found


def main() -> int:
    wanted = arguments(__doc__, "--without-sync")
    if wanted.broken:
        atomic.sync_folder = folder_output.sync_folder = lambda folder: None
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dpiframe-faults-", dir=where) as name:
        folder = Path(name)
        if not fault_shim.preloaded():
            return fault_shim.run_over_shim(fault_shim.build(folder))
        local_job.without_ray()
        faults = Faults(folder, wanted.seed)
        return try_all(faults, faults.cases(), wanted)


if __name__ == "__main__":
    sys.exit(main())
