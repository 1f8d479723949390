"""`partition_by`: one job, many outputs, each complete in a folder such as date=2026-11-19/hour=5.

Every partition has its own identity, lock, records, manifest and `_SUCCESS`. It is finished as soon
as its last unit is published; those that were finished before are not touched.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.planning.units import Unit
from pipeline.publishing.key_check import keys_are_checked
from pipeline.publishing.last_error import forget_error
from pipeline.publishing.output import Claim, Lock, Output, open_output
from pipeline.publishing.publish import Publisher
from pipeline.publishing.records import Manifest
from pipeline.storage.address import is_remote, join

ASKED_AT_ONCE = 16  # partitions

Answer = TypeVar("Answer")


class Publishers:
    """The publishers of an attempt, one an output; made on any host."""

    def __init__(self, output: str, attempt: str) -> None:
        self._output = output
        self._attempts = json.loads(attempt) if attempt.startswith("{") else {"": attempt}
        self._known: dict[str, Publisher] = {}

    def of(self, unit: Unit) -> Publisher:
        """The publisher of a unit's output."""
        if unit.folder not in self._known:
            output = open_output(below(self._output, unit.folder))
            self._known[unit.folder] = output.publisher(self._attempts[unit.folder])
        return self._known[unit.folder]


def below(root: str, folder: str) -> str:
    """The output of a partition; the root itself for none."""
    if not folder:
        return root
    return join(root, folder) if is_remote(root) else str(Path(root) / folder)


