"""FolderOutput: an output in a file system, whose renames publish.

The functions claim it for an attempt, finish it with a manifest, clean it up.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.job import resolved_yaml
from pipeline.errors import ConfigError, DpiframeError, ResumableError
from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.atomic import (
    make_folders,
    remove_temporaries,
    sync_folder,
    temporaries,
    write_atomic,
)
from pipeline.publishing.checks import check_owner, make_manifest, needed_units
from pipeline.publishing.key_check import with_checked_keys
from pipeline.publishing.lock import OutputLock
from pipeline.publishing.output import Claim, Output
from pipeline.publishing.publish import FolderPublisher
from pipeline.publishing.records import (
    REJECTED,
    TALLIES,
    UNITS,
    IdentityFile,
    Manifest,
    OutputLayout,
    Success,
    UnitRecord,
    finished_units,
    has_files,
    is_part_name,
    manifest_of,
    part_name,
    read_json,
    write_json,
)

if TYPE_CHECKING:
    import pyarrow.dataset as pads

log = logging.getLogger("dpiframe.job")

# Errors that no rerun cures: names or links that the file system cannot follow.
NOT_RESUMABLE = {errno.ENAMETOOLONG, errno.ELOOP}


@contextlib.contextmanager
def storage_errors(layout: OutputLayout) -> Iterator[None]:
    """Turn operating system errors about the output into errors of the job."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        raise ConfigError(f"output {layout.root} is not a folder: {error}") from error
    except OSError as error:
        if error.errno in NOT_RESUMABLE:
            reason = f"{error.strerror}; choose another output"
            raise ConfigError(f"cannot write to the output {layout.root}: {reason}") from error
        raise ResumableError(
            f"cannot write to {layout.root}: {error}; make room or restore access, then run the "
            "same command: published units are kept"
        ) from error


def claim(layout: OutputLayout, plan: JobPlan) -> tuple[str, dict[str, UnitRecord]]:
    """Make the output this job's and start an attempt; the caller holds the lock.

    Returns the attempt's id and the records of the units that are published already. Raises what
    `check_claim` raises.

    From the new identity on, workers of earlier attempts publish nothing: one that looks at it
    stops, and one that looked before loses the temporary file that it is about to rename. What they
    left is removed after that.
    """
    if not check_claim(layout, plan):
        retract(layout)
    for folder in (layout.root, layout.units, layout.rejected):
        make_folders(folder)
    attempt = uuid.uuid4().hex
    owner = IdentityFile(
        identity=plan.identity,
        attempt=attempt,
        bundle_digest=plan.bundle_digest,
        bundles=plan.bundles,
        config=plan.config.public(),
        units=len(plan.units),
        rows=plan.total_rows,
    )
    write_json(layout.identity, owner)
    write_atomic(layout.config, resolved_yaml(plan.config).encode())
    for folder in (layout.root, layout.units, layout.rejected):
        remove_temporaries(folder)
    reopen(layout, plan.identity)
    finished = finished_units(layout, (unit.name for unit in plan.units))
    remove_others(layout, finished)
    return attempt, finished


def check_claim(layout: OutputLayout, plan: JobPlan) -> bool:
    """See `check_owner`; touches nothing."""
    names = list(_names(layout))
    return check_owner(str(layout.root), plan, names, lambda: _owner(layout))


def _owner(layout: OutputLayout) -> IdentityFile | None:
    return read_json(layout.identity, IdentityFile)


def _names(layout: OutputLayout) -> Iterator[str]:
    """The files in the folder and its two shelves, without hidden ones."""
    for prefix, folder in _shelves(layout).items():
        with contextlib.suppress(FileNotFoundError):
            for path in folder.iterdir():
                if not path.name.startswith("."):
                    yield prefix + path.name


def _shelves(layout: OutputLayout) -> dict[str, Path]:
    return {"": layout.root, f"{UNITS}/": layout.units, f"{REJECTED}/": layout.rejected}


def reopen(layout: OutputLayout, identity: str) -> None:
    """Make a finished output an unfinished one: units whose files are whole stay published.

    The manifest goes last: a crash in here loses no record, as the next start reads it again. Both
    are gone for good before a part is replaced, as a reader would take the old ones for its own.
    """
    manifest = manifest_of(layout, identity)
    for record in manifest.units if manifest else ():
        path = layout.record(record.unit)
        if has_files(layout, record) and not path.exists():
            write_json(path, record)
    retract(layout)


def retract(layout: OutputLayout) -> None:
    """Remove `_SUCCESS`, the manifest and what was made of the scores, for good also after a power
    cut.
    """
    named = (layout.success, layout.manifest, layout.evaluation)
    found = [path for path in named if path.exists()]
    found += layout.root.glob(TALLIES)
    for path in found:
        path.unlink(missing_ok=True)
    if found:
        sync_folder(layout.root)


def remove_others(layout: OutputLayout, finished: Collection[str]) -> None:
    """Remove what jobs wrote of other units than these, and nothing else.

    Records go first, and for good: else a crash between a new part and its record would leave the
    new part with the old record, and a power cut might bring a record back without its part.
    """
    records = [path for path in layout.units.glob("u*.json") if path.stem not in finished]
    _remove(records, layout.units)
    named = {part_name(unit) for unit in finished}
    for folder in (layout.rejected, layout.root):
        parts = [path for path in folder.glob("part-*.parquet") if is_part_name(path.name)]
        _remove([path for path in parts if path.name not in named], folder)


def _remove(paths: Iterable[Path], folder: Path) -> None:
    """Remove files of one folder, for good also after a power cut."""
    for path in paths:
        path.unlink(missing_ok=True)
    sync_folder(folder)


