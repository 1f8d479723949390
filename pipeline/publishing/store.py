"""StoreOutput: an output in an object store, which cannot rename.

Parts lie under keys that are used once, records and head are put conditionally, and the head's
swap from "being written" to "finished by that manifest" is the one commit of the job. What it
promises to readers, and what each request guards: docs/architecture.md, "An output in a store".
"""

from __future__ import annotations

import contextlib
import io
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipeline.config.job import resolved_yaml
from pipeline.errors import ConfigError, DpiframeError, LockedError, ResumableError
from pipeline.planning.inputs import Quarantined
from pipeline.planning.job_plan import JobPlan
from pipeline.publishing.checks import check_owner, make_manifest, needed_units
from pipeline.publishing.key_check import with_checked_keys
from pipeline.publishing.output import Claim, Output, has_files
from pipeline.publishing.records import (
    EVALUATION,
    REJECTED,
    UNITS,
    Manifest,
    Success,
    UnitRecord,
    recorded_unit,
    unit_of_part,
)
from pipeline.publishing.store_head import (
    CONFIG,
    HEAD,
    MANIFEST,
    SUCCESS,
    Head,
    HeadVersion,
    as_json,
    is_manifest_key,
    manifest_key,
    read_head,
    read_record,
)
from pipeline.publishing.store_lock import LOCK, StoreLock
from pipeline.publishing.store_publisher import StorePublisher
from pipeline.publishing.tracking_folder import tracking_folder
from pipeline.storage.arrow_files import StoreFiles
from pipeline.storage.objects import open_store

log = logging.getLogger("dpiframe.job")

THREADS = 32  # requests at one time
TRIES = 100  # to see the head stand still
_SHELVES = ("", UNITS, REJECTED)