class _Part:
    """One partition, which is open until its manifest is there."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan, self.output = plan, open_output(plan.config.output)
        self.held = contextlib.ExitStack()
        self.lock: Lock | None = None
        self.attempt = ""
        self.pending: set[str] = set()
        self.quarantined: list[Quarantined] = []
        self.manifest: Manifest | None = None

    def finished(self) -> Manifest | None:
        """The manifest, if the partition is finished and whole."""
        manifest = self.output.completed(self.plan.identity)
        names = (unit.name for unit in self.plan.units)
        if manifest is None or not self.output.is_whole(manifest, names):
            return None
        return manifest if keys_are_checked(manifest, self.plan.config) else None

    def finish(self) -> None:
        """Publish the manifest and give the lock back."""
        assert self.lock is not None
        self.lock.check()
        self.manifest = self.output.finish(
            self.plan, self.attempt, self.quarantined, self.lock.check
        )
        self.output.tidy()
        forget_error(self.output)
        self.held.close()

    def settle(self) -> None:
        """Write again, and remove, what a crash right after the end left."""
        self.output.settle()
        self.output.tidy_finished(wait=False)


class PartitionedOutput:
    """The outputs of a job as one: what a job asks of an `Output`, asked of those not finished."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._root = open_output(plan.config.output)
        self.address, self.tracking = self._root.address, self._root.tracking
        self._parts = [_Part(part) for part in plan.parts]
        self._part_of = {unit.name: part for part in self._parts for unit in part.plan.units}

    @property
    def open_outputs(self) -> list[tuple[Output, str]]:
        """Those that are claimed and not finished, and the attempt of each."""
        claimed = [part for part in self._parts if part.attempt and part.manifest is None]
        return [(part.output, part.attempt) for part in claimed]

    def manifests(self) -> list[tuple[Output, Manifest]]:
        """The partitions that are finished, each with its manifest."""
        return [(part.output, part.manifest) for part in self._parts if part.manifest is not None]

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """As `Output.errors`."""
        return self._root.errors()

    def completed(self, identity: str) -> Manifest | None:
        """One manifest of all partitions, if all are finished and whole."""
        for part, manifest in self._asked(_Part.finished, self._parts):
            part.manifest = manifest
        return None if any(part.manifest is None for part in self._parts) else self._combined()

    def is_whole(self, manifest: Manifest, units: object) -> bool:
        """Whether all are; `completed` has looked at that."""
        return True

    @contextlib.contextmanager
    def lock(self, wait: bool = True) -> Iterator[Lock]:
        """The locks of all partitions that are not finished; each is given back with its end."""
        with contextlib.ExitStack() as all_held:
            for part in self._open():
                all_held.enter_context(part.held)
                part.lock = part.held.enter_context(part.output.lock(wait))
            yield self

    def check(self) -> None:
        """Raise if a lock is no longer ours."""
        for part in self._open():
            if part.lock is not None:
                part.lock.check()

    def check_claim(self, plan: JobPlan) -> bool:
        """As `Output.check_claim`, of the partitions that are not finished."""
        asked = self._asked(lambda part: part.output.check_claim(part.plan), self._open())
        return all(answer for _, answer in asked)

    def claim(self, plan: JobPlan) -> Claim:
        """Claim the partitions that are not finished; the records are those of all."""
        finished = self.manifests()
        records = {record.unit: record for _, manifest in finished for record in manifest.units}
        claims = self._asked(lambda part: part.output.claim(part.plan), self._open())
        for part, claim in claims:
            part.attempt, found = claim
            records |= found
            part.pending = {unit.name for unit in part.plan.units} - found.keys()
        attempts = {part.plan.units[0].folder: part.attempt for part in self._parts}
        return Claim(json.dumps(attempts), records)

    def published_names(self, plan: JobPlan) -> set[str]:
        """As `Output.published_names`."""
        asked = self._asked(lambda part: part.output.published_names(part.plan), self._parts)
        return set().union(*(names for _, names in asked))

    def left_out(self, entry: Quarantined) -> None:
        """Note a unit that is quarantined; finishes its partition if it was the last."""
        assert entry.unit is not None
        self._part_of[entry.unit].quarantined.append(entry)
        self.unit_done(entry.unit)

    def unit_done(self, unit: str) -> None:
        """Finish the unit's partition if it was the last. Raises what `Output.finish` raises."""
        part = self._part_of[unit]
        part.pending.discard(unit)
        if not part.pending and part.manifest is None:
            part.finish()

    def finish(
        self,
        plan: JobPlan,
        attempt: str,
        quarantined: Sequence[Quarantined],
        check: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """Finish what is not finished yet, and what a crash left of the rest; one manifest of all,
        which is written nowhere.
        """
        finished_before = [part for part in self._parts if part.lock is None]
        for part in self._open():
            part.finish()
        self._asked(_Part.settle, finished_before)
        return self._combined()

    def settle(self) -> None:
        """As `Output.settle`, of all."""
        self._asked(lambda part: part.output.settle(), self._parts)

    def tidy(self) -> None:
        """Each partition was tidied at its end."""

    def tidy_finished(self, wait: bool) -> None:
        """As `Output.tidy_finished`, of all."""
        self._asked(lambda part: part.output.tidy_finished(wait), self._parts)

    @staticmethod
    def _asked(
        ask: Callable[[_Part], Answer], parts: Sequence[_Part]
    ) -> list[tuple[_Part, Answer]]:
        """What each says, in their order; side by side, as most of it is waiting for a store."""
        with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
            return list(zip(parts, threads.map(ask, parts), strict=True))

    def _open(self) -> list[_Part]:
        return [part for part in self._parts if part.manifest is None]

    def _combined(self) -> Manifest:
        found = [part.manifest for part in self._parts if part.manifest is not None]
        counts = [each.duplicate_keys for each in found if each.duplicate_keys is not None]
        return found[0].model_copy(
            update={
                "identity": self._plan.identity,
                "config": self._plan.config.public(),
                "rows": sum(each.rows for each in found),
                "scored": sum(each.scored for each in found),
                "rejected": sum(each.rejected for each in found),
                "units": [record for each in found for record in each.units],
                "quarantined": [entry for each in found for entry in each.quarantined],
                "duplicate_keys": sum(counts) if len(counts) == len(found) else None,
                "files": [file for each in found for file in each.files],
            }
        )
