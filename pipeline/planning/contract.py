"""Checks the contract of the input, as far as footers tell, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dpiframe_core.features.lists import is_list
from dpiframe_core.features.numbers import is_number
from dpiframe_core.features.schema import FeatureSchema, nearest
from dpiframe_core.model.spec import ModelSpec
from pipeline.config.job import JobConfig
from pipeline.errors import ConfigError, ContractError
from pipeline.planning.columns import Columns, choose_columns, element_type, feature_columns
from pipeline.planning.common_types import common_type, type_family
from pipeline.planning.footers import Limits, StatisticsProblem
from pipeline.planning.inputs import InputFile
from pipeline.planning.problems import ProblemList

_FLOAT32 = float(np.finfo(np.float32).max)


class _Alike(NamedTuple):
    """Files that have one schema, represented by the first."""

    first: InputFile
    num_files: int

    def __str__(self) -> str:
        others = f" (and {self.num_files - 1} more like it)" if self.num_files > 1 else ""
        return f"{self.first.path}{others}"


def column_limits(spec: ModelSpec, schema: FeatureSchema | None, config: JobConfig) -> Limits:
    """The columns whose footer statistics are checked, in either form, with the allowed range.

    Empty if bad rows are rejected, because that is done row by row while reading. Lists are left
    out: their statistics count elements beyond a list's length, which are not read.
    """
    if config.on_bad_row == "reject":
        return {}
    limits: dict[str, tuple[float, float] | None] = {}
    elements = _elements(spec)
    for name in spec.dense:
        if name not in elements:
            limits[config.field_columns.get(name, name)] = (-_FLOAT32, _FLOAT32)
    for column, rows in _table_rows(spec, config).items():
        limits[column] = (0, rows - 1)
    for field in spec.fields:
        if field.name not in elements and field.period is not None:  # nulls
            limits.setdefault(feature_columns(spec, config)[field.name], None)
    for key in config.key_columns or (schema.key_columns if schema else ()):
        limits.setdefault(key, None)
    return limits


def check_contract(
    files: Sequence[InputFile], spec: ModelSpec, schema: FeatureSchema | None, config: JobConfig
) -> Columns:
    """Check columns, types, nulls and ids of all files; returns the columns to read.

    Files without rows are not checked, unless all are. Raises ContractError with all problems found
    (the first 20 listed), ConfigError when the configuration does not fit the bundle.
    """
    groups = _group_by_schema(files)
    columns = choose_columns([g.first.arrow_schema for g in groups], spec, schema, config)
    _check_oov(spec, config)
    problems = ProblemList()
    for group in groups:
        for text in _schema_problems(group.first.arrow_schema, columns, schema):
            problems.add(f"{group}: {text}")
        for text in _unusable(group.first.arrow_schema, columns, config):
            problems.add(f"{group}: {text}")
    types = _published_types(groups, columns, problems)
    for text in _unreadable_columns(files, columns):
        problems.add(text)
    for text in _statistics_problems(files, columns, spec, config):
        problems.add(text)
    if problems:
        raise ContractError(
            f"the input does not fit the bundle ({columns.form} form), "
            f"{len(problems)} problem(s):{problems}"
        )
    return columns.model_copy(update={"types": types}) if types else columns


def _group_by_schema(files: Sequence[InputFile]) -> list[_Alike]:
    groups: dict[int, _Alike] = {}  # by id(): files of one schema share the object
    for file in [file for file in files if file.rows] or files:
        group = groups.get(id(file.arrow_schema), _Alike(file, 0))
        groups[id(file.arrow_schema)] = group._replace(num_files=group.num_files + 1)
    return list(groups.values())


def _table_rows(spec: ModelSpec, config: JobConfig) -> dict[str, int]:
    """Id column -> rows of its table (of the smallest, when fields share the column); no lists, and
    none whose ids do not end with the table.
    """
    rows: dict[str, int] = {}
    columns, elements = feature_columns(spec, config), _elements(spec)
    for field in spec.fields:
        if field.name not in elements and field.period is None:
            column = columns[field.name]
            rows[column] = min(field.rows, rows.get(column, field.rows))
    return rows


def _elements(spec: ModelSpec) -> set[str]:
    """The features that are elements of a list."""
    return {name for each in spec.lists for name in each.features}


def _check_oov(spec: ModelSpec, config: JobConfig) -> None:
    without = spec.without_oov_row
    if config.on_bad_id == "oov" and without:
        raise ConfigError(
            "on_bad_id: oov needs a declared oov_row in every field, and the bundle has none in "
            f"{', '.join(without[:10])}; export it with oov_row, or set on_bad_id to bad_row"
        )


def _schema_problems(
    found: pa.Schema, columns: Columns, schema: FeatureSchema | None
) -> Iterator[str]:
    copied = columns.published
    yield from _absent(found, copied)
    if columns.form == "raw" and schema is not None:
        yield from schema.check(found)
        return
    yield from _absent(found, (*columns.id_columns, *columns.dense_columns))
    for column in columns.scalar_ids:
        kind = _type(found, column)
        if kind is not None and not is_number(kind):
            yield (
                f"column {column}: type is {kind}, expected integer ids, or whole numbers of "
                "another numeric type"
            )
    for column in columns.scalar_dense:
        kind = _type(found, column)
        if kind is not None and not is_number(kind):
            yield (
                f"column {column}: type is {kind}, expected a number; write it as the one that the "
                "model was trained with"
            )
    for each in columns.lists:
        kind = _type(found, each.column)
        accepted = is_number if each.dense else pa.types.is_integer
        if kind is None or pa.types.is_null(element_type(kind)):  # no list has an element
            continue
        if not (is_list(kind) and accepted(kind.value_type)):
            what = "numbers" if each.dense else "integer ids (int8 to uint64)"
            yield (
                f"column {each.column}: type is {kind}, expected a list of {what}, as the model "
                f"reads {len(each.places)} elements of it"
            )


def _unusable(found: pa.Schema, columns: Columns, config: JobConfig) -> Iterator[str]:
    """Columns that the end of the job could not evaluate by, or look for duplicates in."""
    for label in dict.fromkeys((config.label_column, *config.output_labels.values())):
        kind = _type(found, label) if label else None
        if kind is not None and not _is_label(kind):
            yield f"column {label}: type is {kind}, expected labels 0 and 1 as numbers or booleans"
    uses: dict[str | None, str] = {config.group_column: "group_column needs"}
    uses |= dict.fromkeys(config.slice_columns, "slice_columns need")
    if config.check_keys != "off":
        uses |= dict.fromkeys(columns.key_columns, "a key that is checked (check_keys) needs")
    for column, needs in uses.items():
        kind = _type(found, column) if column else None
        stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if stored is not None and pa.types.is_nested(stored):
            yield f"column {column}: type is {kind}, but {needs} one value a row"


def _is_label(kind: pa.DataType) -> bool:
    return is_number(kind) or bool(pa.types.is_null(kind))


def _absent(found: pa.Schema, columns: Sequence[str]) -> Iterator[str]:
    for column in dict.fromkeys(columns):
        times = len(found.get_all_field_indices(column))
        if times == 0:
            close = nearest(column, found.names)
            hint = f" (nearest is {close[0]})" if close else ""
            yield f"column {column}: missing{hint}"
        elif times > 1:
            yield (
                f"column {column}: there are {times} of this name, expected one (a folder name "
                f"such as {column}=... counts as one; it does not if the input is that folder)"
            )


def _type(found: pa.Schema, column: str) -> pa.DataType | None:
    indices = found.get_all_field_indices(column)
    return found.field(indices[0]).type if len(indices) == 1 else None


def _published_types(
    groups: list[_Alike], columns: Columns, problems: ProblemList
) -> dict[str, pa.DataType]:
    """The type of each published column that files store in several; `problems` gets those that
    need more than one, as the parts of the output would have several.
    """
    types = {}
    for column in columns.published:
        found: dict[str, tuple[_Alike, pa.DataType]] = {}
        for group in groups:
            kind = _type(group.first.arrow_schema, column)
            if kind is not None:
                found.setdefault(type_family(kind), (group, kind))
        if len(found) < 2:
            continue
        common = common_type([kind for _, kind in found.values()])
        if common is not None:
            types[column] = common.value_type if pa.types.is_dictionary(common) else common
            continue
        first, *others = found.values()
        for group, kind in others:
            problems.add(
                f"{group}: column {column} is {kind}, but {first[1]} in {first[0]}; "
                "write all files with one type"
            )
    return types


def _unreadable_columns(files: Sequence[InputFile], columns: Columns) -> Iterator[str]:
    """Columns that are read, but encrypted, at which Arrow would end the process, or of a type that
    pyarrow does not know.
    """
    read = columns.read_columns
    for file in files:
        for column in sorted(set(file.encrypted).intersection(read)):
            yield (
                f"{file.path}: column {column} is encrypted, which is not supported; write it "
                "without encryption"
            )
        for column in sorted(set(file.unknown).intersection(read)):
            yield (
                f"{file.path}: column {column} is of a type that pyarrow does not know, such as an "
                "integer of 128 bits; write it as int64, or as a decimal"
            )


def _statistics_problems(
    files: Sequence[InputFile], columns: Columns, spec: ModelSpec, config: JobConfig
) -> Iterator[str]:
    rows = _table_rows(spec, config)
    advice = "fix the encoding, or set on_bad_row to reject"
    if not spec.without_oov_row:
        advice = "fix the encoding, or set on_bad_id to oov"
    seen: set[str] = set()
    for file in files:
        if file.problems and file.path not in seen:
            seen.add(file.path)
            for problem in file.problems:
                text = _explain(problem, columns, rows, config, advice)
                if text is not None:
                    yield f"{file.path}, {text}"


def _explain(
    problem: StatisticsProblem,
    columns: Columns,
    rows: dict[str, int],
    config: JobConfig,
    id_advice: str,
) -> str | None:
    """A sentence, or None if the use of the column allows the problem."""
    column, value = problem.column, problem.value
    more = f" (and in {problem.row_groups - 1} more)" if problem.row_groups > 1 else ""
    where = f"row group {problem.row_group}{more}: column {column}"
    fix = "fix the data, or set on_bad_row to reject"
    if problem.kind == "null":
        if column in columns.key_columns:
            return f"{where} is a key and holds {value} null(s); {fix}"
        if column in columns.id_columns or column in columns.dense_columns:
            return f"{where} holds {value} null(s), and the encoded form has none; {fix}"
        return None
    if column in columns.id_columns:
        end = rows.get(column)
        if config.on_bad_id == "oov" or end is None or 0 <= value < end:  # of another bundle
            return None
        if config.segments is not None:  # its row may be another bundle's, which scoring tells
            return None
        valid = f"outside its table of {end} rows (valid: 0 to {end - 1})"
        return f"{where} holds id {value}, {valid}; {id_advice}"
    if column in columns.dense_columns and not abs(value) <= _FLOAT32:
        return f"{where} holds {value}, which float32 cannot hold; {fix}"
    return None