class StoreOutput(Output):
    """An output below an address of an object store."""

    readers = 8

    def __init__(self, address: str) -> None:
        """ConfigError: the store cannot be opened."""
        self.store = open_store(address)
        self.address = self.store.address
        self.tracking = tracking_folder(self.address)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the store into errors of the job."""
        try:
            yield
        except FileNotFoundError as error:
            raise ConfigError(
                f"the output {self.address} cannot be used: {error.strerror} ({error.filename}); "
                "make the bucket, or choose another output"
            ) from error
        except PermissionError as error:
            raise ResumableError(
                f"the store refuses access to the output {self.address}: {error.strerror}; set or "
                "renew the credentials (they must allow to list, read, write and remove objects "
                "there), then run the same command: published units are kept"
            ) from error
        except OSError as error:
            raise ResumableError(
                f"the store of the output {self.address} fails: {error.strerror or error}; when it "
                "answers again, run the same command: published units are kept"
            ) from error

    def lock(self, wait: bool = True) -> StoreLock:
        """See `StoreLock`."""
        return StoreLock(self.store, wait=wait)

    def check_claim(self, plan: JobPlan) -> bool:
        """See `Output`; two requests where the output is empty."""
        return check_owner(self.address, plan, self.sizes(), self.owner)

    def claim(self, plan: JobPlan) -> Claim:
        """See `Output`.

        From the swap of the head on, what earlier attempts put counts for nothing: their commit
        fails, and so does the check of their publishers. What is removed was there before a look at
        the head that is ours: a later attempt goes on from nothing that we may remove.
        """
        check_owner(self.address, plan, self.sizes(), self.owner)
        attempt, found = uuid.uuid4().hex, None
        try:
            found = self._head_or_none()
            etag = found.etag if found else None
        except ConfigError:  # of no job, but may be replaced
            info = self.store.info(HEAD)
            etag = info.etag if info else None
        head = _next_head(plan, attempt, found.head if found else None)
        self._swap_head(head, etag)
        self._settle_copies()
        self.store.put(CONFIG, resolved_yaml(plan.config).encode())
        base, sizes = self._base(head), self.sizes()
        self._own_head(attempt)
        kept = base | {key: 0 for key in sizes if head.counts(key.removeprefix(f"{REJECTED}/"))}
        parts = [key for key in sizes if self.is_litter(key) and key not in kept]
        manifests = [key for key in sizes if is_manifest_key(key) and key != head.base]
        self.store.delete([*parts, *manifests])
        return Claim(attempt, self._finished(head, sizes, {unit.name for unit in plan.units}))

    def publisher(self, attempt: str) -> StorePublisher:
        """See `StorePublisher`."""
        return StorePublisher(self.store, attempt)

    def finish(
        self,
        plan: JobPlan,
        attempt: str,
        quarantined: Sequence[Quarantined],
        check: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """See `Output`; LockedError: another attempt has claimed the output meanwhile."""
        head = self._own_head(attempt).head
        records = self._finished(head, self.sizes(), set(needed_units(plan, quarantined)))
        manifest = make_manifest(plan, records, quarantined)
        manifest = with_checked_keys(manifest, plan.config, lambda record: self.dataset([record]))
        manifest = manifest.model_copy(update={"attempt": attempt})
        key = manifest_key(attempt)
        self.store.put(key, as_json(manifest))
        check()
        found = self._own_head(attempt)
        head = found.head.model_copy(update={"manifest": key, "base": None})
        self._swap_head(head, found.etag)
        self._settle_copies()
        self._own_head(attempt)
        return manifest

    def settle(self) -> None:
        """Put `_manifest.json` and `_SUCCESS` where a crash right after the commit left none."""
        manifest = self.manifest()
        if manifest is not None:
            stale = self.success() != _success(manifest)
            if stale or any(True for _ in self.copy_problems(manifest)):
                self._settle_copies()

    def tidy(self) -> None:
        """Remove records, parts that the manifest does not name, manifests that the head does not.

        Never raises: what stays is removed by a later start or `verify`.
        """
        try:
            self.store.delete(self._litter())
        except (DpiframeError, OSError) as error:
            log.warning("%s is finished, but not tidy: %s", self.address, error)

    def tidy_finished(self, wait: bool) -> None:
        """See `Output`."""
        try:
            if self._litter() or self.store.info(LOCK) is not None:
                with self.lock(wait):
                    self.store.delete(self._litter())
        except (DpiframeError, OSError) as error:
            log.info("%s is not tidied: %s", self.address, error)

    def exists(self) -> bool:
        """Whether there is an object."""
        return next(iter(self.store.list()), None) is not None

    def sizes(self) -> dict[str, int]:
        """Bytes of the objects, by key; those in other folders below the address do not count."""
        infos = self.store.list()
        return {o.key: o.size for o in infos if o.key.rpartition("/")[0] in _SHELVES}

    def owner(self) -> Head | None:
        """The head."""
        found = self._head_or_none()
        return found.head if found else None

    def manifest(self) -> Manifest | None:
        """The manifest that the head names, which only a finished job has."""
        return self._manifest_of_head(self._head_or_none())

    def committed(self) -> Manifest | None:
        """The same: the head's swap is the commit, `_SUCCESS` only tells of it."""
        return self.manifest()

    def success(self) -> Success | None:
        """`_SUCCESS`, which holds if it is of the attempt that the head names."""
        return read_record(self.store, SUCCESS, Success)

    def is_litter(self, name: str) -> bool:
        """Parts of tries that did not publish, or of workers that were late."""
        return unit_of_part(name.removeprefix(f"{REJECTED}/")) is not None

    def published_names(self, plan: JobPlan) -> set[str]:
        """See `Output`; units of a job that was reopened are published, too."""
        found = self._head_or_none()
        if found is None or found.head.identity != plan.identity:
            return super().published_names(plan)
        sizes = self.sizes()
        based = self._base(found.head).values()
        return super().published_names(plan) | {r.unit for r in based if has_files(sizes, r)}

    def copy_problems(self, manifest: Manifest) -> Iterator[str]:
        """`_manifest.json` is the manifest that the head names."""
        copy = read_record(self.store, MANIFEST, Manifest)
        if copy is None or copy.attempt != manifest.attempt:
            what = "missing" if copy is None else f"of attempt {copy.attempt or 'none'}"
            yield f"{MANIFEST} is {what}, the head names one of {manifest.attempt}; run it again"

    def open(self, name: str) -> io.BufferedIOBase:
        """An object, read as a whole."""
        return io.BytesIO(self.store.read(name))

    def write(self, name: str, data: bytes) -> None:
        """Put an object."""
        self.store.put(name, data)

    def remove(self, name: str) -> None:
        """Remove an object."""
        self.store.delete([name])

    def dataset(self, parts: Sequence[UnitRecord]) -> pads.Dataset:
        """The parts, read by ranges; their sizes are known from the manifest."""
        sizes = {record.part: record.bytes for record in parts}
        files = pafs.PyFileSystem(StoreFiles(self.store, sizes))
        form = pads.ParquetFileFormat(
            default_fragment_scan_options=pads.ParquetFragmentScanOptions(pre_buffer=True)
        )
        if not parts:
            return pads.dataset([], format=form)
        with files.open_input_file(parts[0].part) as first:
            schema = pq.read_schema(first)
        return pads.FileSystemDataset.from_paths(
            list(sizes), schema=schema, format=form, filesystem=files
        )

    def _head_or_none(self) -> HeadVersion | None:
        return read_head(self.store)

    def _own_head(self, attempt: str) -> HeadVersion:
        """The head, while it is that attempt's; LockedError."""
        found = self._head_or_none()
        if found is None or found.head.attempt != attempt:
            raise self._superseded(found, attempt)
        return found

    def _superseded(self, found: HeadVersion | None, attempt: str) -> LockedError:
        now = found.head.attempt if found else "none"
        return LockedError(
            f"the output {self.address} was taken over: it belongs to attempt {now} by now, this "
            f"job is attempt {attempt}"
        )

    def _swap_head(self, head: Head, etag: str | None) -> None:
        """Replace this version of the head; LockedError: another attempt did."""
        data = as_json(head)
        done = self.store.swap(HEAD, data, etag) if etag else self.store.create(HEAD, data)
        if done is None:
            raise self._superseded(self._head_or_none(), head.attempt)

    def _manifest_of_head(self, found: HeadVersion | None) -> Manifest | None:
        if found is None or found.head.manifest is None:
            return None
        return read_record(self.store, found.head.manifest, Manifest)

    def _settle_copies(self) -> None:
        """`_manifest.json` and `_SUCCESS`, for readers that do not know the head, as it says; what
        was made of scores goes with them.

        A driver that was held up before one of its puts may have been superseded meanwhile: whoever
        has touched the copies looks at the head again, and makes them right if it has changed.
        """
        for _ in range(TRIES):
            found = self._head_or_none()
            manifest = self._manifest_of_head(found)
            if manifest is None:
                self.store.delete([SUCCESS, MANIFEST, EVALUATION])
            else:
                self.store.put(MANIFEST, as_json(manifest))
                self.store.put(SUCCESS, as_json(_success(manifest)))
            now = self._head_or_none()
            if (now and now.etag) == (found and found.etag):
                return

    def _base(self, head: Head) -> dict[str, UnitRecord]:
        """Records of the job that was reopened, by the keys of their files."""
        manifest = read_record(self.store, head.base, Manifest) if head.base else None
        found = {}
        for record in manifest.units if manifest else ():
            found[record.part] = record
            if record.rejected_part is not None:
                found[record.rejected_part] = record
        return found

    def _finished(
        self, head: Head, sizes: Mapping[str, int], units: Collection[str]
    ) -> dict[str, UnitRecord]:
        """Records of these units that are published: the record counts, its files are whole."""
        based = {r.unit: r for r in self._base(head).values() if has_files(sizes, r)}
        found = {unit: record for unit, record in based.items() if unit in units}
        wanted = set(units) - set(found)
        keys = [key for key in sizes if recorded_unit(key) in wanted]
        with ThreadPoolExecutor(THREADS) as pool:
            for record in pool.map(lambda key: read_record(self.store, key, UnitRecord), keys):
                if record and head.counts(record.part) and has_files(sizes, record):
                    found[record.unit] = record
        return found

    def _litter(self) -> list[str]:
        """What only a running job needs, of a finished one: records, parts and manifests that
        readers are not led to.

        The look at the head comes last: what was there before it is nothing that a later attempt
        goes on from, so that it may be removed however late.
        """
        sizes, found = self.sizes(), self._head_or_none()
        manifest = self._manifest_of_head(found)
        if found is None or manifest is None:
            return []
        named = {record.part for record in manifest.units}
        named |= {record.rejected_part for record in manifest.units if record.rejected_part}
        records = [key for key in sizes if recorded_unit(key)]
        parts = [key for key in sizes if self.is_litter(key) and key not in named]
        manifests = [key for key in sizes if is_manifest_key(key) and key != found.head.manifest]
        return [*records, *parts, *manifests]


def _next_head(plan: JobPlan, attempt: str, found: Head | None) -> Head:
    """The head of a new attempt: it goes on where the same job stopped, or lost something."""
    generation, base = attempt, None
    if found is not None and found.identity == plan.identity:
        base = found.manifest or found.base
        generation = found.generation if found.manifest is None else attempt
    return Head(
        identity=plan.identity,
        attempt=attempt,
        bundle_digest=plan.bundle_digest,
        bundles=plan.bundles,
        config=plan.config.public(),
        units=len(plan.units),
        rows=plan.total_rows,
        generation=generation,
        base=base,
    )


def _success(manifest: Manifest) -> Success:
    return Success(identity=manifest.identity, rows=manifest.rows, attempt=manifest.attempt)
