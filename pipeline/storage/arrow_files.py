"""StoreFiles: objects of a store as files of pyarrow, read by ranges."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from pipeline.storage.object_store import ObjectStore


class StoreFiles(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """The handler of a `pyarrow.fs.PyFileSystem` that only reads.

    Paths are keys of the store; `sizes` spares a request for each object that is opened.
    """

    def __init__(self, store: ObjectStore, sizes: Mapping[str, int]) -> None:
        self.store, self.sizes = store, sizes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreFiles) and other.store is self.store

    def __hash__(self) -> int:
        return hash(self.store.address)

    def get_type_name(self) -> str:
        """For messages of pyarrow."""
        return "dpiframe-store"

    def normalize_path(self, path: str) -> str:
        """Keys are taken as they are."""
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        """What these keys are."""
        found = []
        for path in paths:
            size = self._size(path)
            kind = pafs.FileType.NotFound if size is None else pafs.FileType.File
            found.append(pafs.FileInfo(path, kind, size=size))
        return found

    def open_input_file(self, path: str) -> Any:
        """A file to read from any place."""
        size = self._size(path)
        if size is None:
            raise FileNotFoundError(self.store.path(path))
        return pa.PythonFile(ObjectReader(self.store, path, size), mode="r")

    def open_input_stream(self, path: str) -> Any:
        """A file to read from its begin."""
        return self.open_input_file(path)

    def _size(self, path: str) -> int | None:
        if path in self.sizes:
            return self.sizes[path]
        info = self.store.info(path)
        return None if info is None else info.size

    def get_file_info_selector(self, selector: Any) -> NoReturn:
        """Not needed: the paths are known."""
        raise NotImplementedError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = (
        get_file_info_selector
    )
    move = copy_file = open_output_stream = open_append_stream = get_file_info_selector


class ObjectReader(io.RawIOBase):
    """An object as a file; every read is a request."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self.store, self.key, self.size = store, key, size
        self.at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next read, in bytes."""
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the place of the next read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        self.at = base + offset
        return self.at

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer at the end alone."""
        stop = self.size if size < 0 else min(self.size, self.at + size)
        if stop <= self.at:
            return b""
        data = self.store.read_range(self.key, self.at, stop)
        self.at += len(data)
        return bytes(data)
