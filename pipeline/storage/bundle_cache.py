"""Bundles by path or address; one of an object store is copied to the user's cache.

A copy lies under the sha256 of its manifest, in $DPIFRAME_CACHE, else $XDG_CACHE_HOME/dpiframe,
else ~/.cache/dpiframe. It appears by a rename, when all of its files are what the manifest says. Of
the processes of a host one fetches, the others wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dpiframe_core.bundle.files import MANIFEST, check_file, read_manifest
from dpiframe_core.bundle.reading import Bundle, open_bundle
from dpiframe_core.errors import BundleError
from pipeline.errors import ConfigError
from pipeline.storage.address import is_remote, join
from pipeline.storage.fetch import fetch_file
from pipeline.storage.objects import open_object, repeated

UNUSED_DAYS = 30  # after which a copy is removed when another one is fetched


def open_bundle_at(location: str, digest: str | None = None) -> Bundle:
    """Open and check the bundle at a path or address, which has this `digest` if one is given.

    A copy that was damaged is fetched again. BundleError, OSError.
    """
    folder = bundle_folder(location, digest)
    try:
        return open_bundle(folder)
    except BundleError:
        if not is_remote(location):
            raise
        _remove(folder)
        return open_bundle(bundle_folder(location, digest))


def bundle_folder(location: str, digest: str | None = None) -> Path:
    """The folder of a bundle: its path, or its copy, which is fetched where there is none.

    `digest`: the planned one, with which no request is made where there is a copy. BundleError: no
    bundle, or another one; OSError: the store or the cache cannot be used.
    """
    if not is_remote(location):
        return Path(location)
    copies = cache_folder() / "bundles"
    if digest is None or not (copies / digest / MANIFEST).is_file():
        manifest = _read_manifest(location)
        found = hashlib.sha256(manifest).hexdigest()
        if digest not in (None, found):
            raise BundleError(
                f"bundle {location} has digest {found}, {digest} was planned: it must not change "
                "while a job runs"
            )
        digest = found
        copies.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _turn(copies / f"{digest}.lock"):
            if not (copies / digest / MANIFEST).is_file():
                _remove_unused(copies)
                _copy(location, manifest, copies / digest)
    with contextlib.suppress(OSError):
        os.utime(copies / digest)  # it is used
    return copies / digest


def bundle_fault(location: str, error: Exception) -> Literal["io", "bundle"]:
    """Whether a bundle failed to open because its store is out of reach for now, or is at fault."""
    out_of_reach = isinstance(error, OSError) and error.errno == errno.EIO
    return "io" if is_remote(location) and out_of_reach else "bundle"


def cache_folder() -> Path:
    """Where the user's copies are."""
    if named := os.environ.get("DPIFRAME_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpiframe"


def _read_manifest(location: str) -> bytes:
    try:
        store, key = open_object(join(location, MANIFEST))
        return repeated(lambda: store.read(key))
    except FileNotFoundError:
        raise BundleError(f"there is no bundle at {location}: it holds no {MANIFEST}") from None
    except ConfigError as error:
        raise BundleError(str(error)) from error


def _copy(location: str, manifest: bytes, folder: Path) -> None:
    """Fetch all files beside the folder, check them, and rename."""
    work = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    work.mkdir(mode=0o700)
    try:
        (work / MANIFEST).write_bytes(manifest)
        entries, _ = read_manifest(work)  # which names no other file than those of bundles
        for name, entry in entries.items():
            try:
                fetch_file(join(location, name), work / name)
            except FileNotFoundError:
                raise BundleError(
                    f"{join(location, name)} is missing, though the manifest lists it"
                ) from None
            check_file(work / name, entry)
        try:
            work.rename(folder)
        except OSError:
            if not (folder / MANIFEST).is_file():  # else somebody else's copy is there by now
                raise
    except BundleError as error:
        raise BundleError(str(error).replace(str(work), location)) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait until no other process of this host holds the file."""
    with path.open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: each fetches for itself
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_unused(copies: Path) -> None:
    oldest = time.time() - UNUSED_DAYS * 86400
    for path in copies.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a copy, which nobody takes for a whole one meanwhile."""
    gone = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        path.rename(gone)
        if gone.is_dir():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink()
