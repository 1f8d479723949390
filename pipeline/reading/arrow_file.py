"""Parquet files as pyarrow reads them, checked to be the files that were planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UnitFailedError
from pipeline.planning.arrow_schemas import without_arrow_schema
from pipeline.planning.columns import Columns
from pipeline.planning.partitions import partition_array
from pipeline.planning.units import Unit
from pipeline.reading.unit_file import LocalFile, UnitFile, unit_error

# What pyarrow says of a null in a column of fixed_size_list, which it writes but cannot read.
NULL_OF_FIXED_SIZE = "Expected all lists to be of size"


def load(
    opened: UnitFile, columns: Sequence[str], strings: Sequence[str]
) -> tuple[pa.Table, list[int]]:
    """Columns of a unit, and the number of rows of each of its row groups.

    Those of the `strings` that the file dictionary-encodes stay so. Raises UnitFailedError: the
    file was removed, is not the planned one any more, or is corrupt.
    """
    unit = opened.unit
    opened.check()
    where = f"{unit.path} (row groups {unit.first_row_group} to {unit.stop_row_group - 1})"
    try:
        table, group_rows = decode(opened, columns, strings)
    except FileNotFoundError as error:
        raise unit_error(unit, error) from None
    except MemoryError as error:  # pyarrow's is an ArrowException as well, but the file is whole
        raise UnitFailedError("io", f"no memory to read {where}: {error}") from error
    except (pa.ArrowException, OSError, IndexError, KeyError) as error:
        opened.check()
        if isinstance(error, OSError) and error.errno is not None:
            raise unit_error(unit, error) from error
        advice = "; write such a column as list" if NULL_OF_FIXED_SIZE in str(error) else ""
        raise UnitFailedError("corrupt", f"corrupt parquet: {where}: {error}{advice}") from error
    opened.check()
    if table.num_rows != unit.rows:
        raise UnitFailedError(
            "changed", f"{where} has {table.num_rows} rows, {unit.rows} were planned"
        )
    return table, group_rows


def decode(
    opened: UnitFile, columns: Sequence[str], strings: Sequence[str]
) -> tuple[pa.Table, list[int]]:
    """As `load`, but raises pyarrow's own errors."""
    unit = opened.unit
    groups = list(range(unit.first_row_group, unit.stop_row_group))
    footer = metadata(opened)
    kept = dictionaries(footer, groups, strings)
    with pq.ParquetFile(
        opened.source(),
        metadata=footer,
        pre_buffer=isinstance(opened, LocalFile),  # few large reads: for a network file system
        read_dictionary=kept,
        page_checksum_verification=True,  # of the pages that have one
    ) as file:
        table = file.read_row_groups(groups, columns=list(columns), use_threads=False)
    return table, [footer.row_group(group).num_rows for group in groups]


def metadata(opened: UnitFile) -> pq.FileMetaData:
    """The footer of a file, in a form that pyarrow takes."""
    try:
        with pq.ParquetFile(opened.source()) as file:
            return file.metadata
    except pa.ArrowNotImplementedError:  # a type that it does not know, of a column that is unused
        return without_arrow_schema(opened.native().footer)


def dictionaries(
    footer: pq.FileMetaData, groups: Sequence[int], strings: Sequence[str]
) -> list[str]:
    """Those of the `strings` that most data pages of these row groups dictionary-encode.

    The size shows it: a plain string takes four bytes for its length at least. Making a dictionary
    that the file lacks costs more than it saves.
    """
    wanted, kept = set(strings), []
    for c in range(footer.num_columns):
        # Of the schema, as others may be encrypted: Arrow ends the process at their chunks.
        name, kind = footer.schema.column(c).path, footer.schema.column(c).physical_type
        if name not in wanted or kind != "BYTE_ARRAY":
            continue
        chunks = [footer.row_group(group).column(c) for group in groups]
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        if size < 4 * sum(chunk.num_values for chunk in chunks):
            kept.append(name)
    return kept


def published_columns(
    opened: UnitFile, columns: Columns, copied: Mapping[str, np.ndarray]
) -> pa.Table:
    """The columns published beside the scores: those `copied` from the file already, and all
    others, which are read here. UnitFailedError.
    """
    copied = {name: pa.array(values) for name, values in copied.items()}
    copied |= partition_columns(opened.unit, columns)
    others = [name for name in columns.published if name not in copied]
    if others:
        table, _ = load(opened, others, ())
    else:
        opened.check()
    found = {
        name: copied[name] if name in copied else table.column(name) for name in columns.published
    }
    return published_table(found, columns)


def published_table(found: Mapping[str, pa.Array | pa.ChunkedArray], columns: Columns) -> pa.Table:
    """The published columns of those that were read, each in the type that it has in all parts."""
    arrays = {name: published_array(found[name]) for name in columns.published}
    for name, kind in columns.types.items():
        arrays[name] = arrays[name].cast(kind)
    return pa.table(arrays)


def partition_columns(unit: Unit, columns: Columns) -> dict[str, pa.Array]:
    """The columns [rows] that the names of the unit's folders give, by name."""
    return {
        name: partition_array(unit.partitions.get(name), kind, unit.rows)
        for name, kind in columns.partitions.items()
    }


def published_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as it is published: one chunk, without dictionary encoding."""
    array = one_chunk(column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The one chunk of a column; joins them if there are several."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
