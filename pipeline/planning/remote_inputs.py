"""The input files of an object store: an object, all below a "folder", or those of a glob.

Keys are read as paths: what a local path, folder or glob finds, their address finds too.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError, ResumableError
from pipeline.planning.entries import ENDINGS, is_hidden, is_parquet_name, is_pattern
from pipeline.storage.address import join, scheme_of, split
from pipeline.storage.objects import open_store, repeated

if TYPE_CHECKING:
    from pipeline.storage.object_store import ObjectStore


def list_objects(address: str) -> list[str]:
    """The addresses of the parquet files that an address or a glob gives, sorted.

    ConfigError: there are none, no such bucket, or refused credentials; ResumableError: the store
    is out of reach.
    """
    bucket, key = split(address)
    store = open_store(bucket)
    parts = key.split("/") if key else []
    try:
        found = repeated(lambda: _found(store, parts))
    except FileNotFoundError:
        raise ConfigError(f"input {address} does not exist: no such object or bucket") from None
    except PermissionError as error:
        raise ConfigError(
            f"input {address} is refused by the store ({error.strerror}); set credentials that may "
            f"list and read it{_credentials(address)}"
        ) from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise ResumableError(f"cannot list input {address}: {error.strerror}") from None
    if not found:
        if any(map(is_pattern, parts)):
            raise ConfigError(f"input pattern {address} matches no object")
        raise ConfigError(
            f"input {address} is no object, and holds no *.parquet one, at any depth; give objects "
            f"of other names by a pattern such as {address.rstrip('/')}/*"
        )
    return sorted(join(bucket, each) for each in found)


def _credentials(address: str) -> str:
    if not scheme_of(address).startswith("s3"):
        return ""
    return ", by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or the machine's role"


def _found(store: ObjectStore, parts: Sequence[str]) -> list[str]:
    """Keys that a key, folder or glob gives."""
    first = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts))
    base, rest = "/".join(parts[:first]), parts[first:]
    if not rest and base.lower().endswith(ENDINGS) and store.info(base) is not None:
        return [base]
    listed = [info.key for info in store.list(base)]
    below = [(key, key[len(base) :].strip("/").split("/")) for key in listed]
    if rest:
        hidden_too = any(map(is_hidden, rest))
        return [key for key, names in below if _matches(names, rest, hidden_too)]
    found = [key for key, names in below if _is_input(names)]
    if not found and base and store.info(base) is not None:
        return [base]  # an object of any name
    return found


def _is_input(names: Sequence[str]) -> bool:
    """Whether a key below a folder is a parquet file that is not hidden."""
    return is_parquet_name(names[-1]) and not any(map(is_hidden, names))


def _matches(names: Sequence[str], pattern: Sequence[str], hidden_too: bool) -> bool:
    """Whether a pattern gives the key of these names, or a folder that holds it."""
    for used in _prefixes(names, pattern):
        if not hidden_too and any(map(is_hidden, names[:used])):
            continue
        if used == len(names) or _is_input(names[used:]):
            return True
    return False


def _prefixes(names: Sequence[str], pattern: Sequence[str]) -> Iterator[int]:
    """How many of the names the pattern takes up, in each way in which it does; `**` is any depth
    of folders.
    """
    ends = {0}
    for i, part in enumerate(pattern):
        if part == "**":
            most = len(names) if i + 1 < len(pattern) else len(names) - 1  # `**` alone: folders
            ends = {end for first in ends for end in range(first, most + 1)}
        else:
            ends = {e + 1 for e in ends if e < len(names) and fnmatchcase(names[e], part)}
    yield from sorted(ends)
