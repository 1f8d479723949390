"""Every request of publishing to an object store crashes, fails, is lost, or freezes its process.

    python tests/faults/store_faults.py --seed 7 --seconds 600

Jobs of three to six units, with the true lock, claim, publishing and end (no Ray, no engine), on a
store in memory behind the true ObjectStore. After each fault the same job runs again without one;
then the output must verify, hold every row once, and nothing else. Frozen processes are the zombies
of a cluster: while one stands still at a request, the same job, or another one, takes the output
over and ends; then the zombie goes on. What the other published must stay whole. Between the cases,
in random order, come random pairs of faults: frozen, then a crash of the successor, a third start,
and the zombie wakes. Exit code 1, and each case that went wrong, if anything is lost, doubled,
wrong or left, or if readers are misled.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]
import local_job  # noqa: E402
from fault_cases import arguments, try_all  # noqa: E402
from faulty_store import ADDRESS, Crash, FaultyStore, MemoryObjects, outputs_in  # noqa: E402

from pipeline.errors import ConfigError  # noqa: E402
from pipeline.planning.job_plan import JobPlan  # noqa: E402
from pipeline.publishing.scores import open_scores  # noqa: E402
from pipeline.storage.object_store import ObjectStore  # noqa: E402

CRASHES = ("crash", "crash-after", "half")
FAILURES = ("fail", "fail-on", "lost", "twice")
DEAD = -9  # exit code of a process that crashed


class Case(NamedTuple):
    """A fault at request `at` of a scenario."""

    scenario: str
    at: int
    how: str  # of `FaultyStore`; fail-on: all from there; frozen-same, frozen-other

    def __str__(self) -> str:
        return f"{self.scenario}: {self.how} at request {self.at}"


class Faults:
    """The scenarios, and what came of the cases."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        local_job.write_input(folder / "input")
        self.small = local_job.plan_of(folder, ADDRESS, 10, overwrite=True)
        self.large = local_job.plan_of(folder, ADDRESS, 20, overwrite=True)
        self.start: dict[str, MemoryObjects] = {}
        self.plans: dict[str, JobPlan] = {}
        self.requests: dict[str, list[str]] = {}
        self.tried: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.process: object = None  # whose requests are made now
        self.log = io.StringIO()
        self.before: set[str] = set()  # what readers see where a scenario begins

    def prepare(self) -> None:
        """Make the state that each scenario starts from, and count its requests."""
        store = MemoryObjects()
        self._keep("fresh", self.large, store)
        assert self.run(self.small, store) == 0, self.log.getvalue()
        assert not self.look(store)
        self._keep("overwrite", self.large, store)
        self._keep("finished", self.small, store)
        lost = store.copy()
        lost.delete([next(o.key for o in lost.list() if o.key.startswith("part-u000003"))])
        self._keep("lost part", self.small, lost)
        names = self.requests["fresh"]
        records = [at for at, name in enumerate(names) if name.startswith("create _units/")]
        stopped = MemoryObjects()
        assert self.run(self.large, stopped, one_fault(records[1] + 2, "crash")) == DEAD
        self._keep("resume", self.large, stopped)
        commit = max(at for at, name in enumerate(names) if name == "swap _identity.json")
        untidy = MemoryObjects()
        assert self.run(self.large, untidy, one_fault(commit + 2, "crash")) == DEAD
        self._keep("untidy", self.large, untidy)

    def _keep(self, name: str, plan: JobPlan, store: MemoryObjects) -> None:
        self.start[name], self.plans[name] = store.copy(), plan
        self.before |= set(self.readers_see(store))
        trial = FaultyStore(store.copy())
        assert self._do(plan, trial) == 0, self.log.getvalue()
        self.requests[name] = trial.names

    def run(
        self, plan: JobPlan, store: ObjectStore, fault: Callable[[int], object] | None = None
    ) -> int:
        """Do a job in a process of its own; its exit code."""
        return self._do(plan, FaultyStore(store, fault))

    def _do(self, plan: JobPlan, process: FaultyStore) -> int:
        before, self.process = self.process, process
        try:
            with contextlib.redirect_stderr(self.log):
                return local_job.run(plan)
        except Crash:
            return DEAD
        finally:
            self.process = before

    def look(self, store: ObjectStore) -> list[str]:
        """What is wrong with a finished output."""
        before, self.process = self.process, store
        try:
            return local_job.problems_at(ADDRESS)
        except (ConfigError, OSError) as error:
            return [str(error)]
        finally:
            self.process = before

    def readers_see(self, store: ObjectStore) -> list[str]:
        """What is wrong for those who read what the head names; nothing while no job is done."""
        before, self.process = self.process, store
        try:
            table = open_scores(ADDRESS).to_table()
        except ConfigError:
            return []
        except (OSError, ValueError) as error:
            return [str(error)]
        finally:
            self.process = before
        rows = table.column("row_id").to_pylist()
        return [] if rows == list(range(local_job.ROWS)) else [f"rows {rows}"]

    def cases(self) -> list[Case]:
        """Every case there is, in random order."""
        hows = (*CRASHES, *FAILURES, "frozen-same", "frozen-other")
        found = [
            Case(name, at, how)
            for name, requests in self.requests.items()
            for at in range(1, len(requests) + 1)
            for how in hows
            if how != "half" or requests[at - 1].startswith("delete")
        ]
        self.random.shuffle(found)
        return found

    def takes(self, case: Case, unconditional: bool) -> bool:
        """Whether a case is to be tried; the condition of a put matters to zombies alone."""
        name = self.requests[case.scenario][case.at - 1]
        return not unconditional or (case.how.startswith("frozen") and name.startswith("swap"))

    def try_case(self, case: Case) -> None:
        """Do a case, and note what is wrong."""
        store, plan = self.start[case.scenario].copy(), self.plans[case.scenario]
        if case.how.startswith("frozen"):
            problem = self._frozen(case, store, plan)
        else:
            code = self.run(plan, store, one_fault(case.at, case.how))
            problem = self._after(case, store, plan, code)
        self.note(case.scenario, case.how, str(case), problem)

    def note(self, scenario: str, kind: str, what: str, problem: str | None) -> None:
        self.tried[scenario, kind] += 1
        if problem is not None:
            self.wrong.append(what)
            log = "\n    ".join(self.log.getvalue().strip().splitlines()[-6:])
            print(f"WRONG {what} ({self._name(what)}): {problem}\n    {log}", flush=True)
        self.log.seek(0)
        self.log.truncate()

    def _name(self, what: str) -> str:
        scenario, _, rest = what.partition(": ")
        at = rest.rpartition(" ")[2]
        names = self.requests.get(scenario, [])
        return names[int(at) - 1] if at.isdigit() and int(at) <= len(names) else "?"

    def _after(self, case: Case, store: ObjectStore, plan: JobPlan, code: int) -> str | None:
        """What a fault left must not mislead readers, and another start must finish the job."""
        allowed = {*((DEAD, 0) if case.how in CRASHES else (0, 4))}
        if code not in allowed:
            return f"exit code {code}"
        problems = [text for text in self.readers_see(store) if text not in self.before]
        if problems:
            return f"readers see {problems[0]}"
        # A job has finished, even if what it leaves could not be removed any more.
        problems = [text for text in self.look(store) if not text.endswith(" is left")]
        if code == 0 and problems:
            return f"exit code 0, but {problems[0]}"
        return self._finish(store, plan)

    def _finish(self, store: ObjectStore, plan: JobPlan) -> str | None:
        code = self.run(plan, store)
        if code:
            return f"the next start ends with {code}"
        problems = self.look(store)
        return f"after the next start {problems[0]}" if problems else None

    def _frozen(self, case: Case, store: ObjectStore, plan: JobPlan) -> str | None:
        """Another start takes over while the process stands at a request; then it goes on."""
        other = plan if case.how == "frozen-same" else self._another(plan)
        codes = []

        def meanwhile() -> None:
            codes.append(self.run(other, store))
            if problems := self.look(store):
                raise AssertionError(f"the successor: {problems[0]}")

        try:
            code = self.run(plan, store, one_fault(case.at, meanwhile))
        except AssertionError as error:
            return str(error)
        return self._zombie_went_on(store, plan, code, codes)

    def _another(self, plan: JobPlan) -> JobPlan:
        return self.small if plan is self.large else self.large

    def _zombie_went_on(
        self, store: ObjectStore, plan: JobPlan, code: int, codes: list[int]
    ) -> str | None:
        if codes and codes[-1]:
            return f"the successor ended with {codes[-1]}"
        if code not in (0, 4, 5):
            return f"the zombie ended with {code}"
        if problems := self.look(store):  # by now, without another start
            return f"after the zombie (exit {code}) {problems[0]}"
        return self._finish(store, plan)

    def try_double(self) -> None:
        """A zombie sleeps through a successor's crash and a third start."""
        name = self.random.choice(list(self.plans))
        store, plan = self.start[name].copy(), self.plans[name]
        first = self.random.randint(1, len(self.requests[name]))
        second, how = self.random.randint(1, 60), self.random.choice((*CRASHES, *FAILURES))
        successors = [self.random.choice((self.small, self.large)) for _ in range(2)]
        codes: list[int] = []

        def meanwhile() -> None:
            self.run(successors[0], store, one_fault(second, how))
            codes.append(self.run(successors[1], store))

        code = self.run(plan, store, one_fault(first, meanwhile))
        problem = self._zombie_went_on(store, plan, code, codes)
        sizes = [len(each.units) for each in successors]
        what = f"{name}: successors of {sizes} units, {how} at {second}; frozen at {first}"
        self.note(name, "frozen, then a fault", what, problem)


def one_fault(at: int, how: object) -> Callable[[int], object]:
    """The fault at that request alone, or from it on."""
    if how == "fail-on":
        return lambda count: "fail" if count >= at else ""
    return lambda count: how if count == at else ""


def main() -> int:
    wanted = arguments(__doc__, "--unconditional")
    if wanted.broken:
        MemoryObjects.create = lambda self, key, data: self.put(key, data)  # type: ignore
        MemoryObjects.swap = lambda self, key, data, etag: self.put(key, data)  # type: ignore
    local_job.without_ray()
    with tempfile.TemporaryDirectory(prefix="dpiframe-faults-") as name:
        faults = Faults(Path(name), wanted.seed)
        with outputs_in(lambda: faults.process):
            faults.prepare()
            cases = [case for case in faults.cases() if faults.takes(case, wanted.broken)]
            return try_all(faults, cases, wanted)


if __name__ == "__main__":
    sys.exit(main())
