"""Addresses: a path of the file system, or `scheme://bucket/key` of an object store."""

from __future__ import annotations

import re

# Scheme -> what people call the store.
SCHEMES = {
    "s3": "Amazon S3 and stores like it",
    "s3a": "Amazon S3 and stores like it",
    "gs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
    "abfs": "Azure Blob Storage",
    "abfss": "Azure Blob Storage",
}
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(address: str) -> str:
    """The scheme, in lower case; empty for a path of the file system."""
    found = _SCHEME.match(address)
    return found[1].lower() if found else ""


def is_registered(address: str) -> bool:
    """Whether an address names a model of MLflow's registry: models:/NAME@alias, models:/NAME/3."""
    return address.startswith("models:/")


def is_remote(address: str) -> bool:
    """Whether an address names an object store rather than a path."""
    return bool(scheme_of(address))


def check_address(address: str) -> str:
    """The address of an object store without a slash at its end; ValueError says what is wrong."""
    scheme = scheme_of(address)
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"must be a path, or begin with one of {known}, got {address!r}")
    bucket, _, key = address.split("://", 1)[1].partition("/")
    if not bucket:
        raise ValueError(f"must name a bucket, as in {scheme}://bucket/folder, got {address!r}")
    if "@" in bucket:
        raise ValueError(
            f"must not hold credentials (got {scheme}://***@...): set them in the environment, "
            "as the store's own tools read them"
        )
    if any(part in (".", "..") for part in key.split("/")) or "//" in key or "\0" in key:
        raise ValueError(f"has an empty, '.' or '..' part in its key, got {address!r}")
    return f"{scheme}://{bucket}/{key}".rstrip("/")


def join(address: str, *parts: str) -> str:
    """An address below another one."""
    return "/".join([address.rstrip("/"), *parts])


def split(address: str) -> tuple[str, str]:
    """Bucket with scheme, and key: "s3://bucket/a/b" -> ("s3://bucket", "a/b")."""
    scheme, rest = address.split("://", 1)
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key.rstrip("/")
