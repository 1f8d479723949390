"""What travels between the processes of a job, as Arrow tables: Ray Data passes nothing else on.

    driver -> scorer      a group of units, described        units_to_table, units_from_table
    read task -> scorer   one unit, decoded, or its failure  columns_to_table, columns_from_table
    scorer -> driver      outcomes, samples of its machine   outcomes_to_table, outcomes_from_table

The columns of a decoded unit, one chunk each, in this order: ids [F] of [B] int32, int64 or uint64
("id:<f>:<column>"), dense features [N] of [B] float32 ("dense:<n>:<column>"), published columns
("copy:<column>"). All else is metadata. A scorer reads the arrays where they lie in the object
store, without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.errors import UnitFailedError
from pipeline.planning.units import Unit
from pipeline.publishing.records import Outcome, UnitError, UnitRecord
from pipeline.reading.arrow_file import one_chunk
from pipeline.reading.bad_rows import Finding
from pipeline.reading.unit_data import ReadFacts, UnitColumns
from pipeline.scoring.machine_watch import MachineSample

UNITS = "units"
UNIT_KEY = b"dpiframe.unit"
ERROR_KEY = b"dpiframe.error"
FACTS_KEY = b"dpiframe.facts"
FINDINGS_KEY = b"dpiframe.findings"
ID, DENSE, COPY = "id", "dense", "copy"

FINDING_SCHEMA = pa.schema([("row", pa.int64()), ("value", pa.string())])
FINDINGS = b"findings"
OUTCOME_SCHEMA = pa.schema([(name, pa.string()) for name in ("record", "error", "sample")])


def units_to_table(units: Sequence[Unit]) -> pa.Table:
    """The descriptions of units, a row each."""
    return pa.table({UNITS: [unit.model_dump_json() for unit in units]})


def units_from_table(table: pa.Table) -> list[Unit] | None:
    """The units of a `units_to_table`; None for any other table."""
    if table.column_names != [UNITS]:
        return None
    return [Unit.model_validate_json(text) for text in table.column(UNITS).to_pylist()]


def columns_to_table(unit: Unit, columns: UnitColumns) -> pa.Table:
    """A decoded unit; nothing is copied."""
    ids = zip(columns.id_names, columns.ids, strict=True)
    named = {f"{ID}:{f}:{name}": pa.array(values) for f, (name, values) in enumerate(ids)}
    named |= {f"{DENSE}:{n}:": pa.array(values) for n, values in enumerate(columns.dense)}
    published = columns.published
    named |= {f"{COPY}:{name}": published.column(name) for name in published.column_names}
    metadata: dict[bytes, str | bytes] = {
        UNIT_KEY: unit.model_dump_json(),
        FACTS_KEY: json.dumps(columns.facts),
    }
    if columns.findings:
        metadata[FINDINGS_KEY] = findings_to_ipc(columns.findings)
    return pa.table(named).replace_schema_metadata(metadata)


def failure_to_table(unit: Unit, error: UnitFailedError) -> pa.Table:
    """A unit that could not be read."""
    # One row, because Ray Data drops blocks without rows.
    metadata = {UNIT_KEY: unit.model_dump_json(), ERROR_KEY: json.dumps([error.kind, str(error)])}
    return pa.table({"failed": [True]}).replace_schema_metadata(metadata)


def unit_of_table(table: pa.Table) -> Unit:
    """The unit of a `columns_to_table` or `failure_to_table`."""
    return Unit.model_validate_json(table.schema.metadata[UNIT_KEY])


def columns_from_table(table: pa.Table) -> UnitColumns:
    """The decoded unit, whose arrays are read-only views of the table; or the UnitFailedError."""
    metadata = table.schema.metadata
    if ERROR_KEY in metadata:
        raise UnitFailedError(*json.loads(metadata[ERROR_KEY]))
    arrays = {
        name: one_chunk(column)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    ids = {name: array for name, array in arrays.items() if name.startswith(f"{ID}:")}
    dense = [array for name, array in arrays.items() if name.startswith(f"{DENSE}:")]
    published = {
        name.removeprefix(f"{COPY}:"): array
        for name, array in arrays.items()
        if name.startswith(f"{COPY}:")
    }
    return UnitColumns(
        facts=ReadFacts(*json.loads(metadata[FACTS_KEY])),
        id_names=[name.split(":", 2)[2] for name in ids],
        ids=[array.to_numpy(zero_copy_only=True) for array in ids.values()],
        dense=[array.to_numpy(zero_copy_only=True) for array in dense],
        published=pa.table(published),
        findings=findings_from_ipc(metadata[FINDINGS_KEY]) if FINDINGS_KEY in metadata else [],
    )


def findings_to_ipc(findings: Sequence[Finding]) -> bytes:
    """The findings as a compressed Arrow stream: a batch each, columns and reasons as metadata."""
    names = json.dumps([(finding.column, finding.reason) for finding in findings])
    schema = FINDING_SCHEMA.with_metadata({FINDINGS: names})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        for finding in findings:
            columns = [pa.array(finding.rows, pa.int64()), finding.values]
            stream.write_batch(pa.record_batch(columns, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def findings_from_ipc(data: bytes) -> list[Finding]:
    """The findings of a `findings_to_ipc`."""
    with pa.ipc.open_stream(data) as stream:
        names = json.loads(stream.schema.metadata[FINDINGS])
        return [
            Finding(column, batch.column("row").to_numpy(), reason, batch.column("value"))
            for (column, reason), batch in zip(names, stream, strict=True)
        ]


def outcomes_to_table(
    outcomes: Sequence[Outcome], samples: Sequence[MachineSample] = ()
) -> pa.Table:
    """Records, errors and samples, a row each."""
    rows = [
        {"record" if isinstance(outcome, UnitRecord) else "error": outcome.model_dump_json()}
        for outcome in outcomes
    ]
    rows += [{"sample": sample.model_dump_json()} for sample in samples]
    return pa.Table.from_pylist(rows, schema=OUTCOME_SCHEMA)


def outcomes_from_table(table: pa.Table) -> Iterator[Outcome | MachineSample]:
    """What an `outcomes_to_table` holds, in its order."""
    for row in table.to_pylist():
        if row["record"] is not None:
            yield UnitRecord.model_validate_json(row["record"])
        elif row["sample"] is not None:
            yield MachineSample.model_validate_json(row["sample"])
        else:
            yield UnitError.model_validate_json(row["error"])