def tidy(layout: OutputLayout) -> None:
    """After success: remove temporary files, and records, which the manifest holds.

    Never raises, as the job has finished: what stays is removed by a later start or `verify`.
    """
    try:
        for folder in (layout.root, layout.units, layout.rejected):
            remove_temporaries(folder)
        for path in layout.units.glob("u*.json"):
            if is_part_name(part_name(path.stem)):
                path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s is finished, but not tidy: %s; verify removes the rest", layout.root, error)
    for folder in (layout.units, layout.rejected):
        with contextlib.suppress(OSError):  # not empty: it holds rejected rows, or foreign files
            folder.rmdir()


def tidy_finished(layout: OutputLayout, wait: bool) -> None:
    """Remove what a crash after `_SUCCESS` left: temporary files, records, a dead job's lock.

    Does nothing while a job holds the output; `wait`: for a lock of another host to prove dead. The
    caller has seen that the output is finished and whole. Never raises.
    """
    folders = (layout.root, layout.units, layout.rejected)
    lock = OutputLock(layout.root, wait=wait)
    left = layout.units.exists() or lock.path.exists() or any(map(temporaries, folders))
    if not left:
        return
    try:
        with lock:
            success = read_json(layout.success, Success)
            manifest = read_json(layout.manifest, Manifest)
            if success and manifest and success.identity == manifest.identity:
                tidy(layout)
    except (DpiframeError, OSError) as error:
        log.info("%s is not tidied: %s", layout.root, error)


def finish_output(
    layout: OutputLayout,
    plan: JobPlan,
    quarantined: Sequence[Quarantined],
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Check that every row has its outcome, then publish the manifest and `_SUCCESS`.

    `quarantined`: units left out while scoring; the plan holds the files left out before. `check`
    raises when the output belongs to another job by now. Raises ResumableError when a unit is
    missing, ContractError above the limit of rejected rows.
    """
    records = finished_units(layout, needed_units(plan, quarantined))
    manifest = make_manifest(plan, records, quarantined)
    manifest = with_checked_keys(
        manifest, plan.config, lambda record: parts_dataset(layout, [record])
    )
    write_json(layout.manifest, manifest, check)
    write_json(layout.success, Success(identity=plan.identity, rows=manifest.rows), check)
    return manifest


class FolderOutput(Output):
    """An output in a local or shared file system."""

    def __init__(self, root: str | Path) -> None:
        self.layout = OutputLayout(root)
        self.address, self.tracking = str(self.layout.root), self.layout.tracking

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """See `storage_errors`."""
        return storage_errors(self.layout)

    def lock(self, wait: bool = True) -> OutputLock:
        """See `OutputLock`."""
        return OutputLock(self.layout.root, wait=wait)

    def check_claim(self, plan: JobPlan) -> bool:
        """See `check_claim`."""
        return check_claim(self.layout, plan)

    def claim(self, plan: JobPlan) -> Claim:
        """See `claim`."""
        return Claim(*claim(self.layout, plan))

    def publisher(self, attempt: str) -> FolderPublisher:
        """See `FolderPublisher`."""
        return FolderPublisher(self.layout.root, attempt)

    def finish(
        self,
        plan: JobPlan,
        attempt: str,
        quarantined: Sequence[Quarantined],
        check: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """See `finish_output`; the lock alone says whether the output is still this attempt's."""
        return finish_output(self.layout, plan, quarantined, check)

    def settle(self) -> None:
        """Nothing: `_SUCCESS` is the commit."""

    def tidy(self) -> None:
        """See `tidy`."""
        tidy(self.layout)

    def tidy_finished(self, wait: bool) -> None:
        """See `tidy_finished`."""
        tidy_finished(self.layout, wait)

    def exists(self) -> bool:
        """Whether the folder is there."""
        return self.layout.root.is_dir()

    def sizes(self) -> dict[str, int]:
        """Bytes of the files in the folder and its two shelves, by name; without hidden ones."""
        found: dict[str, int] = {}
        for prefix, folder in _shelves(self.layout).items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found |= {prefix + name: size for name, size in _file_sizes(folder)}
        return found

    def owner(self) -> IdentityFile | None:
        """`_identity.json`."""
        return _owner(self.layout)

    def manifest(self) -> Manifest | None:
        """`_manifest.json`; `_SUCCESS` may still be missing."""
        return read_json(self.layout.manifest, Manifest)

    def committed(self) -> Manifest | None:
        """The manifest, once `_SUCCESS` of the same job is beside it."""
        success = self.success()
        return manifest_of(self.layout, success.identity) if success else None

    def success(self) -> Success | None:
        """`_SUCCESS`."""
        return read_json(self.layout.success, Success)

    def open(self, name: str) -> BufferedIOBase:
        """A file of the folder."""
        return (self.layout.root / name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """See `write_atomic`."""
        write_atomic(self.layout.root / name, data)

    def remove(self, name: str) -> None:
        """Remove a file of the folder."""
        (self.layout.root / name).unlink(missing_ok=True)

    def dataset(self, parts: Sequence[UnitRecord]) -> pads.Dataset:
        """The parts as files."""
        return parts_dataset(self.layout, parts)


def parts_dataset(layout: OutputLayout, parts: Sequence[UnitRecord]) -> pads.Dataset:
    """The rows of some units, in this order."""
    import pyarrow.dataset as pads

    paths = [str(layout.root / record.part) for record in parts]
    return pads.dataset(paths, format="parquet")


def _file_sizes(folder: Path) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if not entry.name.startswith(".") and entry.is_file():
                    yield entry.name, entry.stat().st_size
