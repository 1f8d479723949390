"""ObjectStore: objects below one address, which appear whole or not at all.

`create` and `swap` are conditional puts, of which one of many writers wins; publishing to a store
without rename rests on them. Requests are repeated, with growing pauses, after 5xx answers
(throttling too), resets and timeouts. Credentials and endpoint come from the environment
(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME,
...), as the stores' own tools read them.
"""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from pipeline.redaction import redacted
from pipeline.storage.address import check_address, join, split

CONNECT_S, REQUEST_S = 5, 60
RETRIES, RETRY_S = 100, 60.0  # whichever is over first
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
DELETE_AT_ONCE = 1000

# OSError makes of them FileNotFoundError and PermissionError.
_STATUS_ERRORS = {"404": errno.ENOENT, "403": errno.EACCES, "401": errno.EACCES}

Result = TypeVar("Result")


class ObjectInfo(NamedTuple):
    """One object; `key` is relative to the store's address, `etag` names this version of it."""

    key: str
    size: int
    etag: str
    modified_ns: int


class ReplacedError(OSError):
    """The object is not the version that was asked for."""


class ObjectStore:
    """Objects below an address; keys are relative to it. Safe to use from many threads.

    All methods raise OSError: FileNotFoundError for a missing object or bucket, PermissionError for
    refused credentials, ReplacedError for another version, a plain one for a store that stays out
    of reach.
    """

    def __init__(self, address: str) -> None:
        """ValueError: the address is not one of an object store, or its settings are not usable."""
        self.address = check_address(address)
        bucket, self._prefix = split(self.address)
        self._bucket = _open_bucket(bucket, _s3_endpoint())

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str]]:
        """Another process opens it by its own settings."""
        return type(self), (self.address,)

    def __repr__(self) -> str:
        return f"ObjectStore({self.address!r})"

    def path(self, key: str) -> str:
        """The whole address of a key."""
        return join(self.address, key) if key else self.address

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose keys begin with `prefix`, which is a folder or empty, at any depth."""
        below = self._key(prefix)
        cut = len(self._prefix) + 1 if self._prefix else 0

        def chunks() -> Iterator[Sequence[Any]]:
            stream = obstore.list(self._bucket, below or None, chunk_size=1000)
            while chunk := self._asked(below, lambda: next(stream, None)):
                yield chunk

        for chunk in chunks():
            yield from (_info(meta["path"][cut:], meta) for meta in chunk)

    def info(self, key: str) -> ObjectInfo | None:
        """One object; None if it is not there."""
        try:
            return _info(key, self._asked(key, lambda: obstore.head(self._bucket, self._key(key))))
        except FileNotFoundError:
            return None

    def read(self, key: str, etag: str | None = None) -> bytes:
        """A whole object; ReplacedError if it has another `etag`."""
        return self.read_with_info(key, etag)[0]

    def read_with_info(self, key: str, etag: str | None = None) -> tuple[bytes, ObjectInfo]:
        """A whole object and what it is."""

        def get() -> tuple[bytes, ObjectInfo]:
            found = obstore.get(self._bucket, self._key(key), options=_options(etag))
            return bytes(found.bytes()), _info(key, found.meta)

        return self._asked(key, get)

    def read_range(self, key: str, start: int, stop: int, etag: str | None = None) -> memoryview:
        """Bytes [start, stop) of an object, fewer where it ends before `stop`."""

        def get() -> memoryview:
            options = _options(etag, range=(start, stop))
            found = obstore.get(self._bucket, self._key(key), options=options)
            return memoryview(found.bytes())  # obstore's memory: nothing is copied

        return self._asked(key, get)

    def read_end(
        self, key: str, size: int, etag: str | None = None
    ) -> tuple[memoryview, ObjectInfo]:
        """The last `size` bytes of an object, or all of a smaller one, and what it is."""

        def get() -> tuple[memoryview, ObjectInfo]:
            wanted: Any = {"suffix": size}
            if self.address.startswith("a"):  # Azure knows no ranges from the end
                whole = obstore.head(self._bucket, self._key(key))["size"]
                wanted = (max(0, whole - size), whole)
            options = _options(etag, range=wanted)
            found = obstore.get(self._bucket, self._key(key), options=options)
            return memoryview(found.bytes()), _info(key, found.meta)

        return self._asked(key, get)

    def put(self, key: str, data: bytes | memoryview) -> str:
        """Write an object, whatever was there; returns its etag."""
        return self._asked(key, lambda: _etag(obstore.put(self._bucket, self._key(key), data)))

    def create(self, key: str, data: bytes | memoryview) -> str | None:
        """Write an object where there is none; None if there is one already.

        An answer may be lost: an object with these very bytes counts as written by this call.
        """
        return self._put_if(key, data, "create")

    def swap(self, key: str, data: bytes | memoryview, etag: str) -> str | None:
        """Replace this version of an object; None if it is gone or replaced.

        An answer may be lost: an object with these very bytes counts as written by this call.
        """
        mode = {"e_tag": etag}
        if self.address.startswith("gs"):  # whose condition is on a number of the version
            try:
                now = self._asked(key, lambda: obstore.head(self._bucket, self._key(key)))
            except FileNotFoundError:
                return None
            if now["e_tag"] != etag:
                return self._if_equal(key, data)
            mode["version"] = now["version"] or ""
        return self._put_if(key, data, mode)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; missing ones are no error."""
        whole = [self._key(key) for key in keys]
        for first in range(0, len(whole), DELETE_AT_ONCE):
            some = whole[first : first + DELETE_AT_ONCE]
            try:
                self._asked("", partial(obstore.delete, self._bucket, some))
            except FileNotFoundError:  # of a store that deletes one by one
                for key in some:
                    self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        try:
            self._asked(key, lambda: obstore.delete(self._bucket, key))
        except FileNotFoundError:
            return

    def _put_if(self, key: str, data: bytes | memoryview, mode: Any) -> str | None:
        def put() -> str:
            done = obstore.put(self._bucket, self._key(key), data, mode=mode, use_multipart=False)
            return _etag(done)

        try:
            return self._repeated(lambda: self._asked(key, put))
        except (FileExistsError, ReplacedError, FileNotFoundError):
            try:
                return self._if_equal(key, data)
            except FileNotFoundError:
                if mode == "create":
                    raise  # the bucket is missing
                return None

    def _if_equal(self, key: str, data: bytes | memoryview) -> str | None:
        """The etag of an object that has these bytes."""
        found, info = self.read_with_info(key)
        return info.etag if found == bytes(data) else None

    @staticmethod
    def _repeated(ask: Callable[[], Result]) -> Result:
        """Repeat a conditional put, which the client does not, as it may have been done."""
        began, pause = time.monotonic(), PAUSE_S
        for left in reversed(range(RETRIES + 1)):
            try:
                return ask()
            except OSError as error:
                late = time.monotonic() - began > RETRY_S
                if error.errno != errno.EIO or not left or late:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)
        raise AssertionError

    def _key(self, key: str) -> str:
        return "/".join(part for part in (self._prefix, key) if part)

    def _asked(self, key: str, ask: Callable[[], Result]) -> Result:
        """Make a request; the store's errors become OSError, with one line that holds no secret."""
        try:
            return ask()
        except AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, "exists already", self.path(key)) from error
        except PreconditionError as error:
            raise ReplacedError(errno.ESTALE, "was replaced", self.path(key)) from error
        except (NotFoundError, FileNotFoundError) as error:
            reason = "no such object or bucket"
            raise FileNotFoundError(errno.ENOENT, reason, self.path(key)) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, _reason(error), self.path(key)) from error
        except (BaseError, OSError) as error:
            kind = _STATUS_ERRORS.get(_status(error), errno.EIO)
            raise OSError(kind, _reason(error), self.path(key)) from error


