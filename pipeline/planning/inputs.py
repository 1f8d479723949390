"""The input files of a job: found, their footers read once, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from pipeline.config.job import JobConfig
from pipeline.config.where import Value, meets, parse_where
from pipeline.errors import ConfigError, ContractError, ResumableError
from pipeline.lakehouse.addresses import is_table, parse_table
from pipeline.lakehouse.table import DataFile
from pipeline.planning.entries import (
    FoundFile,
    base_of,
    entries,
    is_hidden,
    is_parquet_name,
    is_pattern,
    lead_of,
)
from pipeline.planning.footers import (
    Footer,
    Limits,
    StatisticsProblem,
    Unreadable,
    read_footers,
)
from pipeline.planning.partitions import (
    Kind,
    partition_folder,
    partition_texts,
    partition_types,
    partition_values,
    typed_conditions,
    with_partitions,
)
from pipeline.planning.problems import ProblemList
from pipeline.planning.remote_inputs import list_objects
from pipeline.storage.address import is_remote


class InputFile(BaseModel):
    """One parquet file as its footer describes it. Times in nanoseconds, sizes in bytes; `etag`
    names the version of an object, and is empty for a file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    size: int
    mtime_ns: int
    etag: str = ""
    footer_sha256: str
    rows: int
    row_group_rows: tuple[int, ...]
    partitions: dict[str, Value] = {}  # of the folders' names, by column
    # Arrow schema (any: pyarrow has no types), the same object in all files that have the same;
    # partition columns stand behind those of the file
    arrow_schema: Any = Field(exclude=True, repr=False)
    problems: tuple[StatisticsProblem, ...] = Field(default=(), exclude=True, repr=False)
    encrypted: tuple[str, ...] = Field(default=(), exclude=True, repr=False)
    unknown: tuple[str, ...] = Field(default=(), exclude=True, repr=False)

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return len(self.row_group_rows)


