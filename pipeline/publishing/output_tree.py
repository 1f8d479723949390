"""The outputs below a root, such as those of `partition_by` or of many dates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pipeline.storage.address import is_remote, join
from pipeline.storage.objects import open_store

# Files that only outputs hold; a root of outputs does not.
MARKS = ("_identity.json", "_SUCCESS")


def outputs_below(root: str) -> list[str]:
    """Folders or addresses of the outputs at or below a root, sorted."""
    return sorted(_outputs(root))


def _outputs(root: str) -> Iterator[str]:
    if is_remote(root):
        keys = (info.key for info in open_store(root).list())
        folders = {key.rpartition("/")[0] for key in keys if key.rpartition("/")[2] in MARKS}
        yield from (join(root, folder) if folder else root for folder in folders)
        return
    for folder, names, files in os.walk(Path(root).expanduser()):
        if any(mark in files for mark in MARKS):
            yield folder
        names[:] = [name for name in names if not name.startswith(("_", "."))]