@lru_cache(maxsize=64)
def _open_bucket(address: str, endpoint: str) -> Any:
    options: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=REQUEST_S),
    }
    config: dict[str, str] = {}
    if address.startswith("s3") and endpoint:
        config["endpoint"] = endpoint
        options["allow_http"] = endpoint.startswith("http://")
    backoff = {
        "init_backoff": timedelta(seconds=PAUSE_S),
        "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
        "base": 2,
    }
    retries = {
        "max_retries": RETRIES,
        "retry_timeout": timedelta(seconds=RETRY_S),
        "backoff": backoff,
    }
    try:
        return from_url(
            address,
            config=cast(Any, config or None),
            client_options=cast(Any, options),
            retry_config=cast(Any, retries),
        )
    except BaseError as error:
        raise ValueError(f"{address} cannot be opened: {_reason(error)}") from error


def _s3_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _options(etag: str | None, **more: Any) -> Any:
    return more if etag is None else {"if_match": etag} | more


def _info(key: str, meta: Any) -> ObjectInfo:
    modified = int(meta["last_modified"].timestamp()) * 10**9
    return ObjectInfo(key, meta["size"], meta["e_tag"] or "", modified)


def _etag(result: Any) -> str:
    return result["e_tag"] or ""


def _status(error: Exception) -> str:
    """The HTTP status in the text of an error of no kind of its own, as those of listing are."""
    found = re.search(r"status code: (\d{3})", str(error))
    return found[1] if found else ""


def _reason(error: Exception) -> str:
    """What a store's error says, in one line of at most 300 characters."""
    text = " ".join(str(error).split("\n\nDebug source")[0].split())
    return redacted(text)[:300]
