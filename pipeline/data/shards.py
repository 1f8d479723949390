"""Writing a folder of parquet shards atomically.

Shards are written into a hidden folder inside the output and renamed into place when all are
complete; on an error the hidden folder is removed and the output is as it was. A run that was
killed leaves its hidden folder to the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, ResumableError

Compression = Literal["none", "snappy", "lz4", "zstd"]

_STAGING = ".staging-"


class ShardFolder:
    """An output folder whose shards appear all at once, at the end of the `with` block."""

    def __init__(self, output: Path, overwrite: bool = False) -> None:
        """Raise ConfigError unless the folder is empty, or with `overwrite` holds only shards."""
        self._output = output
        self._staging = output / f"{_STAGING}{uuid.uuid4().hex[:12]}"
        self._lock, self._is_new = -1, not output.exists()
        if output.exists() and not output.is_dir():
            raise ConfigError(f"output {output} is a file, expected a folder")
        present = sorted(output.iterdir()) if output.exists() else []
        held = [p for p in present if not p.name.startswith(_STAGING)]
        self._old = [p for p in held if p.match("shard-*.parquet")]
        foreign = [p.name for p in held if p not in self._old]
        if held and not overwrite:
            raise ConfigError(
                f"output folder {output} is not empty (holds {held[0].name}): "
                "choose another folder, or pass --overwrite to replace its shards"
            )
        if foreign:
            raise ConfigError(
                f"output folder {output} holds {foreign[0]}, which is no shard: "
                "choose another folder"
            )

    def path(self, index: int) -> Path:
        """Where a shard is written; it is renamed when all are complete."""
        return self._staging / f"shard-{index:05d}.parquet"  # names sort in the order of the rows

    def __enter__(self) -> Self:
        """Make the hidden folder; remove those of runs that were killed.

        ConfigError when another run is writing here.
        """
        for other in self._output.glob(f"{_STAGING}*"):
            if not _is_abandoned(other):
                raise ConfigError(
                    f"another run is writing into {self._output}; "
                    f"if it was killed, remove {other.name} there"
                )
            shutil.rmtree(other, ignore_errors=True)
        try:
            self._staging.mkdir(parents=True)
        except OSError as cause:
            raise ConfigError(f"cannot make output folder {self._output}: {cause}") from cause
        self._lock = os.open(self._staging, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Rename the shards into place, or on an error remove them.

        A full disk, or another fault of the file system, becomes ResumableError.
        """
        try:
            if error is None:
                self._publish()
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
            os.close(self._lock)
            if error is not None and self._is_new:
                with contextlib.suppress(OSError):
                    self._output.rmdir()
        if isinstance(error, OSError):
            raise ResumableError(
                f"stopped, and nothing was written to {self._output}: {error}; "
                "put that right and run the same command again"
            ) from error

    def _publish(self) -> None:
        for old in self._old:
            old.unlink()
        for shard in sorted(self._staging.iterdir()):
            shard.rename(self._output / shard.name)


def _is_abandoned(staging: Path) -> bool:
    """True when the run that made this hidden folder is dead: the kernel released its flock."""
    try:
        folder = os.open(staging, os.O_RDONLY)
    except OSError:
        return True  # just removed
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, or on a file system without locks
        return False
    finally:
        os.close(folder)
    return True


def open_shard(
    path: Path, schema: pa.Schema, compression: Compression, dictionary_columns: list[str]
) -> pq.ParquetWriter:
    """A parquet writer that leaves Arrow's own schema out, so strings read back as strings.

    The schema's metadata goes into the file's.
    """
    writer = pq.ParquetWriter(
        path,
        schema,
        compression=compression,
        use_dictionary=dictionary_columns,
        store_schema=False,
        write_statistics=True,
    )
    writer.add_key_value_metadata(schema.metadata or {})
    return writer


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


class ShardWriter:
    """Cuts a stream of tables into shards of `shard_rows` and row groups of `group_rows`."""

    def __init__(
        self,
        folder: ShardFolder,
        schema: pa.Schema,
        shard_rows: int,
        group_rows: int,
        compression: Compression,
    ) -> None:
        self._folder, self._schema, self._compression = folder, schema, compression
        self._shard_rows, self._group_rows = shard_rows, min(group_rows, shard_rows)
        self._waiting: list[pa.Table] = []
        self._num_waiting = 0
        self._writer: pq.ParquetWriter | None = None
        self._rows_left = 0
        self.num_shards = 0
        self.num_rows = 0

    def write(self, table: pa.Table) -> None:
        """Add a table of any size; write complete row groups."""
        self._waiting.append(table)
        self._num_waiting += table.num_rows
        while self._num_waiting >= self._next_group():
            self._write_group(self._next_group())

    def close(self) -> None:
        """Write the remaining rows and close the last shard."""
        if self._num_waiting:
            self._write_group(self._num_waiting)
        self._close_shard()

    def abandon(self) -> None:
        """Close the open file without writing the remaining rows."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _next_group(self) -> int:
        return min(self._group_rows, self._rows_left or self._shard_rows)

    def _write_group(self, rows: int) -> None:
        if self._writer is None:
            text = [f.name for f in self._schema if pa.types.is_string(f.type)]
            path = self._folder.path(self.num_shards)
            self._writer = open_shard(path, self._schema, self._compression, text)
            self._rows_left = self._shard_rows
            self.num_shards += 1
        table = pa.concat_tables(self._waiting)
        self._writer.write_table(table.slice(0, rows), row_group_size=rows)
        rest = table.slice(rows)
        self._waiting, self._num_waiting = [rest], rest.num_rows
        self.num_rows += rows
        self._rows_left -= rows
        if self._rows_left == 0:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._writer is not None:
            path = self._folder.path(self.num_shards - 1)
            self._writer.close()
            self._writer = None
            sync_file(path)
