"""StorePublisher: publishing to an object store, where nothing can be renamed.

Parts are put under their final keys, which hold the generation and a number of the try, so that no
object is ever replaced; nobody looks at one that no record names. The unit's record is created by a
conditional put: of any number of workers that score a unit one publishes it, the others return what
that one did.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from pipeline.publishing.publish import (
    Published,
    Publisher,
    SupersededError,
    check_attempt,
    parquet_bytes,
)
from pipeline.publishing.records import REJECTED, UnitRecord, parse_json, part_name, record_name
from pipeline.publishing.store_head import Head, as_json, read_head, read_record
from pipeline.storage.object_store import ObjectStore

TRIES = 20  # of a record that others replace meanwhile


class StorePublisher(Publisher):
    """Publishes by conditional puts."""

    def __init__(self, store: ObjectStore, attempt: str) -> None:
        self.store, self.attempt = store, attempt

    def already(self, unit: str) -> UnitRecord | None:
        """The record, where its parts are there as well."""
        record = read_record(self.store, record_name(unit), UnitRecord)
        return record if record is not None and self._counts(record, self._head()) else None

    def write_parts(self, unit: str, scores: pa.Table, rejected: pa.Table) -> Published:
        """Put both under keys of this try alone."""
        content, reasons = parquet_bytes(scores), None
        if rejected.num_rows:
            reasons = parquet_bytes(rejected)
        name = part_name(unit, self._head().new_stamp())
        self.store.put(name, content)
        facts = name, len(content), hashlib.sha256(content).hexdigest()
        if reasons is None:
            return Published(*facts, None, None)
        self._head()
        self.store.put(f"{REJECTED}/{name}", reasons)
        return Published(*facts, f"{REJECTED}/{name}", hashlib.sha256(reasons).hexdigest())

    def write_record(self, record: UnitRecord) -> UnitRecord:
        """Create the record; one that is there holds if it counts, and is replaced if not."""
        key, data = record_name(record.unit), as_json(record)
        for _ in range(TRIES):
            self._head()
            if self.store.create(key, data) is not None:
                return record
            try:
                found, info = self.store.read_with_info(key)
            except FileNotFoundError:
                continue
            holds = parse_json(self.store.path(key), found, UnitRecord)
            head = self._head()
            if self._counts(holds, head):
                return holds
            if self.store.swap(key, data, info.etag) is not None:
                return record
        raise SupersededError(f"the record {self.store.path(key)} is replaced again and again")

    def _counts(self, record: UnitRecord, head: Head) -> bool:
        if not head.counts(record.part):
            return False
        part = self.store.info(record.part)
        return (
            part is not None
            and part.size == record.bytes
            and (record.rejected_part is None or self.store.info(record.rejected_part) is not None)
        )

    def _head(self) -> Head:
        """The head, while the output is being written by our attempt; SupersededError."""
        found = read_head(self.store)
        check_attempt(self.attempt, found.head if found else None, self.store.address)
        assert found is not None
        if found.head.manifest is not None:
            raise SupersededError(f"{self.store.address} is finished; nothing more is written")
        return found.head