class Quarantined(BaseModel):
    """Input that was left out because it cannot be read: a whole file, or a unit of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    reason: str
    unit: str | None = None
    first_row_group: int = 0
    stop_row_group: int = 0
    rows: int = 0


# One set for all files, as pydantic would make one for each.
_ALL_FIELDS = set(InputFile.model_fields)


class InputScan(NamedTuple):
    """Readable files sorted by path, and those that the policy `quarantine` leaves out."""

    files: list[InputFile]
    quarantined: list[Quarantined]
    partitions: dict[str, Kind]  # the types of partition columns
    held: frozenset[str]  # those of them that every file with rows holds as well


def scan_inputs(config: JobConfig, limits: Limits | None = None) -> InputScan:
    """Find the input and read every footer once; `limits`: see `FooterReader`.

    Raises ConfigError when a path or pattern finds nothing; ContractError naming the files that
    cannot be read, or are corrupt under the policy `fail`; ResumableError when a store is out of
    reach.
    """
    found, types = find_inputs(config)
    paths = [file.path for file in found]
    footers = read_footers(list(dict.fromkeys(paths)), limits or {})
    bad = {path: footers.bad[path] for path in paths if path in footers.bad}
    quarantine = config.on_corrupt_file == "quarantine"
    refused = {path: file for path, file in bad.items() if not (file.corrupt and quarantine)}
    if any(file.unreachable for file in refused.values()):
        raise ResumableError(_unreachable(refused))
    if refused:
        raise ContractError(_refusal(refused))
    held = _held(footers.good.values(), types)
    folders = {name: kind for name, kind in types.items() if name not in held}
    schemas: dict[int, pa.Schema] = {}
    files = {
        file: _input_file(file, footers.good[file.path], types, folders, schemas)
        for file in dict.fromkeys(found)
        if file.path in footers.good
    }
    return InputScan(
        files=[files[file] for file in found if file in files],
        quarantined=[Quarantined(path=path, reason=file.reason) for path, file in bad.items()],
        partitions=types,
        held=held,
    )


def _held(footers: Iterable[Footer], types: Mapping[str, Kind]) -> frozenset[str]:
    """The partition columns that every file with rows holds."""
    schemas = {id(footer.schema): footer.schema for footer in footers if any(footer.row_group_rows)}
    names = [frozenset(schema.names) for schema in schemas.values()]
    return frozenset(types).intersection(*names) if names else frozenset()


def list_inputs(config: JobConfig) -> list[str]:
    """The paths of `find_inputs`."""
    return [file.path for file in find_inputs(config)[0]]


def find_inputs(config: JobConfig) -> tuple[list[FoundFile], dict[str, Kind]]:
    """The files that the input gives and `where` leaves, sorted by path, and the partition columns
    of all that it gives.

    An entry of the list gives a file once; a file that two entries give comes twice.
    """
    found: list[FoundFile] = []
    folders: dict[str, str] = {}
    for pattern in entries(config.input):
        try:
            if is_table(pattern):
                found += map(_of_table, parse_table(pattern).files())
            elif is_remote(pattern):
                found += _remote(pattern, config)
            elif (path := _plain_file(pattern, folders)) is not None:
                found.append(_named_file(path, pattern, config))
            else:
                found += _expand(pattern, config)
        except OSError as error:
            raise ContractError(f"cannot look for input {pattern}: {error.strerror}") from None
        except ValueError as error:  # of a glob
            raise ConfigError(f"input pattern {pattern} is not valid: {error}") from None
    for file in found:
        if not file.path.isascii():
            _check_name(file.path)
    found.sort()
    try:
        texts = [partition_texts(file.below) for file in found]
        types = partition_types(texts)
        if config.where is not None:
            conditions = typed_conditions(parse_where(config.where), types)
            kept = [
                file
                for file, text in zip(found, texts, strict=True)
                if meets(conditions, partition_values(text, types))
            ]
            if not kept:
                raise ValueError(f"it leaves none of {len(found):,} files")
            return kept, types
    except ValueError as error:
        raise ConfigError(f"where or folder names of the input cannot be used: {error}") from None
    return found, types


def _of_table(file: DataFile) -> FoundFile:
    """A file of a table, whose partition stands in for folders."""
    name = file.path.rpartition("/")[2]
    folder = partition_folder(file.partition)
    return FoundFile(file.path, f"{folder}/{name}" if folder else name)


def _remote(entry: str, config: JobConfig) -> list[FoundFile]:
    """The objects that an address gives."""
    base, found = base_of(entry), list_objects(entry)
    if found == [base]:
        base = base.rpartition("/")[0]
    lead = lead_of(base, config.partition_base)
    return [FoundFile(path, lead + path[len(base) :].lstrip("/")) for path in found]


def _input_file(
    file: FoundFile,
    footer: Footer,
    types: dict[str, Kind],
    folders: dict[str, Kind],
    schemas: dict[int, pa.Schema],
) -> InputFile:
    """`folders`: the `types` of columns that folder names alone give. `schemas`: those with such
    columns, by the id() of the file's own.
    """
    if folders and id(footer.schema) not in schemas:
        schemas[id(footer.schema)] = with_partitions(footer.schema, folders)
    return InputFile.model_construct(
        _ALL_FIELDS,
        path=file.path,
        partitions=partition_values(partition_texts(file.below), types),
        size=footer.size,
        mtime_ns=footer.mtime_ns,
        etag=footer.etag,
        footer_sha256=footer.sha256,
        rows=sum(footer.row_group_rows),
        row_group_rows=footer.row_group_rows,
        arrow_schema=schemas.get(id(footer.schema), footer.schema),
        problems=footer.problems,
        encrypted=footer.encrypted,
        unknown=footer.unknown,
    )


def _refusal(refused: dict[str, Unreadable]) -> str:
    problems = ProblemList()
    for path, file in refused.items():
        problems.add(f"{path}: {file.reason}")
    advice = "repair or remove them"
    if any(file.corrupt for file in refused.values()):
        advice += ", or set on_corrupt_file to quarantine to leave corrupt files out"
    return f"{len(refused)} input file(s) cannot be read; {advice}:{problems}"


def _unreachable(refused: dict[str, Unreadable]) -> str:
    problems = ProblemList()
    for path, file in refused.items():
        problems.add(f"{path}: {file.reason}")
    return f"{len(refused)} input file(s) are out of reach; run the command again:{problems}"


def _plain_file(entry: str, folders: dict[str, str]) -> str | None:
    """What an entry that is the path of a file itself leads to; None of any other entry, which
    `_expand` looks at. One look at a file, as there may be many; `folders`: resolved before.
    """
    folder, name = os.path.split(entry)
    try:
        if not S_ISREG(os.lstat(entry).st_mode):
            return None
    except (OSError, ValueError):
        return None
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)  # noqa: PTH118


def _named_file(path: str, entry: str, config: JobConfig) -> FoundFile:
    """The file that an entry names."""
    name = entry.rpartition("/")[2]
    if config.partition_base is None:
        return FoundFile(path, name)
    return FoundFile(path, lead_of(str(Path(entry).parent), config.partition_base) + name)


def _expand(pattern: str, config: JobConfig) -> list[FoundFile]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        found = dict(sorted(_in_folder(path.resolve()), reverse=True))
        if not found:
            raise ConfigError(
                f"input folder {pattern} holds no *.parquet file, at any depth; give files of "
                f"other names by a pattern such as {path}/*"
            )
    elif path.exists():
        if not path.is_file():
            raise ConfigError(f"input {pattern} is neither a file nor a folder")
        pattern, found = str(path.parent), {str(path.resolve()): path.name}
    elif not is_pattern(pattern):
        raise ConfigError(f"input {pattern} does not exist (looked in {Path.cwd()})")
    else:
        found = dict(sorted(_matches(path.absolute()), reverse=True))
        if not found:
            raise ConfigError(f"input pattern {pattern} matches no file (looked in {Path.cwd()})")
    lead = lead_of(pattern, config.partition_base)
    return [FoundFile(path, lead + below) for path, below in found.items()]


def _matches(pattern: Path) -> Iterator[tuple[str, str]]:
    """Files that match, and parquet files below the folders that match, each with its path below
    the first wildcard's folder.
    """
    first = next(i for i, part in enumerate(pattern.parts) if is_pattern(part))
    base, rest = Path(*pattern.parts[:first]), Path(*pattern.parts[first:])
    hidden_too = any(is_hidden(part) for part in rest.parts)
    for path in base.glob(str(rest)):
        below = path.relative_to(base)
        if not hidden_too and any(is_hidden(part) for part in below.parts):
            continue
        if path.is_dir():
            yield from ((file, str(below / rest)) for file, rest in _in_folder(path.resolve()))
        else:
            _check_regular(path)
            yield _led_to(path), str(below)


def _in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    """Parquet files below a folder, each with its path below it; links are followed, but no folder
    is entered twice.
    """
    entered: set[tuple[int, int]] = set()
    waiting, cut = [str(folder)], len(str(folder).rstrip("/")) + 1
    while waiting:
        name = waiting.pop()
        try:
            stat = Path(name).stat()
            if (stat.st_dev, stat.st_ino) in entered:
                continue
            entered.add((stat.st_dev, stat.st_ino))
            with os.scandir(name) as listing:
                entries = [entry for entry in listing if not is_hidden(entry.name)]
        except OSError as error:
            raise ContractError(f"cannot list input folder {name}: {error.strerror}") from None
        for entry in entries:
            if entry.is_dir():
                waiting.append(entry.path)
            elif is_parquet_name(entry.name):
                if not entry.is_file():
                    _check_regular(Path(entry.path))
                linked = entry.is_symlink()
                path = _led_to(Path(entry.path)) if linked else entry.path
                yield path, entry.path[cut:]


def _led_to(path: Path) -> str:
    """The file that a path leads to; a link that leads nowhere is named itself."""
    with suppress(OSError, RuntimeError):  # RuntimeError: it leads to itself
        return str(path.resolve(strict=True))
    return str(path)


def _check_regular(path: Path) -> None:
    """Refuse a pipe or a device, whose read would block; a missing file is reported later."""
    if not path.is_file() and path.exists():
        raise ConfigError(f"input {path} is not a file; remove it from the input")


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"input {path!r}: the file's name is not UTF-8; rename it") from None
