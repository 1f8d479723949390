"""The head of an output in an object store: whose it is, and the manifest that it is finished by.

`_identity.json` is replaced by conditional puts alone. Every attempt puts its own id there, so that
the put of an attempt that was superseded fails, however late it comes: the attempt is the fencing
token.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, TypeVar

from pydantic import BaseModel

from pipeline.publishing.records import STAMP_HALF, IdentityFile, parse_json, stamp_of_part
from pipeline.storage.object_store import ObjectStore

HEAD, MANIFEST, SUCCESS, CONFIG = "_identity.json", "_manifest.json", "_SUCCESS", "_config.yaml"
Record = TypeVar("Record", bound=BaseModel)


class Head(IdentityFile):
    """`_identity.json` in a store.

    `manifest` is the key of the manifest once the job is finished. `generation` is the attempt that
    began from nothing, or reopened a finished output: until the job is finished, records of parts
    of that generation count, and of the manifest `base`, that of the job that was reopened, what is
    still whole. So nothing counts that a process of the time before may be about to remove.
    """

    generation: str
    base: str | None = None
    manifest: str | None = None

    def counts(self, part: str) -> bool:
        """Whether a record of this part is one of the job."""
        stamp = stamp_of_part(part)
        return stamp is not None and stamp.startswith(self.generation[:STAMP_HALF])

    def new_stamp(self) -> str:
        """The stamp of a part of this generation, which no other try has."""
        return self.generation[:STAMP_HALF] + uuid.uuid4().hex[:STAMP_HALF]


class HeadVersion(NamedTuple):
    """A head, and the version of its object."""

    head: Head
    etag: str


def read_head(store: ObjectStore) -> HeadVersion | None:
    """The head, None if there is none. OSError; ConfigError: no job wrote it."""
    try:
        data, info = store.read_with_info(HEAD)
    except FileNotFoundError:
        return None
    return HeadVersion(parse_json(store.path(HEAD), data, Head), info.etag)


def read_record(store: ObjectStore, key: str, kind: type[Record]) -> Record | None:
    """A record, None if it is not there. OSError; ConfigError: no job wrote it."""
    try:
        data = store.read(key)
    except FileNotFoundError:
        return None
    return parse_json(store.path(key), data, kind)


def as_json(record: BaseModel) -> bytes:
    """The bytes of a record's object."""
    return (record.model_dump_json() + "\n").encode()


def manifest_key(attempt: str) -> str:
    """Where an attempt puts its manifest, before the head names it."""
    return f"_manifest-{attempt}.json"


def is_manifest_key(key: str) -> bool:
    """Whether an attempt puts its manifest there."""
    return key.startswith("_manifest-") and key.endswith(".json")
