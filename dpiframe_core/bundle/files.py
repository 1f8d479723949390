"""The files of a bundle: their names, and the manifest that says what they must hold."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dpiframe_core.errors import BundleError

FORMAT = 1
MODEL, WEIGHTS, VOCABULARY = "model.json", "weights.safetensors", "vocabulary.safetensors"
IMPORT = "import.json"
MANIFEST = "MANIFEST.json"

# One sha256 of gigabytes of weights takes seconds of one core at each start, those of its parts
# take several cores.
PART_BYTES = 1 << 26
_BLOCK_BYTES = 1 << 20
_MAX_THREADS = 16


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """The manifest's entry of each file, by name, and the bundle's digest."""
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not {MODEL, WEIGHTS} <= set(files):
        raise BundleError(f"{path / MANIFEST} does not list {MODEL} and {WEIGHTS}")
    if manifest.get("format") != FORMAT:
        raise BundleError(f"{path / MANIFEST}: this version reads format {FORMAT}")
    if unknown := sorted(set(files) - {MODEL, WEIGHTS, VOCABULARY, IMPORT}):
        raise BundleError(f"{path / MANIFEST} lists files that no bundle has: {unknown}")
    return files, sha256_file(path / MANIFEST)


def file_entry(file: Path) -> dict[str, Any]:
    """What the manifest says of a file: bytes, sha256; of a large one also those of its parts."""
    entry: dict[str, Any] = {"sha256": sha256_file(file), "bytes": file.stat().st_size}
    if entry["bytes"] > PART_BYTES:
        entry |= {"part_bytes": PART_BYTES, "parts": part_digests(file, PART_BYTES)}
    return entry


def check_file(file: Path, entry: Any) -> None:
    """BundleError unless the file is what its entry in the manifest says."""
    if not isinstance(entry, dict):
        raise BundleError(f"the manifest must give {file} a size and a sha256, got {entry!r:.40}")
    if not file.is_file():
        raise BundleError(f"{file} is missing, though the manifest lists it")
    if file.stat().st_size != entry.get("bytes"):
        raise BundleError(
            f"{file} has {file.stat().st_size} bytes, the manifest says {entry.get('bytes')}: "
            "it was cut or changed; export the bundle again"
        )
    if "parts" in entry:
        _check_parts(file, entry)
    elif (found := sha256_file(file)) != entry.get("sha256"):
        raise BundleError(
            f"{file} has sha256 {found[:16]}.., the manifest says "
            f"{str(entry.get('sha256'))[:16]}..: it was changed; export the bundle again"
        )


def _check_parts(file: Path, entry: dict[str, Any]) -> None:
    size, wanted = entry.get("part_bytes"), entry["parts"]
    least = min(PART_BYTES, _BLOCK_BYTES)  # each part is a task
    if not isinstance(size, int) or size < least or not isinstance(wanted, list):
        raise BundleError(f"the manifest must give {file} a size of its parts and their sha256")
    found = part_digests(file, size)
    if found != wanted:
        pairs = zip_longest(found, wanted)
        first = next(i for i, (ours, theirs) in enumerate(pairs) if ours != theirs)
        raise BundleError(
            f"{file} has another sha256 than the manifest says in its {size} bytes from "
            f"{first * size}: it was changed; export the bundle again"
        )


def read_model(path: Path) -> dict[str, Any]:
    """What model.json of the bundle at `path` holds; its format is checked."""
    model = read_json(path / MODEL)
    if not isinstance(model, dict) or model.get("format") != FORMAT:
        raise BundleError(f"{path / MODEL}: this version reads format {FORMAT}")
    return model


def read_json(file: Path) -> Any:
    """The file as plain data."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file} is not JSON: {error}") from None


def sha256_file(file: Path) -> str:
    """The file's sha256, 64 hex digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def part_digests(file: Path, part_bytes: int) -> list[str]:
    """The sha256 of each part of a file (the last may be shorter), found by several threads."""

    def digest(start: int) -> str:
        hasher, left = hashlib.sha256(), part_bytes
        with file.open("rb", buffering=0) as opened:
            opened.seek(start)
            while left > 0 and (block := opened.read(min(left, _BLOCK_BYTES))):
                hasher.update(block)
                left -= len(block)
        return hasher.hexdigest()

    with ThreadPoolExecutor(min(_MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(digest, range(0, file.stat().st_size, part_bytes)))
