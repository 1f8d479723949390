"""Output: where the scores of a job go, whatever holds them; `open_output` chooses by the address.

A job takes the lock, claims the output for one attempt, lets scorers publish units by publishers
of that attempt, finishes with a manifest, and tidies. Everything else only looks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.publish import Publisher
from pipeline.publishing.records import (
    IdentityFile,
    Manifest,
    Success,
    UnitRecord,
    recorded_unit,
)
from pipeline.storage.address import is_remote

if TYPE_CHECKING:
    import pyarrow.dataset as pads  # brings pandas: a fifth of a second


class Claim(NamedTuple):
    """An output that is this job's: the attempt's id, and the units that are published already."""

    attempt: str
    records: dict[str, UnitRecord]


class Lock(Protocol):
    """Keeps other jobs from an output while it is entered."""

    def check(self) -> None:
        """Raise if the lock is no longer ours: call it before what must not be done twice."""


class Output(ABC):
    """One job at a time writes it: under `lock`, inside `errors`.

    `address` is what people know it by. `tracking` is the local folder of its tracking records.
    Names of files are relative to the address; `readers` files are best read at one time.
    """

    address: str
    tracking: Path
    readers = 4

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Turns OSErrors of the storage into errors of the job, with address and remedy."""

    @abstractmethod
    def lock(self, wait: bool = True) -> AbstractContextManager[Lock]:
        """The lock, to be entered; LockedError names its owner.

        `wait`: for a lock of another host to prove dead.
        """

    @abstractmethod
    def check_claim(self, plan: JobPlan) -> bool:
        """Whether the output is this job's, or nobody's, to go on in; False: it is replaced.

        Raises ConfigError when it belongs to another job and `overwrite` is off, or holds parquet
        files that no job wrote. Touches nothing.
        """

    @abstractmethod
    def claim(self, plan: JobPlan) -> Claim:
        """Make the output this job's and start an attempt; the caller holds the lock.

        Publishers of earlier attempts publish nothing that counts from then on. Raises what
        `check_claim` raises.
        """

    @abstractmethod
    def publisher(self, attempt: str) -> Publisher:
        """Publishes units of that attempt; made on any host."""

    @abstractmethod
    def finish(
        self,
        plan: JobPlan,
        attempt: str,
        quarantined: Sequence[Quarantined],
        check: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """Check that every row has its outcome, then publish the manifest.

        `quarantined`: units left out while scoring; the plan holds the files left out before.
        `check` raises when the output belongs to another job by now. Raises ResumableError when a
        unit is missing, ContractError above the limit of rejected rows.
        """

    @abstractmethod
    def settle(self) -> None:
        """Of a finished job: write again what a crash after the commit left unwritten."""

    @abstractmethod
    def tidy(self) -> None:
        """After success: remove what only a running job needs. Never raises."""

    @abstractmethod
    def tidy_finished(self, wait: bool) -> None:
        """Remove what a crash after the end left, a dead job's lock too. Never raises.

        Does nothing while a job holds the output. The caller has seen that it is finished and
        whole.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is anything that could be an output, an empty folder too."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Bytes of every file in the output, by name; without hidden and tracking files."""

    @abstractmethod
    def owner(self) -> IdentityFile | None:
        """Whose output this is. ConfigError: the file is not one that a job wrote."""

    @abstractmethod
    def manifest(self) -> Manifest | None:
        """The manifest, if one is there. ConfigError: the file is not one that a job wrote."""

    @abstractmethod
    def committed(self) -> Manifest | None:
        """The manifest of a finished job, which readers follow. ConfigError as above."""

    @abstractmethod
    def success(self) -> Success | None:
        """`_SUCCESS`. ConfigError: the file is not one that a job wrote."""

    @abstractmethod
    def open(self, name: str) -> BufferedIOBase:
        """One file, to read. FileNotFoundError where it is gone."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Put a file beside the scores, such as what was made of them; OSError."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove such a file, if it is there; OSError."""

    @abstractmethod
    def dataset(self, parts: Sequence[UnitRecord]) -> pads.Dataset:
        """The rows of some units, in this order."""

    def path(self, name: str) -> str:
        """Where a file lies."""
        return f"{self.address}/{name}"

    def completed(self, identity: str) -> Manifest | None:
        """The manifest if this job has finished before; its files may be lost, see `is_whole`."""
        return _of(identity, self.committed())

    def manifest_of(self, identity: str) -> Manifest | None:
        """The manifest if it is this job's."""
        return _of(identity, self.manifest())

    def is_litter(self, name: str) -> bool:
        """Whether `tidy_finished` removes a file of such a name that the manifest does not name."""
        return False

    def copy_problems(self, manifest: Manifest) -> Iterator[str]:
        """Copies of the manifest that readers may follow are equal to it."""
        yield from ()

    def is_whole(self, manifest: Manifest, units: Iterable[str]) -> bool:
        """Whether a finished job has exactly these units, and files of the recorded sizes."""
        found = [record.unit for record in manifest.units]
        found += [entry.unit for entry in manifest.quarantined if entry.unit is not None]
        if sorted(found) != sorted(units):
            return False
        sizes = self.sizes()
        return all(has_files(sizes, record) for record in manifest.units)

    def published_names(self, plan: JobPlan) -> set[str]:
        """Units that are published as far as names tell: a record, or a place in the manifest."""
        sizes, manifest = self.sizes(), self.manifest_of(plan.identity)
        named = manifest.units if manifest else []
        whole = {record.unit for record in named if has_files(sizes, record)}
        return whole | recorded_units(sizes)


def open_output(address: str | Path) -> Output:
    """The output at a path or an address. ConfigError: it cannot be opened."""
    if is_remote(str(address)):
        from pipeline.publishing.store import StoreOutput

        return StoreOutput(str(address))
    from pipeline.publishing.folder import FolderOutput

    return FolderOutput(address)


def has_files(sizes: Mapping[str, int], record: UnitRecord) -> bool:
    """Whether the files that a record names exist, the scores with the recorded size."""
    same = sizes.get(record.part) == record.bytes
    return same and (record.rejected_part is None or record.rejected_part in sizes)


def recorded_units(names: Iterable[str]) -> set[str]:
    """The units that have records among these files."""
    return {unit for name in names if (unit := recorded_unit(name))}


def _of(identity: str, manifest: Manifest | None) -> Manifest | None:
    return manifest if manifest is not None and manifest.identity == identity else None
